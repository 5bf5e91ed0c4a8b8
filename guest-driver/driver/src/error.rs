//! Why a call or the bring-up failed.

use qnic_abi::header::GeometryError;
use qnic_abi::Status;
use zerocopy::little_endian::U32;

use crate::platform::{NoMemory, RequestError};

/// Why a call failed before it reached the NIC: the negative results of
/// [`qnic_abi::uapi`]. What the NIC or the driver refused is in the call's
/// `status` field instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// A reserved field is not zero, or an argument is no legal value (`EINVAL`).
    #[error("a reserved field is not zero or an argument is not legal")]
    Invalid,
    /// The process is not registered yet, or is registered already (`EBADFD`).
    #[error("this process is not registered yet, or is registered already")]
    NotRegistered,
    /// The device is gone, or was found broken (`ENODEV`).
    #[error("the device is gone or broken; reload the driver")]
    NoDevice,
    /// A signal arrived (`EINTR`).
    #[error("interrupted by a signal")]
    Interrupted,
    /// No memory (`ENOMEM`).
    #[error("out of memory")]
    NoMemory,
    /// It timed out (`ETIMEDOUT`).
    #[error("timed out")]
    TimedOut,
}

impl From<NoMemory> for CallError {
    fn from(_: NoMemory) -> Self {
        CallError::NoMemory
    }
}

/// How a call can fail: driver or NIC refuses it, or it fails before it reaches them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It is refused.
    Refused(Status),
    /// It has not reached the NIC.
    Call(CallError),
}

impl Failure {
    /// Writes a refusal into the call's status; any other failure stays an error.
    pub(crate) fn conclude<T>(
        result: Result<T, Failure>,
        status: &mut U32,
    ) -> Result<Option<T>, CallError> {
        let (code, value) = match result {
            Ok(value) => (Status::Ok, Some(value)),
            Err(Failure::Refused(refused)) => (refused, None),
            Err(Failure::Call(error)) => return Err(error),
        };
        *status = code.code().into();
        Ok(value)
    }

    /// A failure for a status that is not `Ok`.
    pub(crate) fn check(status: Status) -> Result<(), Failure> {
        match status {
            Status::Ok => Ok(()),
            refused => Err(refused.into()),
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::Refused(status)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Failure::Call(error)
    }
}

impl From<NoMemory> for Failure {
    fn from(_: NoMemory) -> Self {
        Failure::Call(CallError::NoMemory)
    }
}

/// Why the driver refuses to drive this device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The configuration space does not start with the magic number: this is another
    /// device.
    #[error("not a qnic: configuration space starts with {magic:#x}")]
    NotQnic {
        /// The word that is there instead.
        magic: u64,
    },
    /// Device and driver speak different ABI versions.
    #[error(
        "the device speaks ABI version {device}, this driver {driver}: install a driver and a \
         device process of one release"
    )]
    VersionMismatch {
        /// Version of the device.
        device: u32,
        /// Version of this driver.
        driver: u32,
    },
    /// A field of the configuration space is out of range.
    #[error("configuration space: {0} is out of range")]
    BadConfig(&'static str),
    /// The NIC answers, but its SRAM does not start with the magic word.
    #[error("the device answers but its SRAM is not there: look at the log of the device process")]
    NoSram,
    /// The SRAM header describes an impossible layout.
    #[error("impossible SRAM layout: {0}; install a driver and a device process of one release")]
    Geometry(GeometryError),
    /// The NIC reports that it cannot serve this guest.
    #[error("the NIC refuses this guest: {0}")]
    Refused(Status),
    /// The SRAM covers fewer frames than this guest has.
    #[error(
        "the SRAM covers {covered} page frames but this guest has {needed}: give the NIC more \
         SRAM or the guest less memory"
    )]
    SramTooSmall {
        /// Frames that the SRAM covers.
        covered: u64,
        /// Frames that the guest has.
        needed: u64,
    },
    /// The device does not answer on the control queue.
    #[error(
        "no answer on the control queue: {0:?}; does the device process run? its log says why \
         it does not map its SRAM"
    )]
    NoResponse(RequestError),
    /// A response without a valid status.
    #[error("a response on the control queue has no valid status")]
    BadResponse,
    /// No memory for the driver's tables.
    #[error("out of memory")]
    NoMemory,
}

impl From<NoMemory> for StartError {
    fn from(_: NoMemory) -> Self {
        StartError::NoMemory
    }
}
