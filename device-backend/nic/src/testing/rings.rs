//! Rings of verbs as a program has them: what librxe does with them.

use qnic_abi::verbs::requests::Ring;
use qnic_abi::verbs::rings::{WorkCompletion, CONSUMER, ENTRIES, PRODUCER};
use qnic_abi::PAGE_SIZE;
use zerocopy::{FromZeros, IntoBytes};

use super::Party;
use crate::env::HostMemory;

/// A ring as a program has it.
#[derive(Debug, Clone)]
pub struct ProgramRing {
    pages: Vec<u64>,
    entry_bytes: usize,
    entries: u32,
    list: u64,
}

impl ProgramRing {
    /// Makes one on the node of a party.
    pub fn new(party: &Party, entries: u32, entry_bytes: usize) -> Self {
        let size = entries as usize * entry_bytes;
        party.on_node(|node| {
            let mut allocate = || node.driver.allocate(&node.host);
            let behind = Ring::pages_behind(size);
            let list = if behind == 0 { 0 } else { allocate() };
            let pages: Vec<u64> = (0..=behind).map(|_| allocate()).collect();
            if list != 0 {
                let stored = node.host.memory.write(list, pages[1..].as_bytes());
                stored.expect("frames are memory");
            }
            ProgramRing {
                pages,
                entry_bytes,
                entries,
                list,
            }
        })
    }

    /// What the driver says of it.
    pub fn ring(&self) -> Ring {
        Ring {
            first: self.pages[0].into(),
            list: self.list.into(),
            entries: self.entries.into(),
            entry_bytes: (self.entry_bytes as u16).into(),
            pages: (self.pages.len() as u16 - 1).into(),
        }
    }

    pub(super) fn index(&self, party: &Party, at: usize) -> u32 {
        party.on_node(|node| node.host.memory.word(self.pages[0] + at as u64)) as u32
    }

    /// Stores an index, also a wrong one.
    pub fn set_index(&self, party: &Party, at: usize, index: u32) {
        let at = self.pages[0] + at as u64;
        let stored = party.on_node(|node| node.host.memory.store_u64(at, index.into()));
        stored.expect("frames are memory");
    }

    /// Stores a word of the ring, by its number.
    pub fn store_word(&self, party: &Party, word: usize, value: u64) {
        let at = word * 8 % (self.pages.len() * PAGE_SIZE);
        let address = self.pages[at / PAGE_SIZE] + (at % PAGE_SIZE) as u64;
        let stored = party.on_node(|node| node.host.memory.store_u64(address, value));
        stored.expect("frames are memory");
    }

    /// Stores an entry, and makes it the NIC's. Returns false if there is no room.
    pub fn post(&self, party: &Party, bytes: &[u8]) -> bool {
        let producer = self.index(party, PRODUCER) % self.entries;
        let next = (producer + 1) % self.entries;
        if next == self.index(party, CONSUMER) {
            return false;
        }
        let first = ENTRIES + producer as usize * self.entry_bytes;
        for (offset, byte) in bytes.iter().enumerate() {
            let (page, within) = ((first + offset) / PAGE_SIZE, (first + offset) % PAGE_SIZE);
            let at = self.pages[page] + within as u64;
            let stored = party.on_node(|node| node.host.memory.write(at, &[*byte]));
            stored.expect("frames are memory");
        }
        self.set_index(party, PRODUCER, next);
        true
    }

    /// Takes the oldest completion, if there is one.
    pub(super) fn poll(&self, party: &Party) -> Option<WorkCompletion> {
        let consumer = self.index(party, CONSUMER);
        if consumer == self.index(party, PRODUCER) {
            return None;
        }
        let at = ENTRIES + consumer as usize * self.entry_bytes;
        let mut completion = WorkCompletion::new_zeroed();
        let at = self.pages[at / PAGE_SIZE] + (at % PAGE_SIZE) as u64;
        let read = party.on_node(|node| node.host.memory.read(at, completion.as_mut_bytes()));
        read.expect("frames are memory");
        self.set_index(party, CONSUMER, (consumer + 1) % self.entries);
        Some(completion)
    }

    /// Entries that the NIC has not used.
    pub fn posted(&self, party: &Party) -> u32 {
        let producer = self.index(party, PRODUCER);
        producer.wrapping_sub(self.index(party, CONSUMER)) % self.entries
    }
}
