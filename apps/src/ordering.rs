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

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_apps::fences::{END, MINE, START, THEIRS};
use qnic_host::SharedRegion;
use serde_json::json;

/// What stands between the store and the load.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Way {
    /// The fence of the guest library
    Library,
    /// An atomic exchange, as other drivers of the kernel have it
    Exchange,
}

/// Options of the program.
#[derive(Args)]
pub(crate) struct Options {
    /// What stands between the store and the load
    #[arg(long, value_enum)]
    way: Way,
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
    println!("{}", json!({"page": physical_address(page.address())?}));
    while page.load_u64(START, Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let seen = match options.way {
        Way::Library => rounds(&page, options.rounds, || page.fence()),
        Way::Exchange => {
            let word = AtomicU64::new(0);
            rounds(&page, options.rounds, || {
                black_box(word.swap(1, Ordering::SeqCst));
            })
        }
    };
    page.store_u64(END, 1, Ordering::Release);
    let bytes: Vec<u8> = seen
        .iter()
        .flat_map(|pair| pair.map(u32::to_le_bytes))
        .flatten()
        .collect();
    File::create(&options.seen)
        .and_then(|mut file| file.write_all(&bytes))
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
    const FRAME: u64 = (1 << 55) - 1;
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap")
        .and_then(|map| map.read_exact_at(&mut entry, address / PAGE_SIZE as u64 * 8))
        .context("read /proc/self/pagemap")?;
    let frame = u64::from_le_bytes(entry) & FRAME;
    ensure!(frame != 0, "only root may know where a page is");
    Ok(frame * PAGE_SIZE as u64)
}
