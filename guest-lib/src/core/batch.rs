//! Commands of a thread that share a doorbell.
//!
//! ```text
//!   enter ──► store ─ store ─ store ──► end: one look at AWAKE, at most one doorbell
//!                          └── the thread waits, or tests in vain: the same look at once
//! ```
//! # Invariants
//! - Other threads ring for their own commands: what a batch leaves out stands with its thread,
//!   and the state of the doorbell does not know of it.
//! - No wait of the thread begins while a doorbell is left out.
//! - A reset of the queue drops what was left out with the commands.

use std::cell::Cell;

use crate::core::Core;

/// The batch of this thread, if it has one.
#[derive(Debug, Clone, Copy)]
struct Batch {
    /// Address of the core that it is of. Never followed.
    core: usize,
    left_out: Option<LeftOut>,
}

/// The last command without a look at the doorbell.
#[derive(Debug, Clone, Copy)]
struct LeftOut {
    number: u64,
    generation: u64,
}

thread_local! {
    static BATCH: Cell<Option<Batch>> = const { Cell::new(None) };
}

/// Ends the batch of this thread with what is left out, also if a panic unwinds.
struct Open<'a> {
    core: &'a Core,
    outer: Option<Batch>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.core.ring_left_out();
        BATCH.set(self.outer);
    }
}

impl Core {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The batch of this thread, if it is of this core.
    fn batch_here(&self) -> Option<Batch> {
        BATCH.get().filter(|batch| batch.core == self.address())
    }

    /// Calls `post`; the commands that this thread issues there share a doorbell.
    pub(crate) fn batch<T>(&self, post: impl FnOnce() -> T) -> T {
        if self.batch_here().is_some() {
            return post();
        }
        let outer = BATCH.replace(Some(Batch {
            core: self.address(),
            left_out: None,
        }));
        let _open = Open { core: self, outer };
        post()
    }

    /// Notes that a stored command has had no look at the doorbell. Returns false if this thread
    /// has no batch.
    #[inline]
    pub(super) fn leave_out(&self, number: u64, generation: u64) -> bool {
        let Some(batch) = self.batch_here() else {
            return false;
        };
        let left_out = Some(LeftOut { number, generation });
        BATCH.set(Some(Batch { left_out, ..batch }));
        true
    }

    /// Rings for what the batch of this thread has left out, if the NIC sleeps.
    #[inline]
    pub(super) fn ring_left_out(&self) {
        if let Some(batch) = self.batch_here() {
            if let Some(last) = batch.left_out {
                let left_out = None;
                BATCH.set(Some(Batch { left_out, ..batch }));
                self.ring_for(last);
            }
        }
    }

    #[cold]
    fn ring_for(&self, last: LeftOut) {
        let (window, area) = (&self.window(), &self.area());
        let mut tracker = self.tracker();
        let valid = tracker.generation == last.generation;
        let ring = valid && tracker.doorbell.must_ring(window, area, last.number);
        drop(tracker);
        if ring {
            self.process.ring_doorbell();
        }
    }
}
