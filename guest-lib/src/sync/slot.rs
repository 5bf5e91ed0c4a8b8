//! An entry of a queue: a slot in the area of a process, and its name in the network.
//!
//! ```text
//!   +0   next   name of the successor; written by the successor
//!   +8   grant  1 + entries that still wait, or ABANDONED; written by the waker
//!   +16  state  what the slot's process does with it; read by the successor
//! ```
//! A process that abandons a slot tells its successor, and that one tells the next. So all
//! processes behind it learn of it within message times. A process that links itself later
//! finds the state when it checks its predecessor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::error::Result;
use crate::sync::participant::{was_refused, Area, Participant};

/// Offset of the name of the successor.
pub(crate) const NEXT: u64 = 0;
/// Offset of the grant.
pub(crate) const GRANT: u64 = 8;
/// Offset of the state.
pub(crate) const STATE: u64 = 16;

/// A grant that wakes nothing: the predecessor has abandoned its slot.
const ABANDONED: u64 = 1 << 63;

/// Size of a slot in bytes.
pub(crate) const SLOT_BYTES: u64 = 64;

/// Slots of a participant.
pub(crate) const SLOTS: u16 = 256;

/// Name of a slot: node, port, incarnation of the participant, slot + 1. Never zero.
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

    pub(crate) fn node(self) -> u16 {
        (self.0 >> 48) as u16
    }

    pub(crate) fn port(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(crate) fn incarnation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The participant it belongs to.
    pub(crate) fn participant(self) -> u64 {
        self.0 >> 16
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
        let states = [State::Waiting, State::Holding, State::Abandoned];
        states
            .into_iter()
            .find(|state| state.word(identity) == word)
    }
}

/// What a waiting slot receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It is woken; so many entries still wait.
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

    fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => None,
            word if word & ABANDONED != 0 => Some(Grant::Abandoned),
            word => Some(Grant::Woken((word - 1) as u32)),
        }
    }
}

/// A slot that is in use.
///
/// A slot that is dropped without [`Slot::leave`] has left its queue out of turn. It is not
/// used again, since others may still write to it. If it never was in a queue, no process
/// knows it, and it is given back.
#[derive(Debug)]
pub(crate) struct Slot {
    area: Arc<Area>,
    entry: Entry,
    identity: u64,
    known_epoch: u64,
    /// The slot is abandoned because its queue may be stale.
    stale: AtomicBool,
    /// The operation that joins a queue was refused.
    refused: AtomicBool,
    left: bool,
}

impl Slot {
    /// Prepares a free slot for the queue of an object, whose epoch was `known_epoch`
    /// before.
    pub(crate) fn new(
        area: &Arc<Area>,
        entry: Entry,
        identity: u64,
        known_epoch: u64,
    ) -> Result<Self> {
        let slot = Slot {
            area: area.clone(),
            entry,
            identity,
            known_epoch,
            stale: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            left: false,
        };
        slot.store(NEXT, 0)?;
        slot.store(GRANT, 0)?;
        slot.set_state(State::Waiting)?;
        Ok(slot)
    }

    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    /// The successor, if it has linked itself.
    pub(crate) fn next(&self) -> Result<Option<Entry>> {
        Ok(Entry::from_word(self.load(NEXT)?))
    }

    /// The grant that has arrived.
    pub(crate) fn granted(&self) -> Result<Option<Grant>> {
        Ok(Grant::from_word(self.load(GRANT)?))
    }

    /// The epoch of its object as it was known before it joined.
    pub(crate) fn known_epoch(&self) -> u64 {
        self.known_epoch
    }

    /// Notes that its queue may be stale.
    pub(crate) fn mark_stale(&self) {
        // Relaxed: the thread that waits with this slot reads it.
        self.stale.store(true, Ordering::Relaxed);
    }

    /// Returns true if its queue may be stale. Then it has not broken its object.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Takes the result of the operation that joins a queue with it.
    pub(crate) fn join<T>(&self, result: Result<T>) -> Result<T> {
        let refused = result.as_ref().is_err_and(was_refused);
        // Relaxed: as in `mark_stale`.
        self.refused.store(refused, Ordering::Relaxed);
        result
    }

    pub(crate) fn set_state(&self, state: State) -> Result<()> {
        self.store(STATE, state.word(self.identity))
    }

    /// Gives it back: no process will write to it any more.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.left = true;
        let left = self.store(STATE, 0);
        self.area.give_back(self.entry);
        left
    }

    fn load(&self, word: u64) -> Result<u64> {
        let offset = (self.entry.offset() + word) as usize;
        self.area.buffer().load_u64(offset)
    }

    fn store(&self, word: u64, value: u64) -> Result<()> {
        let offset = (self.entry.offset() + word) as usize;
        self.area.buffer().store_u64(offset, value)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if self.refused.load(Ordering::Relaxed) {
            // An error says that the memory is gone, so no process can look at it.
            drop(self.end());
            return;
        }
        let told = self
            .set_state(State::Abandoned)
            .and_then(|()| match self.next()? {
                Some(next) => Participant::of(&self.area).grant(next, Grant::Abandoned),
                None => Ok(()),
            });
        // A successor that cannot be told finds the state itself.
        drop(told);
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
            let parts = (entry.node(), entry.port(), entry.incarnation());
            prop_assert_eq!(parts, (node, port, incarnation));
            prop_assert_eq!(entry.offset(), u64::from(slot) * SLOT_BYTES);
            prop_assert_eq!(Entry::from_word(entry.0), Some(entry));
            let other = Entry::new(node, port, incarnation, (slot + 1) % SLOTS);
            prop_assert_eq!(entry.participant(), other.participant());
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
