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
use std::sync::{Arc, Mutex};

use qnic_abi::{NodeId, Secret};
use qnic_driver::datagram::{Address, BindError};
use qnic_driver::Driver;
use qnic_links::units::{Probability, Span};

use crate::machine::platform::SimPlatform;
use crate::process::{Ended, ProcessContext, Result};
use crate::schedule::lock;
use crate::settings::{Faults, Settings};
use crate::workload::{ends, Oracle, Seed, Workload};

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
const FRAMES: u64 = 220;

/// How long a frame takes on a route that is long, in nanoseconds.
const LONG_ROUTE: u64 = 10_000_000;

/// Which servers are there, and what clients have done. What reads may return clients know
/// themselves.
#[derive(Debug, Default)]
struct Serving {
    /// Slots of the servers that give memory, and do not leave.
    slots: BTreeSet<usize>,
    /// Requests that have ended well.
    requests: u64,
}

impl Oracle for Serving {
    fn end(&mut self, slot: usize, _now: u64) {
        self.slots.remove(&slot);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("memory requests", self.requests)]
    }
}

/// Servers and clients of remote memory.
struct RemoteMemory {
    serving: Mutex<Serving>,
    /// Slot of the first client: servers have those in front of it.
    first_client: usize,
    /// On how many servers each block is kept.
    replicas: usize,
    /// No more servers are lost at a time than a volume can do without, so no request may fail.
    careful: bool,
    /// All its times are so many times as long: those of volumes on routes that take long.
    times: u64,
}

/// A server on each node; one client if nothing may be lost, else two.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    let (careful, nodes) = (seed.number % 56 == 10, seed.settings.options.nodes);
    seed.settings.use_engine();
    let first_client = seed.settings.slots.len();
    seed.settings.slots.extend(0..if careful { 1 } else { 2 });
    let least = if careful { 2 } else { 1 };
    let most = (nodes - 1).min(3);
    let replicas = seed.random.usize(least.min(most)..=most);
    if careful {
        seed.settings.injected_faults = 0;
    }
    if seed.random.bool() {
        narrow_routes(seed.settings, &mut seed.random);
    }
    seed.settings.frames += FRAMES;
    seed.settings.limits.completions = seed.random.u32(1..=32);
    let long = seed.settings.options.faults.contains(Faults::DELAY) && seed.random.bool();
    if long {
        lengthen_routes(seed.settings, &mut seed.random);
    }
    Box::new(RemoteMemory {
        serving: Mutex::default(),
        first_client,
        replicas,
        careful,
        times: if long { 4 } else { 1 },
    })
}

/// Pages come in two packets, or in four. A message is lost with any of these, so few are lost: a
/// server that answers is not to be taken for one that does not.
fn narrow_routes(settings: &mut Settings, random: &mut fastrand::Rng) {
    settings.max_payload = if random.bool() { 2048 } else { 1400 };
    let seldom = |share: Probability| Probability::percent(share.get() * 30.0);
    settings.wires.loss = seldom(settings.wires.loss);
    settings.wires.corrupt = seldom(settings.wires.corrupt);
}

/// Each frame takes ten milliseconds: longer than a client waits for a near server. NICs and clients
/// have times for such routes.
fn lengthen_routes(settings: &mut Settings, random: &mut fastrand::Rng) {
    settings.wires.delay = Span::nanoseconds(LONG_ROUTE);
    settings.wires.jitter = Span::nanoseconds(random.u64(0..LONG_ROUTE / 5));
    settings.limits.retransmit_initial = 4 * LONG_ROUTE;
    settings.limits.retransmit_ceiling = 4 * LONG_ROUTE;
    settings.limits.idle_peer += 4 * LONG_ROUTE;
}

/// One process of a server or client: what it stands on.
#[derive(Clone, Copy)]
struct Module<'a> {
    of: &'a RemoteMemory,
    context: &'a ProcessContext,
    driver: &'a Arc<Driver<SimPlatform>>,
}

impl std::ops::Deref for Module<'_> {
    type Target = ProcessContext;

    fn deref(&self) -> &ProcessContext {
        self.context
    }
}

impl Workload for RemoteMemory {
    fn run(&self, context: &ProcessContext) {
        let driver = lock(&context.machine.driver).clone();
        let module = |driver| Module {
            of: self,
            context,
            driver,
        };
        let ending = match &driver {
            None => Err(Ended),
            Some(driver) if context.slot < self.first_client => module(driver).give_memory(),
            Some(driver) => module(driver).use_memory(),
        };
        ends(self, context, "memory worker", ending.is_ok());
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.serving
    }
}

/// Where the server of a node is.
fn server_of(node: usize) -> Address {
    Address {
        node: NodeId(node as u16),
        port: SERVER_PORT,
    }
}

impl Module<'_> {
    /// What a bind gave that may succeed later: waits a little.
    fn after_bind_error(&self, error: BindError) -> Result<()> {
        match error {
            BindError::NoDevice => Err(Ended),
            // A port that closes, a window of a process that ends.
            BindError::InUse | BindError::Exhausted | BindError::NoMemory => self.sleep(100_000),
            BindError::Invalid => panic!("memory worker {}: {error}", self.slot),
        }
    }
}
