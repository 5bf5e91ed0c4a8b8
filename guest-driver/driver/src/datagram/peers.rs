//! Packets under way to each node (H2): a node that does not answer leaves the others their share.
//!
//! ```text
//!   driver ── packet ──► NIC ── sent ──► completion             at once
//!                         └──── no session with the node ─────► PeerGone, after `peer_timeout`
//! ```
//! A packet to a node that answers ends at once. A packet to a silent node stays with the NIC
//! until the NIC gives the node up, for seconds, and takes a send slot of its port and of the NIC. So a
//! node may have no more packets under way than its port has slots left, nor than half of what the
//! NIC has left: the first dead node gets half of a port at most, the second one half of the rest.
//! Messages beyond that wait, and those to other nodes pass them.
//!
//! A node that the NIC has given up is *suspect* until a packet to it was sent: it gets one packet
//! at a time, as a probe.
//!
//! # Bounds
//! A node is known while packets to it are under way (there are at most [`PACKETS`]), and while it
//! is suspect. At most [`REMEMBERED`] suspect nodes are known, then the oldest is forgotten.

use alloc::vec::Vec;

use qnic_abi::message::SENDS;
use qnic_abi::{NodeId, Status};

use crate::platform::NoMemory;

/// Packets of all ports that may be under way.
pub(super) const PACKETS: usize = 256;

/// Packets of one port that may be under way.
pub(super) const PACKETS_OF_PORT: u32 = 64;

// The NIC's bound would stop the whole queue, buffers included: it must not be reached.
const _: () = assert!(PACKETS < SENDS as usize);

/// Suspect nodes without packets that are remembered.
const REMEMBERED: usize = 64;

struct Peer {
    node: NodeId,
    /// Packets to it that the NIC has.
    under_way: u32,
    /// The last packet that ended could not be sent.
    suspect: bool,
    /// Messages wait for a packet to end.
    awaited: bool,
}

/// All nodes with packets under way, and the suspect ones.
pub(super) struct Peers {
    known: Vec<Peer>,
    /// Packets that the NIC has.
    under_way: u32,
}

/// What the end of a packet means for waiting messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing.
    Same,
    /// Messages to the node may be sent.
    Resume,
    /// The node is gone, and messages to it fail.
    Fail,
}

impl Peers {
    pub(super) fn new() -> Result<Self, NoMemory> {
        let mut known = Vec::new();
        known.try_reserve_exact(PACKETS + REMEMBERED + 1)?;
        Ok(Peers {
            known,
            under_way: 0,
        })
    }

    fn get(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.known.iter_mut().find(|peer| peer.node == node)
    }

    /// Returns true if a port with so many packets under way may send another one to a node. If not,
    /// the node has packets under way, and the end of one will be reported.
    pub(super) fn has_room(&mut self, node: NodeId, of_port: u32) -> bool {
        let port = PACKETS_OF_PORT.saturating_sub(of_port);
        let all = (PACKETS as u32).saturating_sub(self.under_way);
        let share = port.min(all / 2).max(1);
        let Some(peer) = self.get(node) else {
            return true;
        };
        let share = if peer.suspect { 1 } else { share };
        let has_room = peer.under_way < share;
        peer.awaited |= !has_room;
        has_room
    }

    /// The NIC has a packet for a node.
    pub(super) fn sent(&mut self, node: NodeId) {
        self.under_way += 1;
        match self.get(node) {
            Some(peer) => peer.under_way += 1,
            // There is room: each known node has a packet, or is suspect.
            None => self.known.push(Peer {
                node,
                under_way: 1,
                suspect: false,
                awaited: false,
            }),
        }
    }

    /// A packet to a node has ended.
    pub(super) fn returned(&mut self, node: NodeId, status: Status) -> Outcome {
        self.under_way = self.under_way.saturating_sub(1);
        let gone = status == Status::PeerGone;
        let Some(peer) = self.get(node) else {
            return Outcome::Same;
        };
        peer.under_way = peer.under_way.saturating_sub(1);
        peer.suspect = gone;
        let awaited = core::mem::take(&mut peer.awaited);
        self.forget();
        match awaited {
            false => Outcome::Same,
            true if gone => Outcome::Fail,
            true => Outcome::Resume,
        }
    }

    /// Forgets nodes that are neither, and the oldest suspect one beyond the bound.
    fn forget(&mut self) {
        self.known.retain(|peer| peer.under_way > 0 || peer.suspect);
        let idle = |peer: &Peer| peer.under_way == 0;
        if self.known.iter().filter(|peer| idle(peer)).count() > REMEMBERED {
            if let Some(oldest) = self.known.iter().position(idle) {
                self.known.remove(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as many packets to a node as it may have; returns the number.
    fn fill(peers: &mut Peers, node: u16, of_port: &mut u32) -> u32 {
        let start = *of_port;
        while *of_port < PACKETS_OF_PORT && peers.has_room(NodeId(node), *of_port) {
            peers.sent(NodeId(node));
            *of_port += 1;
        }
        *of_port - start
    }

    #[test]
    fn each_node_gets_half_of_what_is_left() {
        let mut peers = Peers::new().unwrap();
        let mut of_port = 0;
        let shares = [1, 2, 3, 4, 5, 6].map(|node| fill(&mut peers, node, &mut of_port));
        assert_eq!(shares, [32, 16, 8, 4, 2, 1]);
        assert!(peers.has_room(NodeId(7), of_port), "a slot is left");
    }

    #[test]
    fn many_ports_leave_slots_of_the_nic() {
        let mut peers = Peers::new().unwrap();
        for node in 0..6 {
            (0..64).for_each(|_| _ = fill(&mut peers, node, &mut 0));
        }
        assert!(peers.under_way < PACKETS as u32, "{}", peers.under_way);
    }

    #[test]
    fn a_node_that_was_gone_gets_one_packet_until_it_answers() {
        let mut peers = Peers::new().unwrap();
        let node = NodeId(3);
        peers.sent(node);
        assert_eq!(peers.returned(node, Status::PeerGone), Outcome::Same);
        assert_eq!(fill(&mut peers, 3, &mut 0), 1);
        assert_eq!(peers.returned(node, Status::PeerGone), Outcome::Fail);
        assert_eq!(fill(&mut peers, 3, &mut 0), 1);
        assert_eq!(peers.returned(node, Status::Ok), Outcome::Resume);
        assert_eq!(fill(&mut peers, 3, &mut 0), 32);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let mut peers = Peers::new().unwrap();
        for node in 0..2 * REMEMBERED as u16 {
            peers.sent(NodeId(node));
            peers.returned(NodeId(node), Status::PeerGone);
        }
        assert_eq!(peers.known.len(), REMEMBERED);
        assert_eq!(fill(&mut peers, 0, &mut 0), 32, "it was forgotten");
        assert_eq!(fill(&mut peers, 2 * REMEMBERED as u16 - 1, &mut 0), 1);
    }
}
