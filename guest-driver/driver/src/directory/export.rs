//! Segments that a process exports (N2): names, keys, and the regions under them.
//!
//! ```text
//!   segment 0 "a" READ  ─┐
//!   segment 1 "b" WRITE ─┴─► region 0x7f…000 + 4 pages   (the same pages)
//!   segment 2 "c" READ  ───► region 0x7f…000 + 1 page    (the first of them)
//! ```
//! Segments are ranges of addresses, regions are ranges of pages. Segments over the same pages
//! share a region, and regions may share pages: each page of a process has one entry in the page
//! table, under the one page key of the process. So a region that closes takes its pages out,
//! and the next access brings back those that another region covers. Which addresses a peer may
//! access, and how, the NIC decides by segment and key alone.
//!
//! Two segments over different ranges have no address in common, unless the later one asks for
//! that ([`uapi::OVERLAPPING`]): of two objects in one page, each can be exported with access of its
//! own.
//!
//! The options of an export say which processes may import the segment and which notifications its
//! writers may signal. The NIC enforces them; the driver passes them on and keeps none.
//!
//! A physical segment (N25) has no region: its memory is pinned, and the NIC knows
//! its guest-physical address. The pin ends when the NIC has forgotten the segment.

use alloc::sync::Arc;
use core::ops::Range as Pages;

use qnic_abi::control::{self, Opcode, EXPORT_PHYSICAL};
use qnic_abi::event::MAX_FAULT_PAGES;
use qnic_abi::page_table::PageAccess;
use qnic_abi::{uapi, Access, Status, VniId, PAGE_SHIFT};

use super::regions::Regions;
use super::segment::{Exported, Memory, Range, Segment, Segments};
use crate::device::control_queue::Request;
use crate::device::Device;
use crate::error::{CallError, Failure};
use crate::memory::page_table::PageTable;
use crate::memory::{MemoryManager, Region};
use crate::platform::{Lock, MemoryError, NoMemory};

/// How often a fault is retried while the NIC holds the page to be replaced, or the pages
/// change meanwhile. After that the driver answers as if the fault was served: the NIC
/// retries, and asks again if the page is still absent.
const BUSY_TRIES: u32 = 4;

/// The segments that one process exports.
pub(crate) struct Exports<P: MemoryManager> {
    page_table: Arc<PageTable<P>>,
    vni: VniId,
    pub(crate) space: P::AddressSpace,
    /// The process may export physical memory (N25).
    physical: bool,
    /// What the NIC finds in the physical map under each page of this process. A process that
    /// has the VNI later has another one.
    page_key: u64,
    segments: P::Mutex<Segments<P>>,
    /// Room for another one is made before the lock is taken, under that of the segments.
    regions: P::SpinLock<Regions<P>>,
}

/// The failure of an export on this error of its memory.
fn memory_failure(error: MemoryError) -> Failure {
    Failure::Refused(match error {
        MemoryError::NoMemory => return CallError::NoMemory.into(),
        MemoryError::SpaceGone => return CallError::NotRegistered.into(),
        MemoryError::NotWritable => Status::ReadOnlyMemory,
        MemoryError::NotMapped => Status::NotMapped,
        MemoryError::NotCovered => Status::SramTooSmall,
        MemoryError::NotReadable => Status::UnreadableMemory,
        MemoryError::Secret => Status::SecretMemory,
        MemoryError::Dax => Status::DaxMemory,
        MemoryError::UserFault => Status::UserFaultMemory,
        MemoryError::Device => Status::DeviceMemory,
        MemoryError::NotExportable
        | MemoryError::Stale
        | MemoryError::Busy
        | MemoryError::Closed => Status::BadAddress,
    })
}

/// The access to pages that peers need for an access to the segment.
fn page_access(access: Access) -> PageAccess {
    match access.contains(Access::WRITE) {
        true => PageAccess::Write,
        false => PageAccess::Read,
    }
}

impl<P: MemoryManager> Exports<P> {
    pub(crate) fn new(
        page_table: Arc<PageTable<P>>,
        vni: VniId,
        space: P::AddressSpace,
        physical: bool,
    ) -> Result<Self, NoMemory> {
        let page_key = page_table.device.platform.random();
        Ok(Exports {
            page_table,
            page_key,
            vni,
            space,
            physical,
            segments: P::Mutex::new(Segments::new())?,
            regions: P::SpinLock::new(Regions::new())?,
        })
    }

    fn device(&self) -> &Device<P> {
        &self.page_table.device
    }

    pub(crate) fn export(&self, call: &mut uapi::Export) -> Result<(), CallError> {
        let access = Access::from_bits(call.access.get()).filter(|access| !access.is_empty());
        let flags = call.flags.get() & !(uapi::PHYSICAL | uapi::OVERLAPPING);
        let legal = call.reserved.get() == 0 && flags == 0 && call.options.is_valid();
        let (Some(access), true) = (access, legal) else {
            return Err(CallError::Invalid);
        };
        let export = |segments: &mut _| self.export_locked(segments, access, call);
        let result = self.segments.with(export);
        Failure::conclude(result, &mut call.status).map(drop)
    }

    fn export_locked(
        &self,
        segments: &mut Segments<P>,
        access: Access,
        call: &mut uapi::Export,
    ) -> Result<(), Failure> {
        if segments.ended {
            return Err(CallError::NotRegistered.into());
        }
        let name = call.name.get();
        let range = Range::new(call.address.get(), call.length.get())?;
        if segments.has_name(name) {
            return Err(Status::NameExists.into());
        }
        let index = segments.free_index()?;
        if call.flags.get() & uapi::PHYSICAL != 0 {
            let memory = self.export_pinned(index, access, range, call)?;
            segments.slots[index] = Some(Segment { name, memory });
            return Ok(());
        }
        if call.flags.get() & uapi::OVERLAPPING == 0 && segments.overlaps(range) {
            return Err(Status::Overlapping.into());
        }
        let shared = self.over(&range.pages());
        let is_new = shared.is_none();
        let exported = match shared {
            None => self.new_region(range, page_access(access))?,
            Some(exported) => {
                self.check(&exported.region, page_access(access))?;
                exported
            }
        };
        let page_key = Some(self.page_key);
        if let Err(failure) = self.publish(index, access, page_key, call) {
            if is_new {
                self.retract(&exported);
            }
            return Err(failure);
        }
        let memory = Memory::Virtual {
            range,
            exported: exported.clone(),
        };
        segments.slots[index] = Some(Segment { name, memory });
        if is_new {
            let platform = &self.device().platform;
            platform.install_resident(&self.space, &exported.notifier, &exported.region);
        }
        if exported.region.is_uncovered() {
            self.unexport_locked(segments, index)?;
            return Err(Status::SramTooSmall.into());
        }
        Ok(())
    }

    /// Pins a range and exports its physical address (N25).
    fn export_pinned(
        &self,
        index: usize,
        access: Access,
        range: Range,
        call: &mut uapi::Export,
    ) -> Result<Memory<P>, Failure> {
        if !self.physical {
            return Err(Status::AccessDenied.into());
        }
        let platform = &self.device().platform;
        let pinned = platform.pin(&self.space, range.address, range.length);
        let (pin, physical) = pinned.map_err(memory_failure)?;
        let virtual_address = core::mem::replace(&mut call.address, physical.into());
        let published = self.publish(index, access, None, call);
        if published.is_err() {
            call.address = virtual_address;
        }
        published.map(|()| Memory::Physical { _pin: pin })
    }

    /// Checks that the process itself has the access to a region that the segment grants.
    fn check(&self, region: &Region<P>, access: PageAccess) -> Result<(), Failure> {
        let platform = &self.device().platform;
        let checked = platform.check(&self.space, region, access);
        checked.map_err(memory_failure)
    }

    /// Makes a region with a notifier, and makes it known to the fault service.
    fn new_region(&self, range: Range, access: PageAccess) -> Result<Arc<Exported<P>>, Failure> {
        let (table, owner) = (self.page_table.clone(), (self.vni, self.page_key));
        let region = Arc::new(Region::new(table, owner, range.pages())?);
        self.check(&region, access)?;
        let platform = &self.device().platform;
        let notifier = platform
            .register_notifier(&self.space, &region)
            .map_err(memory_failure)?;
        let exported = Arc::new(Exported { region, notifier });
        self.make_room()?;
        self.regions
            .with(|regions| regions.insert(exported.clone()));
        Ok(exported)
    }

    /// Makes room for another region.
    fn make_room(&self) -> Result<(), NoMemory> {
        let Some(room) = self.regions.with(|regions| regions.wants_room()) else {
            return Ok(());
        };
        let larger = Regions::with_room(room)?;
        let old = self.regions.with(|regions| regions.move_to(larger));
        // Not under the lock.
        drop(old);
        Ok(())
    }

    /// The region with exactly these pages.
    fn over(&self, pages: &Pages<u64>) -> Option<Arc<Exported<P>>> {
        self.regions.with(|regions| regions.over(pages))
    }

    /// Tells the NIC about a segment; without a page key, a physical one.
    fn publish(
        &self,
        index: usize,
        access: Access,
        page_key: Option<u64>,
        call: &mut uapi::Export,
    ) -> Result<(), Failure> {
        let key = self.device().platform.random();
        let segment = index as u16;
        let body = control::Export {
            segment: segment.into(),
            flags: page_key.map_or(EXPORT_PHYSICAL, |_| 0).into(),
            access: access.bits().into(),
            name: call.name,
            address: call.address,
            length: call.length,
            key: key.into(),
            page_key: page_key.unwrap_or(0).into(),
            options: call.options,
        };
        let request = Request::new(Opcode::Export, self.vni, &body);
        Failure::check(self.device().call(&request)?.0)?;
        call.key = key.into();
        call.segment = segment.into();
        Ok(())
    }

    pub(crate) fn unexport(&self, call: &mut uapi::Unexport) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        let index = usize::from(call.segment.get());
        let unexport = |segments: &mut _| self.unexport_locked(segments, index);
        let result = self.segments.with(unexport);
        Failure::conclude(result, &mut call.status).map(drop)
    }

    fn unexport_locked(&self, segments: &mut Segments<P>, index: usize) -> Result<(), Failure> {
        if !matches!(segments.slots.get(index), Some(Some(_))) {
            return Err(Status::NoSuchSegment.into());
        }
        let body = control::Unexport {
            segment: (index as u16).into(),
            reserved: [0.into(); 3],
        };
        let request = Request::new(Opcode::Unexport, self.vni, &body);
        let (status, _) = self.device().call(&request)?;
        let segment = segments.take(index);
        if let Some(exported) = segment.as_ref().and_then(Segment::exported) {
            if !segments.exported().any(|own| Arc::ptr_eq(own, exported)) {
                self.retract(exported);
            }
        }
        Failure::check(status)
    }

    /// Hides a region without segments from the fault service, and takes its
    /// pages out of the table. Its notifier ends when the last worker has finished with it.
    fn retract(&self, exported: &Arc<Exported<P>>) {
        let removed = self.regions.with(|regions| regions.remove(exported));
        exported.region.close();
        drop(removed);
    }

    /// The region that holds a page, and the page's index in it. Of several regions it is the
    /// one that reaches furthest, as a fault may ask for the pages behind, too.
    pub(crate) fn find(&self, page: u64) -> Option<(Arc<Exported<P>>, usize)> {
        let exported = self.regions.with(|regions| regions.furthest(page))?;
        let index = exported.region.index_of(page)?;
        Some((exported, index))
    }

    /// Faults in the page at an address, and up to `pages` in all, for this access (N13).
    ///
    /// # Errors
    /// The status that the NIC is to report to the peer.
    pub(crate) fn fault_in(
        &self,
        address: u64,
        pages: u32,
        access: PageAccess,
    ) -> Result<(), Status> {
        let wanted = pages.clamp(1, MAX_FAULT_PAGES) as usize;
        for _ in 0..BUSY_TRIES {
            let found = self.find(address >> PAGE_SHIFT);
            let (exported, first) = found.ok_or(Status::NoSuchSegment)?;
            let Exported {
                region, notifier, ..
            } = &*exported;
            let count = wanted.min(region.page_count() - first);
            let pages = first..first + count;
            let platform = &self.device().platform;
            match platform.fault_in(&self.space, notifier, region, pages, access) {
                Ok(()) => return Ok(()),
                // If the region was closed, the range may have been exported again since, and
                // the NIC may wait for this page of the new region: look it up again.
                Err(MemoryError::Busy | MemoryError::Stale | MemoryError::Closed) => {}
                Err(MemoryError::SpaceGone) => return Err(Status::Aborted),
                Err(MemoryError::NotWritable) => return Err(Status::ReadOnlyMemory),
                Err(_) => return Err(Status::PageUnavailable),
            }
        }
        Ok(())
    }

    /// Takes all regions out, after the NIC has forgotten them.
    pub(crate) fn close(&self) {
        self.segments.with(|segments| {
            segments.ended = true;
            segments.slots.clear();
            while let Some(exported) = self.regions.with(Regions::pop) {
                exported.region.close();
            }
        });
    }
}

#[cfg(test)]
mod tests;
