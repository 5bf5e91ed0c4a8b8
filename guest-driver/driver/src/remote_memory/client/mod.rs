//! The client of a volume (H9).
//!
//! ```text
//!   Client::new(config, now)
//!   ┌─► handle_message(now, arrival)     a datagram from a server
//!   │   handle_sent(now, ticket)         the NIC does not read a page any more
//!   │   tick(now)                        at deadline(), or later
//!   │   read(…), write(…)                when state() is Active
//!   │   poll_transmit(now)               until there is none
//!   │   poll_completion(), poll_page()   until there is none
//!   └── deadline()
//!   detach(now)                          all requests fail; Ended soon after
//! ```
//!
//! # Promises
//! 1. A read returns the page of the last completed write of its block. If later writes have
//!    failed, it may return the page of one of them, and after that no older one.
//! 2. A write completes when `replicas` servers have acknowledged it. If fewer servers
//!    answer and have room, it completes when all of these have acknowledged it, at least
//!    one.
//!    Fewer copies are enough only while a server is missing: if all are there and some are full, the
//!    write fails with [`Failure::Full`], at once.
//! 3. A request ends within [`Limits::request_timeout`], whatever servers and wire do; only the
//!    NIC can delay that, while it still reads the page. Times in which the client itself stood still
//!    do not count.
//! 4. Requests of one block are carried out in the order in which they came.
//! 5. Wrong messages of a server harm at most the requests that were sent to that server.
//! 6. Unless the volume is thin, servers have reserved room for all its blocks with their replicas
//!    when it becomes active.
//! 7. If servers take their memory back, and no other server has the blocks that were there, the
//!    volume ends as a whole: from then on all requests fail with [`Failure::TakenBack`].
//!
//! | file | what |
//! |---|---|
//! | `volume` | versions and holders of blocks |
//! | `slots` | requests under way, their order |
//! | `servers`, `server_set` | servers and their states |
//! | `on_the_way` | messages on their way to a server, and which of them are lost |
//! | `requests` | how a request begins, goes to servers, and ends |
//! | `writes`, `reads`, `copies` | the steps that are special to each |
//! | `messages` | messages of servers |
//! | `sessions` | attaching, renewing, silence, detaching |
//! | `reserve` | how many pages each server is to keep free |
//! | `repair` | finds blocks with too few holders |
//! | `transmit` | the next message to send |
//! | `timers` | retransmissions and timeouts |

mod config;
mod copies;
mod messages;
mod on_the_way;
mod reads;
mod repair;
mod requests;
mod reserve;
mod server_set;
mod servers;
mod sessions;
mod slots;
mod status;
mod timers;
mod transmit;
mod volume;
mod writes;

use qnic_abi::remote_memory::Reason;

pub use config::{Config, ConfigError, Limits, MAX_REPLICAS};
pub use repair::Repair;
pub use server_set::MAX_SERVERS;
pub use servers::ServerState;
pub use status::{ClientCounters, ServerStatus};

use super::histogram::Histogram;
use super::queue::Queue;
use crate::datagram::Address;
use repair::Sweep;
use servers::Servers;
use slots::Slots;
use volume::Volume;

/// The state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    /// It asks servers for memory.
    Attaching {
        /// Since when.
        since: u64,
    },
    /// It takes requests.
    Active,
    /// It tells its servers that it ends.
    Detaching {
        /// Since when.
        since: u64,
    },
    /// It is detached.
    Detached,
    /// Servers have taken its memory back, and with it the last copies of blocks.
    TakenBack,
    /// It could not attach.
    Failed(
        /// The refusal of a server; `None` if too few have answered.
        Option<AttachRefusal>,
    ),
}

/// A server has refused to attach the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachRefusal {
    /// The server.
    pub server: Address,
    /// Its reason; with [`Reason::NoRoom`] all servers together have too little.
    pub reason: Reason,
    /// With [`Reason::NoRoom`] the pages that they can hold of the volume, copies included.
    pub room: u64,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client is not attached.
    #[error("the volume is not attached")]
    NotActive,
    /// Servers have taken its memory back.
    #[error("servers have taken back the memory of the volume")]
    TakenBack,
    /// The volume does not have this block.
    #[error("the volume ends before this block")]
    NoSuchBlock,
    /// As many requests are under way as there may be.
    #[error("too many requests are under way")]
    Busy,
}

/// Why a request has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No server has carried it out in time. A write may still be carried out.
    #[error("no server has answered in time")]
    TimedOut,
    /// All servers that had the block have lost their memory.
    #[error("all servers that had the block are lost")]
    Lost,
    /// The client was detached.
    #[error("the volume was detached")]
    Detached,
    /// All servers that could take it are full.
    #[error("the servers of the volume are full")]
    Full,
    /// Servers have taken their memory back: the volume is no more.
    #[error("servers have taken back the memory of the volume")]
    TakenBack,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// A write: the page is on the servers.
    Written,
    /// A read: the page is here, in the request's steered buffer unless another packet took that.
    Page,
    /// The block was never written: it is full of zeros. The steered buffer still waits.
    Zero,
}

/// A request has ended.
#[derive(Debug)]
pub struct Completion<P> {
    /// The token of the request.
    pub token: u64,
    /// The result. After a failed read the steered buffer still waits: take it back.
    pub result: Result<Done, Failure>,
    /// The page: of a write always, of a read after [`Done::Page`].
    pub page: Option<P>,
}

/// The client of a volume.
#[derive(Debug)]
pub struct Client<P> {
    config: Config,
    state: ClientState,
    /// The state after Detaching.
    goodbye: ClientState,
    /// Until then servers that were asked for memory may answer late. Detaching waits for them, because
    /// otherwise they would keep a session without a client. Zero when that time is over.
    asked_until: u64,
    volume: Volume,
    servers: Servers,
    slots: Slots<P>,
    repair: Sweep,
    completions: Queue<Completion<P>>,
    /// Pages of the receive queue that copies do not need any more.
    pages: Queue<P>,
    counters: ClientCounters,
    reads: Histogram,
    writes: Histogram,
    /// When it was called last, in the time of its node, and for how long it was paused.
    called_at: u64,
    stood_still: u64,
    /// The pages that servers can hold of the volume, when that was too little.
    shortage: Option<u64>,
    /// When messages on their way and the table of requests are checked again.
    scan_due: u64,
    /// The server that may send next.
    turn: u8,
    next_request: u32,
}

impl<P> Client<P> {
    /// Makes a client that begins to attach.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config, now: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let slots = config.requests + config.copies;
        let blocks = usize::try_from(config.blocks).map_err(|_| ConfigError::Blocks)?;
        Ok(Client {
            state: ClientState::Attaching { since: now },
            goodbye: ClientState::Detached,
            asked_until: now.saturating_add(config.limits.server_timeout),
            volume: Volume::new(blocks, config.servers.len())?,
            servers: Servers::new(&config.servers, slots)?,
            slots: Slots::new(config.requests, config.copies)?,
            repair: Sweep::default(),
            completions: Queue::new(config.requests)?,
            pages: Queue::new(config.copies)?,
            counters: ClientCounters::default(),
            reads: Histogram::default(),
            writes: Histogram::default(),
            called_at: now,
            stood_still: 0,
            shortage: None,
            scan_due: u64::MAX,
            turn: 0,
            next_request: 0,
            config,
        })
    }

    /// Its state.
    pub fn state(&self) -> ClientState {
        self.state
    }

    /// Returns true if servers have taken its memory back, and with it the last copies of blocks.
    pub fn is_taken_back(&self) -> bool {
        self.goodbye == ClientState::TakenBack
    }

    /// The next request that has ended. Its slot is free from then on.
    pub fn poll_completion(&mut self) -> Option<Completion<P>> {
        self.completions.pop()
    }

    /// A page of the receive queue that a copy has come in. The caller returns it to the queue.
    pub fn poll_page(&mut self) -> Option<P> {
        self.pages.pop()
    }
}
