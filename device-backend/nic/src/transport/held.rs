//! Frames that were received and are delivered, or refused, later; and the
//! notifications that wait for them (N14, N18).
//!
//! ```text
//!   received ──┬── delivered at once                    nothing to do
//!              └── hold ──┬── delivered ──────────────► delivered
//!                         └── refuse ──── Nak ── its arrival is
//!                                                acknowledged ──► delivered
//! ```
//! A frame that is held keeps its place in its sender's window, and back the
//! notifications that were sent after it.

use qnic_abi::wire::{Frame, Nak};
use qnic_abi::{Status, VniId};

use super::receive_window::PendingNotification;
use super::Transport;
use crate::frame::HeldFrame;
use crate::ids::{OperationId, PeerIndex};

impl Transport {
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
