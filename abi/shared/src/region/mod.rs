//! Mapped memory that other processes write at any time: the one module that turns
//! addresses into accesses (unsafe shell).
//!
//! # Invariants
//! - A [`SharedRegion`] is mapped, readable (and writable if it says so) from its
//!   construction until its last clone is dropped.
//! - No reference into it is ever formed: words go through atomics, bytes through
//!   relaxed atomics of one or eight bytes.
//! - The memory behind it cannot shrink: anonymous memory, a memfd sealed against
//!   shrinking, or memory of a device that revokes mappings without unmapping.
#![allow(unsafe_code)]

mod copy;
mod fork;

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8};
use std::sync::Arc;

use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};

pub use fork::{Forked, Kept, Own, FORKED};

/// A range of memory of this process that is shared with a NIC or with peers.
///
/// Cloning it is cheap and keeps the memory mapped. All accesses panic when they
/// leave the range; offsets come from checked geometry, never from the other side.
#[derive(Clone)]
pub struct SharedRegion {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the region is plain memory, valid for the whole process while `owner`
// lives, and is touched through atomics only.
unsafe impl Send for SharedRegion {}
// SAFETY: as above; every access through `&self` is atomic.
unsafe impl Sync for SharedRegion {}

/// Unmaps a mapping of this process when the last region in it is gone.
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: only `drop` uses the pointer, and munmap may run on any thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` offers nothing.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `length` are those of a mapping that this object
        // owns, and no region that lies in it is left.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

impl SharedRegion {
    /// Maps `length` bytes of `file` from `offset` on, shared.
    ///
    /// The caller vouches that the file cannot shrink below `offset + length`
    /// (module documentation); an access beyond its end raises `SIGBUS`.
    ///
    /// # Errors
    /// The error of mmap; `EINVAL` for a length of zero.
    pub fn map_file(
        file: impl AsFd,
        offset: u64,
        length: usize,
        writable: bool,
    ) -> std::io::Result<Self> {
        let (anywhere, access) = (std::ptr::null_mut(), protection(writable));
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let base = unsafe { mmap(anywhere, length, access, MapFlags::SHARED, file, offset) }?;
        Self::own(base, length, writable)
    }

    /// As [`SharedRegion::map_file`] from the start of the file, writable, at an address that is a
    /// multiple of `alignment`, which is a multiple of the page size: the kernel can have huge pages
    /// there.
    ///
    /// # Errors
    /// The error of mmap; `EINVAL` for a length of zero.
    pub fn map_file_aligned(
        file: impl AsFd,
        length: usize,
        alignment: usize,
    ) -> std::io::Result<Self> {
        let reserved = Self::anonymous(length.saturating_add(alignment))?;
        let offset = reserved.as_ptr().align_offset(alignment);
        let place = reserved.part(offset, length);
        let (at, flags) = (place.as_ptr().cast(), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: replaces a part of the reservation, which no one else knows; what owns that unmaps
        // this with it.
        unsafe { mmap(at, length, protection(true), flags, file, 0) }?;
        Ok(place)
    }

    /// Maps fresh private memory of `length` bytes, zeroed.
    ///
    /// # Errors
    /// The error of mmap; `EINVAL` for a length of zero.
    pub fn anonymous(length: usize) -> std::io::Result<Self> {
        let (anywhere, access) = (std::ptr::null_mut(), protection(true));
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let base = unsafe { mmap_anonymous(anywhere, length, access, MapFlags::PRIVATE) }?;
        Self::own(base, length, true)
    }

    fn own(base: *mut core::ffi::c_void, length: usize, writable: bool) -> std::io::Result<Self> {
        let base = NonNull::new(base.cast::<u8>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(SharedRegion {
            base,
            length,
            writable,
            owner: Arc::new(Mapping { base, length }),
        })
    }

    /// A region over memory that exists already.
    ///
    /// # Safety
    /// `address .. address + length` stays mapped and readable (and writable, if anything is
    /// stored through the region) until the last clone of the region is dropped, and until
    /// then no reference to any of it exists while this process, a NIC or a peer writes
    /// there.
    pub unsafe fn from_raw(address: NonNull<u8>, length: usize) -> Self {
        SharedRegion {
            base: address,
            length,
            writable: true,
            owner: Arc::new(()),
        }
    }

    /// A part of the region; it keeps the whole mapped.
    ///
    /// # Panics
    /// If the part is not within the region.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Self {
        self.check(offset, length);
        SharedRegion {
            // SAFETY: `check` has shown that the offset is within the mapping.
            base: unsafe { self.base.add(offset) },
            length,
            writable: self.writable,
            owner: self.owner.clone(),
        }
    }

    /// The same region, which now keeps `guard` alive too.
    #[must_use]
    pub fn guarded(self, guard: impl Any + Send + Sync) -> Self {
        SharedRegion {
            owner: Arc::new((guard, self.owner)),
            ..self
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Virtual address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Pointer to the first byte. The caller is responsible for races with all other users
    /// of the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies out. Bytes that are written at the same time come out old or new, eight
    /// aligned bytes at a time.
    ///
    /// # Panics
    /// If the range leaves the region.
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        let (head, words) = self.split(offset, bytes.len());
        let (front, rest) = bytes.split_at_mut(head);
        let (middle, back) = rest.split_at_mut(words * 8);
        let tail = offset + head + middle.len();
        self.read_single(offset, front);
        copy::load(self.words_u64(offset + head, words), middle);
        self.read_single(tail, back);
    }

    /// Copies in, eight aligned bytes at a time where possible.
    ///
    /// # Panics
    /// If the range leaves the region, or the region is read-only.
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        self.check_store(offset, bytes.len());
        let (head, words) = self.split(offset, bytes.len());
        let (front, rest) = bytes.split_at(head);
        let (middle, back) = rest.split_at(words * 8);
        let tail = offset + head + middle.len();
        self.write_single(offset, front);
        copy::store(self.words_u64(offset + head, words), middle);
        self.write_single(tail, back);
    }

    /// Loads a 16-bit little-endian word.
    ///
    /// # Panics
    /// If the offset is out of range or odd.
    pub fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        u16::from_le(self.word_u16(offset).load(order))
    }

    /// Stores a 16-bit little-endian word.
    ///
    /// # Panics
    /// If the offset is out of range or odd, or the region is read-only.
    pub fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        self.check_store(offset, 2);
        self.word_u16(offset).store(value.to_le(), order);
    }

    /// Bytes before the first aligned word of a range, and the number of aligned words in it.
    fn split(&self, offset: usize, length: usize) -> (usize, usize) {
        let head = (self.base.as_ptr() as usize + offset).wrapping_neg() % 8;
        let head = head.min(length);
        (head, (length - head) / 8)
    }

    fn read_single(&self, offset: usize, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.word_u8(offset + index).load(Ordering::Relaxed);
        }
    }

    fn write_single(&self, offset: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            self.word_u8(offset + index).store(*byte, Ordering::Relaxed);
        }
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) {
        if !self.holds(offset, length) {
            self.refuse(offset, length);
        }
    }

    #[inline]
    fn holds(&self, offset: usize, length: usize) -> bool {
        let left = self.length.checked_sub(offset);
        left.is_some_and(|left| length <= left)
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, offset: usize, length: usize) -> ! {
        assert!(
            self.holds(offset, length),
            "{length} bytes at {offset} are outside of a region of {} bytes",
            self.length
        );
        panic!("a word of {length} bytes at {offset} is not aligned");
    }

    #[inline]
    fn check_store(&self, offset: usize, length: usize) {
        assert!(self.writable, "store to a read-only region");
        self.check(offset, length);
    }

    /// Address of an aligned word.
    #[inline]
    fn word(&self, offset: usize, width: usize) -> *mut u8 {
        let is_aligned = (self.base.as_ptr() as usize).wrapping_add(offset) & (width - 1) == 0;
        if !self.holds(offset, width) || !is_aligned {
            self.refuse(offset, width);
        }
        // SAFETY: the word is within the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    fn word_u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: `word` returns a mapped address; an atomic may be shared with
        // every writer, and `self` keeps it mapped.
        unsafe { AtomicU8::from_ptr(self.word(offset, 1)) }
    }

    fn word_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as `word_u8`, and aligned.
        unsafe { AtomicU16::from_ptr(self.word(offset, 2).cast()) }
    }

    #[inline]
    fn word_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as `word_u8`, and aligned.
        unsafe { AtomicU32::from_ptr(self.word(offset, 4).cast()) }
    }

    #[inline]
    fn word_u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as `word_u8`, and aligned.
        unsafe { AtomicU64::from_ptr(self.word(offset, 8).cast()) }
    }

    /// `count` aligned words from `offset` on.
    #[inline]
    fn words_u64(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.check(offset, count * 8);
        if count == 0 {
            return &[];
        }
        let first = self.word(offset, 8).cast::<AtomicU64>();
        // SAFETY: all of the words are mapped (`check`), the first is aligned
        // (`word`), and atomics may be shared with every writer.
        unsafe { std::slice::from_raw_parts(first, count) }
    }
}

/// Maps memory that another process shares, by the open descriptor of `file`.
///
/// # Errors
/// The error of mmap.
pub fn map_shared(file: &dyn AsRawFd, offset: u64, length: usize) -> std::io::Result<SharedRegion> {
    // SAFETY: the object owns the descriptor or borrows it from its owner, and
    // lives until this function returns.
    let file = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) };
    SharedRegion::map_file(file, offset, length, true)
}

fn protection(writable: bool) -> ProtFlags {
    if writable {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::READ
    }
}

impl SharedMemory for SharedRegion {
    fn size(&self) -> usize {
        self.length
    }

    // A load has the strongest order, whatever was asked for: it is the same instruction on
    // x86-64, and a choice at run time costs more than the load.

    #[inline]
    fn load_u32(&self, offset: usize, _order: Ordering) -> u32 {
        u32::from_le(self.word_u32(offset).load(Ordering::SeqCst))
    }

    #[inline]
    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        assert!(self.writable, "store to a read-only region");
        self.word_u32(offset).store(value.to_le(), order);
    }

    #[inline]
    fn load_u64(&self, offset: usize, _order: Ordering) -> u64 {
        u64::from_le(self.word_u64(offset).load(Ordering::SeqCst))
    }

    #[inline]
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        assert!(self.writable, "store to a read-only region");
        self.word_u64(offset).store(value.to_le(), order);
    }

    /// Holds also in a guest that is emulated.
    #[inline]
    fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: accesses nothing. Without `nomem` the compiler moves no access to
        // memory across it.
        unsafe {
            std::arch::asm!("mfence", options(nostack, preserves_flags))
        };
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    #[inline]
    fn read_words(&self, offset: usize, words: &mut [u64]) {
        let from = self.words_u64(offset, words.len());
        for (word, from) in words.iter_mut().zip(from) {
            *word = u64::from_le(from.load(Ordering::Relaxed));
        }
    }

    #[inline]
    fn write_words(&self, offset: usize, words: &[u64]) {
        assert!(self.writable, "store to a read-only region");
        let to = self.words_u64(offset, words.len());
        for (word, to) in words.iter().zip(to) {
            to.store(word.to_le(), Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedRegion")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("length", &self.length)
            .field("writable", &self.writable)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_keep_the_whole_mapped() {
        let whole = SharedRegion::anonymous(8192).unwrap();
        let part = whole.part(4096, 100);
        drop(whole);
        part.store_u64(8, 7, Ordering::Relaxed);
        assert_eq!(part.load_u64(8, Ordering::Relaxed), 7);
        assert_eq!(part.len(), 100);
    }

    #[test]
    fn guards_live_as_long_as_the_region() {
        let alive = Arc::new(());
        let region = SharedRegion::anonymous(4096)
            .unwrap()
            .guarded(alive.clone());
        let part = region.part(0, 8);
        drop(region);
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(part);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn words_are_little_endian_bytes() {
        let region = SharedRegion::anonymous(4096).unwrap();
        region.write_words(8, &[0x0807_0605_0403_0201, 1]);
        let mut bytes = [0; 9];
        region.read_bytes(8, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 1]);
        let mut words = [0; 2];
        region.read_words(8, &mut words);
        assert_eq!(words, [0x0807_0605_0403_0201, 1]);
        assert_eq!(region.load_u16(8, Ordering::Relaxed), 0x0201);
        assert_eq!(region.load_u32(12, Ordering::Relaxed), 0x0807_0605);
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn accesses_outside_are_caught() {
        let region = SharedRegion::anonymous(4096).unwrap();
        region.load_u64(4092, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn misaligned_words_are_caught() {
        let region = SharedRegion::anonymous(4096).unwrap();
        region.load_u32(2, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn stores_to_read_only_memory_are_caught() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let region = SharedRegion::map_file(&file, 0, 4096, false).unwrap();
        region.store_u32(0, 1, Ordering::Relaxed);
    }

    proptest! {
        /// Against a plain vector: written bytes come back, and no others change.
        #[test]
        fn copies_touch_exactly_their_range(
            start in 0usize..64,
            bytes in proptest::collection::vec(any::<u8>(), 0..448),
        ) {
            let region = SharedRegion::anonymous(4096).unwrap();
            let mut oracle = vec![0x55; 512];
            region.write_bytes(0, &oracle);
            region.write_bytes(start, &bytes);
            oracle[start..start + bytes.len()].copy_from_slice(&bytes);
            let mut all = vec![0; 512];
            region.read_bytes(0, &mut all);
            prop_assert_eq!(&all, &oracle);
            let mut back = vec![0; bytes.len()];
            region.read_bytes(start, &mut back);
            prop_assert_eq!(back, bytes);
        }
    }
}
