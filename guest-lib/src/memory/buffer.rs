//! Memory that can be exported.

use std::sync::Arc;

use qnic_abi::shared::Ordering;

use crate::error::{Error, Result};
use crate::provider::Memory;

/// Page-aligned memory of this process that can be exported, zeroed at first. It stays
/// mapped while a clone of it or a segment made from it exists.
///
/// Peers and the NIC may write to exported memory at any time. So a buffer gives no
/// `&[u8]`: bytes are copied in and out, words are loaded and stored atomically. A
/// process that has seen a notification sees everything that its sender wrote before
/// (N18). Writes without a notification appear in no particular order.
///
/// # Errors
/// All accesses: [`Error::OutOfRange`]; those to words: [`Error::Misaligned`].
#[derive(Debug, Clone)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
}

impl Buffer {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        Buffer { memory }
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.size()
    }

    /// Virtual address of the first byte.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Pointer to the first byte, valid while the buffer is mapped. The caller handles
    /// races with peers that write there.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.address() as *mut u8
    }

    /// Copies bytes out. Bytes that are written at the same time come out old or new,
    /// eight aligned bytes at a time.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.memory.read_bytes(offset, bytes);
        Ok(())
    }

    /// Copies all bytes of a range out.
    pub fn read_vec(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        // Before the memory for it is allocated.
        self.check(offset, length)?;
        let mut bytes = vec![0; length];
        self.read(offset, &mut bytes).map(|()| bytes)
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.memory.write_bytes(offset, bytes);
        Ok(())
    }

    /// Loads an aligned little-endian word of 32 bits, with acquire.
    pub fn load_u32(&self, offset: usize) -> Result<u32> {
        self.check_word(offset, 4)?;
        Ok(self.memory.load_u32(offset, Ordering::Acquire))
    }

    /// Loads an aligned little-endian word of 64 bits, with acquire: a peer's
    /// write of these 8 bytes is seen whole or not at all.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.check_word(offset, 8)?;
        Ok(self.memory.load_u64(offset, Ordering::Acquire))
    }

    /// Stores an aligned little-endian word of 32 bits, with release.
    pub fn store_u32(&self, offset: usize, value: u32) -> Result<()> {
        self.check_word(offset, 4)?;
        self.memory.store_u32(offset, value, Ordering::Release);
        Ok(())
    }

    /// Stores an aligned little-endian word of 64 bits, with release.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.check_word(offset, 8)?;
        self.memory.store_u64(offset, value, Ordering::Release);
        Ok(())
    }

    pub(crate) fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    fn check(&self, offset: usize, length: usize) -> Result<()> {
        Error::check_range("buffer", self.len() as u64, offset as u64, length as u64)
    }

    fn check_word(&self, offset: usize, width: usize) -> Result<()> {
        self.check(offset, width)?;
        Error::check_alignment(offset as u64, offset as u64, width as u64)
    }
}
