//! Wait queues (N22): stand in a queue for an event; signal wakes the first.

use std::time::{Duration, Instant};

use qnic_abi::atomic::{split_detail, Function, WaitQueue as Structure, NOBODY};

use crate::atomic::{Operand, RemoteU64};
use crate::error::{Error, Result};
use crate::memory::segment::RemoteSegment;
use crate::sync::object::{Object, Watch};
use crate::sync::participant::Participant;
use crate::sync::slot::{Entry, Slot};

/// The queue in front of a wait queue or a semaphore.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) object: Object,
    structure: Operand,
    head: RemoteU64,
}

impl Queue {
    pub(crate) fn new(
        participant: &Participant,
        segment: &RemoteSegment,
        offset: u64,
        kind: &'static str,
    ) -> Result<Self> {
        let object = Object::new(participant, segment, offset, kind)?;
        let core = participant.endpoint().core();
        let length = size_of::<Structure>() as u64;
        Ok(Queue {
            structure: Operand::new(core, segment, offset, length)?,
            head: object.word(0)?,
            object,
        })
    }

    /// Executes one function; returns an entry or other value, and two numbers.
    pub(crate) fn call(&self, function: Function, entry: u64) -> Result<(u64, u32, u32)> {
        let (value, detail) = self.structure.execute(function, [entry, 0])?;
        let (first, second) = split_detail(detail);
        Ok((value, first, second))
    }

    /// Executes the function with which a slot joins.
    pub(crate) fn join(&self, function: Function, slot: &Slot) -> Result<(u64, u32, u32)> {
        slot.joins(self.call(function, slot.entry().0))
    }

    /// Chains up a slot that has joined behind `before`.
    pub(crate) fn chain(&self, slot: &Slot, before: u64) -> Result<Option<Entry>> {
        let before = Entry::from_word(before);
        if let Some(before) = before {
            self.object.link(before, slot)?;
        }
        Ok(before)
    }

    /// Waits until a slot that has joined is woken, and names its successor.
    pub(crate) fn wait(
        &self,
        slot: &Slot,
        watch: &mut Watch,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let is_first = || Ok(self.head.load()? == slot.entry().0);
        let count = self.object.await_grant(slot, watch, deadline, is_first)?;
        if count == 0 {
            return Ok(());
        }
        let next = self.object.await_next(slot)?;
        let (leaves, count, _) = self.call(Function::NewHead, next.0)?;
        if leaves != 0 {
            self.object.wake(next, count)?;
        }
        Ok(())
    }

    /// Makes all that was written before visible to whoever is woken.
    pub(crate) fn publish(&self) -> Result<()> {
        self.object.publish()
    }

    /// Wakes whom an operation has returned; `false`: nobody.
    pub(crate) fn wake(&self, entry: u64, count: u32) -> Result<bool> {
        match Entry::from_word(entry) {
            Some(entry) => self.object.wake(entry, count).map(|()| true),
            None => Ok(false),
        }
    }

    /// Empties a broken queue.
    pub(crate) fn recover(&self, value: u32) -> Result<bool> {
        let Some(claim) = self.object.claim()? else {
            return Ok(false);
        };
        let structure = Structure {
            value: value.into(),
            ..Structure::default()
        };
        // One frame: the home's NIC places it between two operations. The queue is in
        // order only after that: who knows it to be joins no old one.
        let object = &self.object;
        let bytes = zerocopy::IntoBytes::as_bytes(&structure);
        let endpoint = object.participant.endpoint();
        endpoint
            .write(&object.segment, object.offset, bytes)?
            .wait()?;
        object.revive(claim)
    }
}

/// A queue of processes that wait for an event (N22).
#[derive(Debug)]
pub struct WaitQueue(Queue);

impl WaitQueue {
    /// The wait queue at `offset` of an imported segment that grants reading and
    /// writing; [`crate::sync::OBJECT_BYTES`] long, and aligned to that.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]
    pub fn new(participant: &Participant, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        Queue::new(participant, segment, offset, "wait queue").map(WaitQueue)
    }

    /// Joins the queue as the last (insertQ); [`Waiting::wait`] waits.
    ///
    /// # Errors
    /// [`Error::Broken`], and those of [`crate::RemoteWord`]
    pub fn insert(&self) -> Result<Waiting<'_>> {
        let slot = self.0.object.enter()?;
        let (before, _, _) = self.0.join(Function::Enqueue, &slot)?;
        let before = self.0.chain(&slot, before)?;
        Ok(Waiting {
            queue: &self.0,
            slot: Some(slot),
            watch: Watch::new(before),
        })
    }

    /// Wakes the first that waits, after all that this process wrote before
    /// (removeQ); `false` if nobody waited: then the signal is lost.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]
    pub fn remove(&self) -> Result<bool> {
        self.0.publish()?;
        let (entry, count, _) = self.0.call(Function::Dequeue, 0)?;
        let woken = self.0.wake(entry, count)?;
        Ok(woken || count != NOBODY)
    }

    /// Says whether a process has died in it.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]
    pub fn is_broken(&self) -> Result<bool> {
        self.0.object.is_broken()
    }

    /// Empties a broken queue; `false` if it is not broken, or if somebody else does
    /// the same. All who waited get [`Error::Broken`] instead of their event.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]
    pub fn recover(&self) -> Result<bool> {
        self.0.recover(0)
    }
}

/// A place in a [`WaitQueue`].
///
/// Dropping it before it was woken breaks the queue for those behind, like the
/// death of the process.
#[derive(Debug)]
pub struct Waiting<'a> {
    queue: &'a Queue,
    slot: Option<Slot>,
    watch: Watch,
}

impl Waiting<'_> {
    /// Waits to be woken (waitQ); at once if it was before. After
    /// [`Error::TimedOut`] the place is kept: wait again.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Broken`]: the place is lost; those of
    /// [`crate::RemoteWord`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        let Some(slot) = self.slot.take() else {
            return Ok(());
        };
        let deadline = self.queue.object.core().deadline(timeout);
        match self.queue.wait(&slot, &mut self.watch, deadline) {
            Ok(()) => slot.leave(),
            Err(Error::TimedOut) => {
                self.slot = Some(slot);
                Err(Error::TimedOut)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // An error says that the home is gone, and the queue with it.
            drop(self.queue.object.break_under(&slot));
        }
    }
}
