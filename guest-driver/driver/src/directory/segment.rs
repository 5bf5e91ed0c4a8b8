//! The segments of one process, by index, and the pages beneath them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range as Pages;

use qnic_abi::header::SEGMENTS_PER_PROCESS;
use qnic_abi::{Status, PAGE_SHIFT, PAGE_SIZE};

use crate::memory::{MemoryManager, Region};
use crate::platform::{table, NoMemory};

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

/// The segments of one process, by index; no entries when it has ended.
pub(super) struct Segments<P: MemoryManager>(pub(super) Vec<Option<Segment<P>>>);

impl<P: MemoryManager> Segments<P> {
    pub(super) fn new() -> Result<Self, NoMemory> {
        Ok(Segments(table(SEGMENTS_PER_PROCESS as usize)?))
    }

    pub(super) fn has_name(&self, name: u64) -> bool {
        let mut segments = self.0.iter().flatten();
        segments.any(|segment| segment.name == name)
    }

    /// The regions of all segments.
    pub(super) fn exported(&self) -> impl Iterator<Item = &Arc<Exported<P>>> {
        self.0.iter().flatten().filter_map(Segment::exported)
    }

    /// The region with exactly these pages.
    pub(super) fn over(&self, pages: &Pages<u64>) -> Option<Arc<Exported<P>>> {
        let mut exported = self.exported();
        let found = exported.find(|other| other.region.page_numbers() == *pages);
        found.cloned()
    }

    /// Returns true if a segment has an address of this range, and is not over exactly this range.
    pub(super) fn overlaps(&self, range: Range) -> bool {
        let mut segments = self.0.iter().flatten();
        segments.any(|segment| match &segment.memory {
            Memory::Virtual { range: other, .. } => *other != range && other.overlaps(range),
            Memory::Physical { .. } => false,
        })
    }
}
