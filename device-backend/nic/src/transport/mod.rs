//! Transport over a perfect wire: every frame arrives once and in order.
//!
//! ```text
//!   write, read, import ──transmit──► [sequence, acknowledge] ──► wire
//!   deliver ◄──receive── [incarnation, sequence] ◄── wire
//!      └──► naks, answers, acknowledgement ──flush──► wire
//! ```
//! Each ordered pair of nodes has one sequence of frames. The receiver
//! acknowledges cumulatively, with each frame that goes the other way or with one
//! Ack at the end of its poll. A refusal (Nak) always leaves before the
//! acknowledgement that covers the frame it refuses; so the sender knows what
//! became of a frame when its acknowledgement comes.
//!
//! A frame out of sequence or of an old incarnation is counted and dropped: on a
//! perfect wire it can only come from a peer that was reset or is hostile. A peer
//! that goes on with a sequence this NIC has never seen the start of is told, by
//! `Gone` from port 0, to start over; the same frame without a number says that
//! this incarnation ends, and nothing follows.
//!
//! Frames to the own node take the same path, without a wire.

mod peer;

use qnic_abi::wire::{FrameFlags, FrameHeader, FrameKind, FRAME_MAGIC, MAX_PAYLOAD, WIRE_VERSION};
use zerocopy::FromZeros;

use crate::env::{Host, Payload, Time, Wire};
use crate::nic::{Io, Nic};

use peer::Peer;
pub(crate) use peer::{PeerIndex, PeerTable};

/// Frames of writes in flight to one peer.
pub(crate) const WRITE_WINDOW: usize = 256;

/// Read requests under way to one peer.
pub(crate) const READ_WINDOW: u32 = 256;

/// Refusals that may wait to be sent to one peer: one for each frame it can have in flight.
const NAK_LIMIT: usize = WRITE_WINDOW;

/// Other answers that may wait to be sent to one peer while it sends: more than
/// all requests that it can have under way. A poll sends them all.
const ANSWER_LIMIT: usize = 4096;

/// A header of that kind, otherwise zero.
pub(crate) fn header(kind: FrameKind) -> FrameHeader {
    let mut header = FrameHeader::new_zeroed();
    header.kind = kind as u8;
    header
}

impl Nic {
    /// Sends a frame: completes its header, numbers it. `false` says that there is
    /// no way to the peer; then no number was used.
    pub(crate) fn transmit<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        header: &mut FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) -> bool {
        let numbered = header.kind != FrameKind::Ack as u8;
        let peer = &mut self.peers[index];
        let acknowledge = peer.acknowledgement();
        header.magic = FRAME_MAGIC.into();
        header.version = WIRE_VERSION;
        header.payload_length = (payload.len() as u16).into();
        header.source_node = self.config.node.0.into();
        header.destination_node = peer.node.0.into();
        header.acknowledge = acknowledge.into();
        header.incarnation = self.incarnation.into();
        header.sequence = if numbered { peer.next_sequence } else { 0 }.into();
        let taken = if peer.node == self.config.node {
            self.receive(io.now, io.host, header, payload);
            true
        } else {
            io.wire.send(header, payload)
        };
        if taken {
            let peer = &mut self.peers[index];
            peer.acknowledged = peer.acknowledged.max(acknowledge);
            peer.next_sequence += u64::from(numbered);
        }
        taken
    }

    /// Sends what was queued for peers: refusals, then other answers, then, if
    /// `acknowledge`, acknowledgements that no frame has carried.
    #[inline]
    pub(crate) fn flush<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        acknowledge: bool,
    ) -> bool {
        self.peers.has_listed(!acknowledge) && self.flush_listed(io, acknowledge)
    }

    fn flush_listed<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        acknowledge: bool,
    ) -> bool {
        let mut busy = false;
        let listed = self.peers.take_listed();
        for index in listed.iter().copied() {
            let reached = self.flush_peer(io, index, acknowledge, &mut busy);
            if !reached {
                self.peer_unreachable(io.host, index);
            } else if !acknowledge {
                self.peers.list(index);
            }
        }
        self.peers.reuse(listed);
        busy
    }

    /// Returns `false` if there is no way to the peer.
    fn flush_peer<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        acknowledge: bool,
        busy: &mut bool,
    ) -> bool {
        if std::mem::take(&mut self.peers[index].introduce) {
            *busy = true;
            let mut gone = header(FrameKind::Gone);
            if !self.transmit(io, index, &mut gone, Payload::None) {
                return false;
            }
        }
        while let Some(nak) = self.peers[index].naks.front() {
            *busy = true;
            let mut nak = *nak;
            // Still in the queue: the frame itself must not acknowledge what it refuses.
            let reached = self.transmit(io, index, &mut nak, Payload::None);
            self.peers[index].naks.pop_front();
            if !reached {
                return false;
            }
        }
        while let Some(mut answer) = self.peers[index].answers.pop_front() {
            *busy = true;
            if !self.transmit(io, index, &mut answer, Payload::None) {
                return false;
            }
        }
        let peer = &self.peers[index];
        if acknowledge && peer.acknowledged < peer.acknowledgement() {
            *busy = true;
            return self.transmit(io, index, &mut header(FrameKind::Ack), Payload::None);
        }
        true
    }

    /// Takes a frame: checks its form and its place in the sequence, then hands
    /// it to whom it concerns.
    pub(crate) fn receive<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        frame: &FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) {
        let Some(kind) = self.well_formed(frame, payload.len()) else {
            self.counters.malformed_frames += 1;
            return;
        };
        let Some(index) = self.admit(host, frame, kind) else {
            self.counters.malformed_frames += 1;
            return;
        };
        if kind == FrameKind::Gone && frame.source_port.get() == 0 {
            return self.peer_restarted(host, index, frame.sequence.get());
        }
        self.handle_acknowledge(host, index, frame.acknowledge.get());
        match kind {
            FrameKind::Ack => {}
            FrameKind::Write => self.deliver_write(now, host, index, frame, payload),
            FrameKind::ReadRequest => self.take_read_request(index, frame),
            FrameKind::ReadReply => self.deliver_read(now, host, index, frame, payload),
            FrameKind::Nak => self.handle_nak(host, index, frame),
            FrameKind::Resume => self.handle_resume(host, index, frame),
            FrameKind::ImportRequest => self.take_import_request(now, index, frame),
            FrameKind::ImportReply => self.take_import_reply(index, frame),
            FrameKind::Gone => self.peer_process_gone(host, index, frame),
        }
    }

    fn well_formed(&self, frame: &FrameHeader, length: usize) -> Option<FrameKind> {
        let kind = FrameKind::try_from(frame.kind).ok()?;
        let carries = matches!(kind, FrameKind::Write | FrameKind::ReadReply);
        let good = frame.magic.get() == FRAME_MAGIC
            && frame.version == WIRE_VERSION
            && FrameFlags::from_bits(frame.flags.get()).is_some()
            && frame.reserved.get() == 0
            && frame.destination_node.get() == self.config.node.0
            && usize::from(frame.payload_length.get()) == length
            && length <= if carries { MAX_PAYLOAD } else { 0 };
        good.then_some(kind)
    }

    /// Checks incarnation and sequence; `None` drops the frame.
    fn admit<H: Host>(
        &mut self,
        host: &H,
        frame: &FrameHeader,
        kind: FrameKind,
    ) -> Option<PeerIndex> {
        let node = qnic_abi::NodeId(frame.source_node.get());
        let index = self.peers.find_or_add(node, self.config.limits.peers)?;
        let incarnation = frame.incarnation.get();
        let peer = &self.peers[index];
        if peer.incarnation != Some(incarnation) || peer.ended {
            self.meet(host, index, incarnation)?;
        }
        let starts_over = kind == FrameKind::Gone && frame.source_port.get() == 0;
        if kind == FrameKind::Ack || starts_over {
            return Some(index);
        }
        let sequence = frame.sequence.get();
        let peer = &mut self.peers[index];
        let full = peer.naks.len() >= NAK_LIMIT || peer.answers.len() >= ANSWER_LIMIT;
        if sequence != peer.received.wrapping_add(1) || full {
            peer.introduce |= peer.received == 0;
            self.peers.hurry(index);
            return None;
        }
        peer.received = sequence;
        peer.introduce = false;
        self.peers.list(index);
        Some(index)
    }

    /// Gets to know another incarnation of a peer; `None` if it is an old one.
    #[cold]
    fn meet<H: Host>(&mut self, host: &H, index: PeerIndex, incarnation: u32) -> Option<()> {
        let Peer {
            incarnation: known,
            ended,
            ..
        } = self.peers[index];
        if known == Some(incarnation) {
            // It has said itself that it has ended.
            return None;
        }
        if known.is_some_and(|known| (incarnation.wrapping_sub(known) as i32) < 0) {
            return None;
        }
        if known.is_some() && !ended {
            self.peer_restarted(host, index, 0);
        }
        self.peers[index].incarnation = Some(incarnation);
        self.peers[index].ended = false;
        Some(())
    }

    /// Works off the frames that an acknowledgement covers.
    fn handle_acknowledge<H: Host>(&mut self, host: &H, index: PeerIndex, acknowledge: u64) {
        if acknowledge >= self.peers[index].next_sequence {
            self.counters.malformed_frames += 1;
            return;
        }
        if !self.peers[index].is_covered(acknowledge) {
            return;
        }
        while let Some(frame) = self.peers[index].pop_acknowledged(acknowledge) {
            let id = frame.operation;
            let more = self.peers[index].covers_next(acknowledge, id);
            let Some(operation) = self.operation(id) else {
                continue;
            };
            operation.in_flight -= u32::from(!frame.refused && operation.in_flight > 0);
            if !more {
                self.reconsider(host, id.vni(), id.slot());
            }
        }
        self.unblock(host, index);
    }

    /// Lets operations go on that waited for a place in a window to this peer.
    pub(crate) fn unblock<H: Host>(&mut self, host: &H, index: PeerIndex) {
        let peer = &mut self.peers[index];
        if peer.blocked.is_empty() || peer.in_flight.len() >= WRITE_WINDOW {
            return;
        }
        for id in std::mem::take(&mut peer.blocked) {
            if let Some(operation) = self.operation(id) {
                operation.blocked = false;
            }
            self.reconsider_named(host, Some(id));
        }
    }
}
