//! A process that writes random bytes all over its own window, command queue included:
//! neither the NIC nor any other process may take harm.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use qnic::Nic;
use qnic_abi::shared::Ordering;
use qnic_abi::window::WINDOW_BYTES;
use qnic_apps::demo::pattern;

use crate::raw::RawProcess;
use qnic_apps::demo::node::say;

#[derive(Args)]
pub(crate) struct Options {
    /// How long to write, in milliseconds
    #[arg(long, default_value_t = 2000)]
    milliseconds: u64,
    /// Seed of the bytes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Writes, rings, resets its queue, and writes on.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let mut raw = RawProcess::register(&nic)?;
    let start = Instant::now();
    let mut rounds = 0u64;
    while start.elapsed() < Duration::from_millis(options.milliseconds) {
        let garbage = pattern::bytes(options.seed.wrapping_add(rounds), WINDOW_BYTES);
        for (index, mut word) in pattern::words(&garbage).enumerate() {
            // Every other round looks like commands, so that the NIC reads on.
            if rounds % 2 == 1 && index % 24 == 16 {
                word = word & !0xffff_ffff | 0x0201 | (word & 1);
            }
            let window = raw.process.window();
            window.store_u64(index * 8, word, Ordering::Release);
        }
        raw.process.ring_doorbell();
        raw.reset()?;
        rounds += 1;
    }
    say("fuzzed", rounds)
}
