//! Reliable, in-order streams between named processes, over shared pools (S6).
//!
//! ```text
//!   Streams::open ─► listen ─► Listener::accept ─► Stream: Read, Write
//!        │                                           ▲
//!        └── connect(node, port) ────────────────────┘
//! ```
//! A process opens [`Streams`] on a datagram port. Any number of streams share its pools, up to
//! the limits of [`Options`]. A stream carries bytes in both directions; each direction ends by
//! itself. If one side does not read, writes of the other side have to wait; nothing that was
//! written is dropped unless the stream fails.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use qnic::stream::{Options, Streams};
//! use qnic::{Nic, NodeId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let streams = Streams::open(&Nic::open()?, 0, Options::default())?;
//! let mut stream = streams.connect(NodeId(1), 2000, None)?;
//! stream.write_all(b"question")?;
//! stream.finish()?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer)?;
//! # Ok(())
//! # }
//! ```
//!
//! A thread of the library answers peers while the program does something else. The protocol is
//! described in docs/streams.md and [`crate::stream_protocol`].
//!
//! | module | |
//! |---|---|
//! | `machine` | the protocol on pools: what moves frames, and what waits for what |
//! | `service` | the thread |
//! | `buffers` | frames of pools as the protocol sees them |
//! | `stream`, `listener` | what programs hold |
//! | `many` | a thread that waits for many streams at once |
//! | `tasks` | the same in async tasks |

mod buffers;
mod listener;
mod machine;
#[cfg(feature = "parallel")]
mod many;
mod service;
#[allow(clippy::module_inception)] // The type that gives the folder its name.
mod stream;
#[cfg(feature = "tokio")]
mod tasks;

pub use crate::stream_protocol::{Counters, Failure};
pub use listener::Listener;
#[cfg(feature = "parallel")]
pub(crate) use many::Locked;
pub use stream::Stream;
#[cfg(feature = "tokio")]
pub use tasks::{AsyncListener, AsyncStream};

use std::sync::Arc;
use std::time::Duration;

use crate::stream_protocol::Config;
use qnic_abi::NodeId;

use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::pool::{PoolOptions, Statistics};
use service::Handle;

/// Limits of [`Streams`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Size and number of frames. Each stream has one frame of each pool for itself, and takes more as
    /// far as others leave some. It fills frames only as far as the route to its peer carries.
    pub pool: PoolOptions,
    /// Streams at the same time, including those that are ending; at least 1, and at most half of
    /// the frames of the smaller pool.
    pub connections: usize,
    /// Streams that peers have opened and [`Listener::accept`] has not returned.
    pub backlog: usize,
    /// Frames that one stream may have on their way, or received and not read; 1 to 257.
    pub window: usize,
    /// A peer that has been silent for this long is asked.
    pub keep_alive: Duration,
    /// A peer that has been silent for this long is given up; longer than `keep_alive`.
    pub peer_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            pool: PoolOptions::new(16 << 10, 256, 256),
            connections: 64,
            backlog: 32,
            window: 128,
            keep_alive: Duration::from_secs(1),
            peer_timeout: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// The protocol's bounds: of either pool a part is left to frames that carry no data.
    fn config(&self) -> Config {
        let nanoseconds = |time: Duration| time.as_nanos().min(u128::from(u64::MAX / 4)) as u64;
        let spare = |frames: usize| frames - (frames / 8).clamp(1, 32).min(frames);
        Config {
            connections: self.connections,
            backlog: self.backlog,
            backlog_per_node: self.backlog.div_ceil(2),
            frame_bytes: self.pool.frame_bytes,
            receive_frames: spare(self.pool.inputs),
            send_frames: spare(self.pool.outputs),
            window: self.window.min(1 << 16) as u32,
            keep_alive: nanoseconds(self.keep_alive),
            peer_timeout: nanoseconds(self.peer_timeout),
            ..Config::default()
        }
    }
}

/// Streams of this process on one datagram port.
///
/// Clones stand for the same. When the last of `Streams`, listeners and streams is dropped, the drop waits
/// until peers have what was written, for [`Options::peer_timeout`] at most.
#[derive(Debug, Clone)]
pub struct Streams(Arc<Handle>);

impl Streams {
    /// Opens pools on a datagram port from 1024 up, or 0 for any free one.
    ///
    /// # Errors
    /// Those of [`Nic::open_pools`]; [`Error::System`] with `InvalidInput` for options that do not
    /// fit together.
    pub fn open(nic: &Nic, port: u16, options: Options) -> Result<Self> {
        let config = options.config();
        let pools = nic.open_pools(port, options.pool)?;
        Ok(Streams(Handle::start(&pools, config)?))
    }

    /// The datagram port.
    pub fn port(&self) -> u16 {
        self.0.machine.pools.port
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.0.machine.pools.node
    }

    /// Lets peers connect, until the listener is dropped.
    ///
    /// # Errors
    /// [`Error::System`] with `AlreadyExists` while there is a listener.
    pub fn listen(&self) -> Result<Listener> {
        Listener::new(self.0.clone())
    }

    /// Connects to the process at a datagram port of a node. Without a `timeout`, the time limit of
    /// the protocol applies (10 s without an answer).
    ///
    /// # Errors
    /// [`Error::Stream`], [`Error::TooManyStreams`], [`Error::TimedOut`]
    pub fn connect(&self, node: NodeId, port: u16, timeout: Option<Duration>) -> Result<Stream> {
        Stream::connect(self.0.clone(), node, port, timeout)
    }

    /// What the protocol has counted.
    pub fn counters(&self) -> Counters {
        self.0.machine.lock().endpoint.counters()
    }

    /// What the pools have counted: frames, and the system calls that they cost.
    pub fn pool_statistics(&self) -> Statistics {
        self.0.machine.pools.statistics()
    }
}

/// Translates an error of the protocol; None: it can be tried again later.
fn translate(error: crate::stream_protocol::Error) -> Option<Error> {
    match error {
        crate::stream_protocol::Error::WouldBlock => None,
        crate::stream_protocol::Error::Failed(failure) => Some(Error::Stream(failure)),
        crate::stream_protocol::Error::Full => Some(Error::TooManyStreams),
        crate::stream_protocol::Error::Ended | crate::stream_protocol::Error::NoConnection => {
            Some(Error::StreamEnded)
        }
    }
}
