//! The platform beneath the library: a guest's character device ([`linux`]) or a
//! host-mode node ([`host`]).
//!
//! The control path goes through these traits. On the data path a registered process
//! reaches its window and its host area as memory ([`Memory`]), which is mapped
//! everywhere but in the simulator. The simulator also has its own clock and its own
//! source of random numbers.

use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_abi::pool::{OpenPools, PoolInfo, PoolKick, PoolWait};
use qnic_abi::uapi;
use qnic_abi::{SharedMemory, Status};
use qnic_shared::region::{Forked, SharedRegion};

#[cfg(feature = "host")]
pub mod host;
pub mod linux;
mod spin;

/// Why a call did not reach the NIC, or did not return from it.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The device is gone: removed, broken, or its process ended.
    #[error("the qnic device is gone")]
    Gone,
    /// This process is a child that was forked later: the NIC is its parent's.
    #[error("this process was forked")]
    Forked,
    /// A [`Process::wait`] reached its time limit.
    #[error("timed out")]
    TimedOut,
    /// A signal interrupted the call; it may be repeated.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The system refused.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Memory that a process shares with its NIC or with peers.
///
/// As with [`SharedRegion`], an access outside of it panics; offsets come from checked
/// geometry.
pub trait Memory: SharedMemory + Debug + Send + Sync {
    /// Virtual address of the first byte in this process.
    fn address(&self) -> u64;

    /// The region that it is, if it is mapped: what is accessed often is so without a call.
    fn region(&self) -> Option<&SharedRegion> {
        None
    }

    /// Copies out. Bytes that are written at the same time come out old or new.
    fn read_bytes(&self, offset: usize, bytes: &mut [u8]);

    /// Copies in.
    fn write_bytes(&self, offset: usize, bytes: &[u8]);
}

impl From<Forked> for CallError {
    fn from(Forked: Forked) -> Self {
        CallError::Forked
    }
}

impl Memory for SharedRegion {
    fn region(&self) -> Option<&SharedRegion> {
        Some(self)
    }

    fn address(&self) -> u64 {
        SharedRegion::address(self)
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        SharedRegion::read_bytes(self, offset, bytes);
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        SharedRegion::write_bytes(self, offset, bytes);
    }
}

/// A way to the NICs of one node.
pub trait Provider: Debug + Send + Sync {
    /// Registers a process on a port; port 0 asks for any free one (N1). `flags` are
    /// those of [`uapi::Register`].
    fn register(&self, port: u16, flags: u32) -> Result<Registration, CallError>;

    /// Memory of `length` bytes (not zero), page aligned and zeroed, which can be exported.
    ///
    /// # Errors
    /// [`CallError::System`] when there is no memory left.
    fn allocate(&self, length: usize) -> Result<Arc<dyn Memory>, CallError>;

    /// Opens shared pools (S1). None: the status in `call` says why not.
    ///
    /// # Errors
    /// [`CallError::System`] with `Unsupported` where there are none.
    fn open_pools(&self, call: &mut OpenPools) -> Result<Option<Box<dyn Pools>>, CallError> {
        let _ = call;
        Err(CallError::System(std::io::ErrorKind::Unsupported.into()))
    }

    /// What driver and NIC are.
    fn info(&self) -> Result<uapi::Info, CallError>;

    /// Fills in a page of counters.
    fn counters(&self, call: &mut uapi::Counters) -> Result<(), CallError>;

    /// Longest time worth spinning before a caller blocks, when `spinners` other
    /// threads of this process spin already.
    fn spin_budget(&self, spinners: usize) -> Duration;

    /// Looks of a thread that spins between two readings of the clock, which is slow in an
    /// emulated guest.
    fn looks(&self) -> u32 {
        256
    }

    /// The clock that all time limits are taken from.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// A random number, so that no other process is likely to have the same.
    fn random(&self) -> u64 {
        // The keys of a hasher come from the system's random source.
        RandomState::new().build_hasher().finish()
    }
}

/// Outcome of [`Provider::register`].
#[derive(Debug)]
pub enum Registration {
    /// The process is registered until the object is dropped.
    Done(Box<dyn Process>),
    /// Driver or NIC refused.
    Refused(Status),
}

impl Registration {
    /// The call that asks for a port.
    fn call(port: u16, flags: u32) -> uapi::Register {
        uapi::Register {
            port: port.into(),
            flags: flags.into(),
            ..Default::default()
        }
    }

    /// The outcome of a call that was refused.
    fn refused(call: &uapi::Register) -> Self {
        let status = Status::try_from(call.status.get());
        Registration::Refused(status.unwrap_or(Status::Malformed))
    }
}

/// Shared pools that are open. Dropping them closes them.
///
/// As with [`Process`], a call that is refused returns `Ok`.
pub trait Pools: Debug + Send + Sync {
    /// The range (`qnic_abi::pool`), readable and writable.
    fn range(&self) -> &dyn Memory;

    /// Makes the driver look at the queues.
    fn kick(&self, call: &mut PoolKick) -> Result<(), CallError>;

    /// Blocks until one of the events in the call is there.
    ///
    /// # Errors
    /// [`CallError::TimedOut`], [`CallError::Gone`], …
    fn wait(&self, call: &mut PoolWait) -> Result<(), CallError>;

    /// Says whether a wait without time looks at the NIC, which otherwise has to interrupt first.
    fn looks(&self) -> bool {
        false
    }

    /// What the driver has counted.
    fn info(&self, call: &mut PoolInfo) -> Result<(), CallError>;

    /// Asks what the route to a node is like.
    fn path(&self, call: &mut uapi::Path) -> Result<(), CallError>;

    /// A descriptor that is readable when an event is there that the process has said it wants.
    ///
    /// # Errors
    /// [`CallError::System`]
    fn event(&self) -> Result<BorrowedFd<'_>, CallError>;

    /// To be called before the process says what it wants and polls [`Pools::event`]: where the
    /// descriptor stays readable until it is read, that is done here.
    fn clear_event(&self) {}
}

/// A registered process. Dropping it deregisters it and frees all that it holds.
///
/// A call that the driver or the NIC refuses returns `Ok`: the status field of its
/// argument says why it was refused ([`uapi`]).
pub trait Process: Debug + Send + Sync {
    /// Port, node, VNI and limits of the process.
    fn registration(&self) -> &uapi::Register;

    /// The window (`qnic_abi::window`), readable and writable.
    fn window(&self) -> &dyn Memory;

    /// The read-only pages of the host area (`qnic_abi::host_area`).
    fn host_area(&self) -> &dyn Memory;

    /// Its writable pages: doorbells of contexts, and the buffer pool. Offset 0 is
    /// `qnic_abi::host_area::READ_ONLY_PAGES` pages into the host area.
    fn pool(&self) -> &dyn Memory;

    /// Rings the doorbell.
    fn ring_doorbell(&self);

    /// Exports a range (N2).
    fn export(&self, call: &mut uapi::Export) -> Result<(), CallError>;

    /// Revokes a segment (N2).
    fn unexport(&self, call: &mut uapi::Unexport) -> Result<(), CallError>;

    /// Imports a segment (N3); blocks up to the time given in the call.
    fn import(&self, call: &mut uapi::Import) -> Result<(), CallError>;

    /// Blocks until the wake generation differs from the one in the call; or, with
    /// [`uapi::WAIT_SEEN`], marks the present generation as seen.
    ///
    /// # Errors
    /// [`CallError::TimedOut`], [`CallError::Gone`], …
    fn wait(&self, call: &mut uapi::Wait) -> Result<(), CallError>;

    /// Ends all waits of this process.
    fn wake(&self, call: &mut uapi::Wake) -> Result<(), CallError>;

    /// A descriptor that can be polled ([`uapi`], "poll").
    ///
    /// # Errors
    /// [`CallError::System`]
    fn event(&self) -> Result<BorrowedFd<'_>, CallError>;

    /// Starts the command queue again after an error.
    fn reset_queue(&self, call: &mut uapi::ResetQueue) -> Result<(), CallError>;

    /// Asks what the route to a node is like.
    fn path(&self, call: &mut uapi::Path) -> Result<(), CallError>;
}
