//! The receiving end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use super::layout::{
    words, Geometry, CREDIT_BYTES, HELLO, HELLO_BYTES, MAGIC, SENDER_CLOSED, SLOT_HEADER,
};
use super::{await_signal, check_end, ChannelOptions, End, Wakeup};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{Buffer, ExportOptions, RemoteSegment, Segment};
use crate::notification::{Armed, Notification, NotificationId};
use crate::rdma::internal_writes::InternalWrites;

/// The receiving end of a channel ([`crate::channel`]). It keeps its endpoint
/// registered. Threads take turns by `&mut`.
#[derive(Debug)]
pub struct Receiver {
    endpoint: Endpoint,
    geometry: Geometry,
    sent: NotificationId,
    buffer: Buffer,
    // Before the segment: the channel is closed before the segment is unexported.
    writes: InternalWrites,
    /// The hello of the sender has arrived.
    connected: bool,
    /// How to reach the sender.
    peer: Option<Peer>,
    segment: Segment,
    consumed: u64,
    /// Consumed since the last replenishment.
    unreturned: usize,
    /// Why no more messages come.
    end: Option<End>,
}

/// The sender, as its hello names it.
#[derive(Debug)]
struct Peer {
    credit: RemoteSegment,
    replenish: NotificationId,
}

/// A message in place. Dropping it frees its slot for the sender.
///
/// A sender that violates the protocol can write to it meanwhile. So bytes are copied out,
/// as from every [`Buffer`].
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

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let (size, length) = (self.length as u64, bytes.len() as u64);
        Error::check_range("message", size, offset as u64, length)?;
        self.receiver.copy(offset, bytes)
    }

    /// Copies all of it out.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // Its range was checked when it was taken.
        drop(self.receiver.copy(0, &mut bytes));
        bytes
    }

    /// Address of its first byte, valid while the message lives. The caller handles races
    /// with a sender that violates the protocol.
    pub fn address(&self) -> u64 {
        let receiver = &self.receiver;
        receiver.buffer.address() + receiver.message_offset() as u64
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        self.receiver.free();
    }
}

impl Receiver {
    /// Opens the receiving end of a channel under a name (N19).
    ///
    /// # Errors
    /// [`Error::BadChannel`], and those of [`Endpoint::export`].
    pub fn open(endpoint: &Endpoint, name: SegmentName, options: &ChannelOptions) -> Result<Self> {
        let geometry = Geometry::new(options.slots, options.message_bytes, options.refill)?;
        let endpoint = endpoint.share();
        // Earlier signals do not belong to this channel.
        endpoint.core().clear_signals(options.sent);
        let buffer = endpoint.allocate(geometry.segment_bytes())?;
        buffer.write(0, &geometry.head(MAGIC, options.sent))?;
        let grants = ExportOptions::new(Access::READ | Access::WRITE)
            .importers(options.importers.clone())
            .notifications(options.sent);
        Ok(Receiver {
            writes: InternalWrites::new(endpoint.core()),
            segment: endpoint.export(name, &buffer, grants)?,
            endpoint,
            geometry,
            sent: options.sent,
            buffer,
            connected: false,
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

    /// Takes the next message if it is there; never waits for one. Does not notice a
    /// sender that dies silently.
    ///
    /// # Errors
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::ChannelBroken`]
    pub fn try_recv(&mut self) -> Result<Option<Message<'_>>> {
        let found = self.look()?;
        Ok(found.map(|length| self.message(length)))
    }

    /// Asks the sender's NIC whether the sender is still there, and waits for the answer:
    /// for programs that wait by other means than [`Receiver::recv`]. Returns `Ok` while
    /// no sender has connected.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::ChannelClosed`], once all messages that had
    /// arrived are taken; [`Error::DeviceGone`], …
    pub fn check_peer(&mut self) -> Result<()> {
        self.check_peer_until(None)
    }

    /// [`Receiver::check_peer`], which waits up to `timeout` for the answer.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: there is no answer yet; the next call waits for the same one. Those
    /// of [`Receiver::check_peer`].
    pub fn check_peer_timeout(&mut self, timeout: Duration) -> Result<()> {
        let deadline = self.core().deadline(Some(timeout));
        self.check_peer_until(deadline)
    }

    fn check_peer_until(&mut self, deadline: Option<Instant>) -> Result<()> {
        self.probe()?;
        let failure = self.writes.wait_all(deadline)?;
        let end = check_end(&mut self.end, failure.as_ref());
        match self.notification().test() {
            true => Ok(()),
            false => end,
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

    /// Waits for the next message, which is then the current one until it is freed.
    pub(super) fn next_length(&mut self, timeout: Option<Duration>) -> Result<usize> {
        let deadline = self.core().deadline(timeout);
        loop {
            if let Some(length) = self.look()? {
                return Ok(length);
            }
            match await_signal(self.core(), self.sent, &self.writes, deadline)? {
                Wakeup::Deadline => return self.look()?.ok_or(Error::TimedOut),
                Wakeup::Silence => self.probe()?,
                Wakeup::Event => {}
            }
            self.reap()?;
        }
    }

    /// Copies bytes of the current message out.
    pub(super) fn copy(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.buffer.read(self.message_offset() + offset, bytes)
    }

    /// Offset of the current message.
    fn message_offset(&self) -> usize {
        self.geometry.slot_in_segment(self.consumed) + SLOT_HEADER
    }

    /// Calls a handler for all messages, those that are there included, until the result
    /// is dropped: that closes the channel. The last call gets the error with which the
    /// channel ended. It does not notice a sender that dies silently.
    ///
    /// # Errors
    /// Those of [`Notification::arm`].
    pub fn handle(
        mut self,
        mut handler: impl FnMut(Result<Message<'_>>) + Send + 'static,
    ) -> Result<Armed> {
        let endpoint = self.endpoint.share();
        endpoint.notification(self.sent).arm(move |_| {
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

    /// Takes the next message, if one is there; returns its length.
    pub(crate) fn look(&mut self) -> Result<Option<usize>> {
        if let Some(end @ End::Broken(_)) = self.end {
            return Err(end.into());
        }
        while self.core().acknowledge(self.sent) {
            if let Some(length) = self.step()? {
                return Ok(Some(length));
            }
        }
        check_end(&mut self.end, None).map(|()| None)
    }

    /// Handles one signal; returns the length of the message that it announces, or `None`
    /// if it announces something else. Signals come in the order of the writes that they
    /// announce, which are complete by then; later writes may be there in part.
    fn step(&mut self) -> Result<Option<usize>> {
        if !self.connected {
            return self.handle_hello().map(|()| None);
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
        // A signal of another process.
        Ok(None)
    }

    /// Imports the segment that the sender's hello names.
    fn handle_hello(&mut self) -> Result<()> {
        let hello = self.buffer.read_vec(HELLO, HELLO_BYTES)?;
        let [magic, node_port, replenish, name] = words(&hello);
        if magic != MAGIC {
            return Ok(());
        }
        self.connected = true;
        let (node, port) = (NodeId(node_port as u16), Port((node_port >> 16) as u16));
        let replenish = u32::try_from(replenish).ok().and_then(NotificationId::new);
        let Some(replenish) = replenish else {
            return Err(self.broken("its hello names no notification"));
        };
        let imported = self
            .endpoint
            .import(node, port, SegmentName(name), Duration::ZERO);
        match imported {
            // A hello can name any segment. Only one that looks like a sender's is ever
            // written to.
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

    /// Notes that the sender violates the protocol.
    fn broken(&mut self, why: &'static str) -> Error {
        let end = End::Broken(why);
        self.end = Some(end);
        end.into()
    }

    /// Asks whether the sender is there; [`Receiver::reap`] gets the answer.
    fn probe(&mut self) -> Result<()> {
        match &self.peer {
            Some(peer) if self.writes.is_empty() => {
                let credit = (&peer.credit, 0);
                self.writes.write(credit, b"", None, None)
            }
            _ => Ok(()),
        }
    }

    fn reap(&mut self) -> Result<()> {
        if let Some(failure) = self.writes.reap()? {
            // If the sender has closed the channel before, the signal of that is pending.
            self.end.get_or_insert(End::of(&failure));
        }
        Ok(())
    }

    /// Frees the current message.
    pub(super) fn free(&mut self) {
        self.consumed += 1;
        self.unreturned += 1;
        if self.unreturned < self.geometry.refill {
            return;
        }
        self.unreturned = 0;
        // The next call reports what this one cannot.
        drop(self.reap());
        if let Some(Peer { credit, replenish }) = &self.peer {
            // If this fails, the device or the queue is broken. Then the sender cannot
            // wait for it either, and the next call reports it.
            let credit = (credit, 0);
            drop(self.writes.write(credit, b"", Some(*replenish), None));
        }
    }
}

impl Drop for Receiver {
    /// Tells a sender that waits for credit, before the process may end with its last
    /// endpoint.
    fn drop(&mut self) {
        if let Some(Peer { credit, replenish }) = &self.peer {
            let closed = 1u64.to_le_bytes();
            let credit = (credit, 0);
            drop(self.writes.write(credit, &closed, Some(*replenish), None));
        }
        drop(self.writes.wait_all(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake_nic::FakeNic;
    use crate::Status;

    #[test]
    fn a_question_that_timed_out_is_asked_once() {
        const NOW: Duration = Duration::ZERO;
        let (fake, nic) = FakeNic::new();
        let endpoint = nic.register(Port(9)).unwrap();
        let one = NotificationId::new(1).unwrap();
        let options = ChannelOptions::new(4, 64, one);
        let mut receiver = Receiver::open(&endpoint, SegmentName(3), &options).unwrap();
        let credit = endpoint.import(NodeId(1), Port(2), SegmentName(6), NOW);
        receiver.peer = Some(Peer {
            credit: credit.unwrap(),
            replenish: one,
        });
        for _ in 0..3 {
            let asked = receiver.check_peer_timeout(NOW);
            assert!(matches!(asked, Err(Error::TimedOut)));
        }
        assert_eq!(fake.serve(Status::Ok), 1);
        receiver.check_peer_timeout(NOW).unwrap();
        let asked = receiver.check_peer_timeout(NOW);
        assert!(matches!(asked, Err(Error::TimedOut)));
        fake.serve(Status::PeerGone);
        let gone = receiver.check_peer_timeout(NOW);
        assert!(matches!(gone, Err(Error::PeerLost { .. })));
        receiver.peer = None;
    }
}
