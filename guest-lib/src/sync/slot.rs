//! A slot in use: the entry of this process in a queue.
//!
//! A process that abandons a slot tells its successor, and that one tells the next. So all
//! processes behind it learn of it within message times. A process that links itself later
//! finds the state when it checks its predecessor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use qnic_abi::Status;

use crate::error::{Error, Result};
use crate::sync::area::{Area, Areas};
use crate::sync::entry::{Entry, Grant, State, BEFORE, GRANT, NEXT, STATE};

/// A slot that is in use.
///
/// A slot that is dropped without [`Slot::leave`] has left its queue out of turn. It is not
/// used again, since others may still write to it. If it never was in a queue, no process
/// knows it, and it is given back.
#[derive(Debug)]
pub(crate) struct Slot {
    areas: Arc<Areas>,
    area: Arc<Area>,
    pub(crate) entry: Entry,
    identity: u64,
    /// The epoch of its object as it was known before it joined.
    pub(crate) known_epoch: u64,
    /// The slot is abandoned because its queue may be stale.
    stale: AtomicBool,
    /// The operation that joins a queue was refused.
    refused: AtomicBool,
    left: bool,
}

impl Slot {
    /// Takes a slot for the queue of an object, whose epoch was `known_epoch` before.
    pub(crate) fn new(areas: &Arc<Areas>, identity: u64, known_epoch: u64) -> Result<Self> {
        let (area, entry) = areas.take()?;
        let slot = Slot {
            areas: areas.clone(),
            area,
            entry,
            identity,
            known_epoch,
            stale: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            left: false,
        };
        slot.store(NEXT, 0)?;
        slot.store(GRANT, 0)?;
        slot.store(BEFORE, 0)?;
        slot.set_state(State::Waiting)?;
        Ok(slot)
    }

    /// The successor, if it has linked itself.
    pub(crate) fn next(&self) -> Result<Option<Entry>> {
        Ok(Entry::from_word(self.load(NEXT)?))
    }

    /// Names the predecessor, for the one in front of that.
    pub(crate) fn set_predecessor(&self, before: Entry) -> Result<()> {
        self.store(BEFORE, before.0)
    }

    /// The predecessor; another one, in place of one that has withdrawn.
    pub(crate) fn new_predecessor(&self) -> Result<Option<Entry>> {
        Ok(Entry::from_word(self.load(BEFORE)?))
    }

    /// The grant that has arrived.
    pub(crate) fn granted(&self) -> Result<Option<Grant>> {
        Ok(Grant::from_word(self.load(GRANT)?))
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
        self.area.buffer.load_u64(offset)
    }

    fn store(&self, word: u64, value: u64) -> Result<()> {
        let offset = (self.entry.offset() + word) as usize;
        self.area.buffer.store_u64(offset, value)
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
                Some(next) => self.areas.grant(next, Grant::Abandoned),
                None => Ok(()),
            });
        // A successor that cannot be told finds the state itself.
        drop(told);
    }
}

/// Returns true if an atomic operation that failed like this was refused, and so not
/// executed. An owner that is merely gone may have executed it.
fn was_refused(error: &Error) -> bool {
    matches!(
        error.status(),
        Some(
            Status::BadLength
                | Status::BadAddress
                | Status::BadKey
                | Status::AccessDenied
                | Status::NoSuchSegment
                | Status::NoSuchPort
                | Status::NoSuchNode
                | Status::PageUnavailable
                | Status::OwnPageUnavailable
                | Status::FaultTimeout
        )
    )
}
