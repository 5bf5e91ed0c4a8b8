//! Bounce memory: memory that the NIC reaches, in which messages stand on their way.
//!
//! ```text
//!   slab 0: 4 MiB   ┌────┬──────┬───────────┐     slab 1: 8 MiB, or as long as the message
//!                   │ in │ free │ in        │     that did not fit, allocated when it is needed
//!                   └────┴──────┴───────────┘
//! ```
//! # Invariants
//! - A range belongs to one operation from its post until its end. The NIC uses it no longer.
//! - Slabs stay where they are while the endpoint lives: operations borrow them.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use qnic::{Access, Buffer, Endpoint, ExportOptions, Importers, Part, Segment, SegmentName};
use range_alloc::RangeAllocator;

use crate::errno::{Result, AGAIN, NO_MEMORY};

/// Most slabs.
const SLABS: usize = 16;

/// Length of the first slab in bytes; each next one is twice as long.
const FIRST_SLAB: usize = 4 << 20;

/// Ranges begin at multiples of this: a cache line.
const STEP: usize = 64;

/// Names of the slabs' segments, from here up. No peer imports them.
const NAMES: u64 = 0x666d_656d_0000_0000;

/// The bounce memory of an endpoint.
#[derive(Debug)]
pub(crate) struct Arena {
    slabs: [OnceLock<Slab>; SLABS],
    free: Mutex<Free>,
}

/// Lengths of short ranges, in steps: those that are given back are kept for the next of their length.
const SHORT: usize = 8;

/// How many of a length are kept.
const KEPT: usize = 64;

/// What is free.
#[derive(Debug, Default)]
struct Free {
    /// Of each slab.
    slabs: Vec<RangeAllocator<usize>>,
    /// Short ranges, by their steps.
    short: [Vec<Bounce>; SHORT],
}

impl Free {
    /// The kept ranges of a length, if it is short.
    fn kept(&mut self, length: usize) -> Option<&mut Vec<Bounce>> {
        self.short.get_mut((length / STEP).checked_sub(1)?)
    }

    /// Takes a range of a length, if there is one.
    fn take(&mut self, length: usize) -> Option<Bounce> {
        let kept = self.kept(length).and_then(Vec::pop);
        let found = kept.or_else(|| self.allocate(length));
        found.or_else(|| {
            self.release_kept();
            self.allocate(length)
        })
    }

    fn give_back(&mut self, bounce: Bounce) {
        match self.kept(bounce.len()) {
            Some(kept) if kept.len() < KEPT => kept.push(bounce),
            _ => self.release(bounce),
        }
    }

    fn allocate(&mut self, length: usize) -> Option<Bounce> {
        let mut slabs = self.slabs.iter_mut().enumerate();
        slabs.find_map(|(slab, ranges)| {
            let range = ranges.allocate_range(length).ok()?;
            Some(Bounce { slab, range })
        })
    }

    fn release(&mut self, bounce: Bounce) {
        if let Some(ranges) = self.slabs.get_mut(bounce.slab) {
            ranges.free_range(bounce.range);
        }
    }

    /// Keeps none: they may stand between free ranges.
    fn release_kept(&mut self) {
        for bounce in std::mem::take(&mut self.short).into_iter().flatten() {
            self.release(bounce);
        }
    }
}

#[derive(Debug)]
struct Slab {
    segment: Segment,
    buffer: Buffer,
}

/// A range of bounce memory. It is given back by [`Arena::give_back`].
#[derive(Debug)]
#[must_use = "it is never used again unless it is given back"]
pub(crate) struct Bounce {
    slab: usize,
    range: Range<usize>,
}

impl Bounce {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }
}

impl Arena {
    /// Bounce memory with one slab.
    ///
    /// # Errors
    /// [`NO_MEMORY`]
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self> {
        let arena = Arena {
            slabs: Default::default(),
            free: Mutex::default(),
        };
        arena.grow(endpoint, FIRST_SLAB, &mut arena.lock())?;
        Ok(arena)
    }

    /// Takes a range of at least so many bytes.
    ///
    /// # Errors
    /// [`AGAIN`]: operations that end make room. [`NO_MEMORY`]: none would.
    pub(crate) fn take(&self, endpoint: &Endpoint, length: usize) -> Result<Bounce> {
        let length = length
            .max(1)
            .checked_next_multiple_of(STEP)
            .ok_or(NO_MEMORY)?;
        let mut free = self.lock();
        if let Some(bounce) = free.take(length) {
            return Ok(bounce);
        }
        let is_used = free.slabs.iter().any(|ranges| !ranges.is_empty());
        self.grow(endpoint, length, &mut free)
            .map_err(|error| if is_used { AGAIN } else { error })?;
        free.allocate(length).ok_or(NO_MEMORY)
    }

    /// Gives a range back, with which the NIC is done.
    pub(crate) fn give_back(&self, bounce: Bounce) {
        self.lock().give_back(bounce);
    }

    /// The first bytes of a range, for the NIC.
    pub(crate) fn part(&self, bounce: &Bounce, length: usize) -> Result<Part<'_>> {
        let slab = self.slab(bounce)?;
        Ok(slab.segment.part(bounce.range.start, length))
    }

    /// No memory, for messages without bytes.
    ///
    /// # Errors
    /// [`NO_MEMORY`]
    pub(crate) fn nothing(&self) -> Result<Part<'_>> {
        let slab = self.slabs[0].get().ok_or(NO_MEMORY)?;
        Ok(slab.segment.part(0, 0))
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, bounce: &Bounce, offset: usize, bytes: &[u8]) -> Result<()> {
        let slab = self.slab(bounce)?;
        Ok(slab.buffer.write(bounce.range.start + offset, bytes)?)
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, bounce: &Bounce, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let slab = self.slab(bounce)?;
        Ok(slab.buffer.read(bounce.range.start + offset, bytes)?)
    }

    fn slab(&self, bounce: &Bounce) -> Result<&Slab> {
        self.slabs
            .get(bounce.slab)
            .and_then(OnceLock::get)
            .ok_or(NO_MEMORY)
    }

    fn grow(&self, endpoint: &Endpoint, length: usize, free: &mut Free) -> Result<()> {
        let index = free.slabs.len();
        let place = self.slabs.get(index).ok_or(NO_MEMORY)?;
        let length = length.max(FIRST_SLAB.saturating_mul(1 << index));
        let buffer = endpoint.allocate(length).map_err(|_| NO_MEMORY)?;
        let name = SegmentName(NAMES + index as u64);
        let options = ExportOptions::new(Access::READ).importers(Importers::nobody());
        let segment = endpoint.export(name, &buffer, options)?;
        place.set(Slab { segment, buffer }).map_err(|_| NO_MEMORY)?;
        free.slabs.push(RangeAllocator::new(0..length));
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One is taken again as it is; when there is no other room, all of them make some.
    #[test]
    fn short_ranges_that_are_kept_hold_up_no_long_one() {
        let mut free = Free {
            slabs: vec![RangeAllocator::new(0..(KEPT + 2) * STEP)],
            ..Free::default()
        };
        let all: Vec<Bounce> = (0..KEPT + 2).map(|_| free.take(STEP).unwrap()).collect();
        assert!(free.take(STEP).is_none());
        let last = all.last().unwrap().range.clone();
        all.into_iter().for_each(|bounce| free.give_back(bounce));
        assert_eq!(free.short[0].len(), KEPT);
        let again = free.take(STEP).unwrap();
        assert_ne!(again.range, last, "two were not kept");
        free.give_back(again);
        let whole = free.take((KEPT + 2) * STEP).unwrap();
        assert_eq!(whole.range, 0..(KEPT + 2) * STEP);
        assert!(free.short.iter().all(Vec::is_empty));
        free.give_back(whole);
        assert!(free.slabs[0].is_empty());
    }
}
