//! The sending end.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use super::layout::{
    bytes, words, Geometry, CREDIT_BYTES, HEAD_BYTES, HELLO, HELLO_BYTES, MAGIC, SENDER_CLOSED,
    SLOT_HEADER,
};
use super::{End, PROBE_INTERVAL};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result, TransferError};
use crate::memory::buffer::Buffer;
use crate::memory::segment::{RemoteSegment, Segment};
use crate::notification::NotificationId;
use crate::rdma::internal_writes::Flight;

/// The sending end of a channel ([`crate::channel`]). It keeps its endpoint
/// registered. Threads take turns by `&mut`: a message is one call.
#[derive(Debug)]
pub struct Sender {
    core: Arc<Core>,
    geometry: Geometry,
    /// Notification of the receiver for each message.
    sent: NotificationId,
    /// Own notification: the receiver has consumed `refill` messages.
    replenish: NotificationId,
    remote: RemoteSegment,
    // In front of what it writes from.
    flight: Flight,
    credit: Buffer,
    _credit: Segment,
    staging: Segment,
    staged: Buffer,
    /// Messages sent.
    messages: u64,
    /// Messages that the receiver has room for, now.
    credits: u64,
    /// Why no more messages can be sent.
    end: Option<End>,
}

impl Sender {
    pub(crate) fn connect(
        endpoint: &Endpoint,
        (node, port, name): (NodeId, Port, SegmentName),
        replenish: NotificationId,
        wait: Duration,
    ) -> Result<Self> {
        let remote = endpoint.import(node, port, name, wait)?;
        let (geometry, sent) = read_head(endpoint, &remote)?;
        // Signals that nobody waited for before are not this channel's.
        while endpoint.core().acknowledge(replenish) {}
        let credit = endpoint.allocate(CREDIT_BYTES)?;
        let (credit_segment, credit_name) = export(endpoint, &credit, Access::WRITE)?;
        let staged = endpoint.allocate(geometry.slots_bytes())?;
        let (staging, _) = export(endpoint, &staged, Access::READ)?;
        let mut sender = Sender {
            core: endpoint.core().clone(),
            geometry,
            sent,
            replenish,
            remote,
            flight: Flight::new(endpoint.core()),
            credit,
            _credit: credit_segment,
            staging,
            staged,
            messages: 0,
            credits: geometry.slots as u64 - 1,
            end: None,
        };
        let own = u64::from(endpoint.node().0) | u64::from(endpoint.port().0) << 16;
        let hello: [u8; HELLO_BYTES] =
            bytes([MAGIC, own, replenish.number().into(), credit_name.0]);
        sender.write(HELLO, &hello)?;
        Ok(sender)
    }

    /// Longest message in bytes.
    pub fn message_bytes(&self) -> usize {
        self.geometry.message_bytes
    }

    /// Says whether a message could be sent without waiting for credit.
    pub fn has_credit(&mut self) -> bool {
        self.take_credits();
        self.credits > 0
    }

    /// Sends a message; waits while the receiver has no room for it. The bytes are
    /// copied before it returns.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::TimedOut`] (nothing was sent),
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::DeviceGone`], …
    pub fn send(&mut self, message: &[u8], timeout: Option<Duration>) -> Result<()> {
        if message.len() > self.geometry.message_bytes {
            return Err(Error::MessageTooLong {
                length: message.len(),
                limit: self.geometry.message_bytes,
            });
        }
        self.check()?;
        self.await_credit(self.core.deadline(timeout))?;
        let slot = self.geometry.slot(self.messages);
        let length = SLOT_HEADER + message.len();
        let header: [u8; SLOT_HEADER] = bytes([self.messages + 1, message.len() as u64]);
        self.staged.write(slot, &header)?;
        self.staged.write(slot + SLOT_HEADER, message)?;
        let offset = self.geometry.slot_in_segment(self.messages);
        let source = self.staging.part(slot, length).into();
        self.flight
            .write(&self.remote, offset, source, Some(self.sent))?;
        self.messages += 1;
        self.credits -= 1;
        Ok(())
    }

    /// Waits until all messages are in the receiver's memory.
    ///
    /// # Errors
    /// [`Error::ChannelClosed`], [`Error::PeerLost`], [`Error::DeviceGone`], …
    pub fn flush(&mut self) -> Result<()> {
        let failure = self.flight.settle()?;
        self.judge(failure.as_ref())
    }

    /// Ends the channel, after what was sent, and says whether all of it arrived.
    /// Dropping the sender does the same and says nothing; both wait for writes that
    /// are under way.
    ///
    /// # Errors
    /// Those of [`Sender::flush`].
    pub fn close(mut self) -> Result<()> {
        self.judge(None)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        if self.end.is_some() {
            return Ok(());
        }
        self.write(SENDER_CLOSED, &(self.messages + 1).to_le_bytes())?;
        self.flush()?;
        self.end = Some(End::Closed);
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.flight
            .write(&self.remote, offset, bytes.into(), Some(self.sent))
    }

    /// Looks at what has become of earlier messages.
    fn check(&mut self) -> Result<()> {
        if self.end.is_none() && self.credit.load_u64(0)? != 0 {
            self.end = Some(End::Closed);
        }
        let failure = self.flight.reap()?;
        self.judge(failure.as_ref())
    }

    fn judge(&mut self, failure: Option<&TransferError>) -> Result<()> {
        if let Some(failure) = failure {
            self.end.get_or_insert(End::of(failure));
        }
        self.end.map_or(Ok(()), |end| Err(end.into()))
    }

    fn take_credits(&mut self) {
        while self.core.acknowledge(self.replenish) {
            // A receiver that replenishes too much could only lose its own messages.
            self.credits =
                (self.credits + self.geometry.refill as u64).min(self.geometry.slots as u64 - 1);
        }
    }

    fn await_credit(&mut self, deadline: Option<Instant>) -> Result<()> {
        while !self.has_credit() {
            let probe = self.core.now() + PROBE_INTERVAL;
            let until = deadline.map_or(probe, |deadline| deadline.min(probe));
            let (core, flight, replenish) = (&self.core, &self.flight, self.replenish);
            let waited = core.wait_for(Some(until), || {
                let news = core.pending(replenish) > 0 || flight.has_news();
                Ok(news.then_some(()))
            });
            let over = deadline.is_some_and(|deadline| self.core.now() >= deadline);
            match waited {
                Err(Error::TimedOut) if over && !self.has_credit() => return Err(Error::TimedOut),
                Err(Error::TimedOut) if self.flight.is_empty() => {
                    self.flight.write(&self.remote, 0, b"".into(), None)?;
                }
                Ok(()) | Err(Error::TimedOut) => {}
                Err(error) => return Err(error),
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
        drop(self.flight.settle());
    }
}

/// Exports a buffer under a name that nobody can guess.
pub(super) fn export(
    endpoint: &Endpoint,
    buffer: &Buffer,
    access: Access,
) -> Result<(Segment, SegmentName)> {
    // Its keys come from the system's random source.
    let name = SegmentName(RandomState::new().build_hasher().finish());
    Ok((endpoint.export(name, buffer, access)?, name))
}

/// Reads and checks what the receiver says of its channel.
fn read_head(endpoint: &Endpoint, remote: &RemoteSegment) -> Result<(Geometry, NotificationId)> {
    let buffer = endpoint.allocate(HEAD_BYTES)?;
    let (segment, _) = export(endpoint, &buffer, Access::WRITE)?;
    endpoint
        .read(remote, 0, segment.part(0, HEAD_BYTES))?
        .wait()?;
    let [magic, slots, message_bytes, refill, sent] = words(&buffer.read_vec(0, HEAD_BYTES)?);
    if magic != MAGIC {
        return Err(Error::BadChannel("that segment is no channel"));
    }
    let [slots, message_bytes, refill] =
        [slots, message_bytes, refill].map(|word| usize::try_from(word).unwrap_or(usize::MAX));
    let geometry = Geometry::new(slots, message_bytes, refill)?;
    let sent = u32::try_from(sent).ok().and_then(NotificationId::new);
    match sent {
        Some(sent) if geometry.segment_bytes() as u64 <= remote.len() => Ok((geometry, sent)),
        _ => Err(Error::BadChannel("its head contradicts itself")),
    }
}
