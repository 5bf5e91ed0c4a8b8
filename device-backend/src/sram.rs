//! The SRAM of a NIC: a memfd that the guest sees behind a PCI BAR.
//!
//! The memfd is sealed against changes of size, so no process that holds it can make
//! an access of this process fault, and against further seals. It is mapped once,
//! until the process ends, and accessed only through the atomics in this module. A page
//! is allocated when it is first written.
//!
//! # Unsafe code
//! [`Sram::cell_u32`] and [`Sram::cell_u64`] turn a checked offset into a reference
//! to an atomic that lives as long as the mapping; `full_fence` is an instruction.

use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64};

use anyhow::{anyhow, Result};
use qnic_abi::shared::{Ordering, SharedMemory};
use qnic_links::memfd::sealed_memfd;
use rustix::fs::{FallocateFlags, SealFlags};
use vm_memory::{FileOffset, MmapRegion};

use crate::identity::FileIdentity;

/// A full fence as in Linux on this processor: a locked instruction orders
/// loads behind stores like MFENCE does, in about half the time. Every page that is
/// moved costs two.
#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)]
fn full_fence() {
    // SAFETY: adds 0 to the word on top of the stack, which leaves it as it is.
    // Without `nomem` the compiler moves no access to memory across it.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn full_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// The SRAM of one NIC.
#[derive(Debug)]
pub(crate) struct Sram {
    region: MmapRegion,
    file: File,
}

impl Sram {
    /// Creates an SRAM of `bytes` bytes, all zero. `name` appears in `/proc/*/maps`.
    pub(crate) fn new(name: &str, bytes: u64) -> Result<Self> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let create = |error| anyhow!("cannot make a memfd of {bytes} bytes for the SRAM: {error}");
        let file = sealed_memfd(&format!("qnic-sram-{name}"), bytes, seals).map_err(create)?;
        let mapped = FileOffset::new(file.try_clone().map_err(create)?, 0);
        let region = MmapRegion::from_file(mapped, bytes as usize)
            .map_err(|error| anyhow!("cannot map the SRAM of {bytes} bytes: {error}"))?;
        Ok(Sram { region, file })
    }

    /// The memfd, for the front end to map.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn identity(&self) -> std::io::Result<FileIdentity> {
        Ok(self.file.metadata()?.into())
    }

    fn check(&self, offset: usize, width: usize) {
        let inside = offset % width == 0 && offset < self.region.size();
        assert!(inside, "offset {offset:#x} is outside of the SRAM");
    }

    #[allow(unsafe_code)]
    fn cell_u32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4);
        // SAFETY: the mapping is page aligned, its size is a multiple of 4, lives
        // as long as `self` and cannot shrink (sealed); the offset is inside and
        // aligned. All accesses of this process to it are atomic, and by the
        // rules of `SharedMemory` one location is accessed with one width.
        unsafe { AtomicU32::from_ptr(self.region.as_ptr().add(offset).cast()) }
    }

    #[allow(unsafe_code)]
    fn cell_u64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        // SAFETY: as in `cell_u32`; the size is a multiple of 8 as well.
        unsafe { AtomicU64::from_ptr(self.region.as_ptr().add(offset).cast()) }
    }
}

impl SharedMemory for Sram {
    fn size(&self) -> usize {
        self.region.size()
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        u32::from_le(self.cell_u32(offset).load(order))
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.cell_u32(offset).store(value.to_le(), order);
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        u64::from_le(self.cell_u64(offset).load(order))
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.cell_u64(offset).store(value.to_le(), order);
    }

    /// Partner: the fence of the driver or the process on the other side.
    fn fence(&self) {
        full_fence();
    }

    /// Frees the pages, so that every mapping of them reads zeroes.
    fn clear(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let size = self.region.size();
        if rustix::fs::fallocate(&self.file, flags, 0, size as u64).is_err() {
            for offset in (0..size).step_by(8) {
                self.store_u64(offset, 0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_and_cleared() {
        let sram = Sram::new("test", 1 << 16).unwrap();
        sram.store_u64(8, 0x0102_0304_0506_0708, Ordering::Release);
        sram.store_u32((1 << 16) - 4, 7, Ordering::Relaxed);
        assert_eq!(sram.load_u64(8, Ordering::Acquire), 0x0102_0304_0506_0708);
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_at(sram.file(), &mut byte, 8).unwrap();
        assert_eq!(byte, [8], "little-endian");
        sram.clear();
        assert_eq!(sram.load_u64(8, Ordering::Acquire), 0);
        assert_eq!(sram.load_u32((1 << 16) - 4, Ordering::Relaxed), 0);
    }

    /// A holder of the memfd cannot make accesses of this process fault.
    #[test]
    fn the_size_cannot_be_changed() {
        let sram = Sram::new("test", 1 << 16).unwrap();
        assert!(sram.file().set_len(0).is_err());
        assert!(sram.file().set_len(1 << 20).is_err());
        assert!(rustix::fs::fcntl_add_seals(sram.file(), SealFlags::WRITE).is_err());
    }

    #[test]
    #[should_panic(expected = "outside of the SRAM")]
    fn offsets_are_checked() {
        let sram = Sram::new("test", 4096).unwrap();
        sram.load_u64(4096, Ordering::Relaxed);
    }
}
