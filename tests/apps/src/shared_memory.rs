//! A ping-pong and copies through memory that two programs map, with no NIC between them: what a
//! device process that copies is compared with.
//!
//! ```text
//!   word 0    the number of the ball, by this side      ──►  the echo waits for it
//!   word 8    the same number, by the echo              ◄──
//!   page 1    where this side copies to
//! ```
//! The two words are in cache lines of their own. The last number ends the echo.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::{BenchRow, Latency};
use serde_json::json;

use crate::floor;
use crate::mapping::{Mapping, READ_WRITE};
use qnic_apps::demo::node::say_line;

const BALL: usize = 0;
const ANSWER: usize = 8;
/// The number that ends the echo.
const END: u64 = u64::MAX;

/// Bytes that are mapped.
const LENGTH: usize = 1 << 20;

/// Longest time that either waits for the other, and looks between two looks at the clock.
const LIMIT: Duration = Duration::from_secs(30);
const LOOKS: u32 = 1 << 16;

#[derive(Args)]
pub(crate) struct Options {
    /// What both map: a memory region of a PCI device, or a file of 1 MiB
    #[arg(long)]
    file: PathBuf,
    /// Answer the balls of the other program
    #[arg(long)]
    echo: bool,
    /// Bytes of a copy
    #[arg(long, default_value_t = 65_536)]
    size: usize,
    /// Balls
    #[arg(long, default_value_t = 20_000)]
    balls: u64,
    /// Copies
    #[arg(long, default_value_t = 1000)]
    copies: usize,
}

/// Answers balls until the last one, or measures and says a [`BenchRow`].
pub(crate) fn run(options: &Options) -> Result<()> {
    let memory = map(&options.file)?;
    if options.echo {
        memory.store(ANSWER, 0);
        memory.store(BALL, 0);
        say_line(&json!({ "serving": true }))?;
        return echo(&memory);
    }
    say_line(&measure(&memory, options)?)
}

fn map(path: &Path) -> Result<Mapping> {
    let open = File::options().read(true).write(true).open(path);
    let file = open.with_context(|| format!("open {}", path.display()))?;
    let length = file.metadata()?.len();
    ensure!(length >= LENGTH as u64, "{} is too short", path.display());
    let mapping = Mapping::new(LENGTH, READ_WRITE, libc::MAP_SHARED, Some(file.as_raw_fd()));
    mapping.with_context(|| format!("map {}", path.display()))
}

fn echo(memory: &Mapping) -> Result<()> {
    let mut last = 0;
    while last != END {
        last = wait(memory, BALL, |ball| ball != last)?;
        memory.store(ANSWER, last);
    }
    Ok(())
}

fn measure(memory: &Mapping, options: &Options) -> Result<BenchRow> {
    let source = vec![0x5a; options.size];
    let mut row = BenchRow::new("ivshmem", options.size);
    let mut times = Vec::new();
    for ball in 1..=options.balls {
        let start = Instant::now();
        memory.store(BALL, ball);
        wait(memory, ANSWER, |answer| answer == ball)?;
        times.push(start.elapsed().as_nanos() as u64 / 2);
    }
    row.latency.extend(Latency::from_ns(times));
    let copies = floor::memcpy_to_mapping_mb_s(memory, PAGE_SIZE, &source, options.copies)?;
    row.mb_s.push(copies);
    memory.store(BALL, END);
    Ok(row)
}

/// Spins until a word is one that is wanted.
fn wait(memory: &Mapping, word: usize, wanted: impl Fn(u64) -> bool) -> Result<u64> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        for _ in 0..LOOKS {
            let value = memory.load(word);
            if wanted(value) {
                return Ok(value);
            }
            std::hint::spin_loop();
        }
        // The two may have one processor.
        std::thread::yield_now();
    }
    bail!("the other program has done nothing in {LIMIT:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_measure_through_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options = Options {
            file: file.path().to_owned(),
            echo: false,
            size: 4096,
            balls: 3,
            copies: 2,
        };
        assert!(map(&options.file).is_err());
        file.as_file().set_len(LENGTH as u64).unwrap();
        let [ours, theirs] = [0, 1].map(|_| map(&options.file).unwrap());
        let row = std::thread::scope(|scope| {
            let echo = scope.spawn(|| echo(&theirs));
            let row = measure(&ours, &options).unwrap();
            echo.join().unwrap().unwrap();
            row
        });
        assert_eq!(row.latency[0].rounds, 3);
        assert!(row.mb_s[0] > 0.0);
        let written = std::fs::read(file.path()).unwrap();
        assert_eq!(written[PAGE_SIZE..2 * PAGE_SIZE], [0x5a; 4096]);
        assert_eq!(written[2 * PAGE_SIZE], 0);
        assert!(floor::memcpy_to_mapping_mb_s(&ours, PAGE_SIZE, &[0; LENGTH], 1).is_err());
    }
}
