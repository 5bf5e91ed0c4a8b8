//! Channels: one-way streams of messages between two processes (N19).
//!
//! ```text
//!   Sender                                             Receiver
//!   send ── credit? ──► write message + `sent` ──────► slot ──► recv: in place
//!     ▲                                                  │ freed
//!     └──── `refill` credits ◄──── `replenish` ◄─────────┘ every `refill` messages
//! ```
//!
//! The receiver exports slots and gives the channel a counted notification `sent`;
//! the sender gives it `replenish`. Both must serve no other purpose while the
//! channel lives, nor shortly before: they are counted. A sender starts with one
//! credit less than there are slots, so that a message can be held in place while
//! all others are under way.
//!
//! # No deadlock
//! A sender without credit has `slots` − 1 messages that were not replenished, of
//! which fewer than `refill` ≤ `slots` − 1 are consumed: so the receiver has one to
//! consume, and when it has consumed what is there it replenishes. Nothing that
//! goes the other way needs credit, and an end of the channel needs none either.
//!
//! # Ends
//! An end that is closed, or dropped, tells the other at once: the receiver gets
//! what was sent, then [`Error::ChannelClosed`]. If the process or its node is gone,
//! the other end finds out with its next transfer there; while it waits and nothing
//! comes it asks every [`PROBE_INTERVAL`]. Then it gets [`Error::PeerLost`], after
//! what had arrived: within that interval if the process has ended, plus the time
//! in which the NIC gives a peer up if its node is silent.
//!
//! # Many to one
//! A receiver takes messages of one sender. For many, open a channel for each, with
//! a notification of its own, and watch those in the
//! [`NotificationQueue`](crate::NotificationQueue), wait for
//! [any](crate::Endpoint::wait_any) of them, or [handle](Receiver::handle) each. Or have
//! all of them in one [shared] queue, whose memory does not grow with their number.

mod layout;
mod receiver;
mod sender;
pub mod shared;
mod stream;

use std::time::Duration;

use qnic_abi::{NodeId, Port, Status};

use crate::error::{Error, TransferError};
use crate::notification::NotificationId;

pub use receiver::{Message, Receiver};
pub use sender::Sender;
pub use shared::{SharedReceiver, SharedSender};
pub use stream::{Reader, Writer};

/// How long an end waits for a silent peer before it asks whether it is there.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// Measures of a channel, chosen by its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelOptions {
    /// Messages that fit in, at least 2; one less can be under way.
    pub slots: usize,
    /// Longest message in bytes, at least 1.
    pub message_bytes: usize,
    /// The receiver returns credits whenever it has consumed so many messages; 1 to
    /// `slots` − 1. Few keep the sender going, many save notifications.
    pub refill: usize,
    /// Notification of the receiver's process that this channel signals for each
    /// message, and for its end.
    pub sent: NotificationId,
}

impl ChannelOptions {
    /// A channel that returns credits after each quarter of its slots.
    pub fn new(slots: usize, message_bytes: usize, sent: NotificationId) -> Self {
        ChannelOptions {
            slots,
            message_bytes,
            refill: (slots / 4).max(1),
            sent,
        }
    }
}

/// Why a channel has ended.
#[derive(Debug, Clone, Copy)]
enum End {
    Closed,
    Lost(NodeId, Port, Status),
    /// The other end breaks the rules: nothing of it is taken any more.
    Broken(&'static str),
}

impl End {
    /// What a failed write to the other end means. A segment that was unexported is
    /// that of a process that goes on: its end would have another status.
    fn of(failure: &TransferError) -> Self {
        match failure.status {
            Status::NoSuchSegment | Status::Aborted => End::Closed,
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
