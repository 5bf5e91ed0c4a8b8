//! The attachment: how a front end (QEMU, or a host-mode process) reaches a NIC.
//!
//! ```text
//!   socket ──accept──► [connection] thread ──┬─ [front_end]: vhost-user messages
//!                                            │      collects rings, maps memory
//!                                            │      ──[Command, waits]──► engine
//!                                            └─ [mapper] thread: SHMEM_MAP of the SRAM,
//!                                                   ──[Mapped]──► engine
//! ```
//!
//! # Why crate `vhost` directly
//! `vhost-user-backend` runs worker threads that own the kick eventfds, so that
//! each doorbell would be handed from one thread to another; it has no hook for
//! SET_VRING_ENABLE, which is when the SRAM must be mapped; and it holds the
//! device's lock while a worker handles an event. Here one thread per NIC speaks
//! the protocol, may block in it without harm to anybody else, and gives the
//! engine finished actions.
//!
//! # Rules of QEMU that this keeps (all seen to kill QEMU when broken)
//! - SHMEM_MAP goes out from a thread of its own, at the first SET_VRING_ENABLE of
//!   every start: the mapping is lost at each reset. That it exists already is an
//!   error that counts as mapped.
//! - SET_VRING_ADDR is never answered with an error; a ring that is nowhere shows
//!   when the queue starts.
//! - CONFIGURE_MEM_SLOTS is not offered.
//! - Reads of the configuration space beyond its end give zeroes.
//! - The SRAM in a memory table is not RAM.

mod connection;
mod front_end;
mod mapper;
mod socket;
mod vring;

use std::fs::File;

use qnic_abi::attach::{CONFIG_SIZE, FIRST_DOORBELL};

use crate::engine::EngineHandle;
use crate::identity::FileIdentity;
use crate::throttle::Throttle;

pub(crate) use connection::serve;
pub(crate) use socket::Socket;
pub use socket::SocketError;

/// What a connection needs to know of its NIC.
#[derive(Debug)]
pub(crate) struct Port {
    /// Slot in the engine.
    pub(crate) slot: usize,
    /// Name for logs.
    pub(crate) name: String,
    /// Number of doorbells.
    pub(crate) doorbells: usize,
    /// The configuration space.
    pub(crate) config_space: [u8; CONFIG_SIZE],
    /// The SRAM's memfd.
    pub(crate) sram: File,
    /// Its size in bytes.
    pub(crate) sram_bytes: u64,
    /// What tells it from RAM.
    pub(crate) sram_identity: FileIdentity,
    /// Limits the log lines about this NIC.
    pub(crate) throttle: Throttle,
    /// The way to the engine.
    pub(crate) engine: EngineHandle,
}

impl Port {
    /// Number of virtqueues.
    pub(crate) fn queues(&self) -> usize {
        FIRST_DOORBELL + self.doorbells
    }
}
