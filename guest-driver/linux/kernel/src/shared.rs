//! What all entry points share: drivers and arguments as the shim passes them, and what it is told.

use alloc::sync::Arc;
use core::ffi::c_void;
use core::mem::ManuallyDrop;

use qnic_driver::CallError;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::ffi::{self, errno};
use crate::platform::Driver;

/// # Safety
/// `driver` came from `qnic_rs_start` or `qnic_rs_get` and was not put yet.
pub(crate) unsafe fn driver_of<'a>(driver: *mut c_void) -> &'a Driver {
    // SAFETY: the caller's promise.
    unsafe { &*driver.cast::<Driver>() }
}

/// Borrows a reference of the shim for a while.
///
/// # Safety
/// `driver` came from `qnic_rs_start` or `qnic_rs_get` and is not put before the result is
/// dropped.
pub(crate) unsafe fn driver_arc(driver: *mut c_void) -> ManuallyDrop<Arc<Driver>> {
    // SAFETY: the caller's promise.
    ManuallyDrop::new(unsafe { Arc::from_raw(driver.cast::<Driver>()) })
}

pub(crate) fn call_errno(error: CallError) -> i32 {
    match error {
        CallError::Invalid => errno::EINVAL,
        CallError::NotRegistered => errno::EBADFD,
        CallError::NoDevice => errno::ENODEV,
        CallError::Interrupted => errno::EINTR,
        CallError::NoMemory => errno::ENOMEM,
        CallError::TimedOut => errno::ETIMEDOUT,
    }
}

/// Takes an argument out of the shim's buffer, runs a call on it and puts it back.
///
/// # Safety
/// `argument` points to at least `size_of::<T>()` bytes.
pub(crate) unsafe fn with_argument<T: FromBytes + IntoBytes + Immutable>(
    argument: *mut u8,
    call: impl FnOnce(&mut T) -> Result<(), CallError>,
) -> i32 {
    // SAFETY: the caller's promise; the buffer is the shim's own, not shared.
    let bytes = unsafe { core::slice::from_raw_parts_mut(argument, size_of::<T>()) };
    let Ok(mut value) = T::read_from_bytes(bytes) else {
        return -errno::EINVAL;
    };
    match call(&mut value) {
        Ok(()) => {
            bytes.copy_from_slice(value.as_bytes());
            0
        }
        Err(error) => -call_errno(error),
    }
}

/// What poll reports.
pub(crate) fn poll_bits(readable: bool, gone: bool) -> i32 {
    i32::from(readable) * ffi::QNIC_POLL_READABLE | i32::from(gone) * ffi::QNIC_POLL_GONE
}
