//! Shared queues: the messages of many senders in one queue, in memory of their
//! receiver that need not be resident (N26).
//!
//! ```text
//!   SharedSender, any number of them                      SharedReceiver
//!   SemaphoreP: waits for a free slot ──────────────────► free ◄── SemaphoreV: consumed
//!   FetchAdd: takes the next place ─────────────────────► tail
//!   writes the message, waits until it is there ────────► slot of that place
//!   writes the number of the place, signals `sent` ─────►   └──► recv, in the order of places
//! ```
//!
//! A channel has slots for each sender, and its sender writes without asking. Here the
//! memory is the same for any number of senders, and each message takes three round trips.
//! The semaphore lets senders in by the order in which they came, so a busy one starves
//! nobody; the messages of each arrive in their order.
//!
//! # Ends
//! Senders come and go as they please. When the receiver is gone, they get the error of
//! their operation. A sender that dies between two messages harms nobody; one that dies
//! while it waits for a slot breaks the queue for those who wait behind it
//! ([`Error::Broken`]); one that dies with a slot takes that along; and one that dies with
//! a place leaves a hole that no message can be received behind: the receiver learns after
//! [`HOLE_LIMIT`], and opens another queue.

use std::time::{Duration, Instant};

use qnic_abi::atomic::WaitQueue as Structure;
use qnic_abi::{Access, NodeId, Port, SegmentName};
use zerocopy::IntoBytes;

use super::layout::{bytes, words, Geometry, HEAD_BYTES, SLOT_HEADER};
use super::sender::export;
use super::{End, PROBE_INTERVAL};
use crate::atomic::RemoteU64;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result, TransferError};
use crate::memory::buffer::Buffer;
use crate::memory::segment::{RemoteSegment, Segment};
use crate::notification::{Notification, NotificationId};
use crate::rdma::internal_writes::Flight;
use crate::sync::{Participant, Semaphore};

/// First word of a head: "qnicmany".
const MAGIC: u64 = u64::from_le_bytes(*b"qnicmany");
/// Offset of the semaphore of free slots, behind the head.
const FREE: usize = 0x40;
/// Offset of the number of places that were taken.
const TAIL: usize = 0x80;

/// How long a place may be taken without a message in it.
pub const HOLE_LIMIT: Duration = Duration::from_secs(10);

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
    /// Messages consumed.
    consumed: u64,
    /// Slots that could not be given back yet.
    unreturned: u32,
    /// Since when the next place is known to be taken.
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
        // Signals that nobody waited for before are not this queue's.
        while endpoint.core().acknowledge(sent) {}
        let buffer = endpoint.allocate(geometry.segment_bytes())?;
        let measures = [geometry.slots, geometry.message_bytes].map(|measure| measure as u64);
        let head: [u8; HEAD_BYTES] =
            bytes([MAGIC, measures[0], measures[1], sent.number().into(), 0]);
        buffer.write(0, &head)?;
        let free = Structure {
            value: slots.into(),
            ..Structure::default()
        };
        buffer.write(FREE, free.as_bytes())?;
        // Senders find it complete.
        let segment = endpoint.export(name, &buffer, Access::READ | Access::WRITE)?;
        let home = endpoint.import(endpoint.node(), endpoint.port(), name, Duration::ZERO)?;
        Ok(SharedReceiver {
            free: Semaphore::new(participant, &home, FREE as u64)?,
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
    /// [`Error::ChannelBroken`]: a sender has died with its place, or breaks the rules;
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
            self.look_for_hole(now)?;
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut);
            }
            let look = now + PROBE_INTERVAL;
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            let there = || Ok(self.is_there()?.then_some(()));
            match self.endpoint.core().wait_for(Some(until), there) {
                Ok(()) | Err(Error::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Says whether the next message is there. Its number is written when all of it is.
    fn is_there(&self) -> Result<bool> {
        let slot = self.geometry.slot_in_segment(self.consumed);
        Ok(self.buffer.load_u64(slot)? == self.consumed + 1)
    }

    /// Checks that the next place, if it is taken, was not taken too long ago.
    fn look_for_hole(&mut self, now: Instant) -> Result<()> {
        if self.buffer.load_u64(TAIL)? == self.consumed {
            self.taken_since = None;
        } else if now - *self.taken_since.get_or_insert(now) >= HOLE_LIMIT {
            return Err(self.break_with("a sender has taken a place and brings no message"));
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
    geometry: Geometry,
    sent: NotificationId,
    remote: RemoteSegment,
    free: Semaphore,
    tail: RemoteU64,
    // In front of what it writes from.
    flight: Flight,
    staging: Segment,
    staged: Buffer,
    end: Option<End>,
}

impl SharedSender {
    /// Becomes a sender to a queue that a process has opened, or opens within `wait`.
    ///
    /// # Errors
    /// [`Error::BadChannel`], and those of [`Endpoint::import`] and [`Endpoint::read`].
    pub fn connect(
        participant: &Participant,
        (node, port, name): (NodeId, Port, SegmentName),
        wait: Duration,
    ) -> Result<Self> {
        let endpoint = participant.endpoint();
        let remote = endpoint.import(node, port, name, wait)?;
        let head = endpoint.allocate(HEAD_BYTES)?;
        let (segment, _) = export(endpoint, &head, Access::WRITE)?;
        endpoint
            .read(&remote, 0, segment.part(0, HEAD_BYTES))?
            .wait()?;
        let [magic, slots, message_bytes, sent] = words(&head.read_vec(0, 32)?);
        if magic != MAGIC {
            return Err(Error::BadChannel("that segment is no shared queue"));
        }
        let [slots, message_bytes] =
            [slots, message_bytes].map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        let geometry = Geometry::new(slots, message_bytes, 1)?;
        let sent = u32::try_from(sent).ok().and_then(NotificationId::new);
        let Some(sent) = sent.filter(|_| geometry.segment_bytes() as u64 <= remote.len()) else {
            return Err(Error::BadChannel("its head contradicts itself"));
        };
        let staged = endpoint.allocate(SLOT_HEADER + message_bytes)?;
        let (staging, _) = export(endpoint, &staged, Access::READ)?;
        Ok(SharedSender {
            free: Semaphore::new(participant, &remote, FREE as u64)?,
            tail: endpoint.atomic_u64(&remote, TAIL as u64)?,
            flight: Flight::new(endpoint.core()),
            geometry,
            sent,
            remote,
            staging,
            staged,
            end: None,
        })
    }

    /// Longest message in bytes.
    pub fn message_bytes(&self) -> usize {
        self.geometry.message_bytes
    }

    /// Sends a message; waits for its turn while there is no room. The bytes are copied
    /// before it returns.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::ChannelClosed`], [`Error::PeerLost`],
    /// [`Error::Broken`]: a sender that waited has died. Those of [`crate::RemoteWord`].
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.check(message)?;
        self.free.wait()?;
        self.put(message)
    }

    /// Sends a message if there is room; `false` if there is none.
    ///
    /// # Errors
    /// Those of [`SharedSender::send`].
    pub fn try_send(&mut self, message: &[u8]) -> Result<bool> {
        self.check(message)?;
        match self.free.try_wait()? {
            true => self.put(message).map(|()| true),
            false => Ok(false),
        }
    }

    /// Waits until all messages are in the receiver's memory.
    ///
    /// # Errors
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::DeviceGone`], …
    pub fn flush(&mut self) -> Result<()> {
        let failure = self.flight.settle()?;
        self.judge(failure.as_ref())
    }

    fn check(&self, message: &[u8]) -> Result<()> {
        if message.len() > self.geometry.message_bytes {
            return Err(Error::MessageTooLong {
                length: message.len(),
                limit: self.geometry.message_bytes,
            });
        }
        self.judged()
    }

    /// Sends a message; there is room for it.
    fn put(&mut self, message: &[u8]) -> Result<()> {
        // The message before was written from the same bytes.
        self.flush()?;
        let length = (message.len() as u64).to_le_bytes();
        self.staged.write(8, &length)?;
        self.staged.write(SLOT_HEADER, message)?;
        let place = self.tail.fetch_add(1)?;
        let slot = self.geometry.slot_in_segment(place);
        let source = self.staging.part(8, 8 + message.len());
        self.flight
            .write(&self.remote, slot + 8, source.into(), None)?;
        // Who sees the number sees the message: it may lie in several pages.
        self.flush()?;
        let number = (place + 1).to_le_bytes();
        let number = (&number).into();
        self.flight
            .write(&self.remote, slot, number, Some(self.sent))
    }

    fn judge(&mut self, failure: Option<&TransferError>) -> Result<()> {
        if let Some(failure) = failure {
            self.end.get_or_insert(End::of(failure));
        }
        self.judged()
    }

    fn judged(&self) -> Result<()> {
        self.end.map_or(Ok(()), |end| Err(end.into()))
    }
}

impl Drop for SharedSender {
    fn drop(&mut self) {
        // What was sent arrives before the process may end with its last endpoint.
        drop(self.flight.settle());
    }
}
