//! Why a node cannot be brought up, or a call failed.

use std::path::PathBuf;

use qnic_abi::Status;
use qnic_driver::StartError;
use qnic_shared::region::Forked;
use rustix::io::Errno;
use vmm_sys_util::eventfd::{EventFd, EFD_CLOEXEC, EFD_NONBLOCK};

/// Why a host-mode node cannot be brought up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No process listens on the socket.
    #[error("cannot connect to {}: {error}; is the device process running?", path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The arena has no sensible size.
    #[error("an arena of {0} bytes: it must be a multiple of the page size, at least 1 MiB")]
    ArenaSize(usize),
    /// There is no memory for the arena, or no descriptor for something else.
    #[error("{what}: {error}")]
    System {
        /// The resource.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The device process does not offer what a NIC needs.
    #[error(
        "the process behind the socket does not offer {0}: it is no qnic device process of this \
         version"
    )]
    MissingFeature(&'static str),
    /// A vhost-user message failed.
    #[error(
        "vhost-user {message}: {error}; look at the log of the device process (it serves one \
         front end at a time)"
    )]
    Protocol {
        /// The message.
        message: &'static str,
        /// The error.
        error: vhost::Error,
    },
    /// The device process did not share its SRAM.
    #[error("the device process did not share its SRAM: {0}")]
    NoSram(String),
    /// Another device than that of host mode cannot be used.
    #[error("{0}")]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// The NIC's page table does not cover the arena.
    #[error(
        "this node has {0} bytes of memory, more than its NIC covers: lower QNIC_HOST_MEMORY, or \
         raise `ram` of the NIC in the configuration of the device process"
    )]
    TooMuchMemory(usize),
    /// The driver refuses the device.
    #[error("{0}")]
    Start(#[from] StartError),
}

impl ConnectError {
    /// The driver did not start on a node with an arena of that many bytes.
    pub(crate) fn start(error: StartError, arena: usize) -> Self {
        match error {
            StartError::Refused(Status::SramTooSmall) | StartError::SramTooSmall { .. } => {
                ConnectError::TooMuchMemory(arena)
            }
            other => ConnectError::Start(other),
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| ConnectError::System { what, error }
    }
}

/// A descriptor for interrupts or notifications.
pub(crate) fn eventfd() -> Result<EventFd, ConnectError> {
    EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(ConnectError::system("make an eventfd"))
}

/// Why a call of a node failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The driver refused, or the device is gone.
    #[error("{0}")]
    Call(#[from] qnic_driver::CallError),
    /// This process was forked by that of the node.
    #[error("this process was forked: the node is its parent's, so open one of its own")]
    Forked,
    /// There is no descriptor left.
    #[error("make an eventfd: {0}")]
    Descriptor(#[from] Errno),
    /// A node on a process can export only what its device can reach.
    #[error(
        "{length} bytes at {address:#x} are not in the arena that is shared with the device: in \
         host mode and on VFIO only buffers of the library can be exported"
    )]
    OutsideArena {
        /// First address.
        address: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The pages that are free are not contiguous.
    #[error(
        "no pages for blocks of {length} bytes, each contiguous in the guest's memory: free buffers, \
         or open the NIC sooner after the guest's start"
    )]
    Scattered {
        /// Wanted length in bytes.
        length: usize,
    },
    /// The arena is used up.
    #[error(
        "no {length} bytes left in one piece in the arena of {arena} bytes: free buffers, or set \
         QNIC_HOST_MEMORY higher (and `ram` of the NIC with it)"
    )]
    ArenaFull {
        /// Wanted length in bytes.
        length: usize,
        /// Size of the arena in bytes.
        arena: usize,
    },
}

impl From<Forked> for HostError {
    fn from(Forked: Forked) -> Self {
        HostError::Forked
    }
}
