//! Pages of a process that are locked, read or written, and unlocked together: the
//! fence of lockPage waits for the copies before it, so it is paid once for a run of
//! pages.

use qnic_abi::page_table::Tag;
use qnic_abi::wire::{pieces, RUN_PAGES};
use qnic_abi::{Status, VniId, PAGE_SIZE};

use crate::counters::Role;
use crate::env::{in_a_row, Host, HostMemory, Payload};
use crate::nic::Nic;
use crate::page_table::{
    count_present, lock_pages, page_key, try_lock_page, unlock_page, unlock_page_dirty, LockedPage,
    Missed,
};
use crate::segment::PageKey;

/// Why a page cannot be used.
pub(crate) enum PageError {
    /// It is not in the page table.
    Absent,
    /// It never will be of use to this transfer.
    Refused(Status),
}

/// Where in a process bytes go, checked but not locked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination {
    pub(crate) vni: VniId,
    /// Virtual address of the first byte.
    pub(crate) address: u64,
    pub(crate) key: PageKey,
}

/// Consecutive virtual pages that are locked. Their number is what the driver may
/// have to wait for.
#[derive(Debug, Default)]
#[must_use = "pages that are locked must be unlocked"]
pub(crate) struct LockedRun {
    count: usize,
    pages: [Option<LockedPage>; RUN_PAGES],
    addresses: [u64; RUN_PAGES],
}

impl LockedRun {
    fn single(page: LockedPage) -> Self {
        let mut run = LockedRun {
            count: 1,
            ..LockedRun::default()
        };
        run.addresses[0] = page.address();
        run.pages[0] = Some(page);
        run
    }

    /// Guest-physical addresses of the pages.
    #[inline]
    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses[..self.count]
    }

    /// Bytes from a virtual address in the first page to the end of the last one.
    pub(crate) fn bytes_from(&self, address: u64) -> u64 {
        let within = address % PAGE_SIZE as u64;
        ((self.count * PAGE_SIZE) as u64).saturating_sub(within)
    }
}

impl Nic {
    /// Locks a page of a process, and checks that it was entered for this range.
    #[inline]
    pub(crate) fn lock<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        address: u64,
        key: PageKey,
        role: Role,
    ) -> Result<LockedPage, PageError> {
        let PageKey::Table(key) = key else {
            return pinned(host, address);
        };
        let tag = Tag::new(vni, address);
        let page = match try_lock_page(host.sram(), &self.geometry, tag) {
            Ok(page) => page,
            Err(missed) => {
                self.counters.lookups(role).misses += 1;
                self.counters.lookups_lost += u64::from(missed == Missed::Lost);
                return Err(PageError::Absent);
            }
        };
        self.counters.lookups(role).hits += 1;
        if page_key(host.sram(), &self.geometry, &page) != key {
            unlock_page(host.sram(), &self.geometry, page);
            self.counters.refused(Status::BadKey);
            return Err(PageError::Refused(Status::BadKey));
        }
        if !host.memory().contains(page.address(), PAGE_SIZE as u64) {
            unlock_page(host.sram(), &self.geometry, page);
            return Err(PageError::Refused(Status::PageUnavailable));
        }
        Ok(page)
    }

    /// Locks the pages of `length` bytes from `address` on, at least the first of
    /// them, up to [`RUN_PAGES`].
    ///
    /// # Errors
    /// Why the first cannot be used.
    #[inline]
    pub(crate) fn lock_some<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        place: (u64, usize),
        key: PageKey,
        role: Role,
    ) -> Result<LockedRun, PageError> {
        if pieces(place.0, place.1) > 1 {
            let run = self.lock_run(host, vni, place, key, role);
            if run.count > 0 {
                return Ok(run);
            }
        }
        let page = self.lock(host, vni, place.0, key, role)?;
        Ok(LockedRun::single(page))
    }

    /// How many of `length` bytes from `address` on lie in pages that seem to be there,
    /// up to [`RUN_PAGES`] of them. It promises nothing; a transfer that relies on it
    /// finds out when it locks them.
    pub(crate) fn count_present<H: Host>(
        &self,
        host: &H,
        vni: VniId,
        (address, length): (u64, u32),
        key: PageKey,
    ) -> u32 {
        if key == PageKey::Physical {
            return 0;
        }
        let count = pieces(address, length as usize).min(RUN_PAGES as u64);
        let within = address % PAGE_SIZE as u64;
        let tags = (0..count).map(|page| Tag::new(vni, address - within + page * PAGE_SIZE as u64));
        let present = count_present(host.sram(), &self.geometry, tags);
        let bytes = ((present * PAGE_SIZE) as u64).saturating_sub(within);
        bytes.min(u64::from(length)) as u32
    }

    /// Locks the pages of `length` bytes from `address` on, up to [`RUN_PAGES`] of
    /// them; fewer, or none, if one is absent or was not entered for `key`.
    #[inline]
    pub(crate) fn lock_run<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        (address, length): (u64, usize),
        key: PageKey,
        role: Role,
    ) -> LockedRun {
        let mut run = LockedRun::default();
        let count = (pieces(address, length) as usize).min(RUN_PAGES);
        let first = address - address % PAGE_SIZE as u64;
        let virtual_pages = (0..count).map(|page| first + (page * PAGE_SIZE) as u64);
        let (sram, geometry) = (host.sram(), &self.geometry);
        let marked = match key {
            PageKey::Table(_) => {
                let tags = virtual_pages.map(|page| Tag::new(vni, page));
                lock_pages(sram, geometry, tags, &mut run.pages)
            }
            PageKey::Physical => {
                for (place, page) in run.pages.iter_mut().zip(virtual_pages) {
                    *place = LockedPage::pinned(page);
                }
                count
            }
        };
        while let Some(Some(page)) = run.pages[..marked].get(run.count) {
            let address = page.address();
            let entered = match key {
                PageKey::Table(key) => page_key(sram, geometry, page) == key,
                PageKey::Physical => true,
            };
            if !entered || !host.memory().contains(address, PAGE_SIZE as u64) {
                break;
            }
            run.addresses[run.count] = address;
            run.count += 1;
        }
        for page in run.pages[run.count..].iter_mut().filter_map(Option::take) {
            unlock_page(sram, geometry, page);
        }
        if let PageKey::Table(_) = key {
            self.counters.lookups(role).hits += run.count as u64;
        }
        run
    }

    /// Lets the driver have all pages of a run again; the first `written` of them
    /// are dirty (N7).
    #[inline]
    pub(crate) fn unlock_run<H: Host>(&self, host: &H, mut run: LockedRun, written: usize) {
        let (sram, geometry) = (host.sram(), &self.geometry);
        for (place, page) in run.pages[..run.count].iter_mut().enumerate() {
            match page.take() {
                Some(page) if place < written => unlock_page_dirty(sram, geometry, page),
                Some(page) => unlock_page(sram, geometry, page),
                None => {}
            }
        }
    }

    /// Copies as much of a payload to a process as goes into a run of its pages, each
    /// byte once. Returns how many bytes that was: all, or up to a page border.
    pub(crate) fn place_run<H: Host>(
        &mut self,
        host: &H,
        to: Destination,
        payload: &Payload<'_, H::Memory>,
    ) -> usize {
        let place = (to.address, payload.len());
        let run = self.lock_run(host, to.vni, place, to.key, Role::Destination);
        let mut within = (to.address % PAGE_SIZE as u64) as usize;
        let (mut done, mut written) = (0, 0);
        while let Some(first) = run.addresses().get(written) {
            let count = in_a_row(&run.addresses()[written..]);
            let part = payload.part(done, count * PAGE_SIZE - within);
            // Some of it may have been written even if it is refused.
            written += count;
            if part.copy_to(host.memory(), first + within as u64).is_err() {
                break;
            }
            done += part.len();
            within = 0;
        }
        self.unlock_run(host, run, written);
        self.counters.bytes_received += done as u64;
        done
    }
}

/// A page of a physical segment (N25): nobody takes it away, but the guest's memory
/// may end before it.
fn pinned<H: Host>(host: &H, address: u64) -> Result<LockedPage, PageError> {
    let page = address & !(PAGE_SIZE as u64 - 1);
    let inside = host.memory().contains(page, PAGE_SIZE as u64);
    let page = LockedPage::pinned(page).filter(|_| inside);
    page.ok_or(PageError::Refused(Status::BadAddress))
}
