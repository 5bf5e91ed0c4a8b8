//! The client of a volume (H9).
//!
//! ```text
//!   Client::new(config, now)
//!   ┌─► handle_message(now, arrival)     a datagram from a server
//!   │   handle_sent(now, ticket)         the NIC reads a page no more
//!   │   tick(now)                        at deadline(), or later
//!   │   read(…), write(…)                when state() is Active
//!   │   poll_transmit(now)               until there is none
//!   │   poll_completion(), poll_page()   until there is none
//!   └── deadline()
//!   detach(now)                          all requests fail; Ended soon after
//! ```
//!
//! # Promises
//! 1. A read returns what the last write of its block that has completed has brought. If writes
//!    have failed since, it may return what one of them brought, and then no older one.
//! 2. A write completes when `replicas` servers have acknowledged it. If there are not so many
//!    that answer and have room, it completes when all that do have acknowledged it, at least
//!    one.
//! 3. A request ends within [`Limits::request_timeout`], whatever servers and wire do; only the
//!    NIC can delay that, while it still reads the page.
//! 4. Requests of one block are carried out in the order in which they came.
//! 5. What a server says costs at most the requests that it has a part in.
//!
//! | file | what |
//! |---|---|
//! | `volume` | versions and holders of blocks |
//! | `slots` | requests under way, their order |
//! | `servers`, `server_set` | servers and their states |
//! | `on_the_way` | what is on its way to a server, and what of it is lost |
//! | `requests` | how a request begins, goes to servers, and ends |
//! | `writes`, `reads`, `copies` | what is special about each |
//! | `messages` | what servers say |
//! | `sessions` | attaching, renewing, silence, detaching |
//! | `repair` | finds blocks with too few holders |
//! | `transmit` | what is sent next |
//! | `timers` | what was lost, and what has taken too long |

mod config;
mod copies;
mod messages;
mod on_the_way;
mod reads;
mod repair;
mod requests;
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

/// How far a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    /// It asks servers for memory.
    Attaching {
        /// Since when.
        since: u64,
    },
    /// It takes requests.
    Active,
    /// It says goodbye.
    Detaching {
        /// Since when.
        since: u64,
    },
    /// It is detached.
    Detached,
    /// It could not attach.
    Failed(
        /// What a server has said; none if too few have said anything.
        Option<AttachRefusal>,
    ),
}

/// A server does not attach the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachRefusal {
    /// Which one.
    pub server: Address,
    /// Why.
    pub reason: Reason,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client is not attached.
    #[error("the volume is not attached")]
    NotActive,
    /// The volume does not have this block.
    #[error("the volume ends before this block")]
    NoSuchBlock,
    /// As many requests are under way as can be.
    #[error("too many requests are under way")]
    Busy,
}

/// Why a request has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No server has carried it out in time. A write may still be.
    #[error("no server has answered in time")]
    TimedOut,
    /// All servers that had the block have lost their memory.
    #[error("all servers that had the block are lost")]
    Lost,
    /// The client was detached.
    #[error("the volume was detached")]
    Detached,
}

/// What a request has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It has brought its page to servers.
    Written,
    /// Its page is here. It is in the request's steered buffer, unless somebody has wasted that.
    Page,
    /// The block was never written: it is full of zeros. The steered buffer still waits.
    Zero,
}

/// A request has ended.
#[derive(Debug)]
pub struct Completion<P> {
    /// Of the request.
    pub token: u64,
    /// What it has done. After a failed read the steered buffer still waits: take it back.
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
    /// Until then servers that were asked for memory may answer late, and are waited for before
    /// Detaching ends: else they would keep a session for nobody. Zero when that is over.
    asked_until: u64,
    volume: Volume,
    servers: Servers,
    slots: Slots<P>,
    repair: Sweep,
    completions: Queue<Completion<P>>,
    /// Pages of the receive queue that copies need no more.
    pages: Queue<P>,
    counters: ClientCounters,
    reads: Histogram,
    writes: Histogram,
    /// When what is on its way and the table of requests are looked at again.
    scan_due: u64,
    /// The server that may send next.
    turn: u8,
    next_request: u32,
}

impl<P> Client<P> {
    /// Makes one that begins to attach.
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
            volume: Volume::new(blocks)?,
            servers: Servers::new(&config.servers, slots)?,
            slots: Slots::new(config.requests, config.copies)?,
            repair: Sweep::default(),
            completions: Queue::new(config.requests)?,
            pages: Queue::new(config.copies)?,
            counters: ClientCounters::default(),
            reads: Histogram::default(),
            writes: Histogram::default(),
            scan_due: u64::MAX,
            turn: 0,
            next_request: 0,
            config,
        })
    }

    /// How far it is.
    pub fn state(&self) -> ClientState {
        self.state
    }

    /// The next request that has ended. Its slot is free from then on.
    pub fn poll_completion(&mut self) -> Option<Completion<P>> {
        self.completions.pop()
    }

    /// A page of the receive queue that a copy was in: it goes back there.
    pub fn poll_page(&mut self) -> Option<P> {
        self.pages.pop()
    }
}
