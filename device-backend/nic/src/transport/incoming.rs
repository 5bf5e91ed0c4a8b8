//! How a frame comes in: its envelope is checked, then its session, what it acknowledges, and its
//! number. Then it is delivered, held or refused.
//!
//! # Frames that are held
//! ```text
//!   received ──┬── delivered at once                    nothing to do
//!              └── hold ──┬── delivered ──────────────► delivered
//!                         └── refuse ──── Nak ── its arrival is
//!                                                acknowledged ──► delivered
//! ```
//! A held frame (N14) keeps its place in its sender's window, and delays the notifications that were
//! sent after it (N18).
//!
//! # Receipts
//! A receipt is an acknowledgement that a sender takes where its frames were received within its own
//! calls (P9):
//! ```text
//!   sender                     wire                          receiver
//!   put ─────────────────────► send ───────────────────────► handle_frame
//!   put ─────────────────────► send ───────────────────────► handle_frame
//!   after its turns ─────────► receipt ────────────────────► receipt: nothing to acknowledge
//!   settled  ◄───────────────────────────────────────────────┘        any more, no turn is due
//! ```
//! Within one engine a frame is received before its sender goes on: what an Ack would say at the end
//! of the receiver's next poll is known already. So a write costs its receiver neither a frame nor a
//! turn. After the turns of a poll, the sender asks each peer once to which it has sent frames of
//! class Windowed on a lossless route; no operation ends while it is being sent. A wire without
//! receipts carries Acks.

use qnic_abi::wire::{
    kind, Ack, AckFlags, Class, Frame, Goodbye, Hello, Leave, Nak, FRAME_MAGIC, MAX_SPAN,
    SPAN_PAGES, WIRE_VERSION,
};
use qnic_abi::{NodeId, Status, VniId};

use super::receive_window::{PendingNotification, Position};
use super::session::Verdict;
use super::{Transport, CONTROL_LIMIT};
use crate::env::{Receipt, Time};
use crate::frame::HeldFrame;
use crate::ids::{OperationId, PeerIndex};

/// How a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All that ran in the session has to be given up.
    Lost(PeerIndex),
    /// This side had asked to leave: nothing ran in the session.
    Left(PeerIndex),
}

/// What the session of a frame makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The session with a peer has ended.
    pub(crate) ended: Option<End>,
    /// The frame belongs to the session with this peer, and is to be received.
    pub(crate) accepted: Option<PeerIndex>,
}

impl Opened {
    const DROPPED: Opened = Opened {
        ended: None,
        accepted: None,
    };
}

impl Transport {
    /// Checks the envelope of a frame and the session that it belongs to. Handles what
    /// is only about the session.
    #[inline]
    pub(crate) fn open(&mut self, now: Time, frame: &Frame, length: usize) -> Opened {
        if !self.is_well_formed(frame, length) {
            self.counters.malformed_frames += 1;
            return Opened::DROPPED;
        }
        let envelope = &frame.envelope;
        let node = NodeId(envelope.source_node.get());
        let frame_kind = envelope.kind;
        let index = match self.peers.find(node) {
            None if frame_kind != kind::GOODBYE => match self.peers.find_gone(node) {
                None => self.add_peer(node),
                gone => gone,
            },
            found => found,
        };
        let Some(index) = index else {
            match frame_kind {
                // Of a session that has ended here, too.
                kind::GOODBYE => self.counters.stale_frames += 1,
                _ => self.counters.malformed_frames += 1,
            }
            return Opened::DROPPED;
        };
        let source = envelope.source_session.get();
        let destination = envelope.destination_session.get();
        if frame_kind == kind::GOODBYE {
            return self.goodbye(index, source, destination);
        }
        let peer = &mut self.peers[index];
        let mut opened = Opened::DROPPED;
        match peer.session.classify(frame_kind, source, destination) {
            Verdict::Accept => {
                opened.accepted = Some(index);
                peer.last_received = now;
            }
            verdict => {
                opened = self.check_session(now, index, frame, verdict);
                if opened.accepted.is_none() {
                    return opened;
                }
                self.peers[index].last_received = now;
            }
        }
        if matches!(frame_kind, kind::HELLO | kind::HELLO_REPLY) {
            self.receive_hello(index, frame);
            opened.accepted = None;
        }
        opened
    }

    #[inline]
    fn is_well_formed(&self, frame: &Frame, length: usize) -> bool {
        let envelope = &frame.envelope;
        let class = Class::of(envelope.kind);
        // Most payload bytes, and the fewest and the most fragments.
        let (most, fewest, fragments) = match class {
            Class::Windowed => (MAX_SPAN, 1, SPAN_PAGES as u8),
            Class::Control => (0, 1, 1),
            Class::Session => (0, 0, 0),
            Class::Unreliable => (MAX_SPAN, 0, 0),
        };
        envelope.magic.get() == FRAME_MAGIC
            && envelope.version == WIRE_VERSION
            && envelope.destination_node.get() == self.node.0
            && usize::from(envelope.payload_length.get()) == length
            && length <= most
            && envelope.fragments.wrapping_sub(fewest) <= fragments - fewest
            && (class != Class::Session || is_session_frame(frame))
    }

    /// Takes what a frame says of frames that were sent. Returns false, and counts it,
    /// if that cannot be true. Afterwards [`Transport::pop_settled`] and
    /// [`Transport::pop_refusal`] tell what it means.
    #[inline]
    pub(crate) fn acknowledge(&mut self, now: Time, index: PeerIndex, frame: &Frame) -> bool {
        let received = frame.envelope.acknowledge.get();
        let delivered = frame.envelope.delivered.get();
        let peer = &mut self.peers[index];
        if !peer.send.acknowledge(received, delivered) {
            self.counters.malformed_frames += 1;
            return false;
        }
        if !peer.packets.is_empty() {
            self.release_packets(now, index, received);
        }
        true
    }

    /// Returns true if an acknowledgement has to be sent to a peer now.
    #[inline]
    pub(crate) fn must_ack(&self, now: Time, index: PeerIndex) -> bool {
        self.peers[index].must_ack(now)
    }

    /// The Ack for a peer: with what has arrived beyond a gap, and a probe if one is
    /// due. Also returns true if another Ack has to follow, as one cannot tell all that
    /// the peer may not know.
    pub(crate) fn make_ack(&mut self, index: PeerIndex) -> (Frame, bool) {
        let peer = &mut self.peers[index];
        let mut flags = AckFlags::empty();
        flags.set(AckFlags::PROBE, std::mem::take(&mut peer.probe));
        let (offset, bitmap) = peer.receive.take_sack().unwrap_or_default();
        self.counters.acknowledgements += 1;
        let ack = Ack {
            flags: flags.bits().into(),
            offset: (offset as u32).into(),
            bitmap: bitmap.map(Into::into),
        };
        (Frame::new(&ack), peer.receive.sack_pending())
    }

    /// Takes fragments out of the window that a peer has delivered: of which operation,
    /// and how many of them it did not refuse.
    #[inline]
    pub(crate) fn pop_settled(&mut self, index: PeerIndex) -> Option<(OperationId, u32)> {
        self.peers[index].send.pop_settled()
    }

    /// All that a peer has delivered is out of the window.
    #[inline]
    pub(crate) fn settled(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        peer.probes = 0;
        if peer.taken.is_some() {
            self.confirm_window(index);
        }
        self.unblock(index);
    }

    /// Notes that a fragment in the window was refused. Returns false if there is none of
    /// that number and operation, or it was refused before.
    pub(crate) fn refused(&mut self, index: PeerIndex, sequence: u64, owner: OperationId) -> bool {
        let sent = self.peers[index].send.find(sequence);
        sent.is_some_and(|sent| {
            sent.operation == owner && !std::mem::replace(&mut sent.refused, true)
        })
    }

    /// Takes what only an Ack or a Leave says.
    #[inline]
    pub(crate) fn receive_ack(&mut self, now: Time, index: PeerIndex, frame: &Frame) {
        if frame.envelope.kind == kind::LEAVE {
            return self.receive_leave(index, frame);
        }
        let ack: Ack = frame.body();
        if ack.flags.get() & AckFlags::PROBE.bits() != 0 {
            let peer = self.peers.list(index);
            peer.receive.sack_all_again();
            peer.ack_immediately();
        }
        if !self.peers[index].packets.is_empty() {
            let acknowledge = frame.envelope.acknowledge.get();
            self.receive_sack(now, index, acknowledge, &ack);
        }
    }

    /// Notes that a numbered frame has arrived. Returns false if it is to be dropped: it
    /// is not new, or there is no room for what it could cause, or it is to be received
    /// `in_order` and others before it are missing.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        now: Time,
        index: PeerIndex,
        frame: &Frame,
        in_order: bool,
    ) -> bool {
        let sequence = frame.envelope.sequence.get();
        let count = usize::from(frame.envelope.fragments);
        let windowed = Class::of(frame.envelope.kind) == Class::Windowed;
        let mut peer = self.peers.list(index);
        if !peer.is_ready() {
            // It may have to be answered.
            self.peers.ensure_session(index);
            peer = &mut self.peers[index];
        }
        let held = peer.receive.undelivered_count() + count;
        let full = peer.control.len() >= CONTROL_LIMIT || windowed && held > peer.grant as usize;
        let last = sequence.wrapping_add(count as u64 - 1);
        if count > 1 && !(peer.may_send_spans() && peer.receive.are_missing(sequence, last)) {
            self.counters.frames_outside += 1;
            return false;
        }
        match peer.receive.position(sequence) {
            Position::Next if count > 1 && !full => {
                peer.receive.accept_span(count as u64);
                true
            }
            Position::Next if !full => {
                peer.receive.accept(sequence);
                if !peer.is_lossless() {
                    peer.schedule_ack(now, self.limits.ack_delay);
                }
                true
            }
            Position::Ahead if !full => {
                let lossless = peer.is_lossless();
                if !lossless {
                    peer.ack_immediately();
                }
                if !in_order {
                    peer.note_ahead(frame);
                    (sequence..=last).for_each(|number| peer.receive.accept(number));
                    match lossless {
                        // What it has overtaken comes, and need not be asked for.
                        true => drop(peer.receive.take_sack()),
                        // Its sender may be gone before it has sent again what is missing.
                        false => self.watch(now, index),
                    }
                }
                !in_order
            }
            Position::Old => {
                peer.receive.sack_again(sequence);
                peer.ack_immediately();
                self.counters.duplicate_frames += 1;
                false
            }
            _ => {
                self.counters.frames_outside += 1;
                false
            }
        }
    }
}

/// Returns true if the frame is one of the transport's own, as the format says.
fn is_session_frame(frame: &Frame) -> bool {
    frame.is::<Ack>()
        || frame.is::<Hello<{ kind::HELLO }>>()
        || frame.is::<Hello<{ kind::HELLO_REPLY }>>()
        || frame.is::<Goodbye>()
        || frame.is::<Leave>()
}

impl Transport {
    /// Returns true if a frame of one fragment has come before others that were lost or are late.
    pub(crate) fn is_early(&self, index: PeerIndex, frame: &Frame) -> bool {
        let peer = &self.peers[index];
        let ahead = peer.receive.position(frame.envelope.sequence.get()) == Position::Ahead;
        ahead && !peer.is_lossless() && frame.envelope.fragments == 1
    }

    /// Holds a frame that is being received: it is not delivered when the call that
    /// receives it returns.
    pub(crate) fn hold(&mut self, index: PeerIndex, sequence: u64) -> HeldFrame {
        let peer = &mut self.peers[index];
        peer.receive.hold(sequence);
        HeldFrame {
            peer: index,
            incarnation: peer.incarnation,
            sequence,
        }
    }

    /// Notes that a frame that was held is delivered, or need not be any more. Returns
    /// false if its session has ended; else notifications may be due
    /// ([`Transport::pop_notification`]).
    pub(crate) fn delivered(&mut self, held: HeldFrame) -> bool {
        let peer = &mut self.peers[held.peer];
        let current = peer.incarnation == held.incarnation;
        if current {
            peer.receive.deliver(held.sequence);
            self.peers.list(held.peer);
        }
        current
    }

    /// Refuses a frame that is held: its sender learns `status`.
    pub(crate) fn refuse_held(&mut self, held: HeldFrame, frame: &Frame, status: Status) {
        let peer = &mut self.peers[held.peer];
        if peer.incarnation == held.incarnation {
            let operation = frame.envelope.operation.get();
            peer.receive.refuse(held.sequence, operation);
            let nak = nak(frame, held.sequence, status);
            peer.naks.push_back((held.sequence, nak));
            self.peers.mark_urgent(held.peer);
        }
    }

    /// Refuses a frame of class Control: its sender learns `status`.
    pub(crate) fn refuse(&mut self, index: PeerIndex, frame: &Frame, status: Status) {
        let sequence = frame.envelope.sequence.get();
        self.send_control(index, nak(frame, sequence, status));
    }

    /// The peer has everything up to this number: the next frame that it knows to be
    /// refused is delivered. Returns false if there is none.
    #[inline]
    pub(crate) fn pop_refusal(&mut self, index: PeerIndex, received: u64) -> bool {
        let peer = &mut self.peers[index];
        let Some(sequence) = peer.receive.pop_refusal(received) else {
            return false;
        };
        peer.receive.deliver(sequence);
        self.peers.list(index);
        true
    }

    /// Returns true if a frame of that operation was refused, and more may come.
    #[inline]
    pub(crate) fn is_refused(&mut self, index: PeerIndex, operation: OperationId) -> bool {
        self.peers[index].receive.is_refused(operation.0)
    }

    /// A notification came with a frame. Returns true if it is due now: everything
    /// before that frame is delivered. It is never due if another frame of its operation
    /// was refused before.
    #[inline]
    pub(crate) fn notify(
        &mut self,
        index: PeerIndex,
        frame: &Frame,
        (vni, notification): (VniId, u32),
    ) -> bool {
        let sequence = frame.envelope.sequence.get();
        let operation = frame.envelope.operation.get();
        let receive = &mut self.peers[index].receive;
        if receive.is_refused(operation) {
            return false;
        }
        let due = receive.delivered() >= sequence;
        if !due {
            receive.defer((sequence, operation), vni, notification);
        }
        due
    }

    /// The next notification from a peer that has waited long enough.
    #[inline]
    pub(crate) fn pop_notification(&mut self, index: PeerIndex) -> Option<PendingNotification> {
        self.peers[index].receive.pop_notification()
    }

    /// Drops the notifications of a process that has ended.
    pub(crate) fn forget_notifications(&mut self, index: PeerIndex, vni: VniId) {
        self.peers[index].receive.forget_notifications(vni);
    }
}

fn nak(frame: &Frame, sequence: u64, status: Status) -> Frame {
    let envelope = &frame.envelope;
    let mut nak = Frame::new(&Nak {
        status: status.code().into(),
        kind: envelope.kind,
        reserved: [0; 3],
        sequence: sequence.into(),
    });
    nak.envelope.source_port = envelope.destination_port;
    nak.envelope.destination_port = envelope.source_port;
    nak.envelope.operation = envelope.operation;
    nak
}

impl Transport {
    /// Notes that a peer on a lossless route was sent something that it has to acknowledge.
    #[inline]
    pub(super) fn note_call(&mut self, index: PeerIndex) {
        let own = self.is_own(index);
        let peer = &mut self.peers[index];
        if !own && peer.is_lossless() && !std::mem::replace(&mut peer.called, true) {
            self.called.push(index);
        }
    }

    /// The next peer to ask for a receipt.
    #[inline]
    pub(crate) fn next_called(&mut self) -> Option<PeerIndex> {
        let index = self.called.pop()?;
        self.peers[index].called = false;
        Some(index)
    }

    /// What the node of a peer learns at once of what it has sent, if there is anything to learn.
    #[inline]
    pub(crate) fn receipt(&mut self, node: NodeId) -> Option<Receipt> {
        let index = self.find(node)?;
        let peer = &mut self.peers[index];
        if !peer.is_lossless() || !peer.session.is_known() || !peer.receive.ack_pending() {
            return None;
        }
        let (received, delivered) = peer.take_ack();
        let receipt = Receipt {
            source_session: peer.session.own(),
            destination_session: peer.session.peer(),
            received,
            delivered,
        };
        self.peers.unlist_last(index);
        Some(receipt)
    }

    /// Takes a receipt of a peer. Returns up to which number it has received everything; `None`: that
    /// is of another session.
    #[inline]
    pub(crate) fn take_receipt(
        &mut self,
        now: Time,
        index: PeerIndex,
        receipt: Receipt,
    ) -> Option<u64> {
        let peer = &mut self.peers[index];
        let sessions = (peer.session.peer(), peer.session.own());
        let current = (receipt.source_session, receipt.destination_session) == sessions;
        if !current || !peer.send.acknowledge(receipt.received, receipt.delivered) {
            self.counters.stale_frames += 1;
            return None;
        }
        peer.last_received = now;
        Some(receipt.received)
    }
}
