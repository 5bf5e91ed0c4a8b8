//! The sending end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use super::layout::{
    bytes, Geometry, CREDIT_BYTES, HELLO, HELLO_BYTES, MAGIC, SENDER_CLOSED, SLOT_HEADER,
};
use super::outgoing::{export, nothing_sent, Kind, Outgoing};
use super::{await_signal, check_end, End, Wakeup};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{Buffer, ExportOptions, ImportOptions, Importer, Segment};
use crate::notification::NotificationId;

const CHANNEL: Kind = Kind {
    magic: MAGIC,
    no_such: "that segment is no channel",
    staged_bytes: Geometry::slots_bytes,
};

/// The sending end of a channel ([`crate::channel`]). It keeps its endpoint
/// registered. Threads take turns by `&mut`: a message is one call.
#[derive(Debug)]
pub struct Sender {
    core: Arc<Core>,
    outgoing: Outgoing,
    /// Own notification: the receiver has consumed `refill` messages.
    replenish: NotificationId,
    credit: Buffer,
    _credit: Segment,
    messages: u64,
    /// Messages that the receiver has room for, now.
    credits: u64,
    /// It has told the receiver that no more messages come.
    closing: bool,
}

impl Sender {
    /// Becomes the sending end of a channel that a process has opened, or opens within the
    /// time of `options` (N19). These are a [`Duration`], or [`ImportOptions`] with the secret
    /// that the receiver asks for. `replenish` is a notification of this process that the channel
    /// signals when there is room for more messages.
    ///
    /// # Errors
    /// [`Error::BadChannel`](crate::Error::BadChannel), and those of [`Endpoint::import`] and
    /// [`Endpoint::read`].
    pub fn connect(
        endpoint: &Endpoint,
        receiver: (NodeId, Port, SegmentName),
        replenish: NotificationId,
        options: impl Into<ImportOptions>,
    ) -> Result<Self> {
        let outgoing = Outgoing::connect(endpoint, receiver, options.into(), &CHANNEL)?;
        // Earlier signals do not belong to this channel.
        endpoint.core().clear_signals(replenish);
        let credit = endpoint.allocate(CREDIT_BYTES)?;
        // Only the receiver has to reach it.
        let (node, port, _) = receiver;
        let options = ExportOptions::new(Access::WRITE)
            .importers(&[Importer::Process(node, port)])
            .notifications(replenish);
        let (credit_segment, credit_name) = export(endpoint, &credit, options)?;
        let mut sender = Sender {
            core: endpoint.core().clone(),
            credits: outgoing.geometry.slots as u64 - 1,
            outgoing,
            replenish,
            credit,
            _credit: credit_segment,
            messages: 0,
            closing: false,
        };
        let own = u64::from(endpoint.node().0) | u64::from(endpoint.port().0) << 16;
        let hello: [u8; HELLO_BYTES] =
            bytes([MAGIC, own, replenish.number().into(), credit_name.0]);
        sender.outgoing.write(HELLO, &hello, None)?;
        Ok(sender)
    }

    /// Longest message in bytes.
    pub fn message_bytes(&self) -> usize {
        self.outgoing.geometry.message_bytes
    }

    /// Returns true if a message can be sent without waiting for credit.
    pub fn has_credit(&mut self) -> bool {
        let geometry = &self.outgoing.geometry;
        while self.core.acknowledge(self.replenish) {
            // A receiver that replenishes too much could only lose its own messages.
            let credits = self.credits + geometry.refill as u64;
            self.credits = credits.min(geometry.slots as u64 - 1);
        }
        self.credits > 0
    }

    /// Sends a message; waits while the receiver has no room for it. The bytes are
    /// copied before it returns.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::TimedOut`] (nothing was sent),
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::DeviceGone`], …
    pub fn send(&mut self, message: &[u8], timeout: Option<Duration>) -> Result<()> {
        self.outgoing.check_length(message)?;
        if self.closing {
            return Err(Error::ChannelClosed);
        }
        self.check()?;
        let deadline = self.core.deadline(timeout);
        self.await_credit(deadline)?;
        let outgoing = &mut self.outgoing;
        let slot = outgoing.geometry.slot(self.messages);
        let offset = outgoing.geometry.slot_in_segment(self.messages);
        let header: [u8; SLOT_HEADER] = bytes([self.messages + 1, message.len() as u64]);
        outgoing.staged.write(slot, &header)?;
        outgoing.staged.write(slot + SLOT_HEADER, message)?;
        let source = outgoing.staging.part(slot, SLOT_HEADER + message.len());
        let (to, sent) = ((&outgoing.remote, offset), Some(outgoing.sent));
        let written = outgoing.writes.write(to, source, sent, deadline);
        written.map_err(nothing_sent)?;
        self.messages += 1;
        self.credits -= 1;
        Ok(())
    }

    /// Waits until all messages are in the receiver's memory.
    ///
    /// # Errors
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::DeviceGone`], …
    pub fn flush(&mut self) -> Result<()> {
        self.outgoing.flush(None)
    }

    /// [`Sender::flush`], which waits up to `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the messages go on; flush again. Those of [`Sender::flush`].
    pub fn flush_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.outgoing.flush(self.core.deadline(Some(timeout)))
    }

    /// Ends the channel after what was sent, and returns an error unless all of it
    /// arrived. Dropping the sender does the same without a result; both wait until the
    /// last writes have ended.
    ///
    /// # Errors
    /// Those of [`Sender::flush`].
    pub fn close(mut self) -> Result<()> {
        check_end(&mut self.outgoing.end, None)?;
        self.finish(None)
    }

    /// [`Sender::close`], which waits up to `timeout`. A drop afterwards waits without limit.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: not all of it is known to have arrived; close again. No more
    /// messages can be sent ([`Error::ChannelClosed`]). Those of [`Sender::flush`].
    pub fn close_timeout(&mut self, timeout: Duration) -> Result<()> {
        if !self.closing {
            check_end(&mut self.outgoing.end, None)?;
        }
        self.finish(self.core.deadline(Some(timeout)))
    }

    fn finish(&mut self, deadline: Option<Instant>) -> Result<()> {
        if self.outgoing.end.is_some() {
            return Ok(());
        }
        if !self.closing {
            let closed = (self.messages + 1).to_le_bytes();
            self.outgoing.write(SENDER_CLOSED, &closed, deadline)?;
            self.closing = true;
        }
        self.outgoing.flush(deadline)?;
        self.outgoing.end = Some(End::Closed);
        Ok(())
    }

    /// Looks at what has become of earlier messages.
    fn check(&mut self) -> Result<()> {
        let Outgoing { writes, end, .. } = &mut self.outgoing;
        let failure = writes.reap()?;
        // Behind the look at the writes: a receiver that closes says so before its memory goes.
        if self.credit.load_u64(0)? != 0 {
            end.get_or_insert(End::Closed);
        }
        check_end(end, failure.as_ref())
    }

    fn await_credit(&mut self, deadline: Option<Instant>) -> Result<()> {
        while !self.has_credit() {
            let writes = &self.outgoing.writes;
            match await_signal(&self.core, self.replenish, writes, deadline)? {
                Wakeup::Deadline if !self.has_credit() => return Err(Error::TimedOut),
                Wakeup::Silence => self.outgoing.probe()?,
                _ => {}
            }
            self.check()?;
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // `close` reports what this cannot.
        drop(self.finish(None));
        // Staged messages stay exported until the NIC has fetched them.
        drop(self.outgoing.writes.wait_all(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::layout::Geometry;
    use crate::memory::RemoteSegment;
    use crate::rdma::internal_writes::InternalWrites;
    use crate::tests::fake_nic::FakeNic;
    use crate::Status;

    const NOW: Duration = Duration::ZERO;

    /// A sender that has connected to a receiver of so many slots.
    fn sender(endpoint: &Endpoint, remote: RemoteSegment, slots: usize) -> Sender {
        let geometry = Geometry::new(slots, 64, 1).unwrap();
        let (staged, credit) = (endpoint.allocate(4096), endpoint.allocate(CREDIT_BYTES));
        let (staged, credit) = (staged.unwrap(), credit.unwrap());
        let (staging, _) = export(endpoint, &staged, Access::READ.into()).unwrap();
        let (credit_segment, _) = export(endpoint, &credit, Access::WRITE.into()).unwrap();
        let one = NotificationId::new(1).unwrap();
        Sender {
            core: endpoint.core().clone(),
            outgoing: Outgoing {
                geometry,
                sent: one,
                remote,
                writes: InternalWrites::new(endpoint.core()),
                staging,
                staged,
                end: None,
            },
            replenish: one,
            credit,
            _credit: credit_segment,
            messages: 0,
            credits: slots as u64 - 1,
            closing: false,
        }
    }

    #[test]
    fn a_flush_and_a_close_that_timed_out_go_on() {
        let (fake, nic) = FakeNic::new();
        let endpoint = nic.register(Port(9)).unwrap();
        let name = SegmentName(6);
        let remote = endpoint.import(NodeId(1), Port(2), name, NOW).unwrap();
        let mut sender = sender(&endpoint, remote, 2);
        sender.send(b"message", Some(NOW)).unwrap();
        for _ in 0..2 {
            assert!(matches!(sender.flush_timeout(NOW), Err(Error::TimedOut)));
        }
        assert_eq!(fake.serve(Status::Ok), 1, "nothing was sent again");
        sender.flush_timeout(NOW).unwrap();
        let full = sender.send(b"message", Some(NOW));
        assert!(matches!(full, Err(Error::TimedOut)), "it has no credit");
        for _ in 0..2 {
            assert!(matches!(sender.close_timeout(NOW), Err(Error::TimedOut)));
            let closed = sender.send(b"message", Some(NOW));
            assert!(matches!(closed, Err(Error::ChannelClosed)));
        }
        assert_eq!(fake.serve(Status::Ok), 1, "the end was told once");
        sender.close_timeout(NOW).unwrap();
        sender.close_timeout(NOW).unwrap();
    }

    /// The receiver's memory goes away under a write: its process was killed, unless it has said
    /// that it closes.
    #[test]
    fn an_aborted_write_tells_of_a_lost_receiver_unless_that_has_closed() {
        for closed in [false, true] {
            let (fake, nic) = FakeNic::new();
            let endpoint = nic.register(Port(9)).unwrap();
            let name = SegmentName(6);
            let remote = endpoint.import(NodeId(1), Port(2), name, NOW).unwrap();
            let mut sender = sender(&endpoint, remote, 4);
            sender.send(b"message", Some(NOW)).unwrap();
            assert_eq!(fake.serve(Status::Aborted), 1);
            sender.credit.store_u64(0, closed.into()).unwrap();
            let end = sender.send(b"message", Some(NOW)).unwrap_err();
            match closed {
                true => assert!(matches!(end, Error::ChannelClosed)),
                false => assert!(matches!(end, Error::PeerLost { .. })),
            }
            // What its drop writes has a NIC that answers.
            fake.serve(Status::Ok);
        }
    }
}
