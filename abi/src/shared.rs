//! Access to memory that the other side may write at any time.
//!
//! Code on both sides of the device is written against [`SharedMemory`], so that
//! the same code runs on a mapped BAR in a kernel, on a memfd in the device
//! process, and on loom's atomics in a model.
//!
//! # Rules
//! - No code forms a reference into shared memory; it is touched only through
//!   this trait.
//! - One location is always accessed with one width.
//! - What the other side can write is read once, into private memory, then
//!   checked, then used.
//! - To publish: payload first, then the index or valid word with
//!   [`Ordering::Release`]. To consume: that word with [`Ordering::Acquire`],
//!   then the payload.
//! - To sleep or to exclude: store own word, [`SharedMemory::fence`], look at
//!   the other's word.

pub use core::sync::atomic::Ordering;

/// A range of memory shared with the other side of the device.
///
/// Offsets are in bytes from the start of the range and aligned to the width of
/// the access. They come from a geometry that was checked once against
/// [`SharedMemory::size`], never from what the other side wrote since:
/// implementations panic on an offset out of range or out of alignment.
pub trait SharedMemory {
    /// Size of the range in bytes.
    fn size(&self) -> usize;

    /// Loads a 32-bit word. `order` is `Relaxed`, `Acquire` or `SeqCst`.
    fn load_u32(&self, offset: usize, order: Ordering) -> u32;

    /// Stores a 32-bit word. `order` is `Relaxed`, `Release` or `SeqCst`.
    fn store_u32(&self, offset: usize, value: u32, order: Ordering);

    /// Loads a 64-bit word. `order` is `Relaxed`, `Acquire` or `SeqCst`.
    fn load_u64(&self, offset: usize, order: Ordering) -> u64;

    /// Stores a 64-bit word. `order` is `Relaxed`, `Release` or `SeqCst`.
    fn store_u64(&self, offset: usize, value: u64, order: Ordering);

    /// A full (sequentially consistent) fence: no load behind it is satisfied
    /// before every store in front of it is visible to the other side.
    ///
    /// On a guest's side of an x86 this is an `mfence`, and not one of the
    /// instructions with a `lock` prefix that compilers make of a fence: QEMU runs
    /// those as plain loads and stores when it emulates a machine with one
    /// processor, though the device process runs beside it.
    fn fence(&self);

    /// Copies words out, each loaded once, relaxed, in no particular order.
    fn read_words(&self, offset: usize, words: &mut [u64]) {
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.load_u64(offset + index * 8, Ordering::Relaxed);
        }
    }

    /// Copies words in, each stored once, relaxed, in no particular order.
    fn write_words(&self, offset: usize, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.store_u64(offset + index * 8, *word, Ordering::Relaxed);
        }
    }

    /// Makes every byte of the range zero. Memory that can give its pages back
    /// does so instead, and touches none of them.
    fn clear(&self) {
        for offset in (0..self.size()).step_by(8) {
            self.store_u64(offset, 0, Ordering::Relaxed);
        }
    }
}

impl<M: SharedMemory + ?Sized> SharedMemory for &M {
    fn size(&self) -> usize {
        (**self).size()
    }
    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        (**self).load_u32(offset, order)
    }
    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        (**self).store_u32(offset, value, order);
    }
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        (**self).load_u64(offset, order)
    }
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        (**self).store_u64(offset, value, order);
    }
    fn fence(&self) {
        (**self).fence();
    }
    fn read_words(&self, offset: usize, words: &mut [u64]) {
        (**self).read_words(offset, words);
    }
    fn write_words(&self, offset: usize, words: &[u64]) {
        (**self).write_words(offset, words);
    }
    fn clear(&self) {
        (**self).clear();
    }
}
