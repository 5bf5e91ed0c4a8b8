//! The sending end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use super::layout::{
    bytes, Geometry, CREDIT_BYTES, HELLO, HELLO_BYTES, MAGIC, SENDER_CLOSED, SLOT_HEADER,
};
use super::outgoing::{export, Kind, Outgoing};
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
}

impl Sender {
    pub(super) fn connect(
        endpoint: &Endpoint,
        receiver: (NodeId, Port, SegmentName),
        replenish: NotificationId,
        options: ImportOptions,
    ) -> Result<Self> {
        let outgoing = Outgoing::connect(endpoint, receiver, options, &CHANNEL)?;
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
        };
        let own = u64::from(endpoint.node().0) | u64::from(endpoint.port().0) << 16;
        let hello: [u8; HELLO_BYTES] =
            bytes([MAGIC, own, replenish.number().into(), credit_name.0]);
        sender.outgoing.write(HELLO, &hello)?;
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
        self.check()?;
        self.await_credit(self.core.deadline(timeout))?;
        let outgoing = &mut self.outgoing;
        let slot = outgoing.geometry.slot(self.messages);
        let offset = outgoing.geometry.slot_in_segment(self.messages);
        let header: [u8; SLOT_HEADER] = bytes([self.messages + 1, message.len() as u64]);
        outgoing.staged.write(slot, &header)?;
        outgoing.staged.write(slot + SLOT_HEADER, message)?;
        let source = outgoing.staging.part(slot, SLOT_HEADER + message.len());
        let (remote, sent) = (&outgoing.remote, Some(outgoing.sent));
        outgoing.writes.write(remote, offset, source, sent)?;
        self.messages += 1;
        self.credits -= 1;
        Ok(())
    }

    /// Waits until all messages are in the receiver's memory.
    ///
    /// # Errors
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::DeviceGone`], …
    pub fn flush(&mut self) -> Result<()> {
        self.outgoing.flush()
    }

    /// Ends the channel after what was sent, and returns an error unless all of it
    /// arrived. Dropping the sender does the same without a result; both wait until the
    /// last writes have ended.
    ///
    /// # Errors
    /// Those of [`Sender::flush`].
    pub fn close(mut self) -> Result<()> {
        check_end(&mut self.outgoing.end, None)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        if self.outgoing.end.is_some() {
            return Ok(());
        }
        let closed = (self.messages + 1).to_le_bytes();
        self.outgoing.write(SENDER_CLOSED, &closed)?;
        self.flush()?;
        self.outgoing.end = Some(End::Closed);
        Ok(())
    }

    /// Looks at what has become of earlier messages.
    fn check(&mut self) -> Result<()> {
        let Outgoing { writes, end, .. } = &mut self.outgoing;
        if self.credit.load_u64(0)? != 0 {
            end.get_or_insert(End::Closed);
        }
        let failure = writes.reap()?;
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
        drop(self.finish());
        // Staged messages stay exported until the NIC has fetched them.
        drop(self.outgoing.writes.wait_all());
    }
}
