//! One exported range of addresses, and which of its pages are in the shadow page
//! table (N4, N8).
//!
//! Segments over the same pages share a region. Its page array is allocated at export,
//! so neither installing nor invalidating a page allocates.
//!
//! # Overlapping regions
//! Regions of one process may share pages. Each of them watches all its pages, and has an entry
//! for each page that it has inserted, also if another one had inserted it before. A page in the
//! table has an entry in one of them at least. The system invalidates a page in all of them
//! before it gives the page another frame, so no two name different frames of a page that is in
//! the table.
//!
//! # The lock
//! The array's lock makes insertion and invalidation exclude each other, as the
//! sequence count of an MMU interval notifier does: [`Region::install`] asks, with
//! the lock held, whether the frames are still current; [`Region::invalidate`]
//! announces, with the lock held, that they are not, and unmaps them. The one that
//! comes second sees the first.
//!
//! # Shared memory
//! Several pages can have the same frame (a file that is mapped twice, or by several processes), and
//! up to [`MAPPINGS`](qnic_abi::page_table::MAPPINGS) of them stand in the shadow page table at once. One
//! more takes the place of another, if it is requested; only the first page of a fault counts as
//! requested. The other page is then absent and is requested again when the NIC needs it. Its region
//! still names the frame, but unmaps only its own tag, never another's.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use qnic_abi::page_table::{entry_of, named_mapping, Tag};
use qnic_abi::{VniId, PAGE_SHIFT, PAGE_SIZE};

use super::page_table::{PageTable, Resident};
use super::shadow::{Inserted, Unmapped};
use crate::platform::{Lock, MemoryError, Mutex, NoMemory, Platform};

/// An exported range of a process's address space.
pub struct Region<P: Platform> {
    page_table: Arc<PageTable<P>>,
    vni: VniId,
    first_page: u64,
    page_count: usize,
    /// Key of the process's pages in the physical map.
    page_key: u64,
    pages: P::Mutex<Pages>,
}

/// The part of a region that its lock guards.
struct Pages {
    /// For each page its frame + 1, or 0. The entry may name a frame whose page was evicted
    /// from the table since; a page that this region has inserted always has an entry.
    entries: Vec<u32>,
    /// For each page, which use of it by the NIC was seen last ([`Region::is_young`]).
    uses: Vec<u8>,
    /// No page is inserted any more.
    closed: bool,
    /// The page table does not cover a frame that a page has had.
    uncovered: bool,
}

impl<P: Platform> Region<P> {
    /// A region over these pages, by number, of the process with this VNI and page key.
    pub(crate) fn new(
        page_table: Arc<PageTable<P>>,
        (vni, page_key): (VniId, u64),
        page_numbers: Range<u64>,
    ) -> Result<Self, NoMemory> {
        let page_count = page_numbers.end - page_numbers.start;
        let page_count = usize::try_from(page_count).map_err(|_| NoMemory)?;
        let mut entries = Vec::new();
        entries.try_reserve_exact(page_count)?;
        entries.resize(page_count, 0);
        let mut uses = Vec::new();
        uses.try_reserve_exact(page_count)?;
        uses.resize(page_count, 0);
        Ok(Region {
            page_table,
            vni,
            first_page: page_numbers.start,
            page_count,
            page_key,
            pages: P::Mutex::new(Pages {
                entries,
                uses,
                closed: false,
                uncovered: false,
            })?,
        })
    }

    /// Address of its first page.
    pub fn address(&self) -> u64 {
        self.first_page << PAGE_SHIFT
    }

    /// Number of its pages.
    pub fn page_count(&self) -> usize {
        self.page_count
    }

    /// Index of the page with this number, if the page is one of the region's.
    pub(crate) fn index_of(&self, page: u64) -> Option<usize> {
        let index = usize::try_from(page.checked_sub(self.first_page)?).ok()?;
        (index < self.page_count).then_some(index)
    }

    pub(crate) fn page_numbers(&self) -> Range<u64> {
        self.first_page..self.first_page + self.page_count as u64
    }

    /// Inserts `frames` (absent where there is none) into the page table, for the
    /// pages from index `first` on. `is_current` is evaluated once, with the region's
    /// lock held.
    ///
    /// The first page takes its frame from another page that has it; the others do not.
    ///
    /// # Errors
    /// For the first page; the others are inserted as far as possible.
    /// [`MemoryError::NotCovered`] if the table does not cover the frame;
    /// [`MemoryError::Stale`] if `is_current` returns false; [`MemoryError::Busy`] if
    /// the NIC holds the frame or the whole row; [`MemoryError::NotMapped`] if there
    /// is no frame for it;
    /// [`MemoryError::Closed`] if the region is closed.
    pub fn install(
        &self,
        first: usize,
        frames: &[Option<Resident>],
        is_current: impl FnOnce() -> bool,
    ) -> Result<(), MemoryError> {
        self.pages.with(|pages| {
            if pages.closed {
                return Err(MemoryError::Closed);
            }
            if !is_current() {
                return Err(MemoryError::Stale);
            }
            let mut result = Err(MemoryError::NotMapped);
            for (step, resident) in frames.iter().enumerate() {
                let Some(resident) = *resident else { continue };
                let Some(entry) = pages.entries.get_mut(first.saturating_add(step)) else {
                    break;
                };
                let outcome = self.insert(first + step, entry, resident, step == 0);
                pages.uncovered |= outcome == Err(MemoryError::NotCovered);
                if step == 0 {
                    result = outcome;
                }
            }
            result
        })
    }

    /// Inserts one page; the region's lock is held.
    fn insert(
        &self,
        index: usize,
        entry: &mut u32,
        resident: Resident,
        needed: bool,
    ) -> Result<(), MemoryError> {
        let tag = self.tag(index);
        let frame = resident.frame;
        if let Some(old) = named_mapping(*entry).filter(|old| *old != frame) {
            let _ = self.page_table.unmap(tag, old);
            *entry = 0;
        }
        match self.page_table.insert(tag, resident, self.page_key, needed) {
            Inserted::Done { .. } | Inserted::Already => {
                *entry = entry_of(frame);
                Ok(())
            }
            Inserted::Busy { .. } => Err(MemoryError::Busy),
            Inserted::OutOfRange if self.page_table.covers(frame) => Err(MemoryError::NotMapped),
            Inserted::OutOfRange => Err(MemoryError::NotCovered),
        }
    }

    /// Unmaps the pages that overlap the addresses `start..end`, before the system
    /// changes or frees them. `begin` runs once, with the region's lock held, before
    /// the first page is unmapped.
    ///
    /// With `may_sleep` it waits until the NIC has unlocked every page. Without, it
    /// neither sleeps nor spins, and returns `false` if the lock is taken or the NIC
    /// holds a page: `begin` may or may not have run, and the system asks again.
    pub fn invalidate(&self, start: u64, end: u64, may_sleep: bool, begin: impl FnOnce()) -> bool {
        let range = self.indices(start, end);
        let work = |pages: &mut Pages| {
            begin();
            self.remove(pages, range, may_sleep)
        };
        if may_sleep {
            self.pages.with(work)
        } else {
            self.pages.try_with(work).unwrap_or(false)
        }
    }

    /// Indices of the pages that overlap the addresses `start..end`.
    fn indices(&self, start: u64, end: u64) -> Range<usize> {
        let index = |page: u64| {
            let offset = page.saturating_sub(self.first_page);
            usize::try_from(offset).map_or(self.page_count, |i| i.min(self.page_count))
        };
        index(start >> PAGE_SHIFT)..index(end.div_ceil(PAGE_SIZE as u64))
    }

    /// Returns true if the NIC has used one of the pages that overlap the addresses `start..end`, since
    /// the last call that was to `forget` it: the system asks before it reclaims a page (N7). Neither
    /// sleeps nor spins; pages of a region that changes at this moment count as used.
    pub fn is_young(&self, start: u64, end: u64, forget: bool) -> bool {
        let range = self.indices(start, end);
        let look = |pages: &mut Pages| {
            let entries = pages.entries.get(range.clone()).into_iter().flatten();
            let seen = pages.uses.get_mut(range.clone()).into_iter().flatten();
            let mut is_young = false;
            for ((index, entry), seen) in range.clone().zip(entries).zip(seen) {
                let uses =
                    named_mapping(*entry).and_then(|f| self.page_table.uses(self.tag(index), f));
                let Some(uses) = uses.filter(|uses| uses != seen) else {
                    continue;
                };
                is_young = true;
                if forget {
                    *seen = uses;
                }
            }
            is_young
        };
        self.pages.try_with(look).unwrap_or(true)
    }

    /// Returns true if a page has had a frame that the page table does not cover.
    pub(crate) fn is_uncovered(&self) -> bool {
        self.pages.with(|pages| pages.uncovered)
    }

    /// Unmaps all pages for good.
    pub(crate) fn close(&self) {
        self.pages.with(|pages| {
            pages.closed = true;
            self.remove(pages, 0..self.page_count, true);
        });
    }

    /// Unmaps pages; the region's lock is held. Returns true if all are unmapped.
    fn remove(&self, pages: &mut Pages, range: Range<usize>, may_sleep: bool) -> bool {
        let mut all_out = true;
        let entries = pages.entries.get_mut(range.clone());
        for (index, entry) in range.zip(entries.into_iter().flatten()) {
            let Some(frame) = named_mapping(*entry) else {
                continue;
            };
            let outcome = if may_sleep {
                self.page_table.unmap(self.tag(index), frame)
            } else {
                self.page_table.try_unmap(self.tag(index), frame)
            };
            if outcome == Unmapped::Locked {
                all_out = false;
            } else {
                *entry = 0;
            }
            if matches!(outcome, Unmapped::Done(_)) {
                self.page_table.device.counters.pages_invalidated.add(1);
            }
        }
        all_out
    }

    fn tag(&self, index: usize) -> Tag {
        Tag::new(self.vni, (self.first_page + index as u64) << PAGE_SHIFT)
    }
}

impl<P: Platform> Drop for Region<P> {
    /// No page stays in the table longer than its region.
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{exporter, geometry, mapped, region, Fake};
    use crate::CallError;
    use core::sync::atomic::Ordering;
    use qnic_abi::page_table::{PageAccess, USE};
    use qnic_abi::{uapi, SharedMemory};

    const READ: PageAccess = PageAccess::Read;
    const WRITE: PageAccess = PageAccess::Write;

    fn resident(frame: u32, access: PageAccess) -> Resident {
        Resident { frame, access }
    }

    /// The access that the NIC has to a frame, and whose page it is; `None` if it is not
    /// mapped.
    fn mapping(fake: &Fake, frame: u32) -> Option<(Tag, PageAccess)> {
        let word = geometry().vpn_word(frame);
        let word = fake.sram.load_u64(word, Ordering::Relaxed);
        Some((Tag::from_word(word)?, PageAccess::of_word(word)))
    }

    fn mappings(fake: &Fake, frame: u32) -> Vec<(Tag, PageAccess)> {
        let words = geometry().mappings(frame).map(|mapping| {
            let word = geometry().vpn_word(mapping);
            fake.sram.load_u64(word, Ordering::Relaxed)
        });
        words
            .filter_map(|word| Some((Tag::from_word(word)?, PageAccess::of_word(word))))
            .collect()
    }

    fn frame_of_page(fake: &Fake, page: u64) -> u32 {
        fake.kernel.state().pages[&page].unwrap()
    }

    fn set_lock(fake: &Fake, frame: u32, value: u32) {
        let word = geometry().lock_word(frame);
        fake.sram.store_u32(word, value, Ordering::Relaxed);
    }

    #[test]
    fn reclaim_takes_pages_out_and_a_fault_brings_them_back() {
        let (fake, _, process) = exporter(4, true);
        assert_eq!(mapped(&process), 4);
        assert!(fake.kernel.reclaim(17, 2, true));
        assert_eq!(mapped(&process), 2);
        assert!(fake.kernel.reclaim(0, 1000, false));
        assert_eq!(mapped(&process), 0);
        let (region, first) = region(&process, 18).unwrap();
        let served = fake.kernel.fault_in(&region, first..first + 1, WRITE);
        assert_eq!(served, Ok(()));
        assert_eq!(mapped(&process), 1);
    }

    #[test]
    fn a_held_page_is_not_taken_away_without_waiting() {
        let (fake, _, process) = exporter(4, true);
        let frame = frame_of_page(&fake, 17);
        set_lock(&fake, frame, 1);
        assert!(!fake.kernel.reclaim(16, 4, false));
        assert_eq!(mapped(&process), 1);
        set_lock(&fake, frame, 0);
        assert!(fake.kernel.reclaim(16, 4, false));
        assert_eq!(mapped(&process), 0);
    }

    #[test]
    fn the_kernel_learns_of_pages_that_the_nic_uses() {
        let (fake, _, process) = exporter(4, true);
        let (region, _) = region(&process, 16).unwrap();
        let is_young = |first: u64, count: u64, forget| {
            let (start, end) = (first << PAGE_SHIFT, (first + count) << PAGE_SHIFT);
            region.is_young(start, end, forget)
        };
        assert!(!is_young(16, 4, true));
        let frame = frame_of_page(&fake, 18);
        set_lock(&fake, frame, USE);
        assert!(!is_young(16, 2, true) && !is_young(19, 1, true));
        assert!(is_young(18, 1, false) && is_young(18, 1, false));
        assert!(is_young(0, 1000, true) && !is_young(0, 1000, true));
        // A lock alone is no use; the unlock is.
        set_lock(&fake, frame, USE + 1);
        assert!(!is_young(18, 1, true));
        set_lock(&fake, frame, USE * 2);
        assert!(is_young(18, 1, true));
        // What is not mapped was not used, and a region that changes is in use.
        set_lock(&fake, frame, USE * 3);
        assert!(fake.kernel.reclaim(18, 1, true));
        assert!(!is_young(16, 4, true));
        let other = std::thread::scope(|scope| {
            let look = || scope.spawn(|| is_young(16, 4, true)).join().unwrap();
            region.pages.with(|_| look())
        });
        assert!(other);
    }

    #[test]
    fn without_sleep_a_region_whose_lock_is_taken_is_left_alone() {
        let (_, _, process) = exporter(4, true);
        let (region, _) = region(&process, 16).unwrap();
        let refused = region.pages.with(|_| {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| region.invalidate(0, u64::MAX, false, || {}));
                other.join().unwrap()
            })
        });
        assert!(!refused);
        assert_eq!(mapped(&process), 4);
    }

    #[test]
    fn taking_a_held_page_away_waits_for_the_nic() {
        let (fake, driver, process) = exporter(4, true);
        let frame = frame_of_page(&fake, 17);
        set_lock(&fake, frame, 1);
        let word = driver.geometry().lock_word(frame);
        let sram = fake.sram.clone();
        fake.tick_ns.store(20_000, Ordering::Relaxed);
        fake.on_yield(move |now| {
            if now > 1_000_000 {
                sram.store_u32(word, 0, Ordering::Release);
            }
        });
        assert!(fake.kernel.reclaim(17, 1, true));
        assert_eq!(driver.device.counters.lock_conflicts.get(), 1);
        assert!(driver.is_alive());
        assert_eq!(mapped(&process), 3);
    }

    #[test]
    fn a_nic_that_never_lets_go_is_stopped() {
        let (fake, _, process) = exporter(4, true);
        set_lock(&fake, frame_of_page(&fake, 17), 1);
        fake.tick_ns.store(20_000, Ordering::Relaxed);
        assert!(fake.kernel.reclaim(17, 1, true));
        assert!(fake.nic().stopped);
        let call = process.unexport(&mut uapi::Unexport::default());
        assert_eq!(call, Err(CallError::NoDevice));
    }

    #[test]
    fn the_kernel_learns_of_pages_that_the_nic_wrote_to() {
        let (fake, driver, _process) = exporter(4, true);
        let frame = frame_of_page(&fake, 18);
        let geometry = *driver.geometry();
        let bit = 1 << (frame % 32);
        let (own, nics) = (
            geometry.dirty_driver_word(frame),
            geometry.dirty_nic_word(frame),
        );
        let ours = fake.sram.load_u32(own, Ordering::Relaxed);
        fake.sram.store_u32(nics, ours & bit, Ordering::Relaxed);
        let others = [16, 17, 19].map(|page| frame_of_page(&fake, page));
        assert!(fake.kernel.reclaim(16, 4, true));
        let dirty = fake.kernel.state().dirty.clone();
        assert!(dirty.contains(&frame), "{dirty:?}");
        // Other frames' bits of the same word are zero on both sides, or set on ours only.
        for other in others {
            let same = (ours & (1 << (other % 32))) == 0;
            assert_eq!(dirty.contains(&other), same, "frame {other}");
        }
    }

    /// A page is entered with the access it permits, becomes writable in place, and never
    /// loses access before it leaves.
    #[test]
    fn a_read_only_page_becomes_writable_in_place() {
        let (fake, _, process) = exporter(4, false);
        let (region, _) = region(&process, 16).unwrap();
        let install = |access| region.install(0, &[Some(resident(5, access))], || true);
        for (access, expected) in [(READ, READ), (WRITE, WRITE), (READ, WRITE)] {
            assert_eq!(install(access), Ok(()));
            let tag = region.tag(0);
            assert_eq!(mapping(&fake, 5), Some((tag, expected)));
        }
        assert_eq!(mapped(&process), 1);
        assert!(fake.kernel.reclaim(16, 1, true));
        assert_eq!(install(READ), Ok(()));
        assert_eq!(mapping(&fake, 5), Some((region.tag(0), READ)));
    }

    /// Four pages can have one frame at a time. Pages that come along in a fault take the place of no
    /// other; a page that is requested does.
    #[test]
    fn pages_that_share_a_frame_are_all_mapped() {
        let (fake, _, process) = exporter(6, false);
        let (region, _) = region(&process, 16).unwrap();
        let zero = Some(resident(5, READ));
        let pages = |fake: &Fake| {
            let tags = mappings(fake, 5);
            let pages = (0..6).filter(|page| tags.contains(&(region.tag(*page), READ)));
            assert_eq!(pages.clone().count(), tags.len());
            pages.collect::<Vec<_>>()
        };
        assert_eq!(region.install(0, &[zero; 6], || true), Ok(()));
        assert_eq!(pages(&fake), [0, 1, 2, 3]);
        assert_eq!(region.install(5, &[zero], || true), Ok(()));
        let left = pages(&fake);
        assert!(left.len() == 4 && left.contains(&5), "{left:?}");
        assert_eq!(mapped(&process), 4);
        // Each leaves alone, and one that has lost its place takes no other with it.
        let gone = (0..4).find(|page| !left.contains(page)).unwrap();
        assert!(fake.kernel.reclaim(16 + gone as u64, 1, true));
        assert_eq!(pages(&fake), left);
        for (number, page) in left.iter().enumerate() {
            assert!(fake.kernel.reclaim(16 + *page as u64, 1, true));
            assert_eq!(pages(&fake), left[number + 1..]);
        }
    }

    #[test]
    fn a_closed_region_takes_no_page() {
        let (_, _, process) = exporter(4, true);
        let (closed, _) = region(&process, 16).unwrap();
        process.close();
        let installed = closed.install(0, &[Some(resident(5, WRITE))], || true);
        assert_eq!(installed, Err(MemoryError::Closed));
        assert_eq!(mapped(&process), 0);
        assert!((16..20).all(|page| region(&process, page).is_none()));
    }
}
