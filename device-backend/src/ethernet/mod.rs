//! The Ethernet port of a node (X17): the device behind the stock virtio-net driver of a guest.
//!
//! ```text
//!             front end (QEMU)                      this process, for each port
//!   virtio-net ─┬─ vhost-user ──────► connection thread of `vhost-user-backend`
//!               ├─ transmit queues ─► [transmit] thread ──[ask]──► engine ─► links
//!               └─ receive queues ◄─ [receive] thread ◄─ inbox ◄── engine ◄─ links
//! ```
//!
//! The front end is QEMU's generic vhost-user device with the identity of virtio-net. QEMU's own
//! network device enables queues before it has negotiated features, which the crate refuses, and keeps
//! configuration space and control queue to itself.
//!
//! The crate owns rings, memory and kicks: this is a standard device. (The NIC's own attachment is
//! not: docs/architecture.md.) A port needs no driver of ours and no running NIC.
//!
//! # What a guest can do
//! Its frames, their headers and its rings are checked. A chain that makes no frame costs the guest
//! that frame. A guest that floods waits for the engine, which takes one batch of a port at a time;
//! one that takes nothing loses what is for it ([`qnic_links::ethernet`]).

mod backend;
mod control;
mod header;
pub(crate) mod host;
mod receive;
mod transmit;

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, Context};
use qnic_config::MacAddress;
use qnic_links::ethernet::Inbox;
use vhost::vhost_user::{Error as Refused, Listener};
use vhost_user_backend::{Error, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::engine::EngineHandle;
use crate::stop::Stop;
use crate::throttle::{throttled, Throttle};
use backend::Backend;

/// Time until the next attempt to serve a front end after one that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The memory of a guest, as its front end says at present.
type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// What serves a port needs to know of it.
#[derive(Debug)]
pub(crate) struct EthernetPort {
    pub(crate) slot: usize,
    pub(crate) name: String,
    pub(crate) mac: MacAddress,
    pub(crate) mtu: u16,
    /// Pairs of queues.
    pub(crate) pairs: usize,
    /// Whether its guest may leave checksums, and the division of TCP segments, to it.
    pub(crate) checksums: bool,
    pub(crate) segments: bool,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) throttle: Throttle,
    pub(crate) engine: EngineHandle,
}

/// Serves the front ends of a port, one after the other, until `stop` is raised.
pub(crate) fn serve(port: &Arc<EthernetPort>, listener: &UnixListener, stop: &Stop) {
    while let Ok(Some([true])) = stop.wait([listener.as_fd()], None) {
        port.inbox.clear();
        if let Err(error) = connection(port, listener, stop) {
            throttled!(port, warn, "the Ethernet port failed: {error}");
            // If descriptors are lacking, the front end is still there.
            let _ = stop.wait([], Some(RETRY_INTERVAL));
        }
        stop.unwatch();
        throttled!(port, info, "front end of the Ethernet port gone");
    }
}

/// Serves the front end that is about to be accepted, until it goes or the process stops.
fn connection(
    port: &Arc<EthernetPort>,
    listener: &UnixListener,
    stop: &Stop,
) -> anyhow::Result<()> {
    let memory = Memory::new(GuestMemoryMmap::new());
    let backend = Arc::new(Backend::new(port.clone(), memory.clone()));
    let name = format!("eth-{}", port.name);
    let mut daemon = VhostUserDaemon::new(name, backend.clone(), memory).map_err(named)?;
    let handlers = daemon.get_epoll_handlers();
    let receive = handlers
        .get(backend::RECEIVE_THREAD)
        .context("no receive thread")?;
    let bell = port.inbox.bell().as_fd().as_raw_fd();
    let events = EventSet::IN | EventSet::EDGE_TRIGGERED;
    receive.register_listener(bell, events, backend.bell_event())?;
    let mut listener = Listener::from(listener.try_clone()?);
    daemon.start(&mut listener).map_err(named)?;
    throttled!(port, info, "front end of the Ethernet port connected");
    let Some(connection) = daemon.shutdown_handle() else {
        return Ok(());
    };
    match stop.watch_with(move || connection.shutdown()) {
        Err(error) if error.kind() == ErrorKind::Interrupted => daemon.request_shutdown(),
        watched => watched?,
    }
    let ended = daemon.wait();
    // Its threads look at this: a flood of frames, or a guest that goes on, would keep them.
    backend.end();
    match ended {
        Err(Error::HandleRequest(Refused::Disconnected | Refused::PartialMessage)) => Ok(()),
        ended => ended.map_err(named),
    }
}

/// The crate's error is none of the standard library's.
fn named(error: Error) -> anyhow::Error {
    anyhow!("{error}")
}
