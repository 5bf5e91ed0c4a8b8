//! What 4 KiB cost on a block device, without the page cache: one at a time, and many at once.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_apps::report::{DiskRow, Latency};
use qnic_config::ByteSize;

use qnic_apps::demo::node::say_line;

/// Bytes of a page.
const PAGE: usize = 4096;

#[derive(Args)]
pub(crate) struct Options {
    /// The block device; what is on it is lost
    #[arg(long)]
    device: PathBuf,
    /// Part of it that is used, from its start
    #[arg(long)]
    size: ByteSize,
    /// Writes all of it first: what was never written may cost nothing to read
    #[arg(long)]
    fill: bool,
    /// Pages that are read, and written, one at a time
    #[arg(long, default_value_t = 500)]
    single: usize,
    /// Pages that each thread reads, and writes
    #[arg(long, default_value_t = 100)]
    each: usize,
    /// Threads at once
    #[arg(long, default_value_t = 16)]
    threads: u64,
}

/// A page at a page border.
struct Page(Vec<u8>);

impl Page {
    fn new() -> Self {
        Page(vec![0; 2 * PAGE])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(PAGE);
        &mut self.0[start..start + PAGE]
    }
}

/// Says a [`DiskRow`] for reads and one for writes.
pub(crate) fn run(options: &Options) -> Result<()> {
    let pages = options.size.0 / PAGE as u64;
    ensure!(pages > 0, "the device has at least a page");
    let mut open = OpenOptions::new();
    open.read(true).write(true).custom_flags(libc::O_DIRECT);
    let path = options.device.display();
    let device = open.open(&options.device);
    let device = device.with_context(|| format!("open {path}"))?;
    if options.fill {
        fill(&device, pages).context("fill the device")?;
    }
    for writes in [true, false] {
        let times = some(&device, pages, options.single, 1, writes)?;
        let start = Instant::now();
        let all = std::thread::scope(|scope| {
            let thread = |seed| {
                let device = &device;
                scope.spawn(move || some(device, pages, options.each, seed, writes))
            };
            let threads: Vec<_> = (0..options.threads).map(|it| thread(2 + it)).collect();
            let mut all = 0;
            for thread in threads {
                let times = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                all += times?.len();
            }
            Ok::<_, anyhow::Error>(all)
        })?;
        say_line(&DiskRow {
            writes,
            latency: Latency::from_ns(times).context("no page was moved")?,
            each_second: all as f64 / start.elapsed().as_secs_f64(),
        })?;
    }
    Ok(())
}

/// Writes every page.
fn fill(device: &File, pages: u64) -> Result<()> {
    let mut page = Page::new();
    for at in 0..pages {
        page.bytes()[..8].copy_from_slice(&at.to_le_bytes());
        device.write_all_at(page.bytes(), at * PAGE as u64)?;
    }
    Ok(())
}

/// Moves so many pages, anywhere; how long each took, in nanoseconds. What is read is compared:
/// each page has its own number.
fn some(device: &File, pages: u64, count: usize, seed: u64, writes: bool) -> Result<Vec<u64>> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut page = Page::new();
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let at = chance.u64(..pages);
        page.bytes()[..8].copy_from_slice(&at.to_le_bytes());
        let start = Instant::now();
        match writes {
            true => device.write_all_at(page.bytes(), at * PAGE as u64),
            false => device.read_exact_at(page.bytes(), at * PAGE as u64),
        }?;
        times.push(start.elapsed().as_nanos() as u64);
        ensure!(
            page.bytes()[..8] == at.to_le_bytes(),
            "page {at} is another one"
        );
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_at_page_borders() {
        assert!((0..20).all(|_| Page::new().bytes().as_ptr().align_offset(PAGE) == 0));
    }

    #[test]
    fn a_page_of_another_place_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        fill(&file, 4).unwrap();
        assert_eq!(some(&file, 4, 10, 7, true).unwrap().len(), 10);
        assert_eq!(some(&file, 4, 10, 8, false).unwrap().len(), 10);
        file.write_all_at(&[9; 4 * PAGE], 0).unwrap();
        assert!(some(&file, 4, 10, 8, false).is_err());
    }
}
