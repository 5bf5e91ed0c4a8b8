//! The kernel's locks and wait queues as the core wants them.
//!
//! A panic ends in `BUG()` and never unwinds, so no lock is released on the way.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::NonNull;

use qnic_driver::platform::{self, NoMemory, Waited};

use crate::border::{self, errno};

/// `struct mutex` around a value.
pub(crate) struct Mutex<T> {
    raw: NonNull<c_void>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached with the lock held.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T: Send> platform::Lock<T> for Mutex<T> {
    fn new(value: T) -> Result<Self, NoMemory> {
        // SAFETY: no precondition.
        let raw = NonNull::new(unsafe { border::qnic_mutex_new() }).ok_or(NoMemory)?;
        Ok(Mutex {
            raw,
            value: UnsafeCell::new(value),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock lives as long as self.
        unsafe { border::qnic_mutex_lock(self.raw.as_ptr()) };
        // SAFETY: the lock is held, so nobody else refers to the value.
        let result = f(unsafe { &mut *self.value.get() });
        // SAFETY: locked above.
        unsafe { border::qnic_mutex_unlock(self.raw.as_ptr()) };
        result
    }
}

impl<T: Send> platform::Mutex<T> for Mutex<T> {
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the lock lives as long as self.
        if !unsafe { border::qnic_mutex_trylock(self.raw.as_ptr()) } {
            return None;
        }
        // SAFETY: the lock is held, so nobody else refers to the value.
        let result = f(unsafe { &mut *self.value.get() });
        // SAFETY: locked above.
        unsafe { border::qnic_mutex_unlock(self.raw.as_ptr()) };
        Some(result)
    }
}

impl<T> Drop for Mutex<T> {
    fn drop(&mut self) {
        // SAFETY: nobody holds or waits for a lock that is dropped.
        unsafe { border::qnic_mutex_free(self.raw.as_ptr()) }
    }
}

/// `spinlock_t` around a value, with interrupts off while it is held.
pub(crate) struct SpinLock<T> {
    raw: NonNull<c_void>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached with the lock held.
unsafe impl<T: Send> Send for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T: Send> platform::Lock<T> for SpinLock<T> {
    fn new(value: T) -> Result<Self, NoMemory> {
        // SAFETY: no precondition.
        let raw = NonNull::new(unsafe { border::qnic_spin_new() }).ok_or(NoMemory)?;
        Ok(SpinLock {
            raw,
            value: UnsafeCell::new(value),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock lives as long as self.
        let flags = unsafe { border::qnic_spin_lock(self.raw.as_ptr()) };
        // SAFETY: the lock is held, so nobody else refers to the value.
        let result = f(unsafe { &mut *self.value.get() });
        // SAFETY: locked above, which returned these flags.
        unsafe { border::qnic_spin_unlock(self.raw.as_ptr(), flags) };
        result
    }
}

impl<T> Drop for SpinLock<T> {
    fn drop(&mut self) {
        // SAFETY: nobody holds or waits for a lock that is dropped.
        unsafe { border::qnic_spin_free(self.raw.as_ptr()) }
    }
}

/// A wait queue.
pub(crate) struct Waiters {
    raw: NonNull<c_void>,
}

// SAFETY: a wait queue has a lock of its own.
unsafe impl Send for Waiters {}
// SAFETY: as above.
unsafe impl Sync for Waiters {}

impl Waiters {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        // SAFETY: no precondition.
        let raw = NonNull::new(unsafe { border::qnic_waiters_new() }).ok_or(NoMemory)?;
        Ok(Waiters { raw })
    }

    /// For the shim's poll.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.raw.as_ptr()
    }
}

/// Evaluates a condition for [`border::qnic_wait`].
extern "C" fn evaluate(context: *const c_void) -> bool {
    // SAFETY: `wait` below passes the address of such a reference, which lives
    // until qnic_wait returns.
    let ready = unsafe { *context.cast::<&dyn Fn() -> bool>() };
    ready()
}

impl platform::Waiters for Waiters {
    fn wait(&self, ready: &dyn Fn() -> bool, timeout_ns: Option<u64>) -> Waited {
        let timeout = timeout_ns.map_or(-1, |ns| i64::try_from(ns).unwrap_or(i64::MAX));
        let context: *const &dyn Fn() -> bool = &ready;
        // SAFETY: `evaluate` gets the context that it expects, valid throughout.
        let result =
            unsafe { border::qnic_wait(self.raw.as_ptr(), evaluate, context.cast(), timeout) };
        match -result {
            0 => Waited::Ready,
            errno::ETIME => Waited::TimedOut,
            _ => Waited::Interrupted,
        }
    }

    fn wake_all(&self) {
        // SAFETY: the queue lives as long as self.
        unsafe { border::qnic_waiters_wake(self.raw.as_ptr()) }
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        // SAFETY: nobody waits on a queue that is dropped.
        unsafe { border::qnic_waiters_free(self.raw.as_ptr()) }
    }
}
