//! The SRAM as the kernel has it mapped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use qnic_abi::SharedMemory;

/// The mapped SRAM. It stays mapped as long as the device structure of the shim,
/// of which the platform that owns this holds a reference.
pub(crate) struct Sram {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for Sram {}
// SAFETY: as above.
unsafe impl Sync for Sram {}

impl Sram {
    /// # Safety
    /// `base` is mapped for `bytes` bytes, aligned to a page, for the life of the result.
    pub(crate) unsafe fn new(base: NonNull<u8>, bytes: usize) -> Self {
        Sram { base, bytes }
    }

    /// Pointer to the word of `width` bytes at `offset`.
    ///
    /// # Panics
    /// If it is not within the SRAM or not aligned: the driver's own mistake.
    fn word(&self, offset: usize, width: usize) -> *mut u8 {
        assert!(offset % width == 0 && self.bytes >= width && offset <= self.bytes - width);
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Implements [`qnic_abi::SharedMemory`] for a type that has `bytes()` and a pointer to each
/// `word()`, which is mapped while it lives, and accessed with one width only.
macro_rules! shared_memory {
    ($type:ty) => {
        impl SharedMemory for $type {
            fn size(&self) -> usize {
                self.bytes()
            }

            fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
                // SAFETY: mapped, aligned, and accessed with this width only.
                unsafe { AtomicU32::from_ptr(self.word(offset, 4).cast()) }.load(order)
            }

            fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
                // SAFETY: as above.
                unsafe { AtomicU32::from_ptr(self.word(offset, 4).cast()) }.store(value, order);
            }

            fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(self.word(offset, 8).cast()) }.load(order)
            }

            fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(self.word(offset, 8).cast()) }.store(value, order);
            }

            fn fence(&self) {
                fence();
            }
        }
    };
}

pub(crate) use shared_memory;

/// A full fence, for a host that emulates this guest, too ([`SharedMemory::fence`]).
pub(crate) fn fence() {
    // SAFETY: touches nothing. Without `nomem` the compiler moves no access to memory across it.
    unsafe { core::arch::asm!("mfence", options(nostack, preserves_flags)) };
}

shared_memory!(Sram);
