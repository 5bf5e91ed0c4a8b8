//! The words of a slot, and the slot's name in the network.
//!
//! ```text
//!   +0   next   name of the successor; written by the successor
//!   +8   grant  1 + a number, or ABANDONED; written by the waker
//!   +16  state  what the slot's process does with it; read by the successor
//!   +24  before name of the predecessor; if that withdraws, it writes the name of its own
//! ```

use std::ops::RangeInclusive;

use qnic_abi::{NodeId, Port};

pub(crate) const NEXT: u64 = 0;
pub(crate) const GRANT: u64 = 8;
pub(crate) const STATE: u64 = 16;
pub(crate) const BEFORE: u64 = 24;

/// A grant that wakes nothing: the predecessor has abandoned its slot.
const ABANDONED: u64 = 1 << 63;

pub(crate) const SLOT_BYTES: u64 = 64;

/// Slots of an area.
pub(crate) const SLOTS: u16 = 256;

/// Name of a slot: node, port, incarnation of the area, slot + 1. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    pub(crate) fn new(node: u16, port: u16, incarnation: u16, slot: u16) -> Self {
        let word = |part: u16, shift: u32| u64::from(part) << shift;
        Entry(word(node, 48) | word(port, 32) | word(incarnation, 16) | (u64::from(slot) + 1))
    }

    /// The entry of that name; `None` for zero.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        (word as u16 != 0).then_some(Entry(word))
    }

    /// Node and port of its process.
    pub(crate) fn process(self) -> (NodeId, Port) {
        (NodeId((self.0 >> 48) as u16), Port((self.0 >> 32) as u16))
    }

    pub(crate) fn incarnation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The area it lies in.
    pub(crate) fn area(self) -> u64 {
        self.0 >> 16
    }

    /// All areas of its process.
    pub(crate) fn areas_of_process(self) -> RangeInclusive<u64> {
        let first = self.area() & !0xffff;
        first..=first | 0xffff
    }

    /// Offset of the slot in its area.
    pub(crate) fn offset(self) -> u64 {
        (u64::from(self.0 as u16) - 1) * SLOT_BYTES
    }
}

/// What a process does with its slot; one word together with the identity of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits, or is about to.
    Waiting = 1,
    /// Holds the lock.
    Holding = 2,
    /// Has left the queue out of turn: it will wake no successor.
    Abandoned = 3,
}

impl State {
    /// The word for an object; the lowest two bits of `identity` are zero.
    pub(crate) fn word(self, identity: u64) -> u64 {
        identity | self as u64
    }

    /// The state in a word, if the word is about that object.
    pub(crate) fn of(word: u64, identity: u64) -> Option<Self> {
        let mut states = [State::Waiting, State::Holding, State::Abandoned].into_iter();
        states.find(|state| state.word(identity) == word)
    }
}

/// What a waiting slot receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It is woken. At a lock, the number of its turn; else so many entries still wait.
    Woken(u32),
    /// The predecessor has abandoned its slot.
    Abandoned,
}

impl Grant {
    /// The word in the slot.
    pub(crate) fn word(self) -> u64 {
        match self {
            Grant::Woken(count) => u64::from(count) + 1,
            Grant::Abandoned => ABANDONED,
        }
    }

    /// The grant in a word; `None` for zero.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => None,
            word if word & ABANDONED != 0 => Some(Grant::Abandoned),
            word => Some(Grant::Woken((word - 1) as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_name_their_parts(node: u16, port: u16, incarnation: u16, slot in 0..SLOTS) {
            let entry = Entry::new(node, port, incarnation, slot);
            prop_assert_eq!(entry.process(), (NodeId(node), Port(port)));
            prop_assert_eq!(entry.incarnation(), incarnation);
            prop_assert_eq!(entry.offset(), u64::from(slot) * SLOT_BYTES);
            prop_assert_eq!(Entry::from_word(entry.0), Some(entry));
            let other = Entry::new(node, port, incarnation, (slot + 1) % SLOTS);
            prop_assert_eq!(entry.area(), other.area());
            prop_assert!(entry.areas_of_process().contains(&entry.area()));
        }
    }

    #[test]
    fn words_are_grants_and_zero_is_nothing() {
        for grant in [Grant::Woken(0), Grant::Woken(u32::MAX), Grant::Abandoned] {
            assert_eq!(Grant::from_word(grant.word()), Some(grant));
        }
        assert_eq!(Grant::from_word(0), None);
        assert_eq!(Entry::from_word(0), None);
    }
}
