//! The functions and constants of `ffi.h`: the build script makes them from the header.

use core::ffi::c_void;

include!(concat!(env!("OUT_DIR"), "/ffi.rs"));

/// Error numbers of the kernel.
pub(crate) mod errno {
    pub(crate) const ESRCH: i32 = 3;
    pub(crate) const EINTR: i32 = 4;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EAGAIN: i32 = 11;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EFAULT: i32 = 14;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const ENODEV: i32 = 19;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENOSPC: i32 = 28;
    pub(crate) const ENOTTY: i32 = 25;
    pub(crate) const ETIME: i32 = 62;
    pub(crate) const EPROTO: i32 = 71;
    pub(crate) const EBADFD: i32 = 77;
    pub(crate) const ETIMEDOUT: i32 = 110;
}
