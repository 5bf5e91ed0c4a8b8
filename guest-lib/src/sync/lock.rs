//! Mutual exclusion (N21): MCS locks, first come, first served.
//!
//! ```text
//!   home: tail ─────────────────────────┐
//!                                       ▼
//!    A (holds)  next ──►  B (waits)  next ──►  C (waits)
//! ```
//! Acquire: swap the tail; if somebody was there, write the own name into his
//! `next` and wait to be woken. Release: if nobody is behind, compare-and-swap the
//! tail back to nobody; else name him to the home as the holder, then wake him.
//!
//! So whoever was woken is known to the home before it holds the lock: a recovery
//! does not free a lock under it. Who takes a free lock names itself, and does not
//! wait for that.

use qnic_abi::{NodeId, Port};

use crate::atomic::RemoteU64;
use crate::error::{Error, Result};
use crate::memory::segment::RemoteSegment;
use crate::sync::object::{Object, Watch};
use crate::sync::participant::Participant;
use crate::sync::slot::{Entry, Slot, State};

/// Offset of the name of the last in the queue.
const TAIL: u64 = 0;
/// Offset of the name of who took the lock last, or is about to.
const HOLDER: u64 = 8;

/// A lock between processes of all nodes (N21).
#[derive(Debug)]
pub struct Lock {
    object: Object,
    tail: RemoteU64,
    holder: RemoteU64,
}

impl Lock {
    /// The lock at `offset` of an imported segment that grants reading and writing;
    /// [`crate::sync::OBJECT_BYTES`] long, and aligned to that.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]
    pub fn new(participant: &Participant, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        let mut object = Object::new(participant, segment, offset, "lock")?;
        object.rejoins = true;
        Ok(Lock {
            tail: object.word(TAIL)?,
            holder: object.word(HOLDER)?,
            object,
        })
    }

    /// Waits for the lock; first come, first served.
    ///
    /// # Errors
    /// [`Error::Broken`]: the process that held it, or one that waited, has died;
    /// this one is not in the queue any more. Those of [`crate::RemoteWord`]: the
    /// home is gone.
    pub fn acquire(&self) -> Result<LockGuard<'_>> {
        loop {
            let slot = self.object.enter()?;
            match self.join(&slot) {
                Ok(before) => return self.hold(slot, before),
                // A recovery may have thrown its queue away: join the new one.
                Err(Error::Broken { .. }) if slot.is_doubtful() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Joins with a slot and waits for its turn; returns who stood before it.
    fn join(&self, slot: &Slot) -> Result<Option<Entry>> {
        let before = Entry::from_word(slot.joins(self.tail.swap(slot.entry().0))?);
        if let Some(before) = before {
            self.object.link(before, slot)?;
            self.object
                .await_grant(slot, &mut Watch::new(Some(before)), None, || Ok(false))?;
        }
        Ok(before)
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]
    pub fn try_acquire(&self) -> Result<Option<LockGuard<'_>>> {
        let slot = self.object.enter()?;
        match slot.joins(self.tail.compare_swap(0, slot.entry().0))? {
            0 => self.hold(slot, None).map(Some),
            _ => slot.leave().map(|()| None),
        }
    }

    fn hold(&self, slot: Slot, before: Option<Entry>) -> Result<LockGuard<'_>> {
        slot.set_state(State::Holding)?;
        if before.is_none() {
            self.name_holder(slot.entry())?;
        }
        Ok(LockGuard {
            lock: self,
            slot: Some(slot),
            before,
        })
    }

    /// Tells the home who holds the lock, or will; does not wait.
    fn name_holder(&self, holder: Entry) -> Result<()> {
        let Object {
            participant,
            segment,
            offset,
            ..
        } = &self.object;
        participant.write_word(segment, offset + HOLDER, holder.0, false)
    }

    /// Says whether a process has died in it.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]
    pub fn is_broken(&self) -> Result<bool> {
        self.object.is_broken()
    }

    /// Makes a broken lock free again; `false` if it is not broken, or if somebody
    /// else does the same.
    ///
    /// What the lock protects may be in any state: repair it first, or after taking
    /// the lock.
    ///
    /// # Errors
    /// [`Error::Held`]: a process that lives holds it, or was woken to; its release
    /// does not hurt, try again after it. (A process that took the lock when it was
    /// free counts as holder from the moment that its name has arrived at the home, a
    /// message time later.) Those of [`crate::RemoteWord`].
    pub fn recover(&self) -> Result<bool> {
        let Some(claim) = self.object.claim()? else {
            return Ok(false);
        };
        if let Some(holder) = Entry::from_word(self.holder.load()?) {
            if self.object.is_held_by(holder)? {
                self.object.give_back(claim)?;
                return Err(Error::Held {
                    what: self.object.what(),
                });
            }
        }
        // It is in order only after that: who knows it to be joins no old queue.
        self.tail.swap(0)?;
        self.object.revive(claim)
    }

    fn release(&self, slot: Slot) -> Result<()> {
        let next = match slot.next()? {
            Some(next) => next,
            None => {
                self.object.publish()?;
                let me = slot.entry().0;
                if self.tail.compare_swap(me, 0)? == me {
                    return slot.leave();
                }
                self.object.await_next(&slot)?
            }
        };
        self.name_holder(next)?;
        self.object.core().settle_writes()?;
        self.object.wake(next, 0)?;
        slot.leave()
    }
}

/// Holds a [`Lock`] until it is dropped or released.
#[derive(Debug)]
pub struct LockGuard<'a> {
    lock: &'a Lock,
    slot: Option<Slot>,
    before: Option<Entry>,
}

impl LockGuard<'_> {
    /// The process that stood directly before this one when it joined, by the order
    /// of the home: the one that held the lock last. `None`: the lock was free.
    pub fn predecessor(&self) -> Option<(NodeId, Port)> {
        let before = self.before?;
        Some((NodeId(before.node()), Port(before.port())))
    }

    /// Releases the lock, like dropping it, and says whether that worked. What was
    /// written before is in the memory of its destination when the next one goes on.
    ///
    /// # Errors
    /// [`Error::Broken`]: the one behind has died before he had chained himself up.
    /// Those of [`crate::RemoteWord`].
    pub fn release(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        match self.slot.take() {
            None => Ok(()),
            Some(slot) => self.lock.release(slot),
        }
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        // A drop cannot report; `release` does. Those who wait notice.
        drop(self.end());
    }
}
