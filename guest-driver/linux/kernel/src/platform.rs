//! The kernel as the platform of the driver core.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;

use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::event::MAX_FAULT_PAGES;
use qnic_abi::page_table::PageAccess;
use qnic_abi::verbs::Event;
use qnic_abi::PAGE_SIZE;
use qnic_driver::platform::{Level, MemoryError, NoMemory, RequestError, Run, Spare, Timeout};
use qnic_driver::{MemoryManager, Platform, Region, Resident};

use crate::ffi::{self, errno, MmStruct, QnicDev, QnicNotifier, QnicPin};
use crate::memory::{Area, Memory};
use crate::sram::Sram;
use crate::sync::{Mutex, SpinLock, Waiters};

/// Pages that are looked up at once.
const BATCH: usize = MAX_FAULT_PAGES as usize;

/// How often pages that changed while they were looked up are looked up again.
const LOOKUP_TRIES: u32 = 100;

pub(crate) type Driver = qnic_driver::Driver<Kernel>;
pub(crate) type Process = qnic_driver::Process<Kernel>;

/// One device in the kernel; owns a reference of the shim's device structure.
pub(crate) struct Kernel {
    dev: NonNull<QnicDev>,
    sram: Sram,
}

// SAFETY: the shim's device structure has its own locks.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// # Safety
    /// The caller gives away a reference of `dev`, under which the SRAM stays
    /// mapped at `sram` for `bytes` bytes.
    pub(crate) unsafe fn new(dev: NonNull<QnicDev>, sram: NonNull<u8>, bytes: usize) -> Self {
        Kernel {
            dev,
            // SAFETY: dropped with self, before the reference.
            sram: unsafe { Sram::new(sram, bytes) },
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: self owns this reference.
        unsafe { ffi::qnic_dev_put(self.dev.as_ptr()) }
    }
}

/// Handle on an address space.
pub(crate) struct AddressSpace(NonNull<MmStruct>);

// SAFETY: `struct mm_struct` has its own locks; the handle is a reference count.
unsafe impl Send for AddressSpace {}
// SAFETY: as above.
unsafe impl Sync for AddressSpace {}

impl AddressSpace {
    /// # Safety
    /// `mm` points to a `struct mm_struct` that is alive now.
    pub(crate) unsafe fn new(mm: NonNull<MmStruct>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { ffi::qnic_space_get(mm.as_ptr()) };
        AddressSpace(mm)
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        // SAFETY: taken in `new`.
        unsafe { ffi::qnic_space_put(self.0.as_ptr()) }
    }
}

/// An interval notifier, and the reference on the region that it calls.
pub(crate) struct Notifier {
    raw: NonNull<QnicNotifier>,
    region: *const Region<Kernel>,
}

// SAFETY: the notifier has its own locks; the region is Send and Sync.
unsafe impl Send for Notifier {}
// SAFETY: as above.
unsafe impl Sync for Notifier {}

impl Drop for Notifier {
    fn drop(&mut self) {
        // SAFETY: made in `register_notifier`; no callback runs after it.
        unsafe { ffi::qnic_notifier_free(self.raw.as_ptr()) };
        // SAFETY: the reference that `register_notifier` left with the notifier.
        drop(unsafe { Arc::from_raw(self.region) });
    }
}

impl Notifier {
    /// Looks pages of the region up and installs those that are there.
    fn install(
        &self,
        region: &Region<Kernel>,
        pages: Range<usize>,
        fault: i32,
    ) -> Result<(), MemoryError> {
        let mut raw = [0u64; BATCH];
        let (first, count) = (pages.start, pages.len().min(BATCH));
        let start = region.address() + (first * PAGE_SIZE) as u64;
        for _ in 0..LOOKUP_TRIES {
            let mut sequence = 0;
            // SAFETY: the notifier is alive; `raw` has room for `count` frames.
            let result = unsafe {
                ffi::qnic_notifier_lookup(
                    self.raw.as_ptr(),
                    start,
                    count as u32,
                    fault,
                    raw.as_mut_ptr(),
                    &mut sequence,
                )
            };
            match -result {
                0 => {}
                errno::EBUSY => continue,
                _ => return Err(memory_error(result)),
            }
            let residents = raw.map(resident);
            let current = || {
                // SAFETY: the notifier is alive, and the region's lock is held.
                !unsafe { ffi::qnic_notifier_retry(self.raw.as_ptr(), sequence) }
            };
            match region.install(first, residents.get(..count).unwrap_or(&[]), current) {
                Err(MemoryError::Stale) => {}
                done => return done,
            }
        }
        Err(MemoryError::Busy)
    }
}

/// A page as the shim describes it.
fn resident(raw: u64) -> Option<Resident> {
    Some(Resident {
        frame: (raw >> 1).checked_sub(1)?.try_into().ok()?,
        access: match raw & 1 {
            0 => PageAccess::Read,
            _ => PageAccess::Write,
        },
    })
}

/// The error for a result of the shim that is not zero.
fn memory_error(result: i32) -> MemoryError {
    match result {
        ffi::QNIC_MEMORY_DEVICE => MemoryError::Device,
        ffi::QNIC_MEMORY_SECRET => MemoryError::Secret,
        ffi::QNIC_MEMORY_DAX => MemoryError::Dax,
        ffi::QNIC_MEMORY_UNREADABLE => MemoryError::NotReadable,
        ffi::QNIC_MEMORY_USERFAULT => MemoryError::UserFault,
        _ => match -result {
            errno::ENOMEM => MemoryError::NoMemory,
            errno::ESRCH => MemoryError::SpaceGone,
            errno::EINVAL => MemoryError::NotExportable,
            errno::EACCES => MemoryError::NotWritable,
            errno::EBUSY => MemoryError::Busy,
            _ => MemoryError::NotMapped,
        },
    }
}

/// Pinned pages.
pub(crate) struct Pin(NonNull<QnicPin>);

// SAFETY: a list of pages that nothing else accesses.
unsafe impl Send for Pin {}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: made in `pin`; the core drops it where it may sleep.
        unsafe { ffi::qnic_pin_free(self.0.as_ptr()) }
    }
}

impl Platform for Kernel {
    type Sram = Sram;
    type Mutex<T: Send> = Mutex<T>;
    type SpinLock<T: Send> = SpinLock<T>;
    type HostArea = Area;
    type Waiters = Waiters;
    type Memory = Memory;

    fn sram(&self) -> &Sram {
        &self.sram
    }

    fn now_ns(&self) -> u64 {
        // SAFETY: no precondition.
        unsafe { ffi::qnic_now_ns() }
    }

    fn yield_processor(&self) {
        // SAFETY: the core calls it where it may sleep.
        unsafe { ffi::qnic_yield() }
    }

    fn undisturbed(&self, run: &mut dyn FnMut()) {
        // SAFETY: what runs in between is atomic, and does not unwind.
        unsafe { ffi::qnic_undisturbed() };
        run();
        // SAFETY: it undoes the call above.
        unsafe { ffi::qnic_disturbed() };
    }

    fn may_look(&self) -> bool {
        // SAFETY: no precondition.
        unsafe { ffi::qnic_may_look() }
    }

    fn spare(&self) -> Spare {
        // SAFETY: no precondition.
        match unsafe { ffi::qnic_spare() } {
            ffi::QNIC_SPARE_THREAD => Spare::Thread,
            ffi::QNIC_SPARE_HALT => Spare::Halt,
            _ => Spare::Work,
        }
    }

    fn random(&self) -> u64 {
        // SAFETY: no precondition.
        unsafe { ffi::qnic_random() }
    }

    fn frames(&self) -> u64 {
        // SAFETY: no precondition.
        unsafe { ffi::qnic_frames() }
    }

    fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        let (timeout_ms, interruptible) = match timeout {
            Timeout::Uninterruptible(ms) => (ms, false),
            Timeout::Interruptible(ms) => (ms, true),
        };
        let mut response = [0; REPLY_BYTES];
        // SAFETY: both buffers have the sizes that the shim knows from abi.h.
        let result = unsafe {
            ffi::qnic_request(
                self.dev.as_ptr(),
                request.as_ptr(),
                response.as_mut_ptr(),
                timeout_ms,
                interruptible,
            )
        };
        match -result {
            0 => Ok(response),
            errno::EINTR => Err(RequestError::Interrupted),
            errno::ETIME => Err(RequestError::TimedOut),
            errno::EBUSY => Err(RequestError::TooMany),
            _ => Err(RequestError::Gone),
        }
    }

    fn post(&self, request: &[u8; REQUEST_BYTES], timeout_ms: u32) -> Result<(), RequestError> {
        // SAFETY: the buffer has the size that the shim knows from abi.h.
        let result = unsafe { ffi::qnic_post(self.dev.as_ptr(), request.as_ptr(), timeout_ms) };
        match -result {
            0 => Ok(()),
            errno::ETIME => Err(RequestError::TimedOut),
            _ => Err(RequestError::Gone),
        }
    }

    fn stop_device(&self) {
        // SAFETY: the core calls it where it may sleep.
        unsafe { ffi::qnic_stop(self.dev.as_ptr()) }
    }

    fn mark_dirty(&self, frame: u32) {
        // SAFETY: the core passes frames that this platform looked up, and whose
        // address space still owns them.
        unsafe { ffi::qnic_mark_dirty(frame.into()) }
    }

    fn new_host_area(&self) -> Result<Area, NoMemory> {
        Area::new()
    }

    fn new_page(&self) -> Result<Memory, NoMemory> {
        Memory::new_block(1, false)
    }

    fn new_blocks(&self, runs: &[Run]) -> Result<Vec<Memory>, NoMemory> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(runs.iter().map(|run| run.blocks).sum())?;
        for pages in Run::each(runs) {
            blocks.push(Memory::new_block(pages, true)?);
        }
        Ok(blocks)
    }

    fn ring_doorbell(&self, queue: u16) {
        // SAFETY: the device structure lives as long as self, and the core calls this only
        // while the device is there.
        unsafe { ffi::qnic_ring_doorbell(self.dev.as_ptr(), queue) }
    }

    fn schedule_datagrams(&self, at_ns: u64) {
        let delay = at_ns.saturating_sub(self.now_ns());
        // SAFETY: the device structure lives as long as self.
        unsafe { ffi::qnic_schedule_datagrams(self.dev.as_ptr(), delay) }
    }

    fn doorbell_offset(&self, queue: u16) -> u32 {
        // SAFETY: the device structure lives as long as self.
        unsafe { ffi::qnic_doorbell_offset(self.dev.as_ptr(), queue) }
    }

    fn verbs_event(&self, owner: u64, event: Event) {
        // SAFETY: the owner's object is not destroyed yet, and the call is atomic.
        unsafe { ffi::qnic_verbs_event(owner, event as u32) }
    }

    fn verbs_port(&self, is_up: bool) {
        // SAFETY: the device structure lives as long as self, and the call is atomic.
        unsafe { ffi::qnic_verbs_port(self.dev.as_ptr(), is_up) }
    }

    fn new_waiters(&self) -> Result<Waiters, NoMemory> {
        Waiters::new()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        crate::log(level, message);
    }
}

impl MemoryManager for Kernel {
    type AddressSpace = AddressSpace;
    type Notifier = Notifier;
    type Pin = Pin;

    fn check(
        &self,
        space: &AddressSpace,
        region: &Region<Self>,
        access: PageAccess,
    ) -> Result<(), MemoryError> {
        let bytes = (region.page_count() * PAGE_SIZE) as u64;
        let write = access == PageAccess::Write;
        // SAFETY: the address space's structure is alive.
        let result =
            unsafe { ffi::qnic_memory_check(space.0.as_ptr(), region.address(), bytes, write) };
        match result {
            0 => Ok(()),
            result => Err(memory_error(result)),
        }
    }

    fn register_notifier(
        &self,
        space: &AddressSpace,
        region: &Arc<Region<Self>>,
    ) -> Result<Notifier, MemoryError> {
        let bytes = (region.page_count() * PAGE_SIZE) as u64;
        let kept: *const Region<Self> = Arc::into_raw(region.clone());
        let argument: *mut c_void = kept.cast_mut().cast();
        let mut raw = core::ptr::null_mut();
        // SAFETY: the address space's structure is alive; `kept` is until
        // qnic_notifier_free has returned, or the call failed.
        let result = unsafe {
            ffi::qnic_notifier_new(
                space.0.as_ptr(),
                region.address(),
                bytes,
                argument,
                &mut raw,
            )
        };
        match (result, NonNull::new(raw)) {
            (0, Some(raw)) => Ok(Notifier { raw, region: kept }),
            _ => {
                // SAFETY: the notifier did not take the reference.
                drop(unsafe { Arc::from_raw(kept) });
                Err(memory_error(result))
            }
        }
    }

    fn may_use_physical(&self) -> bool {
        // SAFETY: no precondition.
        unsafe { ffi::qnic_may_use_physical() }
    }

    /// The core calls it on behalf of the calling process only.
    fn pin(&self, _: &AddressSpace, address: u64, length: u64) -> Result<(Pin, u64), MemoryError> {
        let mut raw = core::ptr::null_mut();
        let mut physical = 0;
        // SAFETY: both pointers are of variables here.
        let result = unsafe { ffi::qnic_pin_new(address, length, &mut raw, &mut physical) };
        match (result, NonNull::new(raw)) {
            (0, Some(raw)) => Ok((Pin(raw), physical)),
            _ => Err(memory_error(result)),
        }
    }

    fn fault_in(
        &self,
        _: &AddressSpace,
        notifier: &Notifier,
        region: &Region<Self>,
        pages: Range<usize>,
        access: PageAccess,
    ) -> Result<(), MemoryError> {
        let fault = match access {
            PageAccess::Read => ffi::QNIC_FAULT_READ,
            PageAccess::Write => ffi::QNIC_FAULT_WRITE,
        };
        let (first, count) = (pages.start, pages.len());
        match notifier.install(region, pages, fault) {
            Err(error @ (MemoryError::SpaceGone | MemoryError::Closed)) => Err(error),
            // A page further on may be the one that cannot be faulted in: beyond the end
            // of a file, for example.
            Err(_) if count > 1 => notifier.install(region, first..first + 1, fault),
            done => done,
        }
    }

    fn install_resident(&self, _: &AddressSpace, notifier: &Notifier, region: &Region<Self>) {
        for first in (0..region.page_count()).step_by(BATCH) {
            let pages = first..region.page_count().min(first + BATCH);
            // Pages that cannot be installed now are faulted in when the NIC asks.
            if let Err(MemoryError::Closed | MemoryError::SpaceGone) =
                notifier.install(region, pages, ffi::QNIC_FAULT_NONE)
            {
                return;
            }
        }
    }
}
