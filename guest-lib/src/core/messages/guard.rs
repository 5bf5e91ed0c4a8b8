//! The lock of the messages, and what threads without it see when it is given back.

use std::sync::atomic::Ordering;
use std::sync::MutexGuard;

use qnic_abi::window::Changes;

use super::State;
use crate::core::wait::Wakes;
use crate::core::{lock, Core};
use crate::error::Result;

/// The state of the messages after a look at the completion queue. Notes changes when it is
/// dropped.
pub(super) struct Guard<'a> {
    pub(super) core: &'a Core,
    pub(super) state: MutexGuard<'a, State>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let messages = &self.core.messages;
        // Relaxed: a thread that sees it takes the lock; stored under that lock alone.
        let unposted = self.state.has_unposted();
        if unposted != messages.unposted.load(Ordering::Relaxed) {
            messages.unposted.store(unposted, Ordering::Relaxed);
            if unposted {
                // A thread that sleeps may be the only one to post it.
                self.core.request_wake(Wakes::For(Changes::HEAD));
            }
        }
        let held = self.state.contexts.held();
        // Release; partner: the acquire load in `needs_progress`. A thread that sees that a context is
        // not held any more sees that something has changed.
        messages.held.store(held, Ordering::Release);
    }
}

impl<'a> Guard<'a> {
    /// Takes the lock, and what the NIC has completed; posts what waits.
    pub(super) fn progress(core: &'a Core) -> Result<Self> {
        let mut guard = Guard::lock(core);
        // What is told of the state is exact under its lock.
        if core.messages.needs_progress(core) {
            guard.drain();
            guard.state.post(core)?;
        }
        Ok(guard)
    }

    /// Takes the lock.
    pub(super) fn lock(core: &'a Core) -> Self {
        Guard {
            core,
            state: lock(&core.messages.state),
        }
    }

    /// Takes what the NIC has completed.
    pub(super) fn drain(&mut self) {
        let core = self.core;
        self.sweep(core);
        let state = &mut *self.state;
        let before = state.reader.head();
        let mut reader = std::mem::take(&mut state.reader);
        let (window, area) = (&core.window(), &core.area());
        let ring = reader.drain(window, area, |entry| state.deliver(entry));
        state.reader = reader;
        let head = state.reader.head();
        if head != before {
            // Relaxed: ordered by the release behind it. In this order a thread that finds
            // nothing unread finds the change.
            core.messages.changes.fetch_add(1, Ordering::Relaxed);
            // Release; partner: the acquire load in `needs_progress`.
            core.messages.head.store(head, Ordering::Release);
        }
        if ring {
            core.process.ring_doorbell();
        }
    }
}
