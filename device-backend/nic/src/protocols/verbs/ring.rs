//! A ring of a program ([`qnic_abi::verbs::rings`]): pages of the driver that the program writes to at any
//! time.
//!
//! The NIC keeps where the pages are, the sizes, and its own index. It takes the other index modulo the
//! number of entries, and copies an entry once. An access that the node's memory refuses changes nothing:
//! the memory has ended, and the node with it.

use qnic_abi::verbs::requests::Ring;
use qnic_abi::verbs::rings::{CONSUMER, ENTRIES, PRODUCER};
use qnic_abi::{Status, PAGE_SIZE};
use zerocopy::IntoBytes;

use crate::env::{HostMemory, OutOfRange};

/// The index of one side of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The side that fills entries.
    Producer,
    /// The side that uses them.
    Consumer,
}

impl Side {
    fn offset(self) -> usize {
        match self {
            Side::Producer => PRODUCER,
            Side::Consumer => CONSUMER,
        }
    }
}

/// A ring, as the NIC knows it.
#[derive(Debug)]
pub(super) struct RingMemory {
    /// Guest-physical addresses; the first page begins with the header.
    pages: Box<[u64]>,
    /// One less than the number of entries.
    mask: u32,
    entry_bytes: usize,
    /// The NIC's own index.
    own: u32,
    own_side: Side,
}

impl RingMemory {
    /// The ring of a request whose entries have at least so many bytes. The NIC's index is zero.
    ///
    /// # Errors
    /// Malformed if the request contradicts itself, BadAddress if a page is not memory.
    pub(super) fn new<M: HostMemory>(
        memory: &M,
        ring: &Ring,
        own_side: Side,
        least_bytes: usize,
    ) -> Result<Self, Status> {
        let entry_bytes = usize::from(ring.entry_bytes.get());
        if !ring.is_valid() || entry_bytes < least_bytes {
            return Err(Status::Malformed);
        }
        let mut list = [0u64; PAGE_SIZE / 8];
        let behind = list
            .get_mut(..usize::from(ring.pages.get()))
            .ok_or(Status::Malformed)?;
        if !behind.is_empty() {
            check_page(memory, ring.list.get())?;
            let read = memory.read(ring.list.get(), behind.as_mut_bytes());
            read.map_err(|_| Status::BadAddress)?;
        }
        let behind = behind.iter().copied().map(u64::from_le);
        let pages: Box<[u64]> = std::iter::once(ring.first.get()).chain(behind).collect();
        for page in &pages {
            check_page(memory, *page)?;
        }
        Ok(RingMemory {
            pages,
            mask: ring.entries.get() - 1,
            entry_bytes,
            own: 0,
            own_side,
        })
    }

    /// Entries that can be filled at once.
    pub(super) fn depth(&self) -> u32 {
        self.mask
    }

    /// The NIC's index.
    pub(super) fn own(&self) -> u32 {
        self.own
    }

    /// The index so many entries behind another one.
    pub(super) fn behind(&self, index: u32, entries: u32) -> u32 {
        index.wrapping_add(entries) & self.mask
    }

    /// The index of the program, which can be anything below the number of entries.
    pub(super) fn other<M: HostMemory>(&self, memory: &M) -> u32 {
        let side = match self.own_side {
            Side::Producer => Side::Consumer,
            Side::Consumer => Side::Producer,
        };
        // Acquire; partner: the release store of the program behind the entries that it has filled, or
        // read.
        let word = memory.load_u64(self.pages[0] + side.offset() as u64);
        // Without memory it is empty, or full.
        word.map_or(self.own, |word| word as u32) & self.mask
    }

    /// Entries that a producer has filled for the NIC from an index on.
    pub(super) fn filled<M: HostMemory>(&self, memory: &M, from: u32) -> u32 {
        self.other(memory).wrapping_sub(from) & self.mask
    }

    /// Returns true if the NIC can fill another entry.
    pub(super) fn has_room<M: HostMemory>(&self, memory: &M) -> bool {
        self.behind(self.own, 1) != self.other(memory)
    }

    /// Stores the NIC's index, behind all that it has stored before.
    pub(super) fn publish<M: HostMemory>(&mut self, memory: &M, own: u32) {
        self.own = own & self.mask;
        let at = self.pages[0] + self.own_side.offset() as u64;
        // Release; partner: the acquire load of the program. The words beside the index are padding.
        let _ended = memory.store_u64(at, self.own.into());
    }

    /// Bytes of an entry.
    pub(super) fn entry_bytes(&self) -> usize {
        self.entry_bytes
    }

    /// Copies the front of an entry, once: as much as `bytes` has room for.
    ///
    /// # Errors
    /// [`OutOfRange`] if the memory has ended.
    pub(super) fn copy<M: HostMemory>(
        &self,
        memory: &M,
        index: u32,
        bytes: &mut [u8],
    ) -> Result<(), OutOfRange> {
        let mut at = ENTRIES + (index & self.mask) as usize * self.entry_bytes;
        let length = bytes.len().min(self.entry_bytes);
        let mut rest = &mut bytes[..length];
        while !rest.is_empty() {
            let border = PAGE_SIZE - at % PAGE_SIZE;
            let (part, behind) = rest.split_at_mut(border.min(rest.len()));
            let page = self.pages.get(at / PAGE_SIZE).ok_or(OutOfRange)?;
            memory.read(page + (at % PAGE_SIZE) as u64, part)?;
            at += part.len();
            rest = behind;
        }
        Ok(())
    }

    /// The first word of an entry: the identifier of a work request. Zero, if the memory has ended.
    pub(super) fn identifier<M: HostMemory>(&self, memory: &M, index: u32) -> u64 {
        let mut bytes = [0; 8];
        let _ended = self.copy(memory, index, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Fills the entry at the NIC's index, and makes it the program's.
    pub(super) fn push<M: HostMemory>(&mut self, memory: &M, words: &[u64]) {
        debug_assert_eq!(PAGE_SIZE % self.entry_bytes, ENTRIES % self.entry_bytes);
        let at = ENTRIES + self.own as usize * self.entry_bytes;
        let page = self.pages.get(at / PAGE_SIZE).copied().unwrap_or_default();
        let _ended = memory.store_words(page + (at % PAGE_SIZE) as u64, words);
        self.publish(memory, self.behind(self.own, 1));
    }
}

fn check_page<M: HostMemory>(memory: &M, page: u64) -> Result<(), Status> {
    let aligned = page % PAGE_SIZE as u64 == 0;
    match aligned && memory.contains(page, PAGE_SIZE as u64) {
        true => Ok(()),
        false => Err(Status::BadAddress),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    fn ring(entries: u32, entry_bytes: u16, list: u64) -> Ring {
        let size = entries as usize * usize::from(entry_bytes);
        Ring {
            first: 0x1000.into(),
            list: list.into(),
            entries: entries.into(),
            entry_bytes: entry_bytes.into(),
            pages: (Ring::pages_behind(size) as u16).into(),
        }
    }

    #[test]
    fn entries_are_found_in_all_pages_and_across_their_borders() {
        let memory = Memory::new(8 * PAGE_SIZE);
        let pages = [0x4000u64, 0x3000];
        memory.write(0x7000, pages.as_bytes()).unwrap();
        let ring = RingMemory::new(&memory, &ring(16, 512, 0x7000), Side::Consumer, 208).unwrap();
        // Entry 7 begins 128 bytes before the border of the first page.
        assert_eq!(ENTRIES + 7 * 512 + 128, PAGE_SIZE);
        memory.write(0x1000 + 0xf80, &[5; 128]).unwrap();
        memory.write(0x4000, &[6; 384]).unwrap();
        let mut bytes = [0; 512];
        ring.copy(&memory, 7 + 16, &mut bytes).unwrap();
        assert!(bytes[..128].iter().all(|byte| *byte == 5));
        assert!(bytes[128..].iter().all(|byte| *byte == 6));
    }

    #[test]
    fn the_index_of_the_program_is_one_of_the_ring_whatever_it_says() {
        let memory = Memory::new(8 * PAGE_SIZE);
        let ring = ring(32, 64, 0);
        let mut ring = RingMemory::new(&memory, &ring, Side::Consumer, 64).unwrap();
        for (said, index) in [(0, 0), (31, 31), (32, 0), (u32::MAX, 31)] {
            let at = 0x1000 + PRODUCER as u64;
            memory.store_u64(at, u64::from(said) | 7 << 32).unwrap();
            assert_eq!(ring.other(&memory), index);
            assert_eq!(ring.filled(&memory, 30), index.wrapping_sub(30) & 31);
        }
        ring.publish(&memory, 33);
        assert_eq!(memory.word(0x1000 + CONSUMER as u64), 1);
    }

    #[test]
    fn pages_that_are_no_memory_are_refused() {
        let memory = Memory::new(8 * PAGE_SIZE);
        let made = |ring: &Ring, least| {
            let made = RingMemory::new(&memory, ring, Side::Producer, least);
            made.err()
        };
        assert_eq!(made(&ring(32, 64, 0), 65), Some(Status::Malformed));
        // The first page is memory as any other.
        assert_eq!(made(&ring(64, 64, 0), 64), None);
        let mut outside = ring(32, 64, 0);
        outside.first = 0x8000.into();
        assert_eq!(made(&outside, 64), Some(Status::BadAddress));
        for list in [0x7008, 0x8000] {
            assert_eq!(made(&ring(64, 64, list), 64), Some(Status::BadAddress));
        }
        memory.write(0x7000, 0x1001u64.as_bytes()).unwrap();
        assert_eq!(made(&ring(64, 64, 0x7000), 64), Some(Status::BadAddress));
        memory.write(0x7000, 0x2000u64.as_bytes()).unwrap();
        assert_eq!(made(&ring(64, 64, 0x7000), 64), None);
    }
}
