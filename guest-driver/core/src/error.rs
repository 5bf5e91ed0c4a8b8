//! Why a call or the bring-up failed.

use core::fmt;

use qnic_abi::header::GeometryError;
use qnic_abi::Status;

use crate::platform::{NoMemory, RequestError};

/// Why a call failed before it reached the NIC: the negative results of
/// [`qnic_abi::uapi`]. What the NIC or the driver refused is in the call's
/// `status` field instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// A reserved field is not zero, or an argument is no legal value (`EINVAL`).
    Invalid,
    /// The process is not registered yet, or is registered already (`EBADFD`).
    NotRegistered,
    /// The device is gone, or was found broken (`ENODEV`).
    NoDevice,
    /// A signal arrived (`EINTR`).
    Interrupted,
    /// No memory (`ENOMEM`).
    NoMemory,
    /// It timed out (`ETIMEDOUT`).
    TimedOut,
}

impl From<NoMemory> for CallError {
    fn from(_: NoMemory) -> Self {
        CallError::NoMemory
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::Invalid => "a reserved field is not zero or an argument is not legal",
            CallError::NotRegistered => {
                "this process is not registered yet, or is registered already"
            }
            CallError::NoDevice => "the device is gone or broken; reload the driver",
            CallError::Interrupted => "interrupted by a signal",
            CallError::NoMemory => "out of memory",
            CallError::TimedOut => "timed out",
        })
    }
}

impl core::error::Error for CallError {}

/// Why the driver refuses to drive this device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartError {
    /// The configuration space does not start with the magic number: this is another
    /// device.
    NotQnic {
        /// What is there instead.
        magic: u64,
    },
    /// Device and driver speak different ABI versions.
    VersionMismatch {
        /// Version of the device.
        device: u32,
        /// Version of this driver.
        driver: u32,
    },
    /// A field of the configuration space is out of range.
    BadConfig(&'static str),
    /// The NIC answers, but its SRAM does not start with the magic word.
    NoSram,
    /// The SRAM header describes an impossible layout.
    Geometry(GeometryError),
    /// The NIC says it cannot serve this guest.
    Refused(Status),
    /// The SRAM covers fewer frames than this guest has.
    SramTooSmall {
        /// Frames that the SRAM covers.
        covered: u64,
        /// Frames that the guest has.
        needed: u64,
    },
    /// The device does not answer on the control queue.
    NoResponse(RequestError),
    /// A response without a valid status.
    BadResponse,
    /// No memory for the driver's tables.
    NoMemory,
}

impl From<NoMemory> for StartError {
    fn from(_: NoMemory) -> Self {
        StartError::NoMemory
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NotQnic { magic } => {
                write!(f, "not a qnic: configuration space starts with {magic:#x}")
            }
            StartError::VersionMismatch { device, driver } => write!(
                f,
                "the device speaks ABI version {device}, this driver {driver}: \
                 install a driver and a device process of one release"
            ),
            StartError::BadConfig(field) => {
                write!(f, "configuration space: {field} is out of range")
            }
            StartError::NoSram => f.write_str(
                "the device answers but its SRAM is not there: look at the log of the \
                 device process",
            ),
            StartError::Geometry(error) => write!(f, "impossible SRAM layout: {error:?}"),
            StartError::Refused(status) => write!(f, "the NIC refuses this guest: {status}"),
            StartError::SramTooSmall { covered, needed } => write!(
                f,
                "the SRAM covers {covered} page frames but this guest has {needed}: \
                 give the NIC more SRAM or the guest less memory"
            ),
            StartError::NoResponse(error) => write!(
                f,
                "no answer on the control queue: {error:?}; does the device process \
                 run? its log says why it does not map its SRAM"
            ),
            StartError::BadResponse => {
                f.write_str("a response on the control queue has no valid status")
            }
            StartError::NoMemory => f.write_str("out of memory"),
        }
    }
}

impl core::error::Error for StartError {}
