//! Source pages of a burst, locked several at a time: the fence of lockPage
//! waits for the copies before it, so it is paid once for a run of pages.

use qnic_abi::page_table::Tag;
use qnic_abi::{VniId, PAGE_SIZE};

use crate::counters::Role;
use crate::env::{Host, HostMemory};
use crate::nic::Nic;
use crate::page_table::{lock_pages, page_key, unlock_page, LockedPage};
use crate::segment::PageKey;

/// Most pages of a run: what the driver may have to wait for.
pub(crate) const RUN_PAGES: usize = 8;

/// Consecutive virtual pages that are locked.
#[derive(Debug, Default)]
#[must_use = "pages that are locked must be unlocked"]
pub(crate) struct LockedRun {
    /// Virtual address of the first page.
    first: u64,
    pages: [Option<LockedPage>; RUN_PAGES],
}

impl LockedRun {
    /// Guest-physical address of the byte at a virtual address, if its page is
    /// one of the run.
    pub(crate) fn address_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.first)?;
        let index = usize::try_from(offset / PAGE_SIZE as u64).ok()?;
        let page = self.pages.get(index)?.as_ref()?;
        Some(page.address() + address % PAGE_SIZE as u64)
    }
}

impl Nic {
    /// Locks pages of a process from the one that holds `address` on, up to
    /// `count` of them; fewer, or none, if one is absent or not of `key`.
    pub(crate) fn lock_run<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        address: u64,
        count: u64,
        key: PageKey,
    ) -> LockedRun {
        let (sram, geometry) = (host.sram(), &self.geometry);
        let first = address - address % PAGE_SIZE as u64;
        let mut run = LockedRun {
            first,
            ..LockedRun::default()
        };
        let count = count.min(RUN_PAGES as u64) as usize;
        let PageKey::Table(key) = key else {
            let pages = (0..count as u64).map(|page| first + page * PAGE_SIZE as u64);
            for (place, page) in run.pages.iter_mut().zip(pages) {
                let inside = host.memory().contains(page, PAGE_SIZE as u64);
                *place = LockedPage::pinned(page).filter(|_| inside);
            }
            return run;
        };
        let tags = (0..count).map(|index| Tag::new(vni, first + (index * PAGE_SIZE) as u64));
        let mut locked = lock_pages(sram, geometry, tags, &mut run.pages);
        for index in 0..locked {
            let usable = run.pages[index].as_ref().is_some_and(|page| {
                page_key(sram, geometry, page) == key
                    && host.memory().contains(page.address(), PAGE_SIZE as u64)
            });
            if !usable {
                for page in run.pages[index..locked].iter_mut() {
                    page.take()
                        .into_iter()
                        .for_each(|page| unlock_page(sram, geometry, page));
                }
                locked = index;
                break;
            }
        }
        self.counters.lookups(Role::Source).hits += locked as u64;
        run
    }

    /// Lets the driver have all pages of a run again.
    pub(crate) fn unlock_run<H: Host>(&self, host: &H, run: LockedRun) {
        for page in run.pages.into_iter().flatten() {
            unlock_page(host.sram(), &self.geometry, page);
        }
    }
}
