//! One exported range of addresses, and which of its pages are entered in the
//! shadow page table (N4, N8).
//!
//! Several segments over one equal range share a region. Its page array is
//! allocated at export, so that neither entering nor removing a page allocates.
//!
//! # The lock
//! The array's lock is the one that makes insertion and invalidation exclude
//! each other: [`Region::install`] asks, with the lock held, whether the frames
//! are still current; [`Region::invalidate`] announces, with the lock held, that
//! they are not, and takes them out. Whichever comes second sees the first.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use qnic_abi::page_table::{entry_of, frame_of, Tag};
use qnic_abi::{VniId, PAGE_SHIFT, PAGE_SIZE};

use crate::driver::Driver;
use crate::platform::{Mutex, NoMemory, Platform};
use crate::shadow::{Inserted, Unmapped};

/// An exported range of a process's address space.
pub struct Region<P: Platform> {
    driver: Arc<Driver<P>>,
    vni: VniId,
    first_page: u64,
    page_count: usize,
    page_key: u64,
    pages: P::Mutex<Pages>,
}

/// What the lock of a region guards.
struct Pages {
    /// For each page its frame + 1, or 0. May name a frame whose page was evicted
    /// from the table since; never misses one that is entered.
    entries: Vec<u32>,
    /// No page is entered any more.
    closed: bool,
}

/// What became of the first page that [`Region::install`] was given; the others
/// are entered as far as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Installed {
    /// It is in the table.
    Entered,
    /// The frames are not current any more: look them up again.
    Stale,
    /// The NIC is just using the frame or the whole row: try again.
    Busy,
    /// There is no frame for it, or the table does not cover it.
    Absent,
    /// The region is closed.
    Closed,
}

impl<P: Platform> Region<P> {
    /// A region over `page_count` pages from page number `first_page` on, empty.
    pub(crate) fn new(
        driver: Arc<Driver<P>>,
        vni: VniId,
        first_page: u64,
        page_count: usize,
    ) -> Result<Self, NoMemory> {
        let mut entries = Vec::new();
        entries.try_reserve_exact(page_count)?;
        entries.resize(page_count, 0);
        let page_key = driver.platform.random();
        Ok(Region {
            driver,
            vni,
            first_page,
            page_count,
            page_key,
            pages: P::Mutex::new(Pages {
                entries,
                closed: false,
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

    /// Key of its pages in the physical map.
    pub(crate) fn page_key(&self) -> u64 {
        self.page_key
    }

    /// Index of the page with this number, if it is one of the region's.
    pub(crate) fn index_of(&self, page: u64) -> Option<usize> {
        let index = usize::try_from(page.checked_sub(self.first_page)?).ok()?;
        (index < self.page_count).then_some(index)
    }

    pub(crate) fn page_numbers(&self) -> Range<u64> {
        self.first_page..self.first_page + self.page_count as u64
    }

    /// Enters `frames` (absent where there is none) for the pages from index
    /// `first` on. `still_valid` is evaluated once, with the region's lock held.
    pub fn install(
        &self,
        first: usize,
        frames: &[Option<u32>],
        still_valid: impl FnOnce() -> bool,
    ) -> Installed {
        self.pages.with(|pages| {
            if pages.closed {
                return Installed::Closed;
            }
            if !still_valid() {
                return Installed::Stale;
            }
            let mut result = Installed::Absent;
            for (step, frame) in frames.iter().enumerate() {
                let Some(frame) = *frame else { continue };
                let Some(entry) = pages.entries.get_mut(first.saturating_add(step)) else {
                    break;
                };
                let outcome = self.enter(first + step, entry, frame);
                if step == 0 {
                    result = outcome;
                }
            }
            result
        })
    }

    /// Enters one page; the region's lock is held.
    fn enter(&self, index: usize, entry: &mut u32, frame: u32) -> Installed {
        let tag = self.tag(index);
        if let Some(old) = frame_of(*entry).filter(|old| *old != frame) {
            let _ = self.driver.unmap(tag, old);
            *entry = 0;
        }
        match self.driver.insert(tag, frame, self.page_key) {
            Inserted::Done { .. } | Inserted::Already => {
                *entry = entry_of(frame);
                Installed::Entered
            }
            Inserted::Busy { .. } => Installed::Busy,
            Inserted::OutOfRange => Installed::Absent,
        }
    }

    /// Takes out the pages that touch the addresses `start..end`, before the
    /// system changes or frees them. `begin` runs once, with the region's lock
    /// held, before the first page is taken out.
    ///
    /// With `may_sleep` it waits until the NIC has let go of every page. Without,
    /// it neither sleeps nor spins, and returns `false` if the lock or a page is
    /// taken: `begin` may or may not have run, and the system asks again.
    pub fn invalidate(&self, start: u64, end: u64, may_sleep: bool, begin: impl FnOnce()) -> bool {
        let range = self.clamp(start, end);
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

    /// Takes out all pages for good.
    pub(crate) fn close(&self) {
        self.pages.with(|pages| {
            pages.closed = true;
            self.remove(pages, 0..self.page_count, true);
        });
    }

    /// Indices of the pages that touch `start..end`.
    fn clamp(&self, start: u64, end: u64) -> Range<usize> {
        let last = end.div_ceil(PAGE_SIZE as u64);
        let first = start >> PAGE_SHIFT;
        let index = |page: u64| {
            let offset = page.saturating_sub(self.first_page);
            usize::try_from(offset).map_or(self.page_count, |i| i.min(self.page_count))
        };
        index(first)..index(last)
    }

    /// Takes out pages; the region's lock is held. Says whether all are out.
    fn remove(&self, pages: &mut Pages, range: Range<usize>, may_sleep: bool) -> bool {
        let mut all_out = true;
        let start = range.start;
        for (step, entry) in pages
            .entries
            .get_mut(range)
            .into_iter()
            .flatten()
            .enumerate()
        {
            let Some(frame) = frame_of(*entry) else {
                continue;
            };
            let tag = self.tag(start + step);
            let outcome = if may_sleep {
                self.driver.unmap(tag, frame)
            } else {
                self.driver.try_unmap(tag, frame)
            };
            if outcome == Unmapped::Locked {
                all_out = false;
            } else {
                *entry = 0;
            }
            if matches!(outcome, Unmapped::Done(_)) {
                self.driver.counters.pages_invalidated.add(1);
            }
        }
        all_out
    }

    fn tag(&self, index: usize) -> Tag {
        Tag::new(self.vni, (self.first_page + index as u64) << PAGE_SHIFT)
    }
}

impl<P: Platform> Drop for Region<P> {
    /// No page outlives its region in the table.
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::SpinLock;
    use crate::testing::{register, Fake, PAGE};
    use crate::{CallError, Process};
    use core::sync::atomic::Ordering;
    use qnic_abi::{uapi, SharedMemory};

    /// A process that exports pages 16 to 19, all resident.
    fn exporter(fake: &Fake) -> Process<Fake> {
        let process = register(&fake.start().unwrap());
        fake.kernel.map(16, 4, true);
        let mut call = uapi::Export {
            access: 3.into(),
            address: (16 * PAGE).into(),
            length: (4 * PAGE).into(),
            ..Default::default()
        };
        process.export(&mut call).unwrap();
        process
    }

    fn frame_of_page(fake: &Fake, page: u64) -> u32 {
        fake.kernel.state().pages[&page].unwrap()
    }

    fn set_lock(fake: &Fake, process: &Process<Fake>, frame: u32, value: u32) {
        let word = process.driver().geometry().lock_word(frame);
        fake.sram.store_u32(word, value, Ordering::Relaxed);
    }

    fn mapped(process: &Process<Fake>) -> u64 {
        process.driver().counters.pages_mapped.get()
    }

    #[test]
    fn reclaim_takes_pages_out_and_a_fault_brings_them_back() {
        let fake = Fake::new();
        let process = exporter(&fake);
        assert_eq!(mapped(&process), 4);
        assert!(fake.kernel.reclaim(17, 2, true));
        assert_eq!(mapped(&process), 2);
        assert!(fake.kernel.reclaim(0, 1000, false));
        assert_eq!(mapped(&process), 0);
        let (exported, first) = process.state().find(18).unwrap();
        assert_eq!(fake.kernel.fault_in(&exported.region, first, 1), Ok(()));
        assert_eq!(mapped(&process), 1);
    }

    #[test]
    fn a_held_page_is_not_taken_away_without_waiting() {
        let fake = Fake::new();
        let process = exporter(&fake);
        let frame = frame_of_page(&fake, 17);
        set_lock(&fake, &process, frame, 1);
        assert!(!fake.kernel.reclaim(16, 4, false));
        assert_eq!(mapped(&process), 1);
        set_lock(&fake, &process, frame, 0);
        assert!(fake.kernel.reclaim(16, 4, false));
        assert_eq!(mapped(&process), 0);
    }

    #[test]
    fn without_sleep_a_region_whose_lock_is_taken_is_left_alone() {
        let fake = Fake::new();
        let process = exporter(&fake);
        let (exported, _) = process.state().find(16).unwrap();
        let region = &exported.region;
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
        let fake = Fake::new();
        let process = exporter(&fake);
        let frame = frame_of_page(&fake, 17);
        set_lock(&fake, &process, frame, 1);
        let (sram, word) = (
            fake.sram.clone(),
            process.driver().geometry().lock_word(frame),
        );
        fake.tick_on_look(20_000);
        fake.on_give_way(move |now| {
            if now > 1_000_000 {
                sram.store_u32(word, 0, Ordering::Release);
            }
        });
        assert!(fake.kernel.reclaim(17, 1, true));
        assert_eq!(process.driver().counters.lock_conflicts.get(), 1);
        assert!(process.driver().is_alive());
        assert_eq!(mapped(&process), 3);
    }

    #[test]
    fn a_nic_that_never_lets_go_is_stopped() {
        let fake = Fake::new();
        let process = exporter(&fake);
        set_lock(&fake, &process, frame_of_page(&fake, 17), 1);
        fake.tick_on_look(20_000);
        assert!(fake.kernel.reclaim(17, 1, true));
        assert!(fake.nic().stopped);
        let call = process.unexport(&mut uapi::Unexport::default());
        assert_eq!(call, Err(CallError::NoDevice));
    }

    #[test]
    fn the_kernel_hears_of_pages_that_the_nic_wrote_to() {
        let fake = Fake::new();
        let process = exporter(&fake);
        let frame = frame_of_page(&fake, 18);
        let geometry = *process.driver().geometry();
        let bit = 1 << (frame % 32);
        let ours = fake
            .sram
            .load_u32(geometry.dirty_driver_word(frame), Ordering::Relaxed);
        fake.sram.store_u32(
            geometry.dirty_nic_word(frame),
            ours & bit,
            Ordering::Relaxed,
        );
        let others = [16, 17, 19].map(|page| frame_of_page(&fake, page));
        assert!(fake.kernel.reclaim(16, 4, true));
        let dirty = fake.kernel.state().dirty.clone();
        assert!(dirty.contains(&frame), "{dirty:?}");
        // Other frames' bits of the same word are zero on both sides or ours only.
        for other in others {
            let same = (ours & (1 << (other % 32))) == 0;
            assert_eq!(dirty.contains(&other), same, "frame {other}");
        }
    }

    #[test]
    fn a_closed_region_takes_no_page() {
        let fake = Fake::new();
        let process = exporter(&fake);
        let (exported, _) = process.state().find(16).unwrap();
        process.close();
        let installed = exported.region.install(0, &[Some(5)], || true);
        assert_eq!(installed, Installed::Closed);
        assert_eq!(mapped(&process), 0);
        assert!(process.state().regions.with(|regions| regions.is_empty()));
    }
}
