//! The memory of a pair of rings ([`super::channels`]): a memfd that two processes map.
//!
//! The reader creates it, so another process can make this one hold no more memory than
//! this one has handed out. It is sealed against changes of size before it is handed
//! out, and the receiver checks the seals: no process can truncate it and so make an
//! access of the other fault. A memfd of huge pages is refused for the same reason: it
//! faults when no huge page is left.
//!
//! There is no unsafe code: `vm-memory` checks each offset and returns only atomics and
//! volatile slices.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use qnic_nic::env::Channel;
use rustix::fs::SealFlags;
use vm_memory::{AtomicInteger, FileOffset, MmapRegion, VolatileArrayRef, VolatileMemory};

use super::ring::RECORDS;
use crate::memfd::sealed_memfd;

/// Bytes of the data ring's records: the windows of a few NICs, so that nothing is lost while the
/// reader is not running.
pub(super) const CAPACITY: usize = 8 << 20;

/// Bytes of the priority ring's records: a whole window of frames with 8 bytes.
pub(super) const PRIORITY_CAPACITY: usize = 512 << 10;

/// Where the priority ring begins.
const PRIORITY: usize = RECORDS + CAPACITY;

/// Size of the memory in bytes.
pub(super) const BYTES: usize = PRIORITY + RECORDS + PRIORITY_CAPACITY;

const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// `f_type` of a memfd of small pages.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Why a descriptor is not accepted as rings.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadMemory {
    #[error("the memory of its rings is not a memfd of small pages that is sealed against changes of size")]
    NotSealed,
    #[error("the memory of its rings has {0} bytes, {BYTES} were expected")]
    Size(u64),
    #[error("the memory of its rings cannot be mapped: {0}")]
    System(std::io::Error),
}

/// The mapped memory of a pair of rings.
#[derive(Debug)]
pub(super) struct PairMemory(Arc<MmapRegion>);

impl PairMemory {
    /// Creates one, all zero, and the descriptor to hand out.
    pub(super) fn make() -> std::io::Result<(Self, OwnedFd)> {
        let seals = SIZE_SEALS | SealFlags::SEAL;
        let file = sealed_memfd("qnic-ring", BYTES as u64, seals)?;
        let memory = PairMemory::map(file.try_clone()?)?;
        Ok((memory, file.into()))
    }

    /// Maps the memory that another process has created. Fails if an access to it could
    /// fault.
    pub(super) fn adopt(memfd: OwnedFd) -> Result<Self, BadMemory> {
        let sealed =
            rustix::fs::fcntl_get_seals(&memfd).is_ok_and(|seals| seals.contains(SIZE_SEALS));
        let small = rustix::fs::fstatfs(&memfd).is_ok_and(|of| of.f_type == TMPFS_MAGIC);
        if !sealed || !small {
            return Err(BadMemory::NotSealed);
        }
        let file = File::from(memfd);
        let bytes = file.metadata().map_err(BadMemory::System)?.len();
        if bytes != BYTES as u64 {
            return Err(BadMemory::Size(bytes));
        }
        PairMemory::map(file).map_err(BadMemory::System)
    }

    fn map(file: File) -> std::io::Result<Self> {
        let region = MmapRegion::from_file(FileOffset::new(file, 0), BYTES);
        Ok(PairMemory(Arc::new(region.map_err(std::io::Error::other)?)))
    }

    /// The memory of the ring of a channel.
    pub(super) fn ring(&self, channel: Channel) -> RingMemory {
        let (start, end) = match channel {
            Channel::Priority => (PRIORITY, BYTES),
            Channel::Data => (0, PRIORITY),
        };
        RingMemory {
            region: self.0.clone(),
            start,
            size: end - start,
        }
    }
}

/// The mapped memory of a ring.
#[derive(Debug)]
pub(super) struct RingMemory {
    region: Arc<MmapRegion>,
    start: usize,
    size: usize,
}

impl RingMemory {
    /// The offset in the region of `bytes` bytes at `offset` of the ring.
    #[inline]
    fn within(&self, offset: usize, bytes: usize) -> usize {
        assert!(
            offset + bytes <= self.size,
            "{bytes} bytes at offset {offset:#x} of a ring"
        );
        self.start + offset
    }

    fn words(&self, offset: usize, count: usize) -> VolatileArrayRef<'_, u64> {
        let offset = self.within(offset, count * size_of::<u64>());
        match self.region.get_array_ref(offset, count) {
            Ok(words) => words,
            Err(error) => panic!("{count} words at offset {offset:#x} of a ring: {error}"),
        }
    }

    fn cell<T: AtomicInteger>(&self, offset: usize) -> &T {
        let offset = self.within(offset, size_of::<T>());
        match self.region.get_atomic_ref(offset) {
            Ok(cell) => cell,
            Err(error) => panic!("offset {offset:#x} of a ring: {error}"),
        }
    }
}

impl SharedMemory for RingMemory {
    fn size(&self) -> usize {
        self.size
    }

    #[inline]
    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.cell::<AtomicU32>(offset).load(order)
    }

    #[inline]
    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.cell::<AtomicU32>(offset).store(value, order);
    }

    #[inline]
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.cell::<AtomicU64>(offset).load(order)
    }

    #[inline]
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.cell::<AtomicU64>(offset).store(value, order);
    }

    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    fn read_words(&self, offset: usize, words: &mut [u64]) {
        self.words(offset, words.len()).copy_to(words);
    }

    fn write_words(&self, offset: usize, words: &[u64]) {
        self.words(offset, words.len()).copy_from(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::ring::{Consumer, Producer};

    /// Neither does a ring reach into the other.
    #[test]
    fn two_mappings_are_two_rings() {
        let (near, memfd) = PairMemory::make().unwrap();
        let far = PairMemory::adopt(memfd).unwrap();
        for channel in [Channel::Priority, Channel::Data] {
            let mut consumer = Consumer::new(near.ring(channel));
            let mut producer = Producer::new(far.ring(channel));
            let frame = [channel as u8; 700];
            let mut count = 0;
            while producer.push(&frame).unwrap() {
                count += 1;
            }
            assert!(!producer.flush());
            for _ in 0..count {
                assert_eq!(consumer.pop(), Ok(Some(&frame[..])));
            }
            assert_eq!(consumer.pop(), Ok(None));
        }
    }

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        sealed_memfd("test", bytes, seals).unwrap().into()
    }

    #[test]
    fn memory_that_could_be_truncated_is_refused() {
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
            let refused = PairMemory::adopt(memfd(BYTES as u64, seals));
            assert!(matches!(refused, Err(BadMemory::NotSealed)), "{seals:?}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES as u64).unwrap();
        let refused = PairMemory::adopt(file.into());
        assert!(matches!(refused, Err(BadMemory::NotSealed)));
        let short = PairMemory::adopt(memfd(4096, SIZE_SEALS));
        assert!(matches!(short, Err(BadMemory::Size(4096))));
        let read_only = memfd(BYTES as u64, SIZE_SEALS | SealFlags::WRITE);
        let refused = PairMemory::adopt(read_only);
        assert!(matches!(refused, Err(BadMemory::System(_))));
    }
}
