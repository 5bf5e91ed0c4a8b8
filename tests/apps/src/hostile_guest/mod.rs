//! A guest whose kernel is hostile (X8): a program with all rights that takes the device from its
//! driver and goes at it by itself, from a seed.
//!
//! ```text
//!   [pci]     sysfs: unbind, configuration space, BARs mapped
//!   [device]  registers, queues, SRAM, doorbells; a start and a reset
//!   [arena]   pages of this guest whose physical addresses are known: rings, buffers
//!   [commands] commands of a process that are right
//!   [attack]  what is done with all this, and with queue pairs of verbs
//! ```
//! One thing it does not do, since QEMU itself does not survive it
//! ([security.md](../../../../docs/security.md)): it lets QEMU map the SRAM before it resets the
//! device. Nor does it have the device write into memory of this guest's kernel: addresses are
//! those of the arena, or of nothing.

mod arena;
mod attack;
mod commands;
mod device;
mod pci;

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use attack::Attack;
use qnic_apps::demo::node::say;

#[derive(Args)]
pub(crate) struct Options {
    /// How long to go on, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of all that it does
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Flood the connection managers of other nodes, and do nothing else
    #[arg(long)]
    flood: bool,
}

/// How often what was done.
#[derive(Debug, Default, Serialize)]
struct Done {
    starts: u64,
    /// Starts whose SRAM came.
    mapped: u64,
    resets: u64,
    rebinds: u64,
    /// Times that the device was switched off on its bus.
    switched_off: u64,
    /// Times that the SRAM was moved.
    moves: u64,
    requests: u64,
    commands: u64,
    /// Contexts that commands named.
    contexts: u64,
    /// Completions seen of messages that went well, and doorbells of contexts that say so.
    completions: u64,
    contexts_done: u64,
    /// Queue pairs of verbs that were asked for, work requests that stood in their rings, and those that were done.
    pairs: u64,
    work_requests: u64,
    work_done: u64,
    /// Queue pairs that have exchanged a message before all chance, and those of them that nonsense in their rings has
    /// let fail.
    pairs_connected: u64,
    pairs_failed: u64,
    /// Messages sent to connection managers.
    management_messages: u64,
    doorbells: u64,
    sram_bytes: u64,
    config_accesses: u64,
    faults_answered: u64,
}

/// Attacks until the time is over, and leaves the device to its driver.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut attack = Attack::new(options.seed)?;
    say("attacking", std::process::id())?;
    let end = Instant::now() + Duration::from_secs(options.seconds);
    if options.flood {
        attack.flood(end)?;
        return say("attacked", attack.end()?);
    }
    attack.in_order()?;
    while Instant::now() < end {
        attack.round()?;
    }
    say("attacked", attack.end()?)
}
