//! Counting semaphores (N24).

use std::time::{Duration, Instant};

use qnic_abi::atomic::Function;

use crate::atomic::RemoteU32;
use crate::error::Result;
use crate::memory::RemoteSegment;
use crate::sync::participant::Participant;
use crate::sync::queue::{Place, Queue};

/// Offset of the value.
const VALUE: u64 = 24;

/// A counting semaphore between processes of all nodes; first come, first served.
#[derive(Debug)]
pub struct Semaphore {
    queue: Queue,
    value: RemoteU32,
}

impl Semaphore {
    /// The semaphore at `offset` of an imported segment ([memory](crate::sync#memory)).
    pub fn new(participant: &Participant, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        let endpoint = participant.endpoint();
        Ok(Semaphore {
            queue: Queue::new(participant, segment, offset, "semaphore")?,
            value: endpoint.atomic(segment, offset + VALUE)?,
        })
    }

    /// Sets the value of a semaphore that no process waits for yet; returns what it was.
    pub fn initialize(&self, value: u32) -> Result<u32> {
        self.value.swap(value).wait()
    }

    /// The value as it was a moment ago: units that no process has taken.
    pub fn value(&self) -> Result<u32> {
        self.value.load().wait()
    }

    /// Takes one unit; waits for its turn while there is none (Swait). Returns the value before: how
    /// many units there were with this one, or 0 if it has waited for one.
    ///
    /// # Errors
    /// [`crate::Error::Broken`]: a process that waited has died; this one is not in
    /// the queue any more.
    pub fn wait(&self) -> Result<u32> {
        self.wait_at(&mut Place::default(), None)
    }

    /// A way to wait for a unit with timeouts; joins no queue yet.
    pub fn waiting(&self) -> SemaphoreWaiting<'_> {
        SemaphoreWaiting {
            semaphore: self,
            place: Place::default(),
        }
    }

    /// Takes one unit; waits in a place, which it takes if there is none. Returns what
    /// [`Semaphore::wait`] does.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`]: it is still there.
    pub(crate) fn wait_at(&self, place: &mut Place, deadline: Option<Instant>) -> Result<u32> {
        let queue = &self.queue;
        if !place.is_taken() {
            let (slot, (before, _, value)) = queue.join(Function::SemaphoreP)?;
            if value != 0 {
                return slot.leave().map(|()| value);
            }
            let before = queue.object.link(&slot, before)?;
            *place = Place::new(slot, before);
        }
        queue.wait(place, deadline).map(|()| 0)
    }

    /// Gives a place up: passes the unit on if it has come, else breaks the semaphore.
    pub(crate) fn leave(&self, place: &mut Place) {
        if self.queue.give_up(place) {
            // An error says that the owner is gone.
            drop(self.signal());
        }
    }

    /// Takes one unit if there is one.
    pub fn try_wait(&self) -> Result<bool> {
        let mut value = self.value.load().wait()?;
        while value > 0 {
            let before = self.value.compare_swap(value, value - 1).wait()?;
            if before == value {
                return Ok(true);
            }
            value = before;
        }
        Ok(false)
    }

    /// Gives one unit back after all that this process wrote before (Ssignal). The first
    /// process that waits gets it, if any does. Returns the value then: how many units no process
    /// has taken, 0 if one has got this.
    pub fn signal(&self) -> Result<u32> {
        self.queue.object.core().wait_program_writes()?;
        let (entry, count, value) = self.queue.call(Function::SemaphoreV)?;
        self.queue.wake(entry, count)?;
        Ok(value)
    }

    /// [`Semaphore::wait`], with a guard that gives the unit back.
    ///
    /// # Errors
    /// Those of [`Semaphore::wait`]
    pub fn acquire(&self) -> Result<Permit<'_>> {
        self.wait()?;
        Ok(Permit(self))
    }

    /// Returns true if a process has died in its queue.
    pub fn is_broken(&self) -> Result<bool> {
        self.queue.object.is_broken()
    }

    /// Empties the queue of a broken semaphore and sets its value; returns false if it is
    /// not broken, or another process recovers it. All waiting processes get
    /// [`crate::Error::Broken`]. The caller knows how many units are taken, and chooses
    /// the value accordingly.
    pub fn recover(&self, value: u32) -> Result<bool> {
        self.queue.recover(value)
    }
}

/// A wait for a unit of a [`Semaphore`], in parts ([timeouts](crate::sync#timeouts)).
///
/// Dropping it after a timeout passes the unit on if it has come, else it breaks the semaphore.
#[derive(Debug)]
pub struct SemaphoreWaiting<'a> {
    semaphore: &'a Semaphore,
    place: Place,
}

impl<'a> SemaphoreWaiting<'a> {
    /// Takes one unit, as [`Semaphore::acquire`] does; joins the queue unless it is there still.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`]: it stays in the queue; wait again. Those of
    /// [`Semaphore::wait`]: it is not in the queue any more.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Permit<'a>> {
        let deadline = self.semaphore.queue.object.core().deadline(timeout);
        self.semaphore.wait_at(&mut self.place, deadline)?;
        Ok(Permit(self.semaphore))
    }
}

impl Drop for SemaphoreWaiting<'_> {
    fn drop(&mut self) {
        self.semaphore.leave(&mut self.place);
    }
}

/// A unit of a [`Semaphore`]; goes back when dropped.
#[derive(Debug)]
pub struct Permit<'a>(&'a Semaphore);

impl Permit<'_> {
    /// Keeps the unit: the program gives it back by [`Semaphore::signal`].
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        // A drop cannot report. A program that needs the result keeps the permit and
        // calls `signal`.
        drop(self.0.signal());
    }
}
