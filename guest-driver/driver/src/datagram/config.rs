//! Parameters of a port, and the reasons for which its calls are refused.

use crate::error::CallError;
use crate::platform::NoMemory;

/// The last port for kernel modules; pools of processes have higher ones.
pub const LAST_KERNEL_PORT: u16 = 1023;

/// The most that a port may hold; all of it is allocated when the port is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortConfig {
    /// Receive buffers that are kept posted.
    pub receives: u16,
    /// Steered buffers at the same time; with `receives`, up to 8,191.
    pub steered: u16,
    /// Messages that wait or are under way, up to 4,096.
    pub messages: u16,
}

/// Why a port is not bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The number is zero, or a parameter is too large.
    #[error("the port is zero, or too many buffers or messages are asked for")]
    Invalid,
    /// Another upper module has it, or no module may have it ([`qnic_abi::datagram::FIRST_ECHO_PORT`]).
    #[error("another module has bound this datagram port, or it is kept free")]
    InUse,
    /// All ports of the NIC, or all its windows, are in use.
    #[error("no datagram port is left on this NIC")]
    Exhausted,
    /// The device is gone, or refuses the driver as a process.
    #[error("the device is gone, or has no datagrams")]
    NoDevice,
    /// No memory.
    #[error("out of memory")]
    NoMemory,
}

impl From<NoMemory> for BindError {
    fn from(_: NoMemory) -> Self {
        BindError::NoMemory
    }
}

impl From<CallError> for BindError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NoMemory => BindError::NoMemory,
            _ => BindError::NoDevice,
        }
    }
}

/// Why a message is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no destination, or there are too many.
    #[error("a message goes to 1 to 16 destinations, none of them on port 0")]
    Destinations,
    /// The port has as many messages waiting or under way as it was bound for.
    #[error("all message slots of the port are in use")]
    Full,
    /// The port is closed, or the device is gone.
    #[error("the port is closed or the device is gone")]
    Closed,
}
