//! Engines of one process: the ways between their fabrics.
//!
//! ```text
//!   engine 0: fabric                                  engine 1: fabric
//!   ┌───────────────┐   [Outbox] ══ rings ══► [Inbox]   ┌───────────────┐
//!   │ NICs 0, 2, …  │                                   │ NICs 1, 3, …  │
//!   └───────────────┘   [Inbox] ◄══ rings ══ [Outbox]   └───────────────┘
//! ```
//! Between two engines there are two rings in each direction: a short one, in which small frames overtake
//! those of the other (U4). A frame goes through a ring with its header, and a small payload; a larger one
//! stays in the pages of the sending node, and the receiving NIC copies it from there: once. The sending NIC holds the pages locked until the frame was used
//! ([`Sent::Kept`](qnic_nic::Sent::Kept)).
//!
//! # Bounds
//! A ring has [`ROOM`] frames, the short one [`SMALL_ROOM`]. What does not fit waits in the outbox, in order. That is as much as
//! NICs may have under way: their windows, control frames and requests, with an acknowledgement or
//! a frame that comes back for each of these; and for each node it has a bound of its own (module
//! `outbox`). An engine with a frame in an outbox does not sleep. It never waits for another engine,
//! but for the copy of one frame in a recall.
//!
//! # End of memory
//! Before a node's memory changes or ends, its frames are recalled: each that
//! still lies in the node's pages is copied, and a copy that is under way ends first. Afterwards
//! nothing of the process reads that memory, and no frame is lost.

mod bell;
mod frame;
mod inbox;
#[cfg(test)]
mod model;
mod outbox;
mod primitives;
mod ring;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use qnic_abi::NodeId;
use qnic_nic::env::{HostMemory, Ticket};

use crate::notifier::Notifier;
use bell::Bell;
pub(crate) use frame::{Delivery, RingFrame};
use inbox::Inbox;
pub(crate) use outbox::{Outbox, Put};

/// Frames in a ring.
pub const ROOM: usize = 256;

/// Small frames in the ring of their own.
pub const SMALL_ROOM: usize = 64;

/// Frames that are received from an engine in one round.
const BATCH: usize = 64;

/// What an engine is woken by.
#[derive(Debug)]
struct Alarm {
    bell: Bell,
    notifier: Notifier,
}

/// The ways from one engine to all others of its process, and back.
#[derive(Debug)]
pub struct Siblings<M: Debug> {
    alarm: Arc<Alarm>,
    asleep: bool,
    /// By way.
    pub(crate) outboxes: Vec<Outbox<M>>,
    inboxes: Vec<Inbox<RingFrame<M>>>,
    /// The number of each other engine, by way.
    engines: Vec<usize>,
}

/// The ways between so many engines, for each of them.
///
/// # Errors
/// Returns the error of the operating system.
pub fn mesh<M: HostMemory + Clone + Debug>(engines: usize) -> std::io::Result<Vec<Siblings<M>>> {
    let mut all = Vec::with_capacity(engines);
    for _ in 0..engines {
        let alarm = Alarm {
            bell: Bell::default(),
            notifier: Notifier::new()?,
        };
        all.push(Siblings {
            alarm: Arc::new(alarm),
            asleep: false,
            outboxes: Vec::new(),
            inboxes: Vec::new(),
            engines: Vec::new(),
        });
    }
    // Both lists of an engine have the others in the order of their numbers.
    for from in 0..engines {
        for to in (0..engines).filter(|to| *to != from) {
            let (small, takes_small) = ring::ring(SMALL_ROOM);
            let (long, takes_long) = ring::ring(ROOM);
            let alarm = all[to].alarm.clone();
            all[from].outboxes.push(Outbox::new([small, long], alarm));
            all[from].engines.push(to);
            all[to].inboxes.push(Inbox::new([takes_small, takes_long]));
        }
    }
    Ok(all)
}

impl<M: HostMemory + Clone + Debug> Siblings<M> {
    /// The way to the engine of that number.
    pub fn way_to(&self, engine: usize) -> Option<usize> {
        self.engines.iter().position(|other| *other == engine)
    }

    /// Readable when there is something to receive, once
    /// [`Fabric::prepare_sleep`](crate::Fabric::prepare_sleep) has returned true.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.alarm.notifier.as_fd()
    }

    /// Gives `take` a bounded number of frames of each way, with the outbox of the way back; moves
    /// on what waits in outboxes. Returns true if there was any frame.
    pub(crate) fn receive(
        &mut self,
        mut take: impl FnMut(&mut [Outbox<M>], usize, &RingFrame<M>),
    ) -> bool {
        if std::mem::take(&mut self.asleep) {
            self.alarm.bell.wake();
        }
        let mut busy = false;
        for (way, inbox) in self.inboxes.iter_mut().enumerate() {
            for _ in 0..BATCH {
                let outboxes = &mut self.outboxes[..];
                if !inbox.pop(|frame| take(outboxes, way, frame)) {
                    break;
                }
                busy = true;
            }
        }
        busy
    }

    /// Moves on what waits, and wakes the engines that sleep and have something to receive.
    pub(crate) fn flush(&mut self) {
        for outbox in &mut self.outboxes {
            outbox.flush();
        }
    }

    /// Announces that the engine is about to sleep. Returns false if a frame has come, or waits in
    /// an outbox.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let inboxes = &mut self.inboxes;
        self.asleep = self.outboxes.iter().all(|outbox| !outbox.waits())
            && self
                .alarm
                .bell
                .prepare_sleep(|| inboxes.iter_mut().any(|inbox| !inbox.is_empty()));
        self.asleep
    }

    /// Returns true if a frame that was kept was used.
    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        let outbox = self.outboxes.get(ticket.way as usize);
        outbox.is_none_or(|outbox| outbox.is_done(ticket.place))
    }

    /// Copies all that lies in pages of a node. When it returns, no other engine reads them.
    pub(crate) fn recall(&mut self, node: NodeId) {
        for outbox in &mut self.outboxes {
            outbox.recall(node);
        }
    }
}
