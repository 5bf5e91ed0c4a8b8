//! What rings and bells are made of: the system's own, or those of loom in the models.

use std::fmt::Debug;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A word that threads share.
pub(super) trait Word: Debug + Default {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

/// Something that one thread at a time has.
pub(super) trait Guarded<T>: Debug {
    fn new(value: T) -> Self;
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

/// The parts of a ring.
pub(super) trait Primitives: Debug {
    type Word: Word;
    type Guarded<T: Debug>: Guarded<T>;
    /// A full fence.
    fn fence();
}

/// Those of the system.
#[derive(Debug)]
pub(super) struct System;

/// A word on a cache line of its own, and of the line that processors fetch with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Aligned(AtomicU64);

impl Word for Aligned {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

impl<T: Debug> Guarded<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    /// An engine that panics ends its process; until then others may go on.
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Primitives for System {
    type Word = Aligned;
    type Guarded<T: Debug> = Mutex<T>;

    fn fence() {
        fence(Ordering::SeqCst);
    }
}
