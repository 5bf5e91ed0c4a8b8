//! Pins pages for the device, and finds the frames that they are in (unsafe shell).
//!
//! ```text
//!   MADV_COLLAPSE ─► huge pages, where the kernel finds any: blocks of contiguous frames
//!   MAP_DMA ─► each page is there, and stays in its frame
//!   /proc/self/pagemap   8 bytes a page:  bit 63 present   bits 0 to 54 frame
//! ```
//!
//! # Invariants
//! - The memory stays mapped until the function is closed: the node drops its arena later.
//! - Frames are read after all pages are pinned.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;

use qnic_abi::PAGE_SIZE;
use qnic_shared::region::{Kept, SharedRegion};
use rustix::process::{getrlimit, Resource};
use rustix::thread::{capabilities, CapabilitySet};
use vfio_ioctls::VfioContainer;

use crate::error::VfioError;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// An entry of the page map: the page is there, and the bits of its frame.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Checks that this process may pin `bytes` and learn where they are.
///
/// # Errors
/// [`VfioError::Privilege`], [`VfioError::Memlock`]
pub(crate) fn may_pin(bytes: usize) -> Result<(), VfioError> {
    let has = capabilities(None).map_err(std::io::Error::from);
    let has = has.map_err(VfioError::system("ask for this process's capabilities"))?;
    let limit = getrlimit(Resource::Memlock).current;
    check(bytes as u64, has.effective, limit)
}

fn check(bytes: u64, has: CapabilitySet, limit: Option<u64>) -> Result<(), VfioError> {
    if !has.contains(CapabilitySet::SYS_ADMIN) {
        return Err(VfioError::Privilege("CAP_SYS_ADMIN"));
    }
    match limit {
        Some(limit) if bytes > limit && !has.contains(CapabilitySet::IPC_LOCK) => {
            Err(VfioError::Memlock {
                needed: bytes,
                limit,
            })
        }
        _ => Ok(()),
    }
}

/// Pins `memory`, and returns the frame of each of its pages.
///
/// # Errors
/// [`VfioError::Vfio`], [`VfioError::System`], [`VfioError::Hidden`]
pub(crate) fn pin(container: &VfioContainer, memory: &SharedRegion) -> Result<Vec<u32>, VfioError> {
    let (address, length) = (memory.address(), memory.len());
    gather(memory);
    // SAFETY: the range is a region's, to which no reference is formed; it is mapped until the
    // container is closed (invariant). The device does not use the translation that this makes.
    let mapped = unsafe { container.vfio_dma_map(address, length, memory.as_ptr()) };
    mapped.map_err(VfioError::vfio("pin the memory"))?;
    let read = VfioError::system("read /proc/self/pagemap");
    let entries = page_map(address, length / PAGE_SIZE).map_err(read)?;
    entries.into_iter().map(frame).collect()
}

/// Has the kernel put huge pages there, as far as it finds any: many blocks of pages are contiguous then.
fn gather(memory: &SharedRegion) {
    for start in (0..memory.len()).step_by(HUGE_PAGE) {
        let length = HUGE_PAGE.min(memory.len() - start);
        let part = memory.part(start, length);
        // The kernel does not collapse what has no page at all.
        part.write_bytes(0, &[0]);
        // SAFETY: the kernel may move the pages of the region, and they keep their contents. Where it
        // does not, all stays as it is.
        unsafe { libc::madvise(part.as_ptr().cast(), length, libc::MADV_COLLAPSE) };
    }
}

fn page_map(address: u64, pages: usize) -> std::io::Result<Vec<u64>> {
    let mut bytes = vec![0; pages * 8];
    let offset = address / PAGE_SIZE as u64 * 8;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut bytes, offset)?;
    let entry = |chunk: &[u8]| {
        chunk
            .iter()
            .rfold(0, |entry, byte| entry << 8 | u64::from(*byte))
    };
    Ok(bytes.chunks_exact(8).map(entry).collect())
}

/// The frame of an entry. It reads as zero in a process that may not know.
fn frame(entry: u64) -> Result<u32, VfioError> {
    let frame = u32::try_from(entry & FRAME).ok();
    let known = frame.filter(|frame| entry & PRESENT != 0 && *frame != 0);
    known.ok_or(VfioError::Hidden)
}

/// Keeps an open file of VFIO from children: one that lives on would keep the function from the next
/// process. The file outlives the result.
pub(crate) fn kept(file: &dyn AsRawFd) -> Kept {
    kept_number(file.as_raw_fd())
}

/// The same for the file of a group, which the crate does not hand out; each group is opened once.
pub(crate) fn kept_group(group: &str) -> Option<Kept> {
    let path = format!("/dev/vfio/{group}");
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let numbers = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let number: RawFd = entry.file_name().to_str()?.parse().ok()?;
        (target.to_str() == Some(&path)).then_some(number)
    });
    numbers.last().map(kept_number)
}

fn kept_number(number: RawFd) -> Kept {
    // SAFETY: the caller has the file open, and it is used during this call only.
    Kept::descriptor(&unsafe { BorrowedFd::borrow_raw(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that is needed is named; a privileged process has no limit (X11).
    #[test]
    fn a_limit_that_is_too_small_is_named_with_what_is_needed() {
        let (admin, lock) = (CapabilitySet::SYS_ADMIN, CapabilitySet::IPC_LOCK);
        let says = |has, limit| check(64 << 20, has, limit).unwrap_err().to_string();
        let said = says(admin, Some(8 << 20));
        for part in [
            "67108864 bytes",
            "RLIMIT_MEMLOCK is 8388608",
            "ulimit -l 65536",
        ] {
            assert!(said.contains(part), "{said}");
        }
        for limit in [Some(64 << 20), None] {
            check(64 << 20, admin, limit).unwrap();
        }
        check(64 << 20, admin | lock, Some(0)).unwrap();
        assert!(says(lock, None).contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn entries_of_the_page_map_are_read() {
        assert_eq!(frame(PRESENT | 1 << 61 | 0x1_2345).unwrap(), 0x1_2345);
        for hidden in [0x1_2345, PRESENT, PRESENT | 1 << 32] {
            assert!(frame(hidden).is_err(), "{hidden:#x}");
        }
        let memory = SharedRegion::anonymous(3 * PAGE_SIZE).unwrap();
        memory.write_bytes(PAGE_SIZE, &[1]);
        let map = page_map(memory.address(), 3).unwrap();
        let there: Vec<_> = map.iter().map(|entry| entry & PRESENT != 0).collect();
        assert_eq!(there, [false, true, false]);
    }
}
