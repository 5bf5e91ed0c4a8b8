//! Mutual exclusion (N21): MCS locks, first come, first served.
//!
//! ```text
//!   owner: tail ────────────────────────┐
//!                                       ▼
//!    A (holds)  next ──►  B (waits)  next ──►  C (waits)
//! ```
//! - **Acquire**: swap the own name into `tail`. If `tail` named another process, write the
//!   own name into that process's `next`, and wait for the grant.
//! - **Release** without a successor: compare-and-swap `tail` back to zero. With a
//!   successor: write its name into the owner's `holder`, then grant it the lock.
//!
//! So a process that is woken is named at the owner before it holds the lock: a recovery
//! does not free the lock under it. A process that takes a free lock writes its own name,
//! and does not wait for that write.

use qnic_abi::{NodeId, Port};

use crate::atomic::RemoteU64;
use crate::error::{Error, Result};
use crate::memory::RemoteSegment;
use crate::sync::entry::{Entry, State};
use crate::sync::object::{Object, Watch};
use crate::sync::participant::Participant;
use crate::sync::slot::Slot;

/// Offset of the name of the last entry of the queue.
const TAIL: u64 = 0;
/// Offset of the name of the entry that took the lock last, or is about to.
const HOLDER: u64 = 8;

/// A lock between processes of all nodes (N21).
#[derive(Debug)]
pub struct Lock {
    object: Object,
    tail: RemoteU64,
    holder: RemoteU64,
}

impl Lock {
    /// The lock at `offset` of an imported segment ([memory](crate::sync#memory)).
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
    /// [`Error::Broken`]: a process that held it or waited for it has died; this one is
    /// not in the queue any more.
    pub fn acquire(&self) -> Result<LockGuard<'_>> {
        loop {
            let slot = self.object.take_slot()?;
            match self.join(&slot) {
                Ok(before) => return self.hold(slot, before),
                // A recovery may have thrown its queue away: join the new one.
                Err(Error::Broken { .. }) if slot.is_stale() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Joins with a slot and waits for the lock; returns the predecessor.
    fn join(&self, slot: &Slot) -> Result<Option<Entry>> {
        let (object, before) = (&self.object, slot.join(self.tail.swap(slot.entry.0))?);
        let before = object.link(slot, before)?;
        if before.is_some() {
            object.await_grant(slot, &mut Watch::new(before), None, || Ok(false))?;
        }
        Ok(before)
    }

    /// Takes the lock if it is free.
    pub fn try_acquire(&self) -> Result<Option<LockGuard<'_>>> {
        let slot = self.object.take_slot()?;
        match slot.join(self.tail.compare_swap(0, slot.entry.0))? {
            0 => self.hold(slot, None).map(Some),
            _ => slot.leave().map(|()| None),
        }
    }

    fn hold(&self, slot: Slot, before: Option<Entry>) -> Result<LockGuard<'_>> {
        slot.set_state(State::Holding)?;
        if before.is_none() {
            self.name_holder(slot.entry)?;
        }
        Ok(LockGuard {
            lock: self,
            slot: Some(slot),
            before,
        })
    }

    /// Writes the name of the present or next holder to the owner; does not wait.
    fn name_holder(&self, holder: Entry) -> Result<()> {
        let (object, core) = (&self.object, self.object.core());
        core.write_word(&object.segment, object.offset + HOLDER, holder.0, None)
    }

    /// Returns true if a process has died in its queue.
    pub fn is_broken(&self) -> Result<bool> {
        self.object.is_broken()
    }

    /// Makes a broken lock free again; returns false if it is not broken, or another
    /// process recovers it.
    ///
    /// What the lock protects may be in any state: repair it first, or after taking
    /// the lock.
    ///
    /// # Errors
    /// [`Error::Held`]: a process that lives holds the lock, or was woken to hold it. Try
    /// again after its release, which does no harm. (A process that took the lock when it
    /// was free counts as holder once its name has arrived at the owner, a message time
    /// later.)
    pub fn recover(&self) -> Result<bool> {
        let object = &self.object;
        let Some(claim) = object.claim_recovery()? else {
            return Ok(false);
        };
        if let Some(holder) = Entry::from_word(self.holder.load()?) {
            if object.is_held_by(holder)? {
                object.cancel_recovery(claim)?;
                return Err(Error::Held {
                    what: object.what(),
                });
            }
        }
        // Empty it before it is intact: a process that sees it intact joins no old queue.
        self.tail.swap(0)?;
        object.finish_recovery(claim)
    }

    fn release(&self, slot: Slot) -> Result<()> {
        let core = self.object.core();
        let next = match slot.next()? {
            Some(next) => next,
            None => {
                core.wait_program_writes()?;
                let me = slot.entry.0;
                if self.tail.compare_swap(me, 0)? == me {
                    return slot.leave();
                }
                self.object.await_next(&slot)?
            }
        };
        self.name_holder(next)?;
        core.wait_all_writes()?;
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
    /// The predecessor of this process in the queue, in the order of the owner: the
    /// process that held the lock before. `None`: the lock was free.
    pub fn predecessor(&self) -> Option<(NodeId, Port)> {
        self.before.map(Entry::process)
    }

    /// Releases the lock, like dropping it, and returns an error if that failed. What the
    /// program wrote before is in the memory of its destination when the next process
    /// holds the lock.
    ///
    /// # Errors
    /// [`Error::Broken`]: the successor has died before it linked itself.
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
        // A drop cannot report; `release` does. The waiting processes notice.
        drop(self.end());
    }
}
