//! The kernel's locks and wait queues, as the core uses them.
//!
//! A panic ends in `BUG()` and never unwinds, so no lock is released on the way.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::NonNull;

use qnic_driver::platform::{self, NoMemory, Waited};

use crate::ffi::{self, errno};

/// A lock of the kernel around a value: `spinlock_t` with interrupts off while it is
/// held, or `struct mutex`.
pub(crate) struct Lock<T, const SPIN: bool> {
    raw: NonNull<c_void>,
    value: UnsafeCell<T>,
}

pub(crate) type Mutex<T> = Lock<T, false>;
pub(crate) type SpinLock<T> = Lock<T, true>;

// SAFETY: the value is only reached with the lock held.
unsafe impl<T: Send, const SPIN: bool> Send for Lock<T, SPIN> {}
// SAFETY: as above.
unsafe impl<T: Send, const SPIN: bool> Sync for Lock<T, SPIN> {}

impl<T, const SPIN: bool> Lock<T, SPIN> {
    /// Runs `f` with the value, then unlocks.
    ///
    /// # Safety
    /// The lock is held; locking a spin lock returned `flags`.
    unsafe fn run<R>(&self, flags: u64, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock is held, so no other reference to the value exists.
        let result = f(unsafe { &mut *self.value.get() });
        // SAFETY: the caller's promise.
        unsafe {
            match SPIN {
                true => ffi::qnic_spin_unlock(self.raw.as_ptr(), flags),
                false => ffi::qnic_mutex_unlock(self.raw.as_ptr()),
            }
        }
        result
    }
}

impl<T: Send, const SPIN: bool> platform::Lock<T> for Lock<T, SPIN> {
    fn new(value: T) -> Result<Self, NoMemory> {
        // SAFETY: no precondition.
        let raw = unsafe {
            match SPIN {
                true => ffi::qnic_spin_new(),
                false => ffi::qnic_mutex_new(),
            }
        };
        Ok(Lock {
            raw: NonNull::new(raw).ok_or(NoMemory)?,
            value: UnsafeCell::new(value),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut flags = 0;
        // SAFETY: the lock lives as long as self.
        unsafe {
            match SPIN {
                true => flags = ffi::qnic_spin_lock(self.raw.as_ptr()),
                false => ffi::qnic_mutex_lock(self.raw.as_ptr()),
            }
        }
        // SAFETY: locked above.
        unsafe { self.run(flags, f) }
    }
}

impl<T: Send> platform::Mutex<T> for Mutex<T> {
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the lock lives as long as self.
        let locked = unsafe { ffi::qnic_mutex_trylock(self.raw.as_ptr()) };
        // SAFETY: locked above.
        locked.then(|| unsafe { self.run(0, f) })
    }
}

impl<T, const SPIN: bool> Drop for Lock<T, SPIN> {
    fn drop(&mut self) {
        // SAFETY: no thread holds or waits for a lock that is dropped.
        unsafe {
            match SPIN {
                true => ffi::qnic_spin_free(self.raw.as_ptr()),
                false => ffi::qnic_mutex_free(self.raw.as_ptr()),
            }
        }
    }
}

/// A wait queue.
pub(crate) struct Waiters(pub(crate) NonNull<c_void>);

// SAFETY: a wait queue has a lock of its own.
unsafe impl Send for Waiters {}
// SAFETY: as above.
unsafe impl Sync for Waiters {}

impl Waiters {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        // SAFETY: no precondition.
        let raw = NonNull::new(unsafe { ffi::qnic_waiters_new() }).ok_or(NoMemory)?;
        Ok(Waiters(raw))
    }
}

/// Evaluates a condition for [`ffi::qnic_wait`].
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
        let result = unsafe { ffi::qnic_wait(self.0.as_ptr(), evaluate, context.cast(), timeout) };
        match -result {
            0 => Waited::Ready,
            errno::ETIME => Waited::TimedOut,
            _ => Waited::Interrupted,
        }
    }

    fn wake_all(&self) {
        // SAFETY: the queue lives as long as self.
        unsafe { ffi::qnic_waiters_wake(self.0.as_ptr()) }
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        // SAFETY: no thread waits on a queue that is dropped.
        unsafe { ffi::qnic_waiters_free(self.0.as_ptr()) }
    }
}
