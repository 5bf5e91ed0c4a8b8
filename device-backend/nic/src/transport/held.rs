//! Frames that were taken and are delivered, or refused, later; and the
//! notifications that wait for them (N14, N18).
//!
//! ```text
//!   taken ──┬── delivered at once                       nothing to do
//!           └── hold_frame ──┬── frame_delivered ──────► delivered
//!                            └── frame_refused ── Nak ── its arrival is
//!                                                        acknowledged ──► delivered
//! ```
//! A frame that is held keeps its place in its sender's window, and back the
//! notifications that were sent after it.

use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::{Status, VniId};

use super::{header, PeerIndex};
use crate::env::Host;
use crate::nic::Nic;

/// Names a frame that is held. It names nothing once the conversation that the
/// frame came in has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldFrame {
    peer: PeerIndex,
    life: u32,
    sequence: u64,
}

impl HeldFrame {
    /// The peer that it came from.
    pub(crate) fn peer(&self) -> PeerIndex {
        self.peer
    }
}

impl Nic {
    /// Holds a frame that is being taken: it is not delivered when the call that
    /// takes it returns.
    pub(crate) fn hold_frame(&mut self, index: PeerIndex, frame: &FrameHeader) -> HeldFrame {
        let sequence = frame.sequence.get();
        let peer = &mut self.peers[index];
        peer.receive.hold(sequence);
        HeldFrame {
            peer: index,
            life: peer.life,
            sequence,
        }
    }

    /// Notes that a frame that was held is delivered, or need not be any more.
    pub(crate) fn frame_delivered<H: Host>(&mut self, host: &H, held: HeldFrame) {
        let peer = &mut self.peers[held.peer];
        if peer.life != held.life {
            return;
        }
        peer.receive.deliver(held.sequence);
        self.peers.list(held.peer);
        self.release_notices(host, held.peer);
    }

    /// Refuses a frame that is held: its sender learns `status`. `frame` is its header.
    pub(crate) fn frame_refused(&mut self, held: HeldFrame, frame: &FrameHeader, status: Status) {
        let mut nak = header(FrameKind::Nak);
        nak.source_port = frame.destination_port;
        nak.destination_port = frame.source_port;
        nak.operation = frame.operation;
        nak.offset = frame.offset;
        nak.status = status.code().into();
        self.send_nak(held, nak);
    }

    /// Queues the Nak of a frame that is held.
    pub(crate) fn send_nak(&mut self, held: HeldFrame, mut nak: FrameHeader) {
        let peer = &mut self.peers[held.peer];
        if peer.life == held.life {
            nak.argument = held.sequence.into();
            peer.receive.refuse(held.sequence, nak.operation.get());
            peer.naks.push_back(nak);
            self.peers.hurry(held.peer);
        }
    }

    /// The peer has everything up to `received`: what it knows to be refused is
    /// delivered.
    #[inline]
    pub(super) fn settle_refusals<H: Host>(&mut self, host: &H, index: PeerIndex, received: u64) {
        while let Some(sequence) = self.peers[index].receive.pop_refusal(received) {
            let life = self.peers[index].life;
            let held = HeldFrame {
                peer: index,
                life,
                sequence,
            };
            self.frame_delivered(host, held);
        }
    }

    /// Signals a notification that came with a frame, once everything before that
    /// frame is delivered; never if another frame of its write was refused before.
    #[inline]
    pub(crate) fn notify<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        (vni, notification): (VniId, u32),
    ) {
        let (sequence, operation) = (frame.sequence.get(), frame.operation.get());
        let receive = &mut self.peers[index].receive;
        if receive.is_refused(operation) {
            return;
        }
        match receive.delivered() >= sequence {
            true => self.signal(host, vni, notification),
            false => receive.defer((sequence, operation), vni, notification),
        }
    }

    /// Signals the notifications that have waited long enough.
    #[inline]
    pub(super) fn release_notices<H: Host>(&mut self, host: &H, index: PeerIndex) {
        while let Some(notice) = self.peers[index].receive.pop_notice() {
            self.signal(host, notice.vni, notice.notification);
        }
    }

    fn signal<H: Host>(&mut self, host: &H, vni: VniId, notification: u32) {
        self.counters.notifications += 1;
        if let Some(process) = self.process(vni) {
            let window = process.queue.window;
            process.host_area.signal(host, window, notification);
            process.changed = true;
            process.signalled = true;
        }
        self.touch(vni);
    }
}
