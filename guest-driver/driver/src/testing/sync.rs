//! Locks that check the context in which they are taken.

use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::platform::{self, NoMemory, Waited};

std::thread_local! {
    /// The spin lock that the thread holds, by the type of the guarded value.
    static HELD: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// The spin locks that a condition has taken, while one is evaluated.
    static TAKEN: RefCell<Option<BTreeSet<&'static str>>> = const { RefCell::new(None) };
    /// Locks of regions that the thread holds.
    static REGION_LOCKS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread holds no spin lock.
pub(crate) fn assert_may_sleep() {
    assert_eq!(HELD.get(), None, "sleeps under a spin lock");
}

/// The calling thread holds neither a spin lock nor a region's lock.
pub(crate) fn assert_may_call_device() {
    assert_may_sleep();
    REGION_LOCKS.with(|held| assert_eq!(held.get(), 0, "calls the device under a region's lock"));
}

/// A sleeping lock.
pub(crate) struct SleepLock<T> {
    value: Mutex<T>,
    is_region: bool,
}

impl<T> SleepLock<T> {
    fn run<R>(&self, mut value: MutexGuard<'_, T>, f: impl FnOnce(&mut T) -> R) -> R {
        let count = u32::from(self.is_region);
        REGION_LOCKS.with(|held| held.set(held.get() + count));
        let result = f(&mut value);
        REGION_LOCKS.with(|held| held.set(held.get() - count));
        result
    }
}

impl<T: Send> platform::Lock<T> for SleepLock<T> {
    fn new(value: T) -> Result<Self, NoMemory> {
        assert_may_sleep();
        Ok(SleepLock {
            value: Mutex::new(value),
            is_region: core::any::type_name::<T>().contains("region::"),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        assert_may_sleep();
        self.run(self.value.lock().unwrap(), f)
    }
}

impl<T: Send> platform::Mutex<T> for SleepLock<T> {
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let value = self.value.try_lock().ok()?;
        Some(self.run(value, f))
    }
}

/// A spin lock.
pub(crate) struct Spin<T>(Mutex<T>);

impl<T: Send> platform::Lock<T> for Spin<T> {
    fn new(value: T) -> Result<Self, NoMemory> {
        assert_may_sleep();
        Ok(Spin(Mutex::new(value)))
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let this = core::any::type_name::<T>();
        assert_eq!(HELD.replace(Some(this)), None, "two spin locks at once");
        TAKEN.with_borrow_mut(|taken| {
            taken.as_mut().map(|taken| taken.insert(this));
        });
        let result = f(&mut self.0.lock().unwrap());
        HELD.set(None);
        result
    }
}

/// A wait queue.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Locked while a condition is evaluated.
    turn: Mutex<u64>,
    woken: Condvar,
    /// The spin locks that conditions have taken.
    taken: Mutex<BTreeSet<&'static str>>,
}

impl Waiters {
    fn evaluate(&self, ready: &dyn Fn() -> bool) -> bool {
        TAKEN.set(Some(BTreeSet::new()));
        let is_ready = ready();
        let taken = TAKEN.take().unwrap_or_default();
        self.taken.lock().unwrap().extend(taken);
        is_ready
    }

    /// The calling thread holds no lock that a condition takes: else two threads could each wait for
    /// the lock of the other.
    fn assert_may_wake(&self) {
        if let Some(held) = HELD.get() {
            let taken = self.taken.lock().unwrap();
            assert!(!taken.contains(held), "wakes under a condition's lock");
        }
    }
}

impl platform::Waiters for Waiters {
    fn wait(&self, ready: &dyn Fn() -> bool, timeout_ns: Option<u64>) -> Waited {
        assert_may_sleep();
        let limit = Duration::from_nanos(timeout_ns.unwrap_or(60_000_000_000));
        let turn = self.turn.lock().unwrap();
        let (_turn, result) = self
            .woken
            .wait_timeout_while(turn, limit, |_| !self.evaluate(ready))
            .unwrap();
        if result.timed_out() {
            Waited::TimedOut
        } else {
            Waited::Ready
        }
    }

    fn wake_all(&self) {
        self.assert_may_wake();
        *self.turn.lock().unwrap() += 1;
        self.woken.notify_all();
    }
}
