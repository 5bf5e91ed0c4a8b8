//! Joins fragments to a message: in place if possible, else by copying (H6).
//!
//! ```text
//!   route carries a page:   0 │ 1                  two buffers, nothing is copied
//!   route carries 1 KiB:    0 ◄─ 1 ◄─ 2 ◄─ 3 │ 4   other fragments are copied into the
//!                                                  buffer of the first fragment of their page
//!   buffers are blocks:     0 ◄─ 1 ◄─ 2 ◄─ 3 ◄─ 4  or of their block
//! ```

use qnic_abi::SharedMemory;

use super::buffer::Landed;
use super::counters::Counters;
use super::fragments::{Parts, Whole};
use super::message::{bytes_of_buffer, PAGES};
use crate::platform::{DeviceMemory, Platform};

/// A message, and the memory that it does not need.
pub(super) struct Joined<P: Platform> {
    pub(super) pages: [Option<Landed<P>>; PAGES],
    pub(super) spare: Parts<Landed<P>>,
    /// False if it did not fit into its first buffer; then all memory is spare.
    pub(super) fits: bool,
}

/// Joins fragments.
pub(super) fn join<P: Platform>(whole: Whole<Landed<P>>, counters: &Counters) -> Joined<P> {
    let Whole {
        mut parts,
        size,
        length,
        ..
    } = whole;
    let mut pages = [None, None];
    let front = parts.first().and_then(Option::as_ref);
    let unit = bytes_of_buffer(front.map_or(0, |landed| landed.memory().size()));
    let needed = length.div_ceil(unit);
    let fits = (0..needed).all(|page| {
        let bytes = (length - page * unit).min(unit);
        let found = parts.get(page * unit / size).and_then(Option::as_ref);
        found.is_some_and(|landed| landed.memory().size() >= bytes)
    });
    if !fits || needed > PAGES || (needed > 1 && size > unit) {
        return Joined {
            pages,
            spare: parts,
            fits: false,
        };
    }
    for (page, base) in pages.iter_mut().enumerate() {
        let first = page * unit / size;
        *base = match page < needed {
            true => parts.get_mut(first).and_then(Option::take),
            false => None,
        };
        let Some(base) = base else { continue };
        let mut copied = 0;
        for (number, part) in parts.iter().enumerate() {
            let at = number * size;
            let Some(part) = part.as_ref().filter(|_| at / unit == page) else {
                continue;
            };
            let count = size.min(length - at);
            copy(part.memory(), base.memory(), at % unit, count);
            copied += count;
        }
        if copied > 0 {
            counters.pages_copied.add(1);
            counters.bytes_copied.add(copied as u64);
        }
    }
    Joined {
        pages,
        spare: parts,
        fits: true,
    }
}

/// Copies the first bytes of `from` to an offset of `to`, where they fit.
fn copy<M: DeviceMemory>(from: &M, to: &M, offset: usize, length: usize) {
    let mut chunk = [0; 256];
    for start in (0..length).step_by(chunk.len()) {
        let count = chunk.len().min(length - start);
        let Some(bytes) = chunk.get_mut(..count) else {
            return;
        };
        from.read_bytes(start, bytes);
        to.write_bytes(offset + start, bytes);
    }
}
