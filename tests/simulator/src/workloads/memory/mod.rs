//! Workers for remote memory (H9): kernel modules of their node, on datagram ports of the real
//! driver core.
//!
//! ```text
//!   server:  serves ──► leaves in order, or is killed ──► serves anew, with nothing in it
//!   client:  attaches ──► reads, writes ──► detaches, or is killed ──► attaches anew
//!                              │
//!                              └► when nothing breaks any more: all of it becomes whole, and keeps
//!                                 what is written without R − 1 servers
//! ```
//! Each node has a server; one client or two use all of them. In half of the seeds only a client
//! kills servers, never more than R − 1 at a time, and the next ones only when its volume is whole:
//! then no request may fail. In the others anything may happen, and reads are right all the same. In
//! half of the seeds with lossy wires, these carry less than a page; in half, each frame takes 10 ms.
//!
//! | module | knows |
//! |---|---|
//! | `server`, `client`, `verify` | the workers |
//! | `user` | what the driver core tells a client, and pages whose content says whether it is whole |
//! | `blocks` | what a read may return |

mod blocks;
mod client;
mod server;
mod user;
mod verify;

use std::collections::BTreeSet;

use qnic_abi::{NodeId, Secret};
use qnic_driver::datagram::{Address, BindError};

use crate::process::{Ended, ProcessContext, Result};
use crate::schedule::{lock, trace};

const MS: u64 = 1_000_000;

/// Datagram port of servers, and of the first client of a node.
const SERVER_PORT: u16 = 600;
const CLIENT_PORT: u16 = 601;

/// Key of all servers.
const KEY: Secret = Secret(*b"the simulated k.");

/// Blocks of each volume.
const BLOCKS: u64 = 12;

/// Requests that a client has under way at most.
const REQUESTS: usize = 6;

/// After this a request has ended.
const REQUEST_TIMEOUT: u64 = 1000 * MS;

/// After this a server that does not answer counts as silent.
const SERVER_TIMEOUT: u64 = 80 * MS;

/// A client that has said nothing for so long has lost its pages.
const LEASE: u64 = 700 * MS;

/// How long a server that was killed is away at most.
const OUTAGE: u64 = 150 * MS;

/// How long a worker that has nothing to do looks away at most.
const LOOK: u64 = 20 * MS;

/// Frames of a node for its server and its client.
pub(crate) const FRAMES: u64 = 220;

/// Which servers are there, and what clients have done.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Slots of the servers that give memory, and do not leave.
    slots: BTreeSet<usize>,
    /// Requests that have ended well.
    pub(crate) requests: u64,
}

impl Serving {
    /// The worker in a slot ends, or its node does.
    pub(crate) fn end(&mut self, slot: usize) {
        self.slots.remove(&slot);
    }
}

/// Where the server of a node is.
fn server_of(node: usize) -> Address {
    Address {
        node: NodeId(node as u16),
        port: SERVER_PORT,
    }
}

impl ProcessContext {
    /// A worker for remote memory from its start to its end.
    pub(crate) fn run_memory_worker(&self) {
        let driver = lock(&self.machine.driver).clone();
        let ending = match driver {
            None => Err(Ended),
            Some(driver) if self.slot < self.first_client() => self.give_memory(&driver),
            Some(driver) => self.use_memory(&driver),
        };
        self.common.end(self.slot);
        let cleanly = ending.is_ok();
        trace!(
            self.common.schedule,
            "memory worker {}: ends, cleanly: {cleanly}",
            self.slot
        );
    }

    /// Slot of the first client: servers have those in front of it.
    fn first_client(&self) -> usize {
        let settings = &self.common.settings;
        settings.rdma_workers + settings.options.nodes
    }

    /// What a bind gave that may succeed later: waits a little.
    fn after_bind_error(&self, error: BindError) -> Result<()> {
        match error {
            BindError::NoDevice => Err(Ended),
            // A port that closes, a window of a process that ends.
            BindError::InUse | BindError::Exhausted | BindError::NoMemory => self.sleep(100_000),
            BindError::Invalid => panic!("memory worker {}: {error}", self.slot),
        }
    }

    /// The worker has seen that everything works again.
    pub(crate) fn set_verified(&self) {
        lock(&self.common.slots)[self.slot].verifies = false;
    }
}
