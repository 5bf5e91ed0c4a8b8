//! The memory of a node: one sealed memfd that the device reaches too.
//!
//! ```text
//!   virtual (this process)    base ───────────────► base + size
//!   memfd                     0    ───────────────► size
//!   physical (for the NIC)    0    ───────────────► size          frame = page index, or
//!                             one pinned frame for each page       [Addresses::Frames]
//! ```
//! Where a guest's kernel walks page tables, host mode subtracts, and a node on VFIO looks into a list.
//!
//! # Invariants
//! - Free pages read as zero.
//! - Pinned pages keep their frames: the file is never punched, as it would get other pages there.
//! - Pages are allocated again only when the last region in them is dropped.
//! - Pages of virtqueues are never freed: the device process looks at the rings until it finds the
//!   connection closed, and zeroes there are a ring that no driver writes.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic_abi::PAGE_SIZE;
use qnic_driver::platform::{Run, MAX_BLOCK_PAGES};
use qnic_shared::region::{Kept, SharedRegion};
use range_alloc::RangeAllocator;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::error::{ConnectError, HostError};
use crate::transport::Addresses;

/// What the arena is aligned to, so that a huge page can be a part of it, in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// The arena of a node.
#[derive(Debug)]
pub(crate) struct Arena {
    /// A forked child that drops buffers punches holes into none.
    _kept: Kept,
    pub(crate) file: OwnedFd,
    whole: SharedRegion,
    addresses: Addresses,
    /// Free pages, by index.
    free: Mutex<RangeAllocator<usize>>,
}

/// Pages that are in use; dropping it frees them.
struct Pages {
    arena: Arc<Arena>,
    pages: Range<usize>,
}

impl Arena {
    /// Makes an arena of `size` bytes, which `reach` lets the device reach.
    pub(crate) fn new(
        size: usize,
        reach: impl FnOnce(&SharedRegion, &OwnedFd) -> Result<Addresses, ConnectError>,
    ) -> Result<Arc<Self>, ConnectError> {
        if size == 0 || size % PAGE_SIZE != 0 {
            return Err(ConnectError::ArenaSize(size));
        }
        let (file, whole) =
            Self::make_file(size).map_err(ConnectError::system("make the arena (memfd)"))?;
        let addresses = reach(&whole, &file)?;
        debug_assert!(match &addresses {
            Addresses::Offsets => true,
            Addresses::Frames(frames) => frames.len() == size / PAGE_SIZE,
        });
        Ok(Arc::new(Arena {
            _kept: Kept::descriptor(&file),
            file,
            whole,
            addresses,
            free: Mutex::new(RangeAllocator::new(0..size / PAGE_SIZE)),
        }))
    }

    fn make_file(size: usize) -> std::io::Result<(OwnedFd, SharedRegion)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("qnic-host", flags)?;
        rustix::fs::ftruncate(&file, size as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let whole = SharedRegion::map_file_aligned(&file, size, HUGE_PAGE)?;
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

    /// One more than the highest number of its page frames.
    pub(crate) fn frames(&self) -> u64 {
        match &self.addresses {
            Addresses::Offsets => (self.size() / PAGE_SIZE) as u64,
            Addresses::Frames(frames) => frames.iter().max().map_or(0, |last| u64::from(*last) + 1),
        }
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

    /// As [`Arena::allocate`], of blocks that are adjacent here, each contiguous for the device.
    pub(crate) fn allocate_blocks(
        self: &Arc<Self>,
        runs: &[Run],
    ) -> Result<SharedRegion, HostError> {
        let length = Run::pages(runs) * PAGE_SIZE;
        let room = match self.addresses {
            Addresses::Offsets => return self.allocate(length),
            // Where pages are contiguous, they are so from some page on, up to a border.
            Addresses::Frames(_) => length + (MAX_BLOCK_PAGES - 1) * PAGE_SIZE,
        };
        let mut rejected = Vec::new();
        loop {
            let range = match self.allocate(room) {
                Err(_) if !rejected.is_empty() => return Err(HostError::Scattered { length }),
                range => range?,
            };
            let mut starts = (0..MAX_BLOCK_PAGES).map(|page| page * PAGE_SIZE);
            let fits = |start: &usize| self.are_blocks(range.address() + *start as u64, runs);
            if let Some(start) = starts.find(fits) {
                return Ok(range.part(start, length));
            }
            rejected.push(range);
        }
    }

    /// Returns true if the blocks from `address` on are each contiguous for the device.
    fn are_blocks(&self, mut address: u64, runs: &[Run]) -> bool {
        Run::each(runs).all(|pages| {
            let block = address;
            address += (pages * PAGE_SIZE) as u64;
            self.contiguous(block, address - block).is_some()
        })
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

    /// Address of the first byte of a region of this arena as the NIC sees it.
    pub(crate) fn physical(&self, region: &SharedRegion) -> u64 {
        let (address, page) = (region.address(), PAGE_SIZE as u64);
        let frame = self.frame(address).unwrap_or_default();
        u64::from(frame) * page + address % page
    }

    /// Address of a range as the NIC sees it, if it is in the arena and contiguous for the NIC.
    pub(crate) fn contiguous(&self, address: u64, length: u64) -> Option<u64> {
        let inside = self.contains(address, length);
        let page = PAGE_SIZE as u64;
        let (start, end) = (address / page, (address + length.max(1)).div_ceil(page));
        let first = self.frame(address).filter(|_| inside)?;
        let mut pages = (start..end).zip(first..);
        let contiguous = pages.all(|(number, frame)| self.frame(number * page) == Some(frame));
        contiguous.then_some(u64::from(first) * page + address % page)
    }

    /// Frame of the page at `address`, if it is in the arena.
    pub(crate) fn frame(&self, address: u64) -> Option<u32> {
        if !self.contains(address, 1) {
            return None;
        }
        let page = ((address - self.base()) / PAGE_SIZE as u64) as usize;
        match &self.addresses {
            Addresses::Offsets => u32::try_from(page).ok(),
            Addresses::Frames(frames) => frames.get(page).copied(),
        }
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
        let pinned = matches!(self.arena.addresses, Addresses::Frames(_));
        if pinned || rustix::fs::fallocate(file, punch, offset as u64, length as u64).is_err() {
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

    fn made(size: usize) -> Result<Arc<Arena>, ConnectError> {
        Arena::new(size, |_, _| Ok(Addresses::Offsets))
    }

    fn arena(pages: usize) -> Arc<Arena> {
        made(pages * PAGE_SIZE).unwrap()
    }

    /// An arena whose pages are in these frames.
    fn pinned(frames: &[u32]) -> Arc<Arena> {
        let reach = |_: &_, _: &_| Ok(Addresses::Frames(frames.to_vec()));
        Arena::new(frames.len() * PAGE_SIZE, reach).unwrap()
    }

    /// The file is not punched: it would have other pages then, in other frames (X11).
    #[test]
    fn pinned_pages_are_zeroed_where_they_are() {
        let arena = pinned(&[7, 3]);
        let region = arena.allocate(2 * PAGE_SIZE).unwrap();
        region.write_bytes(0, &[7; 2 * PAGE_SIZE]);
        drop(region);
        let blocks = rustix::fs::fstat(&arena.file).unwrap().st_blocks;
        assert_eq!(blocks, 2 * (PAGE_SIZE as i64) / 512);
        let mut bytes = [1; 2 * PAGE_SIZE];
        arena.whole.read_bytes(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    /// Pages are where their frames are, one after the other (X11).
    #[test]
    fn pinned_pages_have_the_addresses_of_their_frames() {
        let arena = pinned(&[0x70, 0x71, 0x20]);
        let (base, page) = (arena.base(), PAGE_SIZE as u64);
        assert_eq!(arena.frames(), 0x72);
        assert_eq!(arena.frame(base + 2 * page + 5), Some(0x20));
        let whole = arena.allocate(3 * PAGE_SIZE).unwrap();
        assert_eq!(arena.physical(&whole.part(PAGE_SIZE + 8, 1)), 0x7_1008);
        assert_eq!(arena.contiguous(base + 8, 2 * page - 8), Some(0x7_0008));
        assert_eq!(arena.contiguous(base + 8, 2 * page), None);
        assert_eq!(arena.contiguous(base + 2 * page, page), Some(0x2_0000));
        assert_eq!(arena.contiguous(base + 2 * page, page + 1), None);
    }

    /// Blocks begin behind a break, or are refused if there are too many (X11, S1).
    #[test]
    fn blocks_are_contiguous_for_the_device() {
        let runs = [Run {
            blocks: 2,
            pages: 4,
        }];
        let frames: Vec<u32> = (10..11).chain(40..44).chain(80..120).collect();
        let arena = pinned(&frames);
        let blocks = arena.allocate_blocks(&runs).unwrap();
        assert_eq!(arena.physical(&blocks), 40 * PAGE_SIZE as u64);
        let second = blocks.part(4 * PAGE_SIZE, 4 * PAGE_SIZE);
        assert_eq!(arena.physical(&second), 80 * PAGE_SIZE as u64);
        drop((blocks, second));
        let late: Vec<u32> = (0..60).map(|page| page * 2).chain(200..240).collect();
        let blocks = pinned(&late).allocate_blocks(&runs);
        assert!(blocks.is_ok(), "those at the end are contiguous");
        let scattered: Vec<u32> = (0..60).map(|page| page * 2).collect();
        let refused = pinned(&scattered).allocate_blocks(&runs);
        assert!(matches!(refused, Err(HostError::Scattered { length }) if length == 8 * PAGE_SIZE));
    }

    #[test]
    fn memory_is_zeroed_also_the_second_time() {
        let arena = arena(16);
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
        let arena = arena(2);
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
        let arena = arena(2);
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
        let arena = arena(4);
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
        assert!(matches!(made(0), Err(ConnectError::ArenaSize(0))));
        assert!(matches!(made(5), Err(ConnectError::ArenaSize(5))));
    }
}
