//! A packet that arrives, and its buffer.
//!
//! ```text
//!   packet ──► target 0: next buffer of its port ──┐   data ──► record ──► completion
//!        └───► else: the steered one of that name ─┴─► fits? ─► taken out ───┘
//! ```

use qnic_abi::datagram::{Datagram, PacketFlags, DRIVER_PORT, RECORD_BYTES};
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::{Port, Status, VniId};
use zerocopy::IntoBytes;

use super::buffers::Buffer;
use super::{is_in_span, Context, Datagrams, Unbound, ANSWERS};
use crate::env::{Host, HostMemory, OutOfRange};
use crate::frame::Arrival;
use crate::protocols::protocol::Protocol;

/// Ends a buffer that has no packet.
pub(super) fn end_buffer<H: Host>(
    cx: &mut Context<'_, H>,
    vni: VniId,
    handle: u64,
    status: Status,
) {
    let entry = CompletionEntry {
        handle: handle.into(),
        status: status.code().into(),
        kind: CompletionKind::DatagramReceive as u8,
        ..CompletionEntry::default()
    };
    cx.core.complete_signalled(cx.host, vni, entry);
}

/// Stores a packet: its data, and then the body of its frame.
fn store<H: Host>(
    host: &H,
    buffer: &Buffer,
    arrival: &Arrival<'_, H::Memory>,
    body: &Datagram,
) -> Result<(), OutOfRange> {
    let mut record = [0; RECORD_BYTES];
    record[..size_of::<Datagram>()].copy_from_slice(body.as_bytes());
    arrival.payload.copy_to(host.memory(), buffer.address)?;
    host.memory().write(buffer.record, &record)
}

impl Datagrams {
    /// Posts a buffer.
    ///
    /// # Errors
    /// Malformed: its handle names another one.
    pub(super) fn post<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        buffer: Buffer,
    ) -> Result<(), Status> {
        let handle = buffer.handle;
        if self.buffers.has(handle) {
            return Err(Status::Malformed);
        }
        let aligned = buffer.record % RECORD_BYTES as u64 == 0;
        let inside = is_in_span(cx.host, buffer.address, buffer.length.into())
            && is_in_span(cx.host, buffer.record, RECORD_BYTES);
        if !aligned || !inside {
            end_buffer(cx, vni, handle, Status::BadAddress);
        } else if self.buffers.count() >= cx.core.limits.datagram_buffers as usize {
            end_buffer(cx, vni, handle, Status::Exhausted);
        } else {
            self.buffers.post(buffer);
        }
        Ok(())
    }

    /// Has a packet answered that asks for it, if its port is not bound.
    #[cold]
    fn answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        body: &Datagram,
    ) {
        let asks = body.flags & PacketFlags::ASK.bits() != 0;
        let (port, to) = (
            arrival.frame.envelope.destination_port.get(),
            arrival.frame.envelope.source_port.get(),
        );
        if asks && !self.buffers.is_bound(port) && self.answers.len() < ANSWERS {
            self.answers.push_back(Unbound {
                peer: arrival.peer,
                port,
                to,
                sequence: body.sequence.get(),
            });
            cx.core.schedule_nic(Self::ID);
        }
    }

    /// Puts a packet into its buffer.
    ///
    /// # Errors
    /// Why it is dropped: no buffer (`Exhausted`), the steered one is gone (`Cancelled`), it is longer
    /// (`BadLength`), too many completions are unread (`Exhausted`), or its memory is gone (`BadAddress`).
    pub(super) fn deliver<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Result<(), Status> {
        let body: Datagram = arrival.body();
        let envelope = &arrival.frame.envelope;
        let port = envelope.destination_port.get();
        let buffer = match body.target.get() {
            0 => self.buffers.next(port),
            target => self.buffers.steered(port, target),
        };
        let (Some(buffer), Some(vni)) = (buffer, cx.core.vni_of(Port(DRIVER_PORT))) else {
            return Err(match body.target.get() {
                0 => {
                    cx.core.counters.datagrams_dropped += 1;
                    self.answer(cx, arrival, &body);
                    Status::Exhausted
                }
                _ => {
                    cx.core.counters.datagrams_late += 1;
                    Status::Cancelled
                }
            });
        };
        let length = arrival.payload.len();
        let refusal = match length > buffer.length.into() {
            true => Some(Status::BadLength),
            false => cx
                .core
                .has_completion_backlog(vni)
                .then_some(Status::Exhausted),
        };
        if let Some(status) = refusal {
            cx.core.counters.datagrams_dropped += 1;
            return Err(status);
        }
        let Some(buffer) = self.buffers.take(port, buffer.handle) else {
            return Err(Status::Cancelled);
        };
        if store(cx.host, &buffer, arrival, &body).is_err() {
            // The node has less memory than when it was posted.
            cx.core.counters.datagrams_dropped += 1;
            end_buffer(cx, vni, buffer.handle, Status::BadAddress);
            return Err(Status::BadAddress);
        }
        cx.core.counters.datagrams_received += 1;
        cx.core.count_received(vni, length);
        let entry = CompletionEntry {
            handle: buffer.handle.into(),
            length: (length as u64).into(),
            node: cx.transport.node_of(arrival.peer).0.into(),
            port: envelope.source_port,
            kind: CompletionKind::DatagramReceive as u8,
            ..CompletionEntry::default()
        };
        cx.core.complete_signalled(cx.host, vni, entry);
        Ok(())
    }
}
