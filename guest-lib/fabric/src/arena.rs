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
    free: Mutex<Vec<RangeAllocator<usize>>>,
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
        for (slab, ranges) in free.iter_mut().enumerate() {
            if let Ok(range) = ranges.allocate_range(length) {
                return Ok(Bounce { slab, range });
            }
        }
        let is_used = free.iter().any(|ranges| !ranges.is_empty());
        self.grow(endpoint, length, &mut free)
            .map_err(|error| if is_used { AGAIN } else { error })?;
        let slab = free.len() - 1;
        let range = free
            .last_mut()
            .and_then(|ranges| ranges.allocate_range(length).ok());
        range.map(|range| Bounce { slab, range }).ok_or(NO_MEMORY)
    }

    /// Gives a range back, with which the NIC is done.
    pub(crate) fn give_back(&self, bounce: Bounce) {
        if let Some(ranges) = self.lock().get_mut(bounce.slab) {
            ranges.free_range(bounce.range);
        }
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

    fn grow(
        &self,
        endpoint: &Endpoint,
        length: usize,
        free: &mut Vec<RangeAllocator<usize>>,
    ) -> Result<()> {
        let index = free.len();
        let place = self.slabs.get(index).ok_or(NO_MEMORY)?;
        let length = length.max(FIRST_SLAB.saturating_mul(1 << index));
        let buffer = endpoint.allocate(length).map_err(|_| NO_MEMORY)?;
        let name = SegmentName(NAMES + index as u64);
        let options = ExportOptions::new(Access::READ).importers(Importers::nobody());
        let segment = endpoint.export(name, &buffer, options)?;
        place.set(Slab { segment, buffer }).map_err(|_| NO_MEMORY)?;
        free.push(RangeAllocator::new(0..length));
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<RangeAllocator<usize>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
