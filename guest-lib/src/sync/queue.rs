//! Wait queues (N22): processes wait in a queue for an event; a signal wakes the first.
//!
//! # Generations
//! The structure at the owner has a generation, which counts the recoveries. Each function names
//! the generation that it is meant for; the owner's NIC executes it in no other.
//!
//! | function | of a process that knows an earlier generation |
//! |---|---|
//! | Enqueue, SemaphoreP: it joins | it loads the epoch and joins the present queue |
//! | NewHead: it was woken, and names the next one | has no effect: those behind it get [`Error::Broken`] |
//! | Dequeue, SemaphoreV: it signals | the signal goes to the present queue |
//! | Reset: it recovers | has no effect if another process has recovered the object |
//!
//! So a process that has joined knows the epoch of its queue, and breaks no other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use qnic_abi::atomic::{split_detail, Function, WaitQueue as Structure, EMPTY_QUEUE, STALE};

use crate::atomic::{Operand, RemoteU64};
use crate::error::{Error, Result};
use crate::memory::RemoteSegment;
use crate::sync::entry::Entry;
use crate::sync::object::{Object, Watch};
use crate::sync::participant::Participant;
use crate::sync::slot::Slot;

/// The generation of a queue whose object has that epoch: it counts the recoveries, too, and is
/// the next one as soon as a recovery has emptied the queue.
fn generation_of(epoch: u64) -> u32 {
    (epoch >> 2) as u32
}

/// A place in a queue, if there is one: an entry that has joined, and was not woken yet.
#[derive(Debug, Default)]
pub(crate) struct Place(Option<(Slot, Watch)>);

impl Place {
    pub(crate) fn new(slot: Slot, before: Option<Entry>) -> Self {
        let watch = Watch::in_epoch(before, slot.known_epoch);
        Place(Some((slot, watch)))
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
    /// The generation that was seen last.
    generation: AtomicU32,
}

/// What a function on a queue returns: the result's value, and two numbers.
type Found = (u64, u32, u32);

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
            generation: AtomicU32::new(0),
            object,
        })
    }

    /// Executes one function in a generation; returns the present one if that is another.
    fn call_in(
        &self,
        generation: u32,
        function: Function,
        operand: u64,
    ) -> Result<std::result::Result<Found, u32>> {
        let operands = [operand, generation.into()];
        let (value, detail) = self.structure.execute(function, operands, None)?;
        if detail == STALE {
            return Ok(Err(value as u32));
        }
        let (first, second) = split_detail(detail);
        Ok(Ok((value, first, second)))
    }

    /// Executes one function, without an operand, in whatever generation the queue is.
    pub(crate) fn call(&self, function: Function) -> Result<Found> {
        loop {
            // Relaxed: an old generation only costs another attempt.
            let generation = self.generation.load(Ordering::Relaxed);
            match self.call_in(generation, function, 0)? {
                Ok(found) => return Ok(found),
                Err(present) => self.generation.store(present, Ordering::Relaxed),
            }
        }
    }

    /// Takes a slot and executes the function with which it joins. It then surely is in the
    /// queue of the epoch that it knows.
    ///
    /// # Errors
    /// [`Error::Broken`]: a process recovers the object.
    pub(crate) fn join(&self, function: Function) -> Result<(Slot, Found)> {
        loop {
            let slot = self.object.take_slot()?;
            let known = slot.known_epoch;
            match slot.join(self.call_in(generation_of(known), function, slot.entry.0))? {
                Ok(found) => return Ok((slot, found)),
                Err(_) => slot.leave()?,
            }
            if self.object.load_epoch()? == known {
                return Err(self.object.broken());
            }
        }
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
        let is_first = || Ok(self.head.load().wait()? == slot.entry.0);
        let count = self.object.await_grant(slot, watch, deadline, is_first)?;
        if count == 0 {
            return Ok(());
        }
        let Some(next) = self.object.await_next(slot, || Ok(false))? else {
            return Ok(());
        };
        let generation = generation_of(slot.known_epoch);
        match self.call_in(generation, Function::NewHead, next.0)? {
            Ok((leaves, count, _)) if leaves != 0 => self.object.wake(next, count),
            // Or its queue was thrown away.
            _ => Ok(()),
        }
    }

    /// Wakes the first entry; returns false if there is none.
    fn remove(&self) -> Result<bool> {
        self.object.core().wait_program_writes()?;
        let (entry, count, _) = self.call(Function::Dequeue)?;
        let woken = self.wake(entry, count)?;
        Ok(woken || count != EMPTY_QUEUE)
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
        // Empty the queue before it is intact: a process that sees it intact joins no old queue.
        let next = u64::from(value) | u64::from(generation_of(claim.wrapping_add(1))) << 32;
        let mut generation = generation_of(claim);
        while self.object.is_claimed(claim)? {
            match self.call_in(generation, Function::Reset, next)? {
                Ok(_) => return self.object.finish_recovery(claim),
                // An earlier recovery that did not end has come this far.
                Err(present) => generation = present,
            }
        }
        Ok(false)
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
        let (slot, (before, _, _)) = self.0.join(Function::Enqueue)?;
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
