//! The kernel of a simulated node: address spaces whose pages come and go.
//!
//! ```text
//!   page: frame? ◄──make_resident── swap (what it held when it was last written out)
//!           │                    ▲
//!           └──reclaim: Region::invalidate, then (if dirty) ──┘, frame freed
//! ```
//! As in Linux, a page that is clean is not written out again: a dirty bit that
//! the driver misses shows as lost data (N7). A page that is clean is mapped for reading
//! only, as a page of a file is, until a fault for writing; now and then a page is
//! written out where it is, which makes it so. Reclaim first tells the driver
//! ([`Region::invalidate`], the MMU notifier), which may make it wait; only then the
//! frame changes its owner. A sequence number for each watch makes a frame that
//! was looked up before an invalidation stale.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use qnic_abi::page_table::PageAccess;
use qnic_abi::{PAGE_SHIFT, PAGE_SIZE};
use qnic_driver::platform::MemoryError;
use qnic_driver::{Platform, Region, Resident};

use crate::machine::memory::{Memory, Owner};
use crate::schedule::{lock, trace, Schedule};

/// How often a span of pages is looked up before it is given up as busy.
const LOOKUPS: usize = 3;

/// How often a page is tried to be freed for another one.
const RECLAIMS: usize = 10_000;

#[derive(Default)]
struct Page {
    frame: Option<u32>,
    swap: Option<Box<[u8]>>,
    dirty: bool,
    /// The device may write to it, if it is resident.
    writable: bool,
}

impl Page {
    /// Writes it out, if it is dirty.
    fn write_out(&mut self, memory: &Memory) {
        self.writable = false;
        if let (true, Some(frame)) = (std::mem::take(&mut self.dirty), self.frame) {
            let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
            memory.load(frame, 0, &mut bytes);
            self.swap = Some(bytes);
        }
    }

    fn resident(&self) -> Option<Resident> {
        let access = match self.writable {
            true => PageAccess::Write,
            false => PageAccess::Read,
        };
        let frame = self.frame?;
        Some(Resident { frame, access })
    }
}

struct Space<P: Platform> {
    pages: BTreeMap<u64, Page>,
    /// Numbers of the pages that have a frame, in order.
    resident: Vec<u64>,
    watches: Vec<Arc<Watched<P>>>,
    /// Its process is going away: nothing is brought in any more.
    gone: bool,
}

impl<P: Platform> Space<P> {
    /// Gives a page a frame, or takes its frame away.
    fn set_frame(&mut self, page: u64, frame: Option<u32>) {
        let Some(found) = self.pages.get_mut(&page) else {
            return;
        };
        found.frame = frame;
        match (self.resident.binary_search(&page), frame) {
            (Err(place), Some(_)) => self.resident.insert(place, page),
            (Ok(place), None) => drop(self.resident.remove(place)),
            (Ok(_), Some(_)) | (Err(_), None) => {}
        }
    }
}

struct State<P: Platform> {
    spaces: BTreeMap<u64, Space<P>>,
    /// Space and number of the pages that cannot be brought in for the device.
    unavailable: BTreeSet<(u64, u64)>,
    next: u64,
}

impl<P: Platform> State<P> {
    fn page(&mut self, space: u64, page: u64) -> Option<&mut Page> {
        self.spaces.get_mut(&space)?.pages.get_mut(&page)
    }

    /// A space whose process is not going away.
    fn living(&mut self, space: u64) -> Result<&mut Space<P>, MemoryError> {
        let space = self.spaces.get_mut(&space).filter(|space| !space.gone);
        space.ok_or(MemoryError::SpaceGone)
    }
}

/// A region under watch.
pub(crate) struct Watched<P: Platform> {
    region: Arc<Region<P>>,
    sequence: AtomicU64,
}

impl<P: Platform> Watched<P> {
    fn first(&self) -> u64 {
        self.region.address() >> PAGE_SHIFT
    }

    fn holds(&self, page: u64) -> bool {
        page.checked_sub(self.first())
            .is_some_and(|index| index < self.region.page_count() as u64)
    }

    fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Tells the driver that pages change; returns true if it has let go of them.
    fn invalidate(&self, start: u64, end: u64, may_sleep: bool) -> bool {
        self.region.invalidate(start, end, may_sleep, || {
            self.sequence.fetch_add(1, Ordering::Relaxed);
        })
    }
}

/// Notifies a region until it is dropped.
pub(crate) struct Notifier<P: Platform> {
    kernel: Arc<Kernel<P>>,
    space: u64,
    watched: Arc<Watched<P>>,
}

impl<P: Platform> Drop for Notifier<P> {
    fn drop(&mut self) {
        if let Some(space) = lock(&self.kernel.state).spaces.get_mut(&self.space) {
            let watches = &mut space.watches;
            // `self` keeps the region, so that nothing of it is dropped under the lock.
            watches.retain(|other| !Arc::ptr_eq(other, &self.watched));
        }
    }
}

/// Address spaces and paging of one node.
pub(crate) struct Kernel<P: Platform> {
    schedule: Arc<Schedule>,
    memory: Arc<Memory>,
    /// Longest time to bring in a page from swap, in nanoseconds.
    pub(crate) disk: AtomicU64,
    state: Mutex<State<P>>,
}

impl<P: Platform> Kernel<P> {
    pub(crate) fn new(schedule: Arc<Schedule>, memory: Arc<Memory>, disk: u64) -> Self {
        Kernel {
            schedule,
            memory,
            disk: AtomicU64::new(disk),
            state: Mutex::new(State {
                spaces: BTreeMap::new(),
                unavailable: BTreeSet::new(),
                next: 0,
            }),
        }
    }

    /// Makes an address space with pages at these page numbers.
    pub(crate) fn new_space(&self, pages: impl Iterator<Item = u64>) -> u64 {
        let mut state = lock(&self.state);
        state.next += 1;
        let space = Space {
            pages: pages.map(|page| (page, Page::default())).collect(),
            resident: Vec::new(),
            watches: Vec::new(),
            gone: false,
        };
        let number = state.next;
        state.spaces.insert(number, space);
        number
    }

    /// Ends an address space, as the exit of its process does: the driver learns it
    /// first, then the frames are freed.
    pub(crate) fn end_space(&self, space: u64) {
        let watches = {
            let mut state = lock(&self.state);
            let Some(space) = state.spaces.get_mut(&space) else {
                return;
            };
            space.gone = true;
            space.watches.clone()
        };
        for watched in watches {
            while !watched.invalidate(0, u64::MAX, true) {}
        }
        let ended = lock(&self.state).spaces.remove(&space);
        let pages = ended.into_iter().flat_map(|space| space.pages);
        for frame in pages.filter_map(|(_, page)| page.frame) {
            self.memory.release(frame);
        }
        self.memory.set_vni(space, None);
    }

    pub(crate) fn spaces(&self) -> usize {
        lock(&self.state).spaces.len()
    }

    /// Takes some resident page away from its process, as under memory pressure.
    /// Returns true if one was taken.
    pub(crate) fn reclaim_any(&self) -> bool {
        let Some((space, page)) = self.some_resident() else {
            return false;
        };
        let may_sleep = self.schedule.chance(700);
        self.reclaim(space, page, may_sleep)
    }

    /// Space and number of some page that has a frame.
    fn some_resident(&self) -> Option<(u64, u64)> {
        let state = lock(&self.state);
        let count = state
            .spaces
            .values()
            .map(|space| space.resident.len())
            .sum();
        if count == 0 {
            return None;
        }
        let mut chosen = self.schedule.below(count);
        for (number, space) in &state.spaces {
            match space.resident.get(chosen) {
                Some(page) => return Some((*number, *page)),
                None => chosen -= space.resident.len(),
            }
        }
        None
    }

    fn reclaim(&self, space: u64, page: u64, may_sleep: bool) -> bool {
        if may_sleep && !self.invalidate(space, page, true) {
            return false;
        }
        // Again without a wait: nothing was entered since when the frame is taken.
        if !self.invalidate(space, page, false) {
            return false;
        }
        let mut state = lock(&self.state);
        let Some(found) = state.page(space, page) else {
            return false;
        };
        found.write_out(&self.memory);
        if self.schedule.chance(300) {
            // It stays, clean.
            return false;
        }
        let Some(frame) = found.frame else {
            return false;
        };
        if let Some(space) = state.spaces.get_mut(&space) {
            space.set_frame(page, None);
        }
        self.memory.release(frame);
        trace!(
            self.schedule,
            "kernel: space {space} loses page {page:#x}, frame {frame}"
        );
        true
    }

    /// Tells all notifiers of a page that it goes away: a region that is being retracted may
    /// still be watched beside its successor. Returns true if all have let go.
    fn invalidate(&self, space: u64, page: u64, may_sleep: bool) -> bool {
        let watches: Vec<_> = {
            let state = lock(&self.state);
            let watches = state.spaces.get(&space).map(|space| space.watches.iter());
            let watches = watches.into_iter().flatten();
            watches.filter(|w| w.holds(page)).cloned().collect()
        };
        let start = page << PAGE_SHIFT;
        let end = start + PAGE_SIZE as u64;
        let mut watches = watches.iter();
        watches.all(|watched| watched.invalidate(start, end, may_sleep))
    }

    /// A frame for a page of a process; others lose theirs if none is free.
    pub(crate) fn frame_for(&self, owner: Owner) -> u32 {
        let frame = self.try_frame_for(owner);
        frame.expect("no page can be reclaimed: the driver never lets go")
    }

    /// A frame for a new owner, if there is one, or one can be taken away from others.
    pub(crate) fn try_frame_for(&self, owner: Owner) -> Option<u32> {
        for _ in 0..RECLAIMS {
            if let Some(frame) = self.memory.allocate(owner) {
                return Some(frame);
            }
            if !self.reclaim_any() {
                self.schedule.sleep(1000);
            }
        }
        None
    }

    /// From now on, brings a page in for the device, or does not; one that it does not bring
    /// in goes away if it can.
    pub(crate) fn set_available(&self, space: u64, page: u64, available: bool) {
        let mut state = lock(&self.state);
        if available {
            state.unavailable.remove(&(space, page));
        } else {
            state.unavailable.insert((space, page));
            drop(state);
            // One that the driver holds fast stays where it is.
            let _taken = self.reclaim(space, page, false);
        }
    }

    /// Makes a page resident for the device, if it can be brought in.
    fn make_available(&self, space: u64, page: u64) -> Result<u32, MemoryError> {
        let unavailable = lock(&self.state).unavailable.contains(&(space, page));
        match unavailable {
            true => Err(MemoryError::NotMapped),
            false => self.make_resident(space, page),
        }
    }

    /// Makes a page resident; returns its frame, valid until the next wait.
    fn make_resident(&self, space: u64, page: u64) -> Result<u32, MemoryError> {
        if let Some(frame) = self.look_up(space, page)?.0 {
            return Ok(frame);
        }
        if self.look_up(space, page)?.1 {
            let longest = self.disk.load(Ordering::Relaxed).max(1001);
            self.schedule.sleep(self.schedule.range(1000..longest));
        }
        let frame = self.frame_for(Owner::Page { space, page });
        let resident = match self.look_up(space, page) {
            Ok((resident, _)) => resident,
            Err(error) => {
                self.memory.release(frame);
                return Err(error);
            }
        };
        if let Some(resident) = resident {
            self.memory.release(frame);
            return Ok(resident);
        }
        let mut state = lock(&self.state);
        let found = state.page(space, page).ok_or(MemoryError::SpaceGone)?;
        if let Some(swap) = &found.swap {
            self.memory.store(frame, 0, swap);
        }
        found.writable = false;
        state.living(space)?.set_frame(page, Some(frame));
        Ok(frame)
    }

    /// Frame of a page, and whether it has to come from the disk.
    fn look_up(&self, space: u64, page: u64) -> Result<(Option<u32>, bool), MemoryError> {
        let mut state = lock(&self.state);
        let page = state.living(space)?.pages.get(&page);
        let page = page.ok_or(MemoryError::NotMapped)?;
        Ok((page.frame, page.swap.is_some()))
    }

    /// Checks that all pages of a region are mapped.
    pub(crate) fn check(&self, space: u64, region: &Region<P>) -> Result<(), MemoryError> {
        let mut state = lock(&self.state);
        let found = state.living(space)?;
        let first = region.address() >> PAGE_SHIFT;
        let mut pages = (0..region.page_count() as u64).map(|index| first + index);
        match pages.all(|page| found.pages.contains_key(&page)) {
            true => Ok(()),
            false => Err(MemoryError::NotMapped),
        }
    }

    /// Registers a notifier for a region.
    pub(crate) fn register_notifier(
        self: &Arc<Self>,
        space: u64,
        region: &Arc<Region<P>>,
    ) -> Result<Notifier<P>, MemoryError> {
        let watched = Arc::new(Watched {
            region: region.clone(),
            sequence: AtomicU64::new(0),
        });
        let mut state = lock(&self.state);
        state.living(space)?.watches.push(watched.clone());
        Ok(Notifier {
            kernel: self.clone(),
            space,
            watched,
        })
    }

    /// Brings in a span of pages and enters them, unless they change meanwhile.
    pub(crate) fn fault_in(
        &self,
        notifier: &Notifier<P>,
        pages: Range<usize>,
        access: PageAccess,
    ) -> Result<(), MemoryError> {
        let (watched, count) = (&notifier.watched, pages.len());
        let start = watched.first() + pages.start as u64;
        for lookup in 0..LOOKUPS {
            let sequence = watched.sequence();
            // A span that does not fit into memory would never be resident at once.
            let count = if lookup == 0 { count } else { 1 };
            let mut residents = Vec::new();
            for page in start..start + count as u64 {
                match self.make_available(notifier.space, page) {
                    Ok(frame) => residents.push(self.open(notifier.space, page, frame, access)),
                    Err(error) if residents.is_empty() => return Err(error),
                    Err(_) => break,
                }
            }
            let valid = || watched.sequence() == sequence;
            match watched.region.install(pages.start, &residents, valid) {
                Err(MemoryError::Stale) => {}
                done => return done,
            }
        }
        Err(MemoryError::Busy)
    }

    /// What the device may do with a page that was just made resident in `frame`, after a
    /// fault for this access.
    fn open(&self, space: u64, page: u64, frame: u32, access: PageAccess) -> Option<Resident> {
        let mut state = lock(&self.state);
        let found = state.page(space, page)?;
        found.writable |= access == PageAccess::Write;
        found.resident().filter(|resident| resident.frame == frame)
    }

    /// Enters the pages that are resident.
    pub(crate) fn install_resident(&self, notifier: &Notifier<P>) {
        let watched = &notifier.watched;
        let sequence = watched.sequence();
        let residents: Vec<_> = {
            let mut state = lock(&self.state);
            let pages = (0..watched.region.page_count() as u64).map(|i| watched.first() + i);
            pages
                .map(|page| state.page(notifier.space, page)?.resident())
                .collect()
        };
        // Best effort: what does not get in is faulted in later.
        let _entered = watched
            .region
            .install(0, &residents, || watched.sequence() == sequence);
    }

    /// The device has written to a frame.
    pub(crate) fn mark_dirty(&self, frame: u32) {
        let Owner::Page { space, page } = self.memory.owner(frame) else {
            panic!("frame {frame} is marked dirty after it was freed");
        };
        if let Some(page) = lock(&self.state).page(space, page) {
            page.dirty = true;
        }
    }

    /// The process stores to its memory.
    pub(crate) fn write(&self, space: u64, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        for (page, offset, range) in page_spans(address, bytes.len()) {
            let frame = self.make_resident(space, page)?;
            self.memory.store(frame, offset, &bytes[range]);
            self.mark_dirty(frame);
        }
        Ok(())
    }

    /// The process loads from its memory.
    pub(crate) fn read(
        &self,
        space: u64,
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), MemoryError> {
        for (page, offset, range) in page_spans(address, bytes.len()) {
            let frame = self.make_resident(space, page)?;
            self.memory.load(frame, offset, &mut bytes[range]);
        }
        Ok(())
    }

    /// What a process would load, without a trace of the access; `None` if the
    /// memory is gone.
    pub(crate) fn peek(&self, space: u64, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let state = lock(&self.state);
        let space = state.spaces.get(&space)?;
        for (page, offset, range) in page_spans(address, length) {
            let page = space.pages.get(&page)?;
            match (page.frame, &page.swap) {
                (Some(frame), _) => self.memory.load(frame, offset, &mut bytes[range]),
                (None, Some(swap)) => {
                    let length = range.len();
                    bytes[range].copy_from_slice(&swap[offset..offset + length]);
                }
                (None, None) => {}
            }
        }
        Some(bytes)
    }
}

/// A range of addresses, page by page: page number, offset in the page, and which
/// of the bytes.
fn page_spans(address: u64, length: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = address + done as u64;
        let offset = at as usize % PAGE_SIZE;
        let count = (length - done).min(PAGE_SIZE - offset);
        let range = done..done + count;
        done += count;
        (count > 0).then_some((at >> PAGE_SHIFT, offset, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_split_at_page_borders() {
        let found: Vec<_> = page_spans(0x1ffe, 4100).collect();
        assert_eq!(
            found,
            [(1, 4094, 0..2), (2, 0, 2..4098), (3, 0, 4098..4100)]
        );
        assert_eq!(page_spans(0x1000, 0).count(), 0);
    }
}
