//! Channels: one-way streams of messages between two processes (N19).
//!
//! ```text
//!   Sender                                             Receiver
//!   send ── credit? ──► write message + `sent` ──────► slot ──► recv: in place
//!     ▲                                                  │ freed
//!     └──── `refill` credits ◄──── `replenish` ◄─────────┘ every `refill` messages
//! ```
//!
//! The receiver exports slots and gives the channel a counted notification `sent`; the
//! sender gives it `replenish`. Both are counted, so they must serve no other purpose while
//! the channel lives, nor shortly before. A sender starts with one credit less than there
//! are slots. So the receiver can hold a message in place while all others are on their
//! way.
//!
//! # No deadlock
//! A sender without credit has sent `slots` − 1 messages that were not replenished. Fewer
//! than `refill` ≤ `slots` − 1 of them are consumed, so the receiver has one to consume.
//! When it has consumed all of them, it replenishes. Writes in the other direction need no
//! credit, and closing the channel needs none either.
//!
//! # Ends
//! An end that is closed, or dropped, tells the other at once: the receiver gets what was
//! sent, then [`Error::ChannelClosed`]. If the process or its node is gone, the other end notices
//! with its next transfer there; an end that waits while nothing comes asks every
//! [`PROBE_INTERVAL`]. It gets [`Error::PeerLost`], after all that had arrived: within that
//! interval if the process has ended, or that interval plus the peer timeout of the NIC if the node
//! is silent.
//!
//! # Which process may send
//! The segment of a receiver lets its writers signal only `sent`. The segment of a sender lets the
//! receiver signal only `replenish`, and admits no other process. The receiver determines which process
//! may become the sender ([`ChannelOptions::importers`]): by default any.
//!
//! # Many to one
//! A receiver takes messages of one sender. A program with many senders opens a channel for
//! each, with a notification of its own. It watches those in the
//! [`NotificationQueue`](crate::NotificationQueue), waits for
//! [any](crate::Endpoint::wait_any) of them, or [handles](Receiver::handle) each. Or all
//! senders use one [shared] queue, whose memory does not grow with their number.

mod layout;
mod outgoing;
mod receiver;
mod sender;
pub mod shared;
mod stream;

use std::time::{Duration, Instant};

use qnic_abi::{NodeId, Port, Status};

use crate::core::wait::earlier;
use crate::core::Core;
use crate::error::{Error, Result, TransferError};
use crate::memory::Importers;
use crate::notification::NotificationId;
use crate::rdma::internal_writes::InternalWrites;

pub use receiver::{Message, Receiver};
pub use sender::Sender;
pub use shared::{SharedReceiver, SharedSender};
pub use stream::{Reader, Writer};

/// How long an end waits for a silent peer before it asks whether the peer is there.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// Options of a channel, chosen by its receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelOptions {
    /// Messages that the receiver has room for, at least 2; one fewer can be on their way.
    pub slots: usize,
    /// Longest message in bytes, at least 1.
    pub message_bytes: usize,
    /// The receiver returns credits whenever it has consumed so many messages: 1 to
    /// `slots` − 1. A small number keeps the sender going, a large one saves
    /// notifications.
    pub refill: usize,
    /// Notification of the receiver's process that this channel signals for each
    /// message, and for its end.
    pub sent: NotificationId,
    /// Which processes may become the sender: any, unless it is set.
    pub importers: Importers,
}

impl ChannelOptions {
    /// A channel that returns credits after each quarter of its slots.
    pub fn new(slots: usize, message_bytes: usize, sent: NotificationId) -> Self {
        ChannelOptions {
            slots,
            message_bytes,
            refill: (slots / 4).max(1),
            sent,
            importers: Importers::anyone(),
        }
    }

    /// The same channel for these senders only.
    pub fn importers(mut self, importers: impl Into<Importers>) -> Self {
        self.importers = importers.into();
        self
    }
}

/// Why a channel has ended.
#[derive(Debug, Clone, Copy)]
enum End {
    Closed,
    Lost(NodeId, Port, Status),
    /// The other end violates the protocol: nothing is taken from it any more.
    Broken(&'static str),
}

impl End {
    /// What a failed write to the other end means. A process whose segment is unexported
    /// goes on; its end has another status. A write that is aborted under way tells of
    /// memory that has just gone: that of a process that was killed. An end that is closed
    /// says so before its memory goes, and that is looked at first.
    fn of(failure: &TransferError) -> Self {
        match failure.status {
            Status::NoSuchSegment => End::Closed,
            status => End::Lost(failure.node, failure.port, status),
        }
    }
}

impl From<End> for Error {
    fn from(end: End) -> Self {
        match end {
            End::Closed => Error::ChannelClosed,
            End::Lost(node, port, status) => Error::PeerLost { node, port, status },
            End::Broken(why) => Error::ChannelBroken(why),
        }
    }
}

/// Adds what a failed write says to the reason of an end, if there is none yet. Returns an
/// error if the channel has ended.
fn check_end(end: &mut Option<End>, failure: Option<&TransferError>) -> Result<()> {
    if let Some(failure) = failure {
        end.get_or_insert(End::of(failure));
    }
    end.map_or(Ok(()), |end| Err(end.into()))
}

/// What ends a wait of [`await_signal`].
#[derive(PartialEq, Eq)]
enum Wakeup {
    /// A signal is pending, or a write has ended.
    Event,
    /// Nothing came for [`PROBE_INTERVAL`].
    Silence,
    /// The deadline is over.
    Deadline,
}

/// Waits until a notification is pending, one of the writes has ended, the deadline is
/// over, or nothing came for [`PROBE_INTERVAL`].
fn await_signal(
    core: &Core,
    id: NotificationId,
    writes: &InternalWrites,
    deadline: Option<Instant>,
) -> Result<Wakeup> {
    let probe = core.now() + PROBE_INTERVAL;
    let event = core.wait_until(earlier(probe, deadline), || {
        let event = core.pending(id) > 0 || writes.has_ended_one();
        Ok(event.then_some(Wakeup::Event))
    })?;
    Ok(match event {
        Some(event) => event,
        None if core.is_over(deadline) => Wakeup::Deadline,
        None => Wakeup::Silence,
    })
}
