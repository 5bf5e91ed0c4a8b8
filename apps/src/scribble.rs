//! A process that writes garbage all over its own window: the NIC must take no
//! harm, and neither must anybody else.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use qnic::Nic;
use qnic_abi::shared::Ordering;
use qnic_abi::window::WINDOW_BYTES;
use qnic_apps::pattern;

use crate::raw::RawProcess;

/// Options of the scribbler.
#[derive(Args)]
pub(crate) struct Options {
    /// How long to scribble, in milliseconds
    #[arg(long, default_value_t = 2000)]
    milliseconds: u64,
    /// Seed of the garbage
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Scribbles, rings, resets its queue, and scribbles on.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let mut raw = RawProcess::register(&nic)?;
    let start = Instant::now();
    let mut rounds = 0u64;
    while start.elapsed() < Duration::from_millis(options.milliseconds) {
        let garbage = pattern::bytes(options.seed.wrapping_add(rounds), WINDOW_BYTES);
        for (index, bytes) in garbage.chunks_exact(8).enumerate() {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            let mut word = u64::from_le_bytes(eight);
            // Every other round looks like commands, so that the NIC reads on.
            if rounds % 2 == 1 && index % 24 == 16 {
                word = word & !0xffff_ffff | 0x0201 | (word & 1);
            }
            raw.process
                .window()
                .store_u64(index * 8, word, Ordering::Release);
        }
        raw.process.ring_doorbell();
        raw.reset()?;
        rounds += 1;
    }
    println!("{}", serde_json::json!({"scribbled": rounds}));
    Ok(())
}
