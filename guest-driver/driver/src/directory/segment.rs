//! The segments of one process, by index, and the pages beneath them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range as Pages;

use qnic_abi::header::SEGMENTS_PER_PROCESS;
use qnic_abi::{Status, PAGE_SHIFT, PAGE_SIZE};

use crate::error::Failure;
use crate::memory::{MemoryManager, Region};
use crate::platform::NoMemory;

/// Highest address that can be exported, exclusive: no process has one beyond,
/// and a [`qnic_abi::page_table::Tag`] has room for its page number.
pub(super) const ADDRESS_END: u64 = 1 << 57;

/// An exact range of addresses, checked: not empty, below [`ADDRESS_END`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) length: u64,
}

impl Range {
    pub(super) fn new(address: u64, length: u64) -> Result<Self, Status> {
        if length == 0 {
            return Err(Status::BadLength);
        }
        match address.checked_add(length) {
            Some(end) if end <= ADDRESS_END => Ok(Range { address, length }),
            _ => Err(Status::BadAddress),
        }
    }

    fn overlaps(&self, other: Range) -> bool {
        self.address < other.address + other.length && other.address < self.address + self.length
    }

    /// Numbers of the pages that it overlaps.
    pub(super) fn pages(&self) -> Pages<u64> {
        let end = self.address + self.length;
        self.address >> PAGE_SHIFT..end.div_ceil(PAGE_SIZE as u64)
    }
}

/// A region with its notifier.
pub(crate) struct Exported<P: MemoryManager> {
    pub(crate) region: Arc<Region<P>>,
    pub(super) notifier: P::Notifier,
}

/// The memory of a segment.
pub(super) enum Memory<P: MemoryManager> {
    Virtual {
        range: Range,
        exported: Arc<Exported<P>>,
    },
    Physical {
        _pin: P::Pin,
    },
}

pub(super) struct Segment<P: MemoryManager> {
    pub(super) name: u64,
    pub(super) memory: Memory<P>,
}

impl<P: MemoryManager> Segment<P> {
    pub(super) fn exported(&self) -> Option<&Arc<Exported<P>>> {
        match &self.memory {
            Memory::Virtual { exported, .. } => Some(exported),
            Memory::Physical { .. } => None,
        }
    }
}

/// Room for segments that a process has at first.
pub(super) const FIRST_ROOM: usize = 32;

/// The segments of one process, by index. The table gets larger with the number of segments, as most
/// processes have few.
pub(super) struct Segments<P: MemoryManager> {
    pub(super) slots: Vec<Option<Segment<P>>>,
    /// No slot before this one is free.
    lowest: usize,
    /// The process has ended, and exports nothing more.
    pub(super) ended: bool,
}

impl<P: MemoryManager> Segments<P> {
    pub(super) fn new() -> Self {
        Segments {
            slots: Vec::new(),
            lowest: 0,
            ended: false,
        }
    }

    /// The lowest index that is free.
    ///
    /// # Errors
    /// Exhausted, or no memory.
    pub(super) fn free_index(&mut self) -> Result<usize, Failure> {
        while let Some(Some(_)) = self.slots.get(self.lowest) {
            self.lowest += 1;
        }
        if self.lowest >= SEGMENTS_PER_PROCESS as usize {
            return Err(Status::Exhausted.into());
        }
        if self.lowest == self.slots.len() {
            if self.slots.len() == self.slots.capacity() {
                let more = self.slots.len().max(FIRST_ROOM);
                self.slots.try_reserve_exact(more).map_err(NoMemory::from)?;
            }
            self.slots.push(None);
        }
        Ok(self.lowest)
    }

    /// Takes a segment out.
    pub(super) fn take(&mut self, index: usize) -> Option<Segment<P>> {
        let segment = self.slots.get_mut(index)?.take()?;
        self.lowest = self.lowest.min(index);
        Some(segment)
    }

    pub(super) fn has_name(&self, name: u64) -> bool {
        let mut segments = self.slots.iter().flatten();
        segments.any(|segment| segment.name == name)
    }

    /// The regions of all segments.
    pub(super) fn exported(&self) -> impl Iterator<Item = &Arc<Exported<P>>> {
        self.slots.iter().flatten().filter_map(Segment::exported)
    }

    /// Returns true if a segment has an address of this range, and is not over exactly this range.
    pub(super) fn overlaps(&self, range: Range) -> bool {
        let mut segments = self.slots.iter().flatten();
        segments.any(|segment| match &segment.memory {
            Memory::Virtual { range: other, .. } => *other != range && other.overlaps(range),
            Memory::Physical { .. } => false,
        })
    }
}
