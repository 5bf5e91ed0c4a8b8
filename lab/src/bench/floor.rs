//! The native floor of a bulk transfer: one memcpy on this machine.

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
