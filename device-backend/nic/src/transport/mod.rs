//! Transport: sessions, sequence numbers, windows (docs/wire.md).
//!
//! ```text
//!   write, read, import ──transmit──► [send: number, window] ──► wire
//!   deliver ◄──receive── [session, receive: number] ◄── wire
//!      └──► naks, answers, acknowledgement ──flush──► wire
//! ```
//! | module | holds |
//! |---|---|
//! | `session` | which life of a conversation a frame belongs to |
//! | `send` | numbers and the window of frames that the peer has not delivered |
//! | `receive` | which frames have arrived, and which of them are delivered |
//! | `peer` | all of that for one peer; the table of peers |
//! | `handshake` | how conversations begin and end |
//! | `reliable` | sending again, probing, giving up: only where the wire is not perfect |
//! | `packets`, `timer`, `rtt` | copies, the timing wheel, how long to wait |
//! | `held` | frames that were taken and are delivered, or refused, later |
//! | `refused` | writes that do not notify any more |
//!
//! Each ordered pair of nodes has one sequence of frames. A frame is taken when
//! it arrives, in any order, once. The peer is told how far all has arrived, and
//! how far all is delivered, with each frame that goes the other way or with one
//! Ack at the end of a poll.
//!
//! What is wrong (a session of another life, a number far outside of the window,
//! an acknowledgement of what was never sent) is counted and dropped. Frames come
//! here intact or not at all: a link that can damage them checks them.
//!
//! Frames to the own node take the same path, without a wire.

mod handshake;
mod held;
mod packets;
mod peer;
mod receive;
mod refused;
mod reliable;
mod rtt;
mod send;
mod session;
mod timer;

use qnic_abi::wire::{
    pieces, FrameFlags, FrameHeader, FrameKind, FRAME_MAGIC, MAX_RUN, RUN_PAGES, WIRE_VERSION,
};
use zerocopy::FromZeros;

use crate::deliver::Arrival;
use crate::env::{Channel, Host, Payload, Time, Wire};
use crate::nic::{Io, Nic};

pub(crate) use held::HeldFrame;
pub(crate) use peer::{PeerIndex, PeerTable};
use receive::Place;
pub(crate) use reliable::Alarm;
use session::Verdict;
pub(crate) use timer::TimerWheel;

/// Pieces of reads, and atomic operations, under way to one peer; a run may go beyond.
pub(crate) const READ_WINDOW: u32 = 256;

/// Answers that may wait to be sent to one peer while it sends: more than all
/// requests that it can have under way. A poll sends them all.
const ANSWER_LIMIT: usize = 4096;

/// A header of that kind, otherwise zero.
pub(crate) fn header(kind: FrameKind) -> FrameHeader {
    let mut header = FrameHeader::new_zeroed();
    header.kind = kind as u8;
    header
}

/// Says whether frames of a kind may have to wait at their destination for memory:
/// those take a place in the window.
fn takes_memory(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Write | FrameKind::ReadReply)
}

impl Nic {
    /// Sends a frame with the next number, or the next numbers if it carries a run:
    /// completes its header. `false` says that there is no way to the peer; then no
    /// number was used.
    ///
    /// The peer must be ready, and its window must have room for this kind of frame.
    pub(crate) fn transmit<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        header: &mut FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) -> bool {
        let peer = &mut self.peers[index];
        debug_assert!(peer.is_ready());
        let count = pieces(header.address.get(), payload.len());
        header.sequence = peer.send.next().into();
        peer.send.advance(count);
        let taken = match peer.is_perfect() {
            true => self.put(io, index, header, payload),
            false => self.transmit_reliably(io, index, header, payload),
        };
        if !taken {
            self.peers[index].send.withdraw(count);
        }
        taken
    }

    /// Sends a frame whose number is set: completes the rest of its header.
    pub(crate) fn put<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        header: &mut FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) -> bool {
        let peer = &mut self.peers[index];
        header.payload_length = (payload.len() as u16).into();
        peer.address(self.config.node, header);
        if peer.node == self.config.node {
            self.receive(io.now, io.host, header, payload);
            return true;
        }
        let channel = Channel::of(payload.len());
        io.wire.send(header, payload, channel)
    }

    /// Sends what was queued for peers: greetings, refusals, other answers, then,
    /// if `acknowledge`, acknowledgements that no frame has carried.
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
                self.peer_unreachable(io.now, io.host, index);
            } else if !acknowledge || self.peers[index].keeps_place() {
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
        let peer = &self.peers[index];
        if peer.greet || peer.reply.is_some() {
            *busy = true;
            if !self.shake_hands(io, index) {
                return false;
            }
        }
        if self.peers[index].is_ready() {
            let lost = self.peers[index].packets.has_waiting();
            if lost && !self.flush_lost(io, index, busy) || !self.flush_answers(io, index, busy) {
                return false;
            }
        }
        if acknowledge && self.peers[index].must_tell(io.now) {
            *busy = true;
            return self.send_acknowledgement(io, index);
        }
        true
    }

    fn flush_answers<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        busy: &mut bool,
    ) -> bool {
        while self.peers[index].send.has_number() {
            let peer = &mut self.peers[index];
            let (mut answer, refused) = match peer.naks.pop_front() {
                Some(nak) => (nak, Some(nak.argument.get())),
                None => match peer.answers.pop_front() {
                    Some(answer) => (answer, None),
                    None => break,
                },
            };
            *busy = true;
            if !self.transmit(io, index, &mut answer, Payload::None) {
                return false;
            }
            if let Some(sequence) = refused {
                let nak = answer.sequence.get();
                self.peers[index].receive.refusal_sent(nak, sequence);
            }
        }
        true
    }

    /// Takes a frame: checks its form, its session and its number, then hands it
    /// to whom it concerns.
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
        let node = qnic_abi::NodeId(frame.source_node.get());
        let Some(index) = self.peers.find_or_add(node, &self.config.limits) else {
            self.counters.malformed_frames += 1;
            return;
        };
        let sessions = (frame.source_session.get(), frame.destination_session.get());
        if kind == FrameKind::Gone && frame.source_port.get() == 0 {
            return self.peer_left(host, index, sessions);
        }
        let verdict = self.peers[index]
            .session
            .judge(kind, sessions.0, sessions.1);
        if verdict != Verdict::Accept && !self.meet(host, index, frame, verdict) {
            return;
        }
        self.peers[index].heard = now;
        if matches!(kind, FrameKind::Hello | FrameKind::HelloReply) {
            return self.take_hello(host, index, frame, kind);
        }
        if !self.handle_acknowledge(now, host, index, frame) {
            self.counters.malformed_frames += 1;
            return;
        }
        if kind == FrameKind::Ack {
            self.take_ack(now, index, frame);
        } else if self.admit(now, index, frame, kind) {
            self.take(now, host, index, frame, kind, payload);
        }
        self.release_notices(host, index);
    }

    /// Takes what only an Ack says.
    #[inline]
    fn take_ack(&mut self, now: Time, index: PeerIndex, frame: &FrameHeader) {
        if frame.flags.get() & FrameFlags::PROBE.bits() != 0 {
            self.peers[index].receive.tell_all_again();
            self.peers[index].tell_now();
            self.peers.list(index);
        }
        if !self.peers[index].packets.is_empty() {
            self.take_selective(now, index, frame);
        }
    }

    /// Hands a frame that is new to whom it concerns.
    #[inline]
    fn take<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        kind: FrameKind,
        payload: Payload<'_, H::Memory>,
    ) {
        match kind {
            FrameKind::Write | FrameKind::ReadReply => {
                let arrival = Arrival {
                    index,
                    frame,
                    payload,
                };
                self.deliver(now, host, &arrival);
            }
            FrameKind::ReadRequest => self.take_read_request(index, frame),
            FrameKind::Atomic => self.take_atomic(host, index, frame),
            FrameKind::AtomicReply => self.take_atomic_reply(now, host, index, frame),
            FrameKind::Nak => self.handle_nak(host, index, frame),
            FrameKind::ImportRequest => self.take_import_request(now, index, frame),
            FrameKind::ImportReply => self.take_import_reply(index, frame),
            FrameKind::Gone => self.peer_process_gone(host, index, frame),
            FrameKind::Ack | FrameKind::Hello | FrameKind::HelloReply => {}
        }
    }

    #[inline]
    fn well_formed(&self, frame: &FrameHeader, length: usize) -> Option<FrameKind> {
        let kind = FrameKind::try_from(frame.kind).ok()?;
        let good = frame.magic.get() == FRAME_MAGIC
            && frame.version == WIRE_VERSION
            && FrameFlags::from_bits(frame.flags.get()).is_some()
            && frame.reserved0.get() == 0
            && frame.reserved1.get() == 0
            && frame.destination_node.get() == self.config.node.0
            && usize::from(frame.payload_length.get()) == length
            && length <= if takes_memory(kind) { MAX_RUN } else { 0 };
        good.then_some(kind)
    }

    /// Notes that a numbered frame has arrived; `false` drops it: it is not new, or
    /// there is no room for what it could cause.
    #[inline]
    fn admit(&mut self, now: Time, index: PeerIndex, frame: &FrameHeader, kind: FrameKind) -> bool {
        let sequence = frame.sequence.get();
        let length = usize::from(frame.payload_length.get());
        let count = pieces(frame.address.get(), length) as usize;
        self.peers.list(index);
        let peer = &mut self.peers[index];
        let full = peer.answers.len() >= ANSWER_LIMIT
            || takes_memory(kind) && peer.receive.open_count() + count > peer.grant as usize;
        match peer.receive.place(sequence) {
            Place::Next if count > 1 && !full && peer.is_perfect() && count <= RUN_PAGES => {
                peer.receive.accept_run(count as u64);
                true
            }
            _ if count > 1 => {
                self.counters.frames_outside += 1;
                false
            }
            Place::Next if !full => {
                peer.receive.accept(sequence);
                if !peer.is_perfect() {
                    peer.tell_soon(now, self.config.limits.acknowledge_after);
                }
                true
            }
            Place::Ahead if !full => {
                peer.tell_now();
                // What was said before it may end what it begins.
                let in_order = kind == FrameKind::ImportReply;
                if !in_order {
                    peer.receive.accept(sequence);
                }
                !in_order
            }
            Place::Old => {
                peer.receive.tell_again(sequence);
                peer.tell_now();
                self.counters.duplicate_frames += 1;
                false
            }
            _ => {
                self.counters.frames_outside += 1;
                false
            }
        }
    }

    /// Works off what a frame says of frames that were sent. `false`: it cannot be
    /// true.
    #[inline]
    fn handle_acknowledge<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
    ) -> bool {
        let (received, delivered) = (frame.acknowledge.get(), frame.delivered.get());
        if !self.peers[index].send.acknowledge(received, delivered) {
            return false;
        }
        if !self.peers[index].packets.is_empty() {
            self.release_packets(now, index, received);
        }
        self.settle_refusals(host, index, received);
        if self.peers[index].send.has_delivered() {
            self.work_off(host, index);
        }
        true
    }

    /// Takes frames out of the window that the peer has delivered.
    fn work_off<H: Host>(&mut self, host: &H, index: PeerIndex) {
        self.peers[index].probes = 0;
        while let Some(frame) = self.peers[index].send.pop_delivered() {
            let id = frame.operation;
            let more = self.peers[index].send.delivers_next(id);
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

    /// Lets those go on that waited for a place in the window to this peer.
    pub(crate) fn unblock<H: Host>(&mut self, host: &H, index: PeerIndex) {
        let peer = &mut self.peers[index];
        if peer.blocked.is_empty() && peer.blocked_replies.is_empty() {
            return;
        }
        if !peer.send.is_half_open() {
            return;
        }
        let blocked = std::mem::take(&mut peer.blocked);
        let replies = std::mem::take(&mut peer.blocked_replies);
        self.let_go_on(host, blocked);
        for (vni, job) in replies {
            if let Some(process) = self.process(vni) {
                process.replies.push_back(job);
                self.schedule_process(vni);
            }
        }
    }

    /// Notes that `count` reads from a peer were answered, or are no longer waited for.
    pub(crate) fn reads_answered<H: Host>(&mut self, host: &H, index: PeerIndex, count: u32) {
        let peer = &mut self.peers[index];
        peer.reads = peer.reads.saturating_sub(count);
        peer.probes = 0;
        if peer.blocked_reads.is_empty() || peer.reads > READ_WINDOW / 2 || !peer.is_ready() {
            return;
        }
        let blocked = std::mem::take(&mut peer.blocked_reads);
        self.let_go_on(host, blocked);
    }

    fn let_go_on<H: Host>(&mut self, host: &H, blocked: Vec<crate::operation::OperationId>) {
        for id in blocked {
            if let Some(operation) = self.operation(id) {
                operation.blocked = false;
            }
            self.reconsider_named(host, Some(id));
        }
    }
}
