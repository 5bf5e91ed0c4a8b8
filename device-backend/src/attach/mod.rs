//! The attachment: how a front end (QEMU, or a host-mode process) reaches a NIC.
//!
//! ```text
//!   socket ──accept──► [connection] thread ──┬─ [front_end]: vhost-user messages
//!                                            │      collects rings, maps memory
//!                                            │      ──[ask, waits]──► engine
//!                                            └─ [mapper] thread: SHMEM_MAP of the SRAM,
//!                                                   ──[ask]──► engine
//! ```
//!
//! One thread per NIC speaks the protocol (crate `vhost`; docs/architecture.md says why
//! not `vhost-user-backend`) and may block in it without delaying other NICs; it asks the
//! engine for complete actions only.
//!
//! # Rules of QEMU that this keeps (all seen to kill QEMU when broken)
//! - SHMEM_MAP goes out from a thread of its own, at the first SET_VRING_ENABLE of
//!   every start: the mapping is lost at each reset. That it exists already is an
//!   error that counts as mapped.
//! - SET_VRING_ADDR never fails, whatever addresses the guest has chosen; a ring that is
//!   not aligned ([preview]), or outside of memory, is refused when the queue starts.
//! - CONFIGURE_MEM_SLOTS is not offered.
//! - Reads of the configuration space beyond its end return zeroes.
//! - The SRAM in a memory table is not RAM.

mod connection;
mod front_end;
mod mapper;
mod preview;
mod socket;
mod vring;

use std::fs::File;

use qnic_abi::attach::CONFIG_SIZE;

use crate::engine::{Context, EngineGone, EngineHandle, NicPort};
use crate::identity::FileIdentity;
use crate::throttle::Throttle;

pub(crate) use connection::serve;
pub(crate) use socket::Socket;

/// What a connection needs to know of its NIC.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) slot: usize,
    pub(crate) name: String,
    /// Number of virtqueues.
    pub(crate) queues: usize,
    pub(crate) config_space: [u8; CONFIG_SIZE],
    /// The SRAM's memfd.
    pub(crate) sram: File,
    pub(crate) sram_bytes: u64,
    /// Identifies it among the regions of a memory table.
    pub(crate) sram_identity: FileIdentity,
    pub(crate) throttle: Throttle,
    pub(crate) engine: EngineHandle,
}

impl Attachment {
    /// Runs `work` with the NIC on the engine thread, and waits for its result.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut NicPort, &mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, EngineGone> {
        let slot = self.slot;
        self.engine.ask(move |engine| engine.with_nic(slot, work))
    }
}
