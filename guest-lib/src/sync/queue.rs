//! Wait queues (N22): processes wait in a queue for an event; a signal wakes the first.

use std::time::{Duration, Instant};

use qnic_abi::atomic::{split_detail, Function, WaitQueue as Structure, NOBODY};
use zerocopy::IntoBytes;

use crate::atomic::{Operand, RemoteU64};
use crate::error::{Error, Result};
use crate::memory::RemoteSegment;
use crate::sync::entry::Entry;
use crate::sync::object::{Object, Watch};
use crate::sync::participant::Participant;
use crate::sync::slot::Slot;

/// A place in a queue, if there is one: an entry that has joined, and was not woken yet.
#[derive(Debug, Default)]
pub(crate) struct Place(Option<(Slot, Watch)>);

impl Place {
    pub(crate) fn new(slot: Slot, before: Option<Entry>) -> Self {
        Place(Some((slot, Watch::new(before))))
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}

/// The queue of a wait queue or a semaphore.
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

    /// Executes one function; returns the result's value, and two numbers.
    pub(crate) fn call(&self, function: Function, entry: u64) -> Result<(u64, u32, u32)> {
        let (value, detail) = self.structure.execute(function, [entry, 0])?;
        let (first, second) = split_detail(detail);
        Ok((value, first, second))
    }

    /// Executes the function with which a slot joins.
    pub(crate) fn join(&self, function: Function, slot: &Slot) -> Result<(u64, u32, u32)> {
        slot.join(self.call(function, slot.entry.0))
    }

    /// Waits until the entry in a place is woken; returns at once if there is none.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: it is still there. After all others, it is not.
    pub(crate) fn wait(&self, place: &mut Place, deadline: Option<Instant>) -> Result<()> {
        let Some((slot, mut watch)) = place.0.take() else {
            return Ok(());
        };
        match self.await_turn(&slot, &mut watch, deadline) {
            Ok(()) => slot.leave(),
            Err(Error::TimedOut) => {
                place.0 = Some((slot, watch));
                Err(Error::TimedOut)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives a place up. Returns true if its turn has come; else the queue breaks.
    pub(crate) fn give_up(&self, place: &mut Place) -> bool {
        let now = Some(self.object.core().now());
        let woken = place.is_taken() && self.wait(place, now).is_ok();
        if let Some((slot, _)) = place.0.take() {
            // An error says that the owner is gone, and the queue with it.
            drop(self.object.mark_broken(&slot));
        }
        woken
    }

    /// Waits until a slot that has joined is woken, and names its successor.
    fn await_turn(&self, slot: &Slot, watch: &mut Watch, deadline: Option<Instant>) -> Result<()> {
        let is_first = || Ok(self.head.load()? == slot.entry.0);
        let count = self.object.await_grant(slot, watch, deadline, is_first)?;
        if count == 0 {
            return Ok(());
        }
        let Some(next) = self.object.await_next(slot, || Ok(false))? else {
            return Ok(());
        };
        let (leaves, count, _) = self.call(Function::NewHead, next.0)?;
        if leaves != 0 {
            self.object.wake(next, count)?;
        }
        Ok(())
    }

    /// Wakes the first entry; returns false if there is none.
    fn remove(&self) -> Result<bool> {
        self.object.core().wait_program_writes()?;
        let (entry, count, _) = self.call(Function::Dequeue, 0)?;
        let woken = self.wake(entry, count)?;
        Ok(woken || count != NOBODY)
    }

    /// Wakes the entry that an operation has returned; returns false if there is none.
    pub(crate) fn wake(&self, entry: u64, count: u32) -> Result<bool> {
        match Entry::from_word(entry) {
            Some(entry) => self.object.wake(entry, count).map(|()| true),
            None => Ok(false),
        }
    }

    /// Empties a broken queue.
    pub(crate) fn recover(&self, value: u32) -> Result<bool> {
        let Some(claim) = self.object.claim_recovery()? else {
            return Ok(false);
        };
        let structure = Structure {
            value: value.into(),
            ..Structure::default()
        };
        // One frame: the owner's NIC writes it between two operations. Empty the queue
        // before it is intact: a process that sees it intact joins no old queue.
        let object = &self.object;
        let endpoint = object.participant.endpoint();
        let written = endpoint.write(&object.segment, object.offset, structure.as_bytes())?;
        written.wait()?;
        object.finish_recovery(claim)
    }
}

/// A queue of processes that wait for an event (N22).
#[derive(Debug)]
pub struct WaitQueue(Queue);

impl WaitQueue {
    /// The wait queue at `offset` of an imported segment ([memory](crate::sync#memory)).
    pub fn new(participant: &Participant, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        Queue::new(participant, segment, offset, "wait queue").map(WaitQueue)
    }

    /// Joins the queue as the last (insertQ); [`Waiting::wait`] waits.
    ///
    /// # Errors
    /// [`Error::Broken`]
    pub fn insert(&self) -> Result<Waiting<'_>> {
        let slot = self.0.object.take_slot()?;
        let (before, _, _) = self.0.join(Function::Enqueue, &slot)?;
        let before = self.0.object.link(&slot, before)?;
        Ok(Waiting {
            queue: &self.0,
            place: Place::new(slot, before),
        })
    }

    /// Wakes the first process that waits, after all that this process wrote before
    /// (removeQ). Returns false if none waited: then the signal is lost.
    pub fn remove(&self) -> Result<bool> {
        self.0.remove()
    }

    /// Returns true if a process has died in it.
    pub fn is_broken(&self) -> Result<bool> {
        self.0.object.is_broken()
    }

    /// Empties a broken queue; returns false if it is not broken, or another process
    /// recovers it. All waiting processes get [`Error::Broken`] instead of their event.
    pub fn recover(&self) -> Result<bool> {
        self.0.recover(0)
    }
}

/// An entry in a [`WaitQueue`].
///
/// Dropping it before it was woken breaks the queue, like the death of the process. If it was
/// woken, and the program has not noticed, the first of those that still wait is woken instead.
#[derive(Debug)]
pub struct Waiting<'a> {
    queue: &'a Queue,
    place: Place,
}

impl Waiting<'_> {
    /// Waits to be woken (waitQ); returns at once if it was woken before. After
    /// [`Error::TimedOut`] the entry stays in the queue: wait again.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Broken`]: the entry is lost.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        let deadline = self.queue.object.core().deadline(timeout);
        self.queue.wait(&mut self.place, deadline)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.queue.give_up(&mut self.place) {
            // An error says that the owner is gone, and the queue with it.
            drop(self.queue.remove());
        }
    }
}
