//! Receipts: acknowledgements that a sender takes where its frames were received within its calls (P9).
//!
//! ```text
//!   sender                     wire                          receiver
//!   put ─────────────────────► send ───────────────────────► handle_frame
//!   put ─────────────────────► send ───────────────────────► handle_frame
//!   after its turns ─────────► receipt ────────────────────► receipt: nothing to acknowledge
//!   settled  ◄───────────────────────────────────────────────┘        any more, no turn is due
//! ```
//! Within one engine a frame is received before its sender goes on. So what an Ack would say at the
//! end of the receiver's next poll is known already, and a write costs its receiver neither a frame nor
//! a turn, to however many peers it goes. A sender asks each peer that it has sent frames of class
//! Windowed on a lossless route to, once, after the turns of a poll: as one Ack would be for all of them,
//! and no operation ends while it is being sent. Where a wire has no receipts, Acks come.

use qnic_abi::NodeId;

use super::Transport;
use crate::env::{Receipt, Time};
use crate::ids::PeerIndex;

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
