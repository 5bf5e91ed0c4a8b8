//! What the senders of channels and of shared queues have in common.

use std::time::{Duration, Instant};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use super::layout::{words, Geometry, HEAD_BYTES};
use super::{check_end, End};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{
    Buffer, ExportOptions, ImportOptions, Importers, Notifications, RemoteSegment, Segment,
};
use crate::notification::NotificationId;
use crate::rdma::internal_writes::InternalWrites;
use crate::rdma::Source;

/// What tells a channel from a shared queue.
pub(super) struct Kind {
    /// First word of the receiver's segment.
    pub(super) magic: u64,
    /// What a segment without it is.
    pub(super) no_such: &'static str,
    /// Bytes that a sender stages messages in.
    pub(super) staged_bytes: fn(&Geometry) -> usize,
}

/// Messages on their way to a receiver.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) geometry: Geometry,
    /// Notification of the receiver for each message.
    pub(super) sent: NotificationId,
    pub(super) remote: RemoteSegment,
    // Before what it writes from.
    pub(super) writes: InternalWrites,
    pub(super) staging: Segment,
    pub(super) staged: Buffer,
    /// Why no more messages can be sent.
    pub(super) end: Option<End>,
}

impl Outgoing {
    /// Connects to a receiver.
    pub(super) fn connect(
        endpoint: &Endpoint,
        (node, port, name): (NodeId, Port, SegmentName),
        options: ImportOptions,
        kind: &Kind,
    ) -> Result<Self> {
        let remote = endpoint.import(node, port, name, options)?;
        let (geometry, sent) = read_head(endpoint, &remote, kind)?;
        let staged = endpoint.allocate((kind.staged_bytes)(&geometry))?;
        let (staging, _) = export(endpoint, &staged, private(Access::READ))?;
        Ok(Outgoing {
            geometry,
            sent,
            remote,
            writes: InternalWrites::new(endpoint.core()),
            staging,
            staged,
            end: None,
        })
    }

    /// The point in time after a timeout.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.writes.core().deadline(Some(timeout))
    }

    /// Checks the length of a message.
    pub(super) fn check_length(&self, message: &[u8]) -> Result<()> {
        let (length, limit) = (message.len(), self.geometry.message_bytes);
        match length <= limit {
            true => Ok(()),
            false => Err(Error::MessageTooLong { length, limit }),
        }
    }

    /// Writes to the receiver's segment and signals `sent`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: nothing was written; those of [`Endpoint::write`].
    pub(super) fn write<'a>(
        &mut self,
        offset: usize,
        source: impl Into<Source<'a>>,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let (to, sent) = ((&self.remote, offset), Some(self.sent));
        let written = self.writes.write(to, source, sent, deadline);
        written.map_err(nothing_sent)
    }

    /// Asks whether the receiver is there, unless a write will tell anyway.
    pub(super) fn probe(&mut self) -> Result<()> {
        match self.writes.is_empty() {
            true => self.writes.write((&self.remote, 0), b"", None, None),
            false => Ok(()),
        }
    }

    /// Waits until all messages are in the receiver's memory, up to a deadline.
    pub(super) fn flush(&mut self, deadline: Option<Instant>) -> Result<()> {
        let failure = self.writes.wait_all(deadline)?;
        check_end(&mut self.end, failure.as_ref())
    }
}

/// The error of a message for which the command queue had no room in time.
pub(super) fn nothing_sent(error: Error) -> Error {
    match error {
        Error::QueueFull => Error::TimedOut,
        other => other,
    }
}

/// Exports a buffer under a random name.
pub(super) fn export(
    endpoint: &Endpoint,
    buffer: &Buffer,
    options: ExportOptions,
) -> Result<(Segment, SegmentName)> {
    let name = SegmentName(endpoint.core().provider.random());
    Ok((endpoint.export(name, buffer, options)?, name))
}

/// Options of memory that is only source or destination of own transfers.
fn private(access: Access) -> ExportOptions {
    ExportOptions::new(access)
        .importers(Importers::nobody())
        .notifications(Notifications::None)
}

/// Reads and checks the head of a receiver's segment.
fn read_head(
    endpoint: &Endpoint,
    remote: &RemoteSegment,
    kind: &Kind,
) -> Result<(Geometry, NotificationId)> {
    let buffer = endpoint.allocate(HEAD_BYTES)?;
    let (segment, _) = export(endpoint, &buffer, private(Access::WRITE))?;
    let destination = segment.part(0, HEAD_BYTES);
    endpoint.read(remote, 0, destination).post()?.wait()?;
    let [first, slots, message_bytes, refill, sent] = words(&buffer.read_vec(0, HEAD_BYTES)?);
    if first != kind.magic {
        return Err(Error::BadChannel(kind.no_such));
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
