//! The memory of a node: one sealed memfd that the device process maps too.
//!
//! ```text
//!   virtual (this process)    base ───────────────► base + size
//!   physical (for the NIC)    0    ───────────────► size          frame = page index
//!   memfd                     0    ───────────────► size
//! ```
//! Where a real guest's kernel walks page tables, host mode subtracts.
//!
//! # Invariants
//! - Free pages read as zero.
//! - Pages are allocated again only when the last region in them is dropped.
//! - Pages of virtqueues are never freed: the device process looks at the rings until it finds the
//!   connection closed, and zeroes there are a ring that no driver writes.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic_abi::PAGE_SIZE;
use qnic_shared::region::{Kept, SharedRegion};
use range_alloc::RangeAllocator;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::error::{ConnectError, HostError};

/// The arena of a node.
#[derive(Debug)]
pub(crate) struct Arena {
    /// A forked child that drops buffers punches holes into none.
    _kept: Kept,
    pub(crate) file: OwnedFd,
    whole: SharedRegion,
    /// Free pages, by index.
    free: Mutex<RangeAllocator<usize>>,
}

/// Pages that are in use; dropping it frees them.
struct Pages {
    arena: Arc<Arena>,
    pages: Range<usize>,
}

impl Arena {
    /// Makes an arena of `size` bytes.
    pub(crate) fn new(size: usize) -> Result<Arc<Self>, ConnectError> {
        if size == 0 || size % PAGE_SIZE != 0 {
            return Err(ConnectError::ArenaSize(size));
        }
        let (file, whole) =
            Self::make_file(size).map_err(ConnectError::system("make the arena (memfd)"))?;
        Ok(Arc::new(Arena {
            _kept: Kept::descriptor(&file),
            file,
            whole,
            free: Mutex::new(RangeAllocator::new(0..size / PAGE_SIZE)),
        }))
    }

    fn make_file(size: usize) -> std::io::Result<(OwnedFd, SharedRegion)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("qnic-host", flags)?;
        rustix::fs::ftruncate(&file, size as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let whole = SharedRegion::map_file(&file, 0, size, true)?;
        let whole = whole.kept_from_children(Some(&file))?;
        Ok((file, whole))
    }

    pub(crate) fn size(&self) -> usize {
        self.whole.len()
    }

    /// Address of its first byte in this process.
    pub(crate) fn base(&self) -> u64 {
        self.whole.address()
    }

    /// Number of its page frames.
    pub(crate) fn frames(&self) -> u64 {
        (self.size() / PAGE_SIZE) as u64
    }

    /// Memory of `length` bytes (not zero), page aligned and zeroed; the pages are
    /// free again when the last clone of the region is dropped.
    pub(crate) fn allocate(self: &Arc<Self>, length: usize) -> Result<SharedRegion, HostError> {
        let pages = self.take(length)?;
        let region = self.whole.part(pages.start * PAGE_SIZE, length);
        Ok(region.guarded(Pages {
            arena: self.clone(),
            pages,
        }))
    }

    /// The same, but the pages stay as they are, and in use, as long as the arena does: the device
    /// process may look at them until it learns that the node has gone.
    pub(crate) fn allocate_for_good(&self, length: usize) -> Result<SharedRegion, HostError> {
        let pages = self.take(length)?;
        Ok(self.whole.part(pages.start * PAGE_SIZE, length))
    }

    fn take(&self, length: usize) -> Result<Range<usize>, HostError> {
        let full = HostError::ArenaFull {
            length,
            arena: self.size(),
        };
        let count = length.div_ceil(PAGE_SIZE).max(1);
        self.free().allocate_range(count).map_err(|_| full)
    }

    /// The region of `length` bytes that begins where `first` does, which is a part of the same
    /// allocation; none if it leaves the arena.
    pub(crate) fn extend(&self, first: &SharedRegion, length: usize) -> Option<SharedRegion> {
        let inside = self.contains(first.address(), length as u64);
        let start = (first.address().wrapping_sub(self.base())) as usize;
        inside.then(|| self.whole.part(start, length).guarded(first.clone()))
    }

    /// Returns true if a range is within the arena.
    pub(crate) fn contains(&self, address: u64, length: u64) -> bool {
        let end = self.size() as u64;
        let offset = address.wrapping_sub(self.base());
        offset < end && length <= end - offset
    }

    /// Address of a region of this arena as the NIC sees it.
    pub(crate) fn physical(&self, region: &SharedRegion) -> u64 {
        region.address().wrapping_sub(self.base())
    }

    /// Frame of the page at `address`, if it is in the arena.
    pub(crate) fn frame(&self, address: u64) -> Option<u32> {
        if !self.contains(address, 1) {
            return None;
        }
        u32::try_from((address - self.base()) / PAGE_SIZE as u64).ok()
    }

    fn free(&self) -> MutexGuard<'_, RangeAllocator<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let offset = self.pages.start * PAGE_SIZE;
        let length = self.pages.len() * PAGE_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = &self.arena.file;
        if rustix::fs::fallocate(file, punch, offset as u64, length as u64).is_err() {
            let zeroes = [0; PAGE_SIZE];
            for page in self.pages.clone() {
                self.arena.whole.write_bytes(page * PAGE_SIZE, &zeroes);
            }
        }
        self.arena.free().free_range(self.pages.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_also_the_second_time() {
        let arena = Arena::new(16 * PAGE_SIZE).unwrap();
        let first = arena.allocate(5000).unwrap();
        let address = first.address();
        assert_eq!(address % PAGE_SIZE as u64, 0);
        first.write_bytes(0, &[7; 5000]);
        drop(first);
        let second = arena.allocate(5000).unwrap();
        assert_eq!(second.address(), address);
        let mut bytes = [1; 5000];
        second.read_bytes(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn pages_are_freed_with_their_last_region() {
        let arena = Arena::new(2 * PAGE_SIZE).unwrap();
        let region = arena.allocate(2 * PAGE_SIZE).unwrap();
        let part = region.part(PAGE_SIZE, 1);
        drop(region);
        assert!(matches!(
            arena.allocate(1),
            Err(HostError::ArenaFull { length: 1, .. })
        ));
        drop(part);
        assert!(arena.allocate(1).is_ok());
    }

    #[test]
    fn what_is_allocated_for_good_stays_as_it_is() {
        let arena = Arena::new(2 * PAGE_SIZE).unwrap();
        let region = arena.allocate_for_good(8).unwrap();
        region.write_bytes(0, &[7; 8]);
        drop(region);
        let mut bytes = [0; 8];
        arena.whole.read_bytes(0, &mut bytes);
        assert_eq!(bytes, [7; 8]);
        assert_eq!(
            arena.physical(&arena.allocate(1).unwrap()),
            PAGE_SIZE as u64
        );
    }

    #[test]
    fn addresses_translate_both_ways() {
        let arena = Arena::new(4 * PAGE_SIZE).unwrap();
        let _first = arena.allocate(1).unwrap();
        let second = arena.allocate(1).unwrap();
        assert_eq!(arena.physical(&second), PAGE_SIZE as u64);
        assert_eq!(arena.frame(second.address() + 17), Some(1));
        assert_eq!(arena.frame(arena.base() + 4 * PAGE_SIZE as u64), None);
        assert_eq!(arena.frame(0), None);
        assert!(arena.contains(arena.base(), 4 * PAGE_SIZE as u64));
        assert!(!arena.contains(arena.base() + 1, 4 * PAGE_SIZE as u64));
    }

    #[test]
    fn sizes_that_are_no_multiple_of_a_page_are_refused() {
        assert!(matches!(Arena::new(0), Err(ConnectError::ArenaSize(0))));
        assert!(matches!(Arena::new(5), Err(ConnectError::ArenaSize(5))));
    }
}
