//! One place in a queue: a slot in the area of a process, and its name in the
//! network.
//!
//! ```text
//!   +0   next   name of the one behind; written by that one
//!   +8   grant  1 + those who still wait, or LOST; written by the one who wakes
//!   +16  state  what its owner does with it; read by the one behind
//! ```
//! Who gives up a slot tells the one behind, and he the next, so all learn of it
//! within message times; those who chain themselves up later look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::error::Result;
use crate::sync::participant::{was_refused, Area, Participant};

/// Offset of the name of the one behind.
pub(crate) const NEXT: u64 = 0;
/// Offset of the grant.
pub(crate) const GRANT: u64 = 8;
/// Offset of the state.
pub(crate) const STATE: u64 = 16;

/// A grant that wakes nobody: the one before has given up.
const LOST: u64 = 1 << 63;

/// Size of a slot in bytes.
pub(crate) const SLOT_BYTES: u64 = 64;

/// Slots of a participant.
pub(crate) const SLOTS: u16 = 256;

/// Name of a slot: node, port, life of the participant, slot + 1. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    pub(crate) fn new(node: u16, port: u16, life: u16, slot: u16) -> Self {
        let word = |part: u16, shift: u32| u64::from(part) << shift;
        Entry(word(node, 48) | word(port, 32) | word(life, 16) | (u64::from(slot) + 1))
    }

    /// The entry of that name; `None` for nobody.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        (word as u16 != 0).then_some(Entry(word))
    }

    pub(crate) fn node(self) -> u16 {
        (self.0 >> 48) as u16
    }

    pub(crate) fn port(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(crate) fn life(self) -> u16 {
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

/// What the owner of a slot does with it, as one word together with the object that
/// it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits, or is about to.
    Waiting = 1,
    /// Holds the lock.
    Holding = 2,
    /// Has left the queue out of turn: nobody behind it will be woken by it.
    GivenUp = 3,
}

impl State {
    /// The word for an object; the lowest two bits of `identity` are zero.
    pub(crate) fn word(self, identity: u64) -> u64 {
        identity | self as u64
    }

    /// The state that a word says, if it is about that object.
    pub(crate) fn of(word: u64, identity: u64) -> Option<Self> {
        let states = [State::Waiting, State::Holding, State::GivenUp];
        states
            .into_iter()
            .find(|state| state.word(identity) == word)
    }
}

/// What has come to a slot that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It is woken; so many still wait.
    Woken(u32),
    /// The one before has given up.
    Lost,
}

impl Grant {
    /// As it stands in a slot.
    pub(crate) fn word(self) -> u64 {
        match self {
            Grant::Woken(count) => u64::from(count) + 1,
            Grant::Lost => LOST,
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => None,
            word if word & LOST != 0 => Some(Grant::Lost),
            word => Some(Grant::Woken((word - 1) as u32)),
        }
    }
}

/// A slot that is in use.
///
/// One that is dropped without [`Slot::leave`] has left its queue out of turn. It
/// is not used again: others may still write to it. If it never stood in a queue, nobody
/// knows it, and it is given back.
#[derive(Debug)]
pub(crate) struct Slot {
    area: Arc<Area>,
    entry: Entry,
    identity: u64,
    known: u64,
    /// Whether it is given up because its queue may be one of the past.
    doubtful: AtomicBool,
    /// Whether the operation that joins a queue was refused.
    refused: AtomicBool,
    left: bool,
}

impl Slot {
    /// Prepares a free slot to stand in the queue of an object, whose life was `known`
    /// before.
    pub(crate) fn new(area: &Arc<Area>, entry: Entry, identity: u64, known: u64) -> Result<Self> {
        let slot = Slot {
            area: area.clone(),
            entry,
            identity,
            known,
            doubtful: AtomicBool::new(false),
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

    /// The one behind, if he has chained himself up.
    pub(crate) fn next(&self) -> Result<Option<Entry>> {
        Ok(Entry::from_word(self.load(NEXT)?))
    }

    /// What has come to it.
    pub(crate) fn granted(&self) -> Result<Option<Grant>> {
        Ok(Grant::from_word(self.load(GRANT)?))
    }

    /// The life of its object as it was known before it joined.
    pub(crate) fn known(&self) -> u64 {
        self.known
    }

    /// Notes that its queue may be one of the past.
    pub(crate) fn doubt(&self) {
        // Relaxed: it is read by the thread that waits with this slot.
        self.doubtful.store(true, Ordering::Relaxed);
    }

    /// Says whether its queue may be one of the past: then nothing of its object was
    /// broken on its account.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    /// Takes the result of the operation that joins a queue with it.
    pub(crate) fn joins<T>(&self, result: Result<T>) -> Result<T> {
        let refused = result.as_ref().is_err_and(was_refused);
        // Relaxed: as in `doubt`.
        self.refused.store(refused, Ordering::Relaxed);
        result
    }

    pub(crate) fn set_state(&self, state: State) -> Result<()> {
        self.store(STATE, state.word(self.identity))
    }

    /// Gives it back: nobody will write to it any more.
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
        self.area
            .buffer()
            .load_u64((self.entry.offset() + word) as usize)
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
            // An error says that the memory is gone, and nobody can look at it.
            drop(self.end());
            return;
        }
        let told = self
            .set_state(State::GivenUp)
            .and_then(|()| match self.next()? {
                Some(next) => Participant::of(&self.area).grant(next, Grant::Lost),
                None => Ok(()),
            });
        // Who cannot be told looks himself.
        drop(told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_name_their_parts(node: u16, port: u16, life: u16, slot in 0..SLOTS) {
            let entry = Entry::new(node, port, life, slot);
            prop_assert_eq!((entry.node(), entry.port(), entry.life()), (node, port, life));
            prop_assert_eq!(entry.offset(), u64::from(slot) * SLOT_BYTES);
            prop_assert_eq!(Entry::from_word(entry.0), Some(entry));
            let other = Entry::new(node, port, life, (slot + 1) % SLOTS);
            prop_assert_eq!(entry.participant(), other.participant());
        }
    }

    #[test]
    fn grants_are_counts_or_lost() {
        for grant in [Grant::Woken(0), Grant::Woken(u32::MAX), Grant::Lost] {
            assert_eq!(Grant::from_word(grant.word()), Some(grant));
        }
        assert_eq!(Grant::from_word(0), None);
    }

    #[test]
    fn zero_is_nobody() {
        assert_eq!(Entry::from_word(0), None);
    }
}
