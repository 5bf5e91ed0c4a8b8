//! Errors, as libfabric tells them: numbers of the C library, and its own from 256 up.

use std::ffi::c_int;

use qnic::{Error, Status};

use crate::sys;

/// An error of a call; positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
pub(crate) const NO_DATA: Errno = Errno(libc::ENODATA);
pub(crate) const NO_MEMORY: Errno = Errno(libc::ENOMEM);
pub(crate) const UNSUPPORTED: Errno = Errno(libc::ENOSYS);
pub(crate) const NO_OPTION: Errno = Errno(libc::ENOPROTOOPT);
pub(crate) const TOO_LONG: Errno = Errno(libc::EMSGSIZE);
pub(crate) const BAD_STATE: Errno = Errno(sys::FI_EOPBADSTATE);
pub(crate) const BAD_FLAGS: Errno = Errno(sys::FI_EBADFLAGS);
pub(crate) const NO_EQ: Errno = Errno(sys::FI_ENOEQ);
pub(crate) const NO_CQ: Errno = Errno(sys::FI_ENOCQ);
pub(crate) const NO_AV: Errno = Errno(sys::FI_ENOAV);

/// What a call returns: 0, or the negative error.
pub(crate) fn status(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(number)) => -number,
    }
}

/// What a call returns that counts something.
pub(crate) fn count(result: Result<usize>) -> isize {
    match result {
        Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
        Err(Errno(number)) => -(number as isize),
    }
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Self {
        Errno(match error.status() {
            Some(status) => of_status(status),
            None => match error {
                Error::WouldBlock | Error::QueueFull => libc::EAGAIN,
                Error::TimedOut => libc::ETIMEDOUT,
                Error::DeviceGone => libc::ENODEV,
                _ => libc::EIO,
            },
        })
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Errno::from(&error)
    }
}

/// The number for why an operation failed.
fn of_status(status: Status) -> c_int {
    match status {
        Status::Cancelled => libc::ECANCELED,
        Status::PeerGone | Status::Aborted => libc::ECONNABORTED,
        Status::NoSuchPort | Status::NoSuchNode => libc::EHOSTUNREACH,
        Status::Truncated => sys::FI_ETRUNC,
        Status::NoMessage => libc::ENOMSG,
        Status::PortInUse => libc::EADDRINUSE,
        Status::Exhausted => libc::ENOSPC,
        Status::TimedOut => libc::ETIMEDOUT,
        Status::GroupRefused => libc::ECONNREFUSED,
        Status::Mismatch => libc::ECONNABORTED,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_return_negative_errors() {
        assert_eq!(status(Ok(())), 0);
        assert_eq!(status(Err(NO_DATA)), -libc::ENODATA);
        assert_eq!(count(Ok(3)), 3);
        assert_eq!(count(Err(AGAIN)), -(libc::EAGAIN as isize));
    }

    #[test]
    fn ends_have_numbers_that_programs_know() {
        for (status, number) in [
            (Status::Cancelled, libc::ECANCELED),
            (Status::PeerGone, libc::ECONNABORTED),
            (Status::Truncated, 265),
            (Status::FaultTimeout, libc::EIO),
        ] {
            assert_eq!(of_status(status), number, "{status}");
        }
        assert_eq!(Errno::from(&Error::WouldBlock), AGAIN);
    }
}
