//! Whether a fence of this machine's processor holds for the threads of its host, on
//! which the protocol of command queues and wake requests relies (N12, N17).
//!
//! ```text
//!   this process                       a thread of the host
//!     mine := round                      theirs := turn
//!     fence                              fence
//!     note what theirs is                note what mine is
//! ```
//! Both go on for as long as they like: if this process saw a turn as the last, the
//! host's next turn must see at least this process's round.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_apps::fences::{END, MINE, START, THEIRS};
use qnic_host::SharedRegion;

use crate::proc_status::frames;
use qnic_apps::demo::node::say;

/// What orders the load behind the store.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Fence {
    /// The fence of the guest library
    Library,
    /// An atomic exchange, as other drivers of the kernel have it
    Exchange,
}

#[derive(Args)]
pub(crate) struct Options {
    /// What orders the load behind the store
    #[arg(long, value_enum)]
    fence: Fence,
    /// How often to store and load
    #[arg(long, default_value_t = 1_000_000)]
    rounds: u32,
    /// The file for what was seen: pairs of a turn's last round and the turn
    #[arg(long)]
    seen: PathBuf,
}

/// Says where its page is, waits for the host, and notes what it sees.
pub(crate) fn run(options: &Options) -> Result<()> {
    let page = SharedRegion::anonymous(PAGE_SIZE).context("allocate")?;
    page.clear();
    say("page", physical_address(page.address())?)?;
    while page.load_u64(START, Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let seen = match options.fence {
        Fence::Library => rounds(&page, options.rounds, || page.fence()),
        Fence::Exchange => {
            let word = AtomicU64::new(0);
            rounds(&page, options.rounds, || {
                black_box(word.swap(1, Ordering::SeqCst));
            })
        }
    };
    page.store_u64(END, 1, Ordering::Release);
    let words = seen.as_flattened().iter();
    let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&options.seen, bytes)
        .with_context(|| format!("write {}", options.seen.display()))
}

/// The last round that saw a turn of the host, and the turn, for each turn.
fn rounds(page: &SharedRegion, rounds: u32, fence: impl Fn()) -> Vec<[u32; 2]> {
    let mut seen = Vec::new();
    let mut last = [0, 0];
    for round in 1..=rounds {
        page.store_u64(MINE, round.into(), Ordering::Relaxed);
        fence();
        let turn = page.load_u64(THEIRS, Ordering::Relaxed) as u32;
        if turn != last[1] {
            seen.push(last);
        }
        last = [round, turn];
    }
    seen.push(last);
    seen
}

/// Where the kernel has put a page of this process.
fn physical_address(address: u64) -> Result<u64> {
    let frames = frames(address as usize, PAGE_SIZE)?;
    let frame = frames.first().copied().unwrap_or_default();
    ensure!(frame != 0, "only root may know where a page is");
    Ok(frame * PAGE_SIZE as u64)
}
