//! Page spans: pages of a process that are locked, read or written, and unlocked together. The fence
//! of lockPage waits for the copies before it, so one fence for a span costs less than one for each
//! page. A [`Fragment`] says how a transfer is cut: at the page borders of both sides, and by the
//! longest frame.
//!
//! A wire may keep a frame beyond the call that sends it. The pages of its payload stay locked until
//! the wire has delivered it:
//! ```text
//!   send ──► Sent::Kept(ticket) ──► [kept: ticket, pages | …] ──► is_done(ticket) ──► released
//!                                     oldest first
//! ```
//! Each of these frames is in a window, so they have at most as many fragments as the windows of all
//! peers ([`crate::Limits::window`]). Their pages are released in the order of sending: a frame on a
//! slow route delays those behind it by one round trip at most.

use std::collections::VecDeque;

use qnic_abi::page_table::{PageAccess, Tag};
use qnic_abi::wire::{fragments, SPAN_PAGES};
use qnic_abi::{Status, VniId, PAGE_SIZE};

use super::lookup_side::LookupSide;
use super::page_table::{
    count_present, lock_pages, page_key, release_page, try_lock_page, unlock_page,
    unlock_page_dirty, LockedPage, Missed,
};
use super::segment::PageKey;
use super::Core;
use crate::env::{contiguous, Host, HostMemory, Payload, Ticket};

/// Why a page cannot be used.
pub(crate) enum PageError {
    /// It is not in the page table.
    Absent,
    /// It never will be of use to this transfer.
    Refused(Status),
}

/// Where in a process bytes go, or come from, checked but not locked.
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
pub(crate) struct LockedSpan {
    count: usize,
    pages: [Option<LockedPage>; SPAN_PAGES],
    addresses: [u64; SPAN_PAGES],
}

impl LockedSpan {
    /// Takes the locked pages out.
    pub(crate) fn take_pages(&mut self) -> [Option<LockedPage>; SPAN_PAGES] {
        self.count = 0;
        std::mem::take(&mut self.pages)
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

impl Core {
    /// Locks a page of a process, and checks that it was entered for this range.
    #[inline]
    pub(crate) fn lock<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        address: u64,
        key: PageKey,
        side: LookupSide,
    ) -> Result<LockedPage, PageError> {
        let PageKey::Table(key) = key else {
            return pinned(host, address);
        };
        let tag = Tag::new(vni, address);
        let page = match try_lock_page(host.sram(), &self.geometry, tag, side.access()) {
            Ok(page) => page,
            Err(missed) => {
                *side.misses(&mut self.counters) += 1;
                self.counters.lookups_lost += u64::from(missed == Missed::Lost);
                return Err(PageError::Absent);
            }
        };
        *side.hits(&mut self.counters) += 1;
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
    /// them, up to [`SPAN_PAGES`]; no page of `span` is locked before.
    ///
    /// # Errors
    /// Why the first cannot be used.
    #[inline]
    pub(crate) fn lock_some<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        range: (u64, usize),
        key: PageKey,
        side: LookupSide,
        span: &mut LockedSpan,
    ) -> Result<(), PageError> {
        if fragments(range.0, range.1) > 1 {
            self.lock_span(host, vni, range, key, side, span);
            if span.count > 0 {
                return Ok(());
            }
        }
        let page = self.lock(host, vni, range.0, key, side)?;
        span.count = 1;
        span.addresses[0] = page.address();
        span.pages[0] = Some(page);
        Ok(())
    }

    /// How many of `length` bytes from `address` on lie in pages that seem to be there,
    /// to be written to, up to [`SPAN_PAGES`] of them. It promises nothing; a transfer that relies on it
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
        let count = fragments(address, length as usize).min(SPAN_PAGES as u64);
        let within = address % PAGE_SIZE as u64;
        let tags = (0..count).map(|page| Tag::new(vni, address - within + page * PAGE_SIZE as u64));
        let access = PageAccess::Write;
        let present = count_present(host.sram(), &self.geometry, tags, access);
        let bytes = ((present * PAGE_SIZE) as u64).saturating_sub(within);
        bytes.min(u64::from(length)) as u32
    }

    /// Locks the pages of `length` bytes from `address` on, up to [`SPAN_PAGES`] of
    /// them; fewer, or none, if one is absent or was not entered for `key`. No page of
    /// `span` is locked before.
    #[inline]
    pub(crate) fn lock_span<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        (address, length): (u64, usize),
        key: PageKey,
        side: LookupSide,
        span: &mut LockedSpan,
    ) {
        debug_assert_eq!(span.count, 0);
        let count = (fragments(address, length) as usize).min(SPAN_PAGES);
        let first = address - address % PAGE_SIZE as u64;
        let virtual_pages = (0..count).map(|page| first + (page * PAGE_SIZE) as u64);
        let (sram, geometry) = (host.sram(), &self.geometry);
        let marked = match key {
            PageKey::Table(_) => {
                let tags = virtual_pages.map(|page| Tag::new(vni, page));
                lock_pages(sram, geometry, tags, side.access(), &mut span.pages)
            }
            PageKey::Physical => {
                for (slot, page) in span.pages.iter_mut().zip(virtual_pages) {
                    *slot = LockedPage::pinned(page);
                }
                count
            }
        };
        while let Some(Some(page)) = span.pages[..marked].get(span.count) {
            let address = page.address();
            let entered = match key {
                PageKey::Table(key) => page_key(sram, geometry, page) == key,
                PageKey::Physical => true,
            };
            if !entered || !host.memory().contains(address, PAGE_SIZE as u64) {
                break;
            }
            span.addresses[span.count] = address;
            span.count += 1;
        }
        for page in span.pages[span.count..].iter_mut().filter_map(Option::take) {
            unlock_page(sram, geometry, page);
        }
        if let PageKey::Table(_) = key {
            *side.hits(&mut self.counters) += span.count as u64;
        }
    }

    /// Lets the driver have all pages of a span again; the first `written` of them
    /// are dirty (N7).
    #[inline]
    pub(crate) fn unlock_span<H: Host>(&self, host: &H, span: &mut LockedSpan, written: usize) {
        let (sram, geometry) = (host.sram(), &self.geometry);
        for (index, page) in span.pages[..span.count].iter_mut().enumerate() {
            match page.take() {
                Some(page) if index < written => unlock_page_dirty(sram, geometry, page),
                Some(page) => unlock_page(sram, geometry, page),
                None => {}
            }
        }
        span.count = 0;
    }

    /// Lets the driver have pages again that were locked in an earlier call of the NIC.
    pub(crate) fn release_pages<H: Host>(
        &self,
        host: &H,
        pages: &mut [Option<LockedPage>; SPAN_PAGES],
    ) {
        for page in pages.iter_mut().filter_map(Option::take) {
            release_page(host.sram(), &self.geometry, page);
        }
    }

    /// Copies as much of a payload to a process as goes into a span of its pages, each
    /// byte once. Returns how many bytes that was: all, or up to a page border.
    pub(crate) fn copy_in_span<H: Host>(
        &mut self,
        host: &H,
        to: Destination,
        payload: &Payload<'_, H::Memory>,
    ) -> usize {
        let range = (to.address, payload.len());
        let side = LookupSide::Destination;
        let mut span = LockedSpan::default();
        self.lock_span(host, to.vni, range, to.key, side, &mut span);
        let mut within = (to.address % PAGE_SIZE as u64) as usize;
        let (mut done, mut written) = (0, 0);
        while let Some(first) = span.addresses().get(written) {
            let count = contiguous(&span.addresses()[written..]);
            let part = payload.part(done, count * PAGE_SIZE - within);
            // Some of it may have been written even if it is refused.
            written += count;
            if part.copy_to(host.memory(), first + within as u64).is_err() {
                break;
            }
            done += part.len();
            within = 0;
        }
        self.unlock_span(host, &mut span, written);
        self.count_received(to.vni, done);
        done
    }

    /// Copies a payload into one page of a process, once.
    #[inline]
    pub(crate) fn copy_in<H: Host>(
        &mut self,
        host: &H,
        to: Destination,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), PageError> {
        let length = payload.len();
        if length == 0 {
            return Ok(());
        }
        let page = self.lock(host, to.vni, to.address, to.key, LookupSide::Destination)?;
        let target = page.address() + to.address % PAGE_SIZE as u64;
        let copied = payload.copy_to(host.memory(), target);
        self.unlock_dirty(host, page);
        copied.map_err(|_| PageError::Refused(Status::PageUnavailable))?;
        self.count_received(to.vni, length);
        Ok(())
    }

    /// Copies bytes out of a process, page by page.
    ///
    /// # Errors
    /// Why a page cannot be read; `bytes` may have some of the others.
    pub(crate) fn copy_out<H: Host>(
        &mut self,
        host: &H,
        from: Destination,
        bytes: &mut [u8],
    ) -> Result<(), PageError> {
        let mut address = from.address;
        let mut rest = bytes;
        while !rest.is_empty() {
            let border = PAGE_SIZE - (address % PAGE_SIZE as u64) as usize;
            let (part, behind) = rest.split_at_mut(border.min(rest.len()));
            let page = self.lock(host, from.vni, address, from.key, LookupSide::Source)?;
            let read = host
                .memory()
                .read(page.address() + address % PAGE_SIZE as u64, part);
            unlock_page(host.sram(), &self.geometry, page);
            read.map_err(|_| PageError::Refused(Status::PageUnavailable))?;
            address += part.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Lets the driver have a page again that was written to (N7).
    #[inline]
    pub(crate) fn unlock_dirty<H: Host>(&self, host: &H, page: LockedPage) {
        unlock_page_dirty(host.sram(), &self.geometry, page);
    }
}

/// A page of a physical segment (N25): no driver takes it away, but the guest's memory
/// may end before it.
fn pinned<H: Host>(host: &H, address: u64) -> Result<LockedPage, PageError> {
    let page = address & !(PAGE_SIZE as u64 - 1);
    let inside = host.memory().contains(page, PAGE_SIZE as u64);
    let page = LockedPage::pinned(page).filter(|_| inside);
    page.ok_or(PageError::Refused(Status::BadAddress))
}

/// Locked pages of frames, in the order in which these were sent.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<(Ticket, [Option<LockedPage>; SPAN_PAGES])>);

impl Core {
    /// Keeps the pages of a frame locked beyond this call.
    #[inline(never)] // Frames within one engine are never kept.
    pub(crate) fn keep(&mut self, ticket: Ticket, span: &mut LockedSpan) {
        self.kept.0.push_back((ticket, span.take_pages()));
    }

    /// Returns true if pages are kept.
    #[inline]
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.0.is_empty()
    }

    /// Unlocks the pages of frames that are `done`, up to the first that is not.
    #[cold]
    pub(crate) fn release_kept<H: Host>(&mut self, host: &H, done: impl Fn(Ticket) -> bool) {
        while self.kept.0.front().is_some_and(|(ticket, _)| done(*ticket)) {
            if let Some((_, mut pages)) = self.kept.0.pop_front() {
                self.release_pages(host, &mut pages);
            }
        }
    }
}

/// A part of a transfer: a fragment, or several in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fragment {
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Fragment {
    /// The fragments from `offset` on of which `remaining` bytes are left: on either side they
    /// touch at most so many pages, and they are no longer than a frame on their route may be
    /// (`max_payload`, U5). `ends` are the addresses of the transfer; a side without one has no
    /// pages.
    #[inline]
    pub(crate) fn next(
        (offset, remaining): (u64, u64),
        (local, remote): (Option<u64>, u64),
        pages: u32,
        max_payload: u32,
    ) -> Self {
        let most = remaining.min(u64::from(max_payload));
        let mut length = most.min(to_border(remote, offset, pages));
        if let Some(local) = local {
            length = length.min(to_border(local, offset, pages));
        }
        Fragment {
            offset,
            length: length as u32,
        }
    }

    /// Returns true if all of another one lies in this one.
    pub(crate) fn covers(&self, other: &Fragment) -> bool {
        let end = |fragment: &Fragment| fragment.offset.saturating_add(u64::from(fragment.length));
        other.offset >= self.offset && end(other) <= end(self)
    }
}

/// Bytes from `address + offset` to the end of the last of so many pages.
#[inline]
pub(crate) fn to_border(address: u64, offset: u64, pages: u32) -> u64 {
    let page = PAGE_SIZE as u64;
    page * u64::from(pages.max(1)) - (address.wrapping_add(offset) & (page - 1))
}
