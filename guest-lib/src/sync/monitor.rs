//! Mesa monitors (N23): a lock, and condition variables for waiting in it.
//!
//! | source | here | does |
//! |---|---|---|
//! | mbegin | [`Monitor::enter`] | acquire |
//! | mend | [`MonitorGuard::leave`], drop | release |
//! | cvwait | [`MonitorGuard::wait`] | insert, release, wait, acquire |
//! | cvsignal | [`MonitorGuard::signal`] | remove |
//!
//! A process joins the queue of the condition while it still holds the lock. So no signal
//! between its look at the state and its wait is lost. A process that is woken has to enter
//! again, and others may enter before it: it looks at the state again.

use std::time::Duration;

use crate::error::Result;
use crate::memory::RemoteSegment;
use crate::sync::lock::{Lock, LockGuard, LockWaiting};
use crate::sync::participant::Participant;
use crate::sync::queue::{WaitQueue, Waiting};

/// A monitor: at most one process is in it.
#[derive(Debug)]
pub struct Monitor(Lock);

/// A condition of a monitor that processes wait for.
#[derive(Debug)]
pub struct Condition(WaitQueue);

impl Monitor {
    /// The monitor at `offset` of an imported segment ([memory](crate::sync#memory)).
    pub fn new(participant: &Participant, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        Lock::new(participant, segment, offset).map(Monitor)
    }

    /// Enters the monitor; first come, first served (mbegin).
    ///
    /// # Errors
    /// Those of [`Lock::acquire`]
    pub fn enter(&self) -> Result<MonitorGuard<'_>> {
        Ok(MonitorGuard {
            monitor: self,
            guard: self.0.acquire()?,
        })
    }

    /// A way to wait for the monitor with timeouts; joins no queue yet.
    pub fn waiting(&self) -> MonitorWaiting<'_> {
        MonitorWaiting {
            monitor: self,
            waiting: self.0.waiting(),
        }
    }

    /// Its lock, to recover it.
    pub fn lock(&self) -> &Lock {
        &self.0
    }
}

impl Condition {
    /// The condition at `offset` of an imported segment ([memory](crate::sync#memory)).
    pub fn new(participant: &Participant, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        WaitQueue::new(participant, segment, offset).map(Condition)
    }

    /// Its queue, to recover it.
    pub fn queue(&self) -> &WaitQueue {
        &self.0
    }
}

/// A wait for a [`Monitor`], in parts: a [`LockWaiting`] of its lock.
#[derive(Debug)]
pub struct MonitorWaiting<'a> {
    monitor: &'a Monitor,
    waiting: LockWaiting<'a>,
}

impl<'a> MonitorWaiting<'a> {
    /// Enters the monitor; joins the queue unless it is there still.
    ///
    /// # Errors
    /// Those of [`LockWaiting::wait`]
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<MonitorGuard<'a>> {
        Ok(MonitorGuard {
            monitor: self.monitor,
            guard: self.waiting.wait(timeout)?,
        })
    }
}

/// The right to be in a [`Monitor`]; dropping it leaves the monitor.
#[derive(Debug)]
pub struct MonitorGuard<'a> {
    monitor: &'a Monitor,
    guard: LockGuard<'a>,
}

impl<'a> MonitorGuard<'a> {
    /// Leaves the monitor, waits to be woken, enters again (cvwait). Other processes may
    /// have changed the state meanwhile: look again.
    ///
    /// # Errors
    /// [`crate::Error::Broken`]: a process has died in the queue of the condition or
    /// of the monitor; this one is in neither, and not in the monitor.
    pub fn wait(self, condition: &Condition) -> Result<MonitorGuard<'a>> {
        let monitor = self.monitor;
        self.leave_to_wait(condition)?.wait(None)?;
        monitor.enter()
    }

    /// Joins the queue of a condition and leaves the monitor: the first half of
    /// [`MonitorGuard::wait`]. The program then waits with or without a timeout, and enters
    /// again. No signal behind this call is lost: it wakes this entry or one before it.
    ///
    /// # Errors
    /// Those of [`WaitQueue::insert`] and [`LockGuard::release`].
    pub fn leave_to_wait(self, condition: &Condition) -> Result<Waiting<'_>> {
        let waiting = condition.0.insert()?;
        self.guard.release()?;
        Ok(waiting)
    }

    /// Wakes the first process that waits for a condition (cvsignal); returns false if
    /// none does.
    pub fn signal(&self, condition: &Condition) -> Result<bool> {
        condition.0.remove()
    }

    /// Wakes all processes that wait for a condition.
    pub fn broadcast(&self, condition: &Condition) -> Result<()> {
        while condition.0.remove()? {}
        Ok(())
    }

    /// Leaves the monitor, like dropping it, and returns an error if that failed (mend).
    ///
    /// # Errors
    /// Those of [`LockGuard::release`]
    pub fn leave(self) -> Result<()> {
        self.guard.release()
    }
}
