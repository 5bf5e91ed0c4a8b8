//! Native floors on this machine: of a bulk transfer, one memcpy; of what no cache holds any more, one
//! word of memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result};
use qnic_apps::walk::{self, WALK};

/// Two pieces of memory to copy between.
pub(super) struct Floor {
    source: Vec<u8>,
    destination: std::cell::RefCell<Vec<u8>>,
}

impl Floor {
    /// Memory for copies of up to `size` bytes, and for a walk.
    pub(super) fn new(size: usize) -> Result<Self> {
        let mut source = vec![0; size.max(WALK)];
        // Pages that were written to, so that they are not all the same zero page.
        let random = File::open("/dev/urandom").context("open /dev/urandom")?;
        random
            .read_exact_at(&mut source, 0)
            .context("read /dev/urandom")?;
        Ok(Floor {
            destination: std::cell::RefCell::new(source.clone()),
            source,
        })
    }

    /// MB/s of copies of `size` bytes, 64 MiB in all, where a stream's transfers lie.
    pub(super) fn memcpy_mb_s(&self, size: usize) -> f64 {
        let size = size.clamp(1, self.source.len());
        let count = ((64 << 20) / size).clamp(4, 20_000);
        let mut destination = self.destination.borrow_mut();
        let start = Instant::now();
        for at in walk::offsets(size, count) {
            let range = at..at + size;
            destination[range.clone()].copy_from_slice(&self.source[range.clone()]);
            std::hint::black_box(&mut destination[range]);
        }
        (size * count) as f64 / start.elapsed().as_secs_f64() / 1e6
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Lines that are gone through: 64 MiB, more than caches have for one of many.
const LINES: usize = 1 << 20;

/// The line behind one, in an order that no prefetcher knows: a congruential generator whose period is
/// the number of lines (Hull and Dobell).
fn after(line: usize) -> usize {
    (line.wrapping_mul(0x0019_660d) + 0x3c6e_f35f) % LINES
}

/// Nanoseconds for a word that no cache holds: each tells where the next one is, so that none can be
/// fetched before.
pub(super) fn cold_word_ns() -> f64 {
    const WORDS: usize = LINE / size_of::<u32>();
    let mut memory = vec![0u32; LINES * WORDS];
    for line in 0..LINES {
        memory[line * WORDS] = after(line) as u32;
    }
    let start = Instant::now();
    let mut line = 0;
    for _ in 0..LINES {
        line = memory[line * WORDS] as usize;
    }
    let elapsed = start.elapsed();
    std::hint::black_box(line);
    elapsed.as_nanos() as f64 / LINES as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_gone_through() {
        let mut seen = vec![false; LINES];
        let mut line = 0;
        for _ in 0..LINES {
            seen[line] = true;
            line = after(line);
        }
        assert_eq!(line, 0);
        assert!(seen.into_iter().all(|seen| seen));
        assert!(cold_word_ns() > 0.0);
    }
}
