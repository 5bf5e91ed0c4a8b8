//! Memory that the module allocates for the device: host areas of processes, and pages for
//! datagrams.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_driver::platform::{DeviceMemory, HostArea, NoMemory};

use crate::ffi::{self, QnicHostArea};
use crate::sram::{fence, shared_memory};

/// The pages of a host area, where the kernel has them mapped.
pub(crate) struct AreaMemory([NonNull<u8>; HOST_PAGES]);

impl AreaMemory {
    fn bytes(&self) -> usize {
        HOST_PAGES * PAGE_SIZE
    }

    /// Pointer to the word of `width` bytes at `offset`.
    ///
    /// # Panics
    /// If it is not within the pages or not aligned: the driver's own mistake.
    fn word(&self, offset: usize, width: usize) -> *mut u8 {
        assert!(offset % width == 0);
        let page = self.0[offset / PAGE_SIZE];
        // SAFETY: within the page, as it is aligned.
        unsafe { page.as_ptr().add(offset % PAGE_SIZE) }
    }
}

shared_memory!(AreaMemory);

/// A host area of the shim.
pub(crate) struct Area {
    pub(crate) raw: NonNull<QnicHostArea>,
    memory: AreaMemory,
}

// SAFETY: pages and their addresses do not change; accesses are atomic.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        // SAFETY: no precondition.
        let raw = NonNull::new(unsafe { ffi::qnic_host_area_new() }).ok_or(NoMemory)?;
        let memory = core::array::from_fn(|page| {
            // SAFETY: the area is alive, and has that page; none is mapped at address 0.
            let page = unsafe { ffi::qnic_host_area_memory(raw.as_ptr(), page as u32) };
            NonNull::new(page).unwrap_or(NonNull::dangling())
        });
        let memory = AreaMemory(memory);
        Ok(Area { raw, memory })
    }
}

impl HostArea for Area {
    type Memory = AreaMemory;

    fn addresses(&self) -> [u64; HOST_PAGES] {
        core::array::from_fn(|page| {
            // SAFETY: the area lives as long as self.
            unsafe { ffi::qnic_host_area_address(self.raw.as_ptr(), page as u32) }
        })
    }

    fn memory(&self) -> &AreaMemory {
        &self.memory
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        unsafe { ffi::qnic_host_area_free(self.raw.as_ptr()) }
    }
}

/// Some bytes of a page or a block, and a reference on it.
pub(crate) struct Memory {
    base: NonNull<u8>,
    address: u64,
    length: usize,
}

// SAFETY: plain memory of the kernel, accessed through atomics or by copies, which the other side
// may disturb: it is never referenced.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// A new page or block, zeroed; charged to the calling process, or to none. The number
    /// of its pages is a power of two.
    pub(crate) fn new_block(pages: usize, charged: bool) -> Result<Self, NoMemory> {
        // SAFETY: no precondition.
        let address = unsafe { ffi::qnic_block_new(pages.trailing_zeros(), charged) };
        // SAFETY: the reference that comes with a new block, which is that long.
        unsafe { Self::from_raw(address, pages * PAGE_SIZE) }.ok_or(NoMemory)
    }

    /// Bytes at a physical address; `None` at 0.
    ///
    /// # Safety
    /// They are within a page or a block of the kernel's memory, and the caller gives a reference on it
    /// away.
    pub(crate) unsafe fn from_raw(address: u64, length: usize) -> Option<Self> {
        if address == 0 {
            return None;
        }
        // SAFETY: the kernel's memory, which is all mapped, one page behind the other.
        let base = NonNull::new(unsafe { ffi::qnic_page_memory(address) })?;
        Some(Memory {
            base,
            address,
            length,
        })
    }

    /// The physical address; the caller gets the reference.
    pub(crate) fn into_raw(self) -> u64 {
        core::mem::ManuallyDrop::new(self).address
    }

    fn bytes(&self) -> usize {
        self.length
    }

    fn within(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset);
        // SAFETY: within the bytes, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Pointer to the word of `width` bytes at `offset`.
    ///
    /// # Panics
    /// If it is not within the bytes or not aligned: the driver's own mistake.
    fn word(&self, offset: usize, width: usize) -> *mut u8 {
        let word = self.within(offset, width);
        assert!(word.cast::<c_void>() as usize % width == 0);
        word
    }
}

shared_memory!(Memory);

impl DeviceMemory for Memory {
    fn address(&self) -> u64 {
        self.address
    }

    fn part(&self, offset: usize, length: usize) -> Self {
        let _ = self.within(offset, length);
        // SAFETY: self has a reference on that page or block.
        unsafe { ffi::qnic_page_get(self.address) };
        Memory {
            // SAFETY: within the bytes, as just checked.
            base: unsafe { self.base.add(offset) },
            address: self.address + offset as u64,
            length,
        }
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.within(offset, bytes.len());
        // SAFETY: both are that long; the copy is in C, which other writers may disturb.
        unsafe { ffi::qnic_copy(bytes.as_mut_ptr(), from, bytes.len() as u64) }
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        let to = self.within(offset, bytes.len());
        // SAFETY: as above.
        unsafe { ffi::qnic_copy(to, bytes.as_ptr(), bytes.len() as u64) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the reference is self's.
        unsafe { ffi::qnic_page_put(self.address) }
    }
}
