//! Shared queues: the messages of many senders in one queue, in memory of their
//! receiver that need not be resident (N26).
//!
//! ```text
//!   SharedSender, any number of them                      SharedReceiver
//!   SemaphoreP: waits for a free slot ──────────────────► free ◄── SemaphoreV: consumed
//!   FetchAdd: takes the next index ─────────────────────► tail
//!   writes the message, waits until it is there ────────► slot of that index
//!   writes the index + 1, signals `sent` ───────────────►   └──► recv, in the order of indices
//! ```
//!
//! A channel has slots for each sender, and its sender writes without asking. Here the
//! memory is the same for any number of senders, and each message takes three round trips.
//! The semaphore lets senders in by the order in which they came, so a busy sender starves
//! no other. The messages of each sender arrive in their order.
//!
//! # Ends
//! Senders may come and go. When the receiver is gone, they get the error of their
//! operation. The death of a sender has these effects:
//!
//! | it dies | effect |
//! |---|---|
//! | between two messages | none |
//! | while it waits for a slot | the senders that wait behind it get [`Error::Broken`] |
//! | with a slot | the queue has one slot less |
//! | with an index | a hole: no message behind it can be received; the receiver gets [`Error::ChannelBroken`] after twice the peer timeout ([`crate::Endpoint::peer_timeout`]), and opens another queue |

use std::time::{Duration, Instant};

use qnic_abi::atomic::WaitQueue as Structure;
use qnic_abi::{Access, NodeId, Port, SegmentName};
use zerocopy::IntoBytes;

use super::layout::{Geometry, SLOT_HEADER};
use super::outgoing::{Kind, Outgoing};
use super::{check_end, PROBE_INTERVAL};
use crate::atomic::RemoteU64;
use crate::core::wait::earlier;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{Buffer, ImportOptions, Segment};
use crate::notification::{Notification, NotificationId};
use crate::sync::{Participant, Place, Semaphore};

/// First word of a head: "qnicmany".
const MAGIC: u64 = u64::from_le_bytes(*b"qnicmany");
/// Offset of the semaphore of free slots, behind the head, which is that of a channel
/// whose `refill` is 1.
const FREE: usize = 0x40;
/// Offset of the number of indices that were taken.
const TAIL: usize = 0x80;

const SHARED_QUEUE: Kind = Kind {
    magic: MAGIC,
    no_such: "that segment is no shared queue",
    staged_bytes: |geometry| SLOT_HEADER + geometry.message_bytes,
};

/// The receiving end of a shared queue ([`crate::channel::shared`]). Threads take turns
/// by `&mut`.
#[derive(Debug)]
pub struct SharedReceiver {
    endpoint: Endpoint,
    geometry: Geometry,
    sent: NotificationId,
    free: Semaphore,
    _segment: Segment,
    buffer: Buffer,
    consumed: u64,
    /// Slots that could not be given back yet.
    unreturned: u32,
    /// Since when the next index is known to be taken.
    taken_since: Option<Instant>,
    broken: Option<&'static str>,
}

impl SharedReceiver {
    /// Opens a queue under a name. `slots`: messages that fit in, at least 2;
    /// `message_bytes`: the longest, at least 1; `sent`: a notification of this process
    /// that is signalled for each message.
    ///
    /// # Errors
    /// [`Error::BadChannel`], and those of [`Endpoint::export`].
    pub fn open(
        participant: &Participant,
        name: SegmentName,
        slots: u32,
        message_bytes: usize,
        sent: NotificationId,
    ) -> Result<Self> {
        let geometry = Geometry::new(slots as usize, message_bytes, 1)?;
        let endpoint = participant.endpoint().share();
        // Earlier signals do not belong to this queue.
        endpoint.core().clear_signals(sent);
        let buffer = endpoint.allocate(geometry.segment_bytes())?;
        buffer.write(0, &geometry.head(MAGIC, sent))?;
        let free = Structure {
            value: slots.into(),
            ..Structure::default()
        };
        buffer.write(FREE, free.as_bytes())?;
        // Only now, when it is complete, can senders import it.
        let options = participant.grants(Access::READ | Access::WRITE);
        let segment = endpoint.export(name, &buffer, options.notifications(sent))?;
        let own = endpoint.import(endpoint.node(), endpoint.port(), name, Duration::ZERO)?;
        Ok(SharedReceiver {
            free: Semaphore::new(participant, &own, FREE as u64)?,
            endpoint,
            geometry,
            sent,
            _segment: segment,
            buffer,
            consumed: 0,
            unreturned: 0,
            taken_since: None,
            broken: None,
        })
    }

    /// The notification that is signalled for each message; to be watched or waited for
    /// together with others, not to be acknowledged. It may be pending once more while
    /// there is no message.
    pub fn notification(&self) -> Notification<'_> {
        self.endpoint.notification(self.sent)
    }

    /// Takes the next message if it is there.
    ///
    /// # Errors
    /// [`Error::ChannelBroken`]: a sender has died with an index, or violates the protocol;
    /// [`Error::DeviceGone`], …
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(why) = self.broken {
            return Err(Error::ChannelBroken(why));
        }
        self.give_back()?;
        if !self.is_there()? {
            return Ok(None);
        }
        self.endpoint.core().acknowledge(self.sent);
        let slot = self.geometry.slot_in_segment(self.consumed);
        let length = usize::try_from(self.buffer.load_u64(slot + 8)?).unwrap_or(usize::MAX);
        if length > self.geometry.message_bytes {
            return Err(self.break_with("a message is longer than its slot"));
        }
        let message = self.buffer.read_vec(slot + SLOT_HEADER, length)?;
        self.consumed += 1;
        self.unreturned += 1;
        self.taken_since = None;
        // What fails now fails again in the next call, which has no message to lose.
        drop(self.give_back());
        Ok(Some(message))
    }

    /// Waits for the next message and takes it.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of [`SharedReceiver::try_recv`].
    pub fn recv(&mut self, timeout: Option<Duration>) -> Result<Vec<u8>> {
        let deadline = self.endpoint.core().deadline(timeout);
        loop {
            if let Some(message) = self.try_recv()? {
                return Ok(message);
            }
            let now = self.endpoint.core().now();
            self.check_for_hole(now)?;
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut);
            }
            let until = earlier(now + PROBE_INTERVAL, deadline);
            let there = || Ok(self.is_there()?.then_some(()));
            self.endpoint.core().wait_until(until, there)?;
        }
    }

    /// Returns true if the next message is there: its number is written when all of it is.
    fn is_there(&self) -> Result<bool> {
        let slot = self.geometry.slot_in_segment(self.consumed);
        Ok(self.buffer.load_u64(slot)? == self.consumed + 1)
    }

    /// Checks that the next index, if it is taken, was not taken too long ago.
    fn check_for_hole(&mut self, now: Instant) -> Result<()> {
        if self.buffer.load_u64(TAIL)? == self.consumed {
            self.taken_since = None;
        } else if now - *self.taken_since.get_or_insert(now) >= self.endpoint.peer_timeout() * 2 {
            return Err(self.break_with("a sender has taken an index and brings no message"));
        }
        Ok(())
    }

    fn give_back(&mut self) -> Result<()> {
        while self.unreturned > 0 {
            self.free.signal()?;
            self.unreturned -= 1;
        }
        Ok(())
    }

    fn break_with(&mut self, why: &'static str) -> Error {
        self.broken = Some(why);
        Error::ChannelBroken(why)
    }
}

/// A sending end of a shared queue ([`crate::channel::shared`]). Threads take turns by
/// `&mut`, or have one each.
#[derive(Debug)]
pub struct SharedSender {
    outgoing: Outgoing,
    free: Semaphore,
    /// Its place in the queue of those that wait for a slot.
    place: Place,
    tail: RemoteU64,
}

impl SharedSender {
    /// Becomes a sender to a queue that a process has opened, or opens within `wait`.
    ///
    /// # Errors
    /// [`Error::BadChannel`], and those of [`Endpoint::import`] and [`Endpoint::read`].
    pub fn connect(
        participant: &Participant,
        receiver: (NodeId, Port, SegmentName),
        wait: Duration,
    ) -> Result<Self> {
        let endpoint = participant.endpoint();
        let options = ImportOptions::new(wait).secret(participant.secret());
        let outgoing = Outgoing::connect(endpoint, receiver, options, &SHARED_QUEUE)?;
        Ok(SharedSender {
            free: Semaphore::new(participant, &outgoing.remote, FREE as u64)?,
            place: Place::default(),
            tail: endpoint.atomic(&outgoing.remote, TAIL as u64)?,
            outgoing,
        })
    }

    /// Longest message in bytes.
    pub fn message_bytes(&self) -> usize {
        self.outgoing.geometry.message_bytes
    }

    /// Sends a message; waits for its turn while there is no room. The bytes are copied
    /// before it returns.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::ChannelClosed`], [`Error::PeerLost`],
    /// [`Error::Broken`]: a sender that waited has died. Those of [`crate::AtomicOperation::wait`].
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.check(message)?;
        self.free.wait_at(&mut self.place, None)?;
        self.put(message)
    }

    /// [`SharedSender::send`], which waits for its turn up to `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: nothing was sent. The sender keeps its place in the queue, and its
    /// next message takes it; while it does not come back, those behind it wait. Those of
    /// [`SharedSender::send`].
    pub fn send_timeout(&mut self, message: &[u8], timeout: Duration) -> Result<()> {
        self.check(message)?;
        let deadline = self.outgoing.deadline(timeout);
        self.free.wait_at(&mut self.place, deadline)?;
        self.put(message)
    }

    /// Sends a message if there is room; returns false if there is none.
    ///
    /// # Errors
    /// Those of [`SharedSender::send`].
    pub fn try_send(&mut self, message: &[u8]) -> Result<bool> {
        self.check(message)?;
        let has_slot = match self.place.is_taken() {
            false => self.free.try_wait()?,
            true => {
                let now = self.outgoing.deadline(Duration::ZERO);
                match self.free.wait_at(&mut self.place, now) {
                    Err(Error::TimedOut) => false,
                    waited => waited.map(|_| true)?,
                }
            }
        };
        match has_slot {
            true => self.put(message).map(|()| true),
            false => Ok(false),
        }
    }

    /// Waits until all messages are in the receiver's memory.
    ///
    /// # Errors
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::DeviceGone`], …
    pub fn flush(&mut self) -> Result<()> {
        self.outgoing.flush(None)
    }

    /// [`SharedSender::flush`], which waits up to `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the messages go on; flush again. Those of
    /// [`SharedSender::flush`].
    pub fn flush_timeout(&mut self, timeout: Duration) -> Result<()> {
        let deadline = self.outgoing.deadline(timeout);
        self.outgoing.flush(deadline)
    }

    fn check(&mut self, message: &[u8]) -> Result<()> {
        self.outgoing.check_length(message)?;
        check_end(&mut self.outgoing.end, None)
    }

    /// Sends a message; there is room for it.
    fn put(&mut self, message: &[u8]) -> Result<()> {
        // The message before was written from the same bytes.
        self.flush()?;
        let outgoing = &mut self.outgoing;
        let length = (message.len() as u64).to_le_bytes();
        outgoing.staged.write(8, &length)?;
        outgoing.staged.write(SLOT_HEADER, message)?;
        let index = self.tail.fetch_add(1).wait()?;
        let slot = outgoing.geometry.slot_in_segment(index);
        let source = outgoing.staging.part(8, 8 + message.len());
        let to = (&outgoing.remote, slot + 8);
        outgoing.writes.write(to, source, None, None)?;
        // A receiver that sees the number sees the message, which may lie in several pages.
        outgoing.flush(None)?;
        outgoing.write(slot, &(index + 1).to_le_bytes(), None)
    }
}

impl Drop for SharedSender {
    fn drop(&mut self) {
        self.free.leave(&mut self.place);
        // What was sent arrives before the process may end with its last endpoint.
        drop(self.outgoing.writes.wait_all(None));
    }
}
