//! The receiving end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use super::layout::{
    bytes, words, Geometry, CREDIT_BYTES, HEAD_BYTES, HELLO, HELLO_BYTES, MAGIC, SENDER_CLOSED,
    SLOT_HEADER,
};
use super::{ChannelOptions, End, PROBE_INTERVAL};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::buffer::Buffer;
use crate::memory::segment::{RemoteSegment, Segment};
use crate::notification::handler::Armed;
use crate::notification::{Notification, NotificationId};
use crate::rdma::internal_writes::Flight;

/// The receiving end of a channel ([`crate::channel`]). It keeps its endpoint
/// registered. Threads take turns by `&mut`.
#[derive(Debug)]
pub struct Receiver {
    endpoint: Endpoint,
    geometry: Geometry,
    sent: NotificationId,
    buffer: Buffer,
    // In front of the segment: good-bye is said before it is unexported.
    flight: Flight,
    /// The sender has said hello.
    greeted: bool,
    /// How to reach it.
    peer: Option<Peer>,
    segment: Segment,
    /// Messages consumed.
    consumed: u64,
    /// Consumed since the last replenishment.
    unreturned: usize,
    /// Why no more messages come.
    end: Option<End>,
}

/// The way back to the sender.
#[derive(Debug)]
struct Peer {
    credit: RemoteSegment,
    replenish: NotificationId,
}

/// A message in place. Dropping it frees its slot for the sender.
///
/// A sender that breaks the rules can write to it meanwhile; so bytes are copied
/// out, as of every [`Buffer`].
#[derive(Debug)]
pub struct Message<'r> {
    receiver: &'r mut Receiver,
    length: usize,
}

impl Message<'_> {
    /// Its length in bytes; may be zero.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Says whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len());
        match end {
            Some(end) if end <= self.length => self.receiver.copy(offset, bytes),
            _ => Err(Error::OutOfRange {
                segment: "message",
                segment_length: self.length as u64,
                offset: offset as u64,
                length: bytes.len() as u64,
            }),
        }
    }

    /// Copies all of it out.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // Where it lies was checked when it was taken.
        drop(self.receiver.copy(0, &mut bytes));
        bytes
    }

    /// Address of its first byte, for who answers himself for the races with a
    /// sender that breaks the rules; valid while the message lives.
    pub fn address(&self) -> u64 {
        let slot = self
            .receiver
            .geometry
            .slot_in_segment(self.receiver.consumed);
        self.receiver.buffer.address() + (slot + SLOT_HEADER) as u64
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        self.receiver.free();
    }
}

impl Receiver {
    pub(crate) fn open(
        endpoint: &Endpoint,
        name: SegmentName,
        options: &ChannelOptions,
    ) -> Result<Self> {
        let geometry = Geometry::new(options.slots, options.message_bytes, options.refill)?;
        let endpoint = endpoint.share();
        // Signals that nobody waited for before are not this channel's.
        while endpoint.core().acknowledge(options.sent) {}
        let buffer = endpoint.allocate(geometry.segment_bytes())?;
        let measures = [geometry.slots, geometry.message_bytes, geometry.refill];
        let [slots, message_bytes, refill] = measures.map(|measure| measure as u64);
        let sent = options.sent.number().into();
        let head: [u8; HEAD_BYTES] = bytes([MAGIC, slots, message_bytes, refill, sent]);
        buffer.write(0, &head)?;
        Ok(Receiver {
            flight: Flight::new(endpoint.core()),
            segment: endpoint.export(name, &buffer, Access::READ | Access::WRITE)?,
            endpoint,
            geometry,
            sent: options.sent,
            buffer,
            greeted: false,
            peer: None,
            consumed: 0,
            unreturned: 0,
            end: None,
        })
    }

    /// Name under which senders connect.
    pub fn name(&self) -> SegmentName {
        self.segment.name()
    }

    /// The notification that is signalled for each message and for the end; to be
    /// watched or waited for, not to be acknowledged.
    pub fn notification(&self) -> Notification<'_> {
        self.endpoint.notification(self.sent)
    }

    /// Takes the next message if it is there; never waits for one. Does not find out
    /// whether a silent sender is still there.
    ///
    /// # Errors
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::ChannelBroken`]
    pub fn try_recv(&mut self) -> Result<Option<Message<'_>>> {
        let found = self.look()?;
        Ok(found.map(|length| self.message(length)))
    }

    /// Asks the sender's NIC whether the sender is still there, and waits for the
    /// answer: for who waits by other means than [`Receiver::recv`]. Before a sender
    /// has connected it says yes.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::ChannelClosed`], once all messages that had
    /// arrived are taken; [`Error::DeviceGone`], …
    pub fn check_peer(&mut self) -> Result<()> {
        self.probe()?;
        if let Some(failure) = self.flight.settle()? {
            self.end.get_or_insert(End::of(&failure));
        }
        match self.end {
            Some(end) if !self.notification().test() => Err(end.into()),
            _ => Ok(()),
        }
    }

    /// Waits for the next message and takes it.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::ChannelClosed`], [`Error::PeerLost`],
    /// [`Error::ChannelBroken`], [`Error::DeviceGone`], …
    pub fn recv(&mut self, timeout: Option<Duration>) -> Result<Message<'_>> {
        let length = self.next_length(timeout)?;
        Ok(self.message(length))
    }

    /// Waits for the next message; it stays at hand until it is freed.
    pub(super) fn next_length(&mut self, timeout: Option<Duration>) -> Result<usize> {
        self.await_message(self.core().deadline(timeout))
    }

    /// Copies bytes of the message at hand out.
    pub(super) fn copy(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let start = self.geometry.slot_in_segment(self.consumed) + SLOT_HEADER;
        self.buffer.read(start + offset, bytes)
    }

    /// Lets a handler take all messages, those that are there included, until the
    /// result is dropped: that closes the channel. The last call brings the error
    /// with which the channel ended. A sender that dies silently is not found out.
    ///
    /// # Errors
    /// Those of [`Endpoint::arm`].
    pub fn handle(
        mut self,
        mut handler: impl FnMut(Result<Message<'_>>) + Send + 'static,
    ) -> Result<Armed> {
        let endpoint = self.endpoint.share();
        endpoint.arm(self.sent, move |_| {
            // The dispatcher has acknowledged the signal.
            match self.step() {
                Ok(None) => {}
                Ok(Some(length)) => handler(Ok(self.message(length))),
                Err(error) => handler(Err(error)),
            }
        })
    }

    fn core(&self) -> &Arc<Core> {
        self.endpoint.core()
    }

    pub(crate) fn message(&mut self, length: usize) -> Message<'_> {
        Message {
            receiver: self,
            length,
        }
    }

    /// Length of the message that is taken, if one is there.
    pub(crate) fn look(&mut self) -> Result<Option<usize>> {
        if let Some(end @ End::Broken(_)) = self.end {
            return Err(end.into());
        }
        while self.core().acknowledge(self.sent) {
            if let Some(length) = self.step()? {
                return Ok(Some(length));
            }
        }
        self.end.map_or(Ok(None), |end| Err(end.into()))
    }

    /// Goes on by one signal: the length of a message, or nothing that concerns the
    /// application. Signals come in the order of what they stand for, which is there
    /// by then; what follows may be there in part.
    fn step(&mut self) -> Result<Option<usize>> {
        if !self.greeted {
            return self.greet().map(|()| None);
        }
        let slot = self.geometry.slot_in_segment(self.consumed);
        let [number, length] = words(&self.buffer.read_vec(slot, SLOT_HEADER)?);
        if number == self.consumed + 1 {
            return match usize::try_from(length) {
                Ok(length) if length <= self.geometry.message_bytes => Ok(Some(length)),
                _ => Err(self.broken("a message is longer than its slot")),
            };
        }
        if self.buffer.load_u64(SENDER_CLOSED)? == self.consumed + 1 {
            self.end = Some(End::Closed);
            return Err(Error::ChannelClosed);
        }
        // A signal of somebody else.
        Ok(None)
    }

    /// Answers the hello of the sender.
    fn greet(&mut self) -> Result<()> {
        let hello = self.buffer.read_vec(HELLO, HELLO_BYTES)?;
        let [magic, node_port, replenish, name] = words(&hello);
        if magic != MAGIC {
            return Ok(());
        }
        self.greeted = true;
        let (node, port) = (NodeId(node_port as u16), Port((node_port >> 16) as u16));
        let replenish = u32::try_from(replenish).ok().and_then(NotificationId::new);
        let Some(replenish) = replenish else {
            return Err(self.broken("its hello names no notification"));
        };
        let imported = self
            .endpoint
            .import(node, port, SegmentName(name), Duration::ZERO);
        match imported {
            // A hello can name any segment: only one that looks like a sender's is
            // ever written to.
            Ok(credit) if credit.len() == CREDIT_BYTES as u64 => {
                self.peer = Some(Peer { credit, replenish });
                Ok(())
            }
            Ok(_) => Err(self.broken("its hello names no credit segment")),
            Err(Error::Refused { status, .. }) => {
                self.end = Some(End::Lost(node, port, status));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Notes that the sender breaks the rules.
    fn broken(&mut self, why: &'static str) -> Error {
        let end = End::Broken(why);
        self.end = Some(end);
        end.into()
    }

    fn await_message(&mut self, deadline: Option<Instant>) -> Result<usize> {
        loop {
            if let Some(length) = self.look()? {
                return Ok(length);
            }
            let probe = self.core().now() + PROBE_INTERVAL;
            let until = deadline.map_or(probe, |deadline| deadline.min(probe));
            let (core, flight, sent) = (self.core(), &self.flight, self.sent);
            let waited = core.wait_for(Some(until), || {
                let news = core.pending(sent) > 0 || flight.has_news();
                Ok(news.then_some(()))
            });
            let over = deadline.is_some_and(|deadline| self.core().now() >= deadline);
            match waited {
                Err(Error::TimedOut) if over => return self.look()?.ok_or(Error::TimedOut),
                Err(Error::TimedOut) => self.probe()?,
                Ok(()) => {}
                Err(error) => return Err(error),
            }
            self.reap()?;
        }
    }

    /// Asks whether the sender is there; [`Receiver::reap`] gets the answer.
    fn probe(&mut self) -> Result<()> {
        match &self.peer {
            Some(peer) if self.flight.is_empty() => {
                self.flight.write(&peer.credit, 0, b"".into(), None)
            }
            _ => Ok(()),
        }
    }

    fn reap(&mut self) -> Result<()> {
        let Some(failure) = self.flight.reap()? else {
            return Ok(());
        };
        // A good-bye, if there was one, has arrived before: its signal is pending.
        self.end.get_or_insert(End::of(&failure));
        Ok(())
    }

    /// The message at hand is consumed.
    pub(super) fn free(&mut self) {
        self.consumed += 1;
        self.unreturned += 1;
        if self.unreturned < self.geometry.refill {
            return;
        }
        self.unreturned = 0;
        // What it cannot report now it finds again in the next call.
        drop(self.reap());
        if let Some(Peer { credit, replenish }) = &self.peer {
            let source = b"".into();
            // What cannot be issued cannot be awaited by a sender either: device or
            // queue are broken, which the next call reports.
            drop(self.flight.write(credit, 0, source, Some(*replenish)));
        }
    }
}

impl Drop for Receiver {
    /// Tells a sender that waits for credit, before the process may end with its last
    /// endpoint.
    fn drop(&mut self) {
        if let Some(Peer { credit, replenish }) = &self.peer {
            let closed = 1u64.to_le_bytes();
            let goodbye = (&closed).into();
            drop(self.flight.write(credit, 0, goodbye, Some(*replenish)));
        }
        drop(self.flight.settle());
    }
}
