//! One address space: pages that the test maps, whose frames come and go.

use core::ops::Range;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use qnic_abi::page_table::PageAccess;

use super::sync::assert_may_sleep;
use super::Fake;
use crate::platform::MemoryError;
use crate::{MemoryManager, Region, Resident};

/// Size of a page in bytes.
pub(crate) const PAGE: u64 = 4096;

/// The state of the kernel.
#[derive(Default)]
pub(crate) struct State {
    /// Mapped pages; those that are resident have a frame.
    pub(crate) pages: BTreeMap<u64, Option<u32>>,
    /// Pages that are mapped but not writable.
    pub(crate) read_only: BTreeSet<u64>,
    /// Frames that the device has written to.
    pub(crate) dirty: Vec<u32>,
    /// Ranges that are pinned.
    pub(crate) pinned: u32,
    /// This many lookups of pages turn out stale.
    pub(crate) races: u32,
    /// The process ended; its driver does not know yet.
    pub(crate) space_gone: bool,
    /// Runs when the next page is faulted in, in place of other threads.
    pub(crate) on_fault: Option<Box<dyn FnOnce() + Send>>,
    notified: Vec<Arc<Region<Fake>>>,
    next_frame: u32,
}

/// A handle on it.
#[derive(Clone, Default)]
pub(crate) struct Kernel(Arc<Mutex<State>>);

/// A pinned range.
pub(crate) struct Pin(Kernel);

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.state().pinned -= 1;
    }
}

/// Notifies a region.
pub(crate) struct Notifier {
    kernel: Kernel,
    region: Arc<Region<Fake>>,
}

impl Drop for Notifier {
    fn drop(&mut self) {
        let mut state = self.kernel.state();
        state
            .notified
            .retain(|other| !Arc::ptr_eq(other, &self.region));
    }
}

impl Kernel {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Maps pages; `resident` ones get a frame.
    pub(crate) fn map(&self, first_page: u64, count: u64, resident: bool) {
        let mut state = self.state();
        for page in first_page..first_page + count {
            let frame = resident.then(|| state.new_frame());
            state.pages.insert(page, frame);
        }
    }

    /// Reclaims the frames of pages; returns false if the NIC holds one of them.
    pub(crate) fn reclaim(&self, first_page: u64, count: u64, may_sleep: bool) -> bool {
        let notified = self.state().notified.clone();
        let (start, end) = (first_page * PAGE, (first_page + count) * PAGE);
        let done = notified
            .iter()
            .all(|region| region.invalidate(start, end, may_sleep, || {}));
        if done {
            let mut state = self.state();
            for (_, frame) in state.pages.range_mut(first_page..first_page + count) {
                *frame = None;
            }
        }
        done
    }

    /// Unmaps pages.
    pub(crate) fn unmap(&self, first_page: u64, count: u64) {
        assert!(self.reclaim(first_page, count, true));
        let mut state = self.state();
        state
            .pages
            .retain(|page, _| !(first_page..first_page + count).contains(page));
    }

    pub(super) fn mark_dirty(&self, frame: u32) {
        let mut state = self.state();
        assert!(
            state.pages.values().any(|owned| *owned == Some(frame)),
            "frame {frame} is marked dirty after it was freed"
        );
        state.dirty.push(frame);
    }

    pub(crate) fn fault_in(
        &self,
        region: &Region<Fake>,
        pages: Range<usize>,
        access: PageAccess,
    ) -> Result<(), MemoryError> {
        let meanwhile = self.state().on_fault.take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        loop {
            let mut state = self.state();
            if state.space_gone {
                return Err(MemoryError::SpaceGone);
            }
            let start = region.page_numbers().start;
            let mut residents = Vec::new();
            for page in pages.clone().map(|page| start + page as u64) {
                let read_only = state.read_only.contains(&page);
                if read_only && access == PageAccess::Write && residents.is_empty() {
                    return Err(MemoryError::NotWritable);
                }
                if !state.pages.contains_key(&page) {
                    break;
                }
                let frame = state.pages[&page].unwrap_or_else(|| state.new_frame());
                state.pages.insert(page, Some(frame));
                residents.push(state.resident(page));
            }
            let stale = state.races > 0;
            state.races = state.races.saturating_sub(1);
            drop(state);
            match region.install(pages.start, &residents, || !stale) {
                Err(MemoryError::Stale) => {}
                done => return done,
            }
        }
    }
}

impl MemoryManager for Fake {
    type AddressSpace = ();
    type Notifier = Notifier;
    type Pin = Pin;

    fn check(&self, (): &(), region: &Region<Self>, access: PageAccess) -> Result<(), MemoryError> {
        assert_may_sleep();
        let state = self.kernel.state();
        for page in region.page_numbers() {
            if !state.pages.contains_key(&page) {
                return Err(MemoryError::NotMapped);
            }
            if access == PageAccess::Write && state.read_only.contains(&page) {
                return Err(MemoryError::NotWritable);
            }
        }
        Ok(())
    }

    fn register_notifier(
        &self,
        (): &(),
        region: &Arc<Region<Self>>,
    ) -> Result<Notifier, MemoryError> {
        assert_may_sleep();
        let mut state = self.kernel.state();
        state.notified.push(region.clone());
        Ok(Notifier {
            kernel: self.kernel.clone(),
            region: region.clone(),
        })
    }

    fn may_use_physical(&self) -> bool {
        self.physical.load(Ordering::Relaxed)
    }

    /// The pages must be resident and contiguous.
    fn pin(&self, (): &(), address: u64, length: u64) -> Result<(Pin, u64), MemoryError> {
        assert_may_sleep();
        let mut state = self.kernel.state();
        let pages = address / PAGE..(address + length).div_ceil(PAGE);
        let first = state.frame(pages.start).ok_or(MemoryError::NotMapped)?;
        let mut wanted = pages.zip(first..);
        if !wanted.all(|(page, frame)| state.frame(page) == Some(frame)) {
            return Err(MemoryError::NotExportable);
        }
        state.pinned += 1;
        let pin = Pin(self.kernel.clone());
        Ok((pin, u64::from(first) * PAGE + address % PAGE))
    }

    fn fault_in(
        &self,
        _: &(),
        _: &Notifier,
        region: &Region<Self>,
        pages: Range<usize>,
        access: PageAccess,
    ) -> Result<(), MemoryError> {
        assert_may_sleep();
        self.kernel.fault_in(region, pages, access)
    }

    fn install_resident(&self, _: &(), _: &Notifier, region: &Region<Self>) {
        assert_may_sleep();
        let residents: Vec<_> = {
            let state = self.kernel.state();
            let pages = region.page_numbers();
            pages.map(|page| state.resident(page)).collect()
        };
        let _ = region.install(0, &residents, || true);
    }
}

impl State {
    /// The frame of a page that is resident.
    fn frame(&self, page: u64) -> Option<u32> {
        self.pages.get(&page).copied().flatten()
    }

    fn resident(&self, page: u64) -> Option<Resident> {
        let access = match self.read_only.contains(&page) {
            true => PageAccess::Read,
            false => PageAccess::Write,
        };
        let frame = self.frame(page)?;
        Some(Resident { frame, access })
    }

    fn new_frame(&mut self) -> u32 {
        loop {
            self.next_frame = (self.next_frame + 1) % 64;
            let frame = self.next_frame;
            if !self.pages.values().any(|owned| *owned == Some(frame)) {
                return frame;
            }
        }
    }
}
