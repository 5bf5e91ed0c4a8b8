//! Rings as librxe works on them.

use qnic_abi::shared::Ordering;
use qnic_abi::verbs::rings::{
    QueueHeader, ReceiveEntry, SendEntry, Sge, WorkCompletion, CONSUMER, ENTRIES, PRODUCER,
};
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_driver::platform::DeviceMemory;
use qnic_driver::verbs::Ring;
use zerocopy::{FromZeros, IntoBytes};

use crate::machine::device_memory::SimMemory;
use crate::machine::platform::SimPlatform;

/// A ring that its process has mapped.
pub(super) struct ProgramRing {
    memory: SimMemory,
    mask: u32,
    entry_bytes: usize,
}

impl ProgramRing {
    pub(super) fn new(ring: &Ring<SimPlatform>) -> Self {
        let pages = (0..).map_while(|index| ring.page(index));
        let pages = pages.map(|page| page.part(0, PAGE_SIZE));
        let memory = SimMemory::joined(pages.collect());
        let mut header = QueueHeader::new_zeroed();
        memory.read_bytes(0, header.as_mut_bytes());
        ProgramRing {
            memory,
            mask: header.index_mask.get(),
            entry_bytes: 1 << header.log2_entry.get(),
        }
    }

    fn index(&self, at: usize) -> u32 {
        self.memory.load_u32(at, Ordering::Acquire) & self.mask
    }

    fn entry(&self, index: u32) -> usize {
        ENTRIES + index as usize * self.entry_bytes
    }

    /// Entries that the NIC has not done with, or completions that the process has not taken.
    pub(super) fn filled(&self) -> usize {
        let filled = self.index(PRODUCER).wrapping_sub(self.index(CONSUMER));
        (filled & self.mask) as usize
    }

    /// Returns true if another entry fits.
    pub(super) fn has_room(&self) -> bool {
        (self.index(PRODUCER) + 1) & self.mask != self.index(CONSUMER)
    }

    /// Returns true if the NIC has done with all entries, or the process with all completions.
    pub(super) fn is_empty(&self) -> bool {
        self.index(PRODUCER) == self.index(CONSUMER)
    }

    fn post(&self, bytes: &[u8]) {
        let producer = self.index(PRODUCER);
        self.memory.write_bytes(self.entry(producer), bytes);
        let next = (producer + 1) & self.mask;
        self.memory.store_u32(PRODUCER, next, Ordering::Release);
    }

    /// Posts a receive; there is room.
    pub(super) fn post_receive(&self, id: u64, sges: &[Sge]) {
        let mut entry = ReceiveEntry::new_zeroed();
        entry.id = id.into();
        entry.gather.sges = (sges.len() as u32).into();
        self.post(&[entry.as_bytes(), sges.as_bytes()].concat());
    }

    /// Posts a work request; there is room. `inline` bytes stand behind it, or else pieces.
    pub(super) fn post_send(&self, mut entry: SendEntry, sges: &[Sge], inline: &[u8]) {
        entry.gather.sges = (sges.len() as u32).into();
        entry.gather.length = (inline.len() as u32).into();
        self.post(&[entry.as_bytes(), sges.as_bytes(), inline].concat());
    }

    /// Takes the oldest completion.
    pub(super) fn poll(&self) -> Option<WorkCompletion> {
        if self.is_empty() {
            return None;
        }
        let consumer = self.index(CONSUMER);
        let mut completion = WorkCompletion::new_zeroed();
        let bytes = completion.as_mut_bytes();
        self.memory.read_bytes(self.entry(consumer), bytes);
        let next = (consumer + 1) & self.mask;
        self.memory.store_u32(CONSUMER, next, Ordering::Release);
        Some(completion)
    }
}
