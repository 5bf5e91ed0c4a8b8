//! The floor of a bulk transfer: one memcpy between memory of the same kind.

#![allow(unsafe_code)]

use std::time::Instant;

use anyhow::{ensure, Result};
use qnic::Buffer;
use qnic_apps::walk::{self, WALK};

use crate::mapping::Mapping;

/// MB/s of `count` copies of `size` bytes, which walk through both buffers from `offset` on.
pub(crate) fn memcpy_mb_s(
    to: &Buffer,
    from: &Buffer,
    offset: usize,
    size: usize,
    count: usize,
) -> Result<f64> {
    let end = offset.checked_add(size.max(WALK));
    ensure!(
        end.is_some_and(|end| end <= to.len() && end <= from.len()),
        "copies of {size} bytes from {offset} on are outside of the buffers"
    );
    ensure!(to.address() != from.address(), "one buffer is no copy");
    let start = Instant::now();
    for at in walk::offsets(size, count) {
        let offset = offset + at;
        // SAFETY: both ranges are within what was checked against their buffers, which are
        // different mappings and stay alive for the call. The caller runs this
        // while no transfer is under way, so nothing else writes to them.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr().add(offset),
                std::hint::black_box(to.as_ptr().add(offset)),
                size,
            );
        }
    }
    Ok((size * count) as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// MB/s of `count` copies of `from` to `offset` of a mapping that another process maps, too.
pub(crate) fn memcpy_to_mapping_mb_s(
    to: &Mapping,
    offset: usize,
    from: &[u8],
    count: usize,
) -> Result<f64> {
    let end = offset.checked_add(from.len());
    ensure!(
        end.is_some_and(|end| end <= to.len()),
        "{} bytes at {offset} are outside of the mapping",
        from.len()
    );
    let start = Instant::now();
    for _ in 0..count {
        let destination = std::hint::black_box((to.address() + offset) as *mut u8);
        // SAFETY: the range was checked against the mapping, which stays mapped for the call and
        // is not `from`. The other process looks at the words before `offset` only.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), destination, from.len());
        }
    }
    Ok((from.len() * count) as f64 / start.elapsed().as_secs_f64() / 1e6)
}
