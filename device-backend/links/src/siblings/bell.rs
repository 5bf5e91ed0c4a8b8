//! How an engine that sleeps is woken by those that send to it.
//!
//! An engine stores that it is asleep, executes a full fence and looks into its rings once more. A
//! sender puts an item into a ring, executes a full fence and looks whether the engine is asleep. One
//! of them sees the other's store: no wake-up is lost.

use std::sync::atomic::Ordering;

use super::primitives::{Primitives, System, Word};

/// Whether an engine is asleep.
#[derive(Debug)]
pub(super) struct Bell<P: Primitives = System> {
    asleep: P::Word,
}

impl<P: Primitives> Default for Bell<P> {
    fn default() -> Self {
        Bell {
            asleep: P::Word::default(),
        }
    }
}

impl<P: Primitives> Bell<P> {
    /// The engine is about to sleep. Returns false, and it stays awake, if it `has_work` after all.
    pub(super) fn prepare_sleep(&self, has_work: impl FnOnce() -> bool) -> bool {
        // Relaxed, here and in `wake`: only the fences order it.
        self.asleep.store(1, Ordering::Relaxed);
        // Pairs with the fence of `must_ring`.
        P::fence();
        let sleeps = !has_work();
        if !sleeps {
            self.wake();
        }
        sleeps
    }

    /// The engine is awake.
    pub(super) fn wake(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }

    /// Returns true if the engine must be woken for what was put into its ring.
    pub(super) fn must_ring(&self) -> bool {
        // Pairs with the fence of `prepare_sleep`.
        P::fence();
        self.asleep.load(Ordering::Relaxed) != 0
    }
}
