//! What a NIC remembers of another one.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use qnic_abi::wire::FrameHeader;
use qnic_abi::NodeId;

use crate::operation::{OperationId, Piece};

/// Place of a peer in the [`PeerTable`]; it keeps it until the NIC is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PeerIndex(u16);

/// A frame of a write that its destination has not acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlight {
    pub(crate) sequence: u64,
    pub(crate) operation: OperationId,
    pub(crate) piece: Piece,
    /// The write's notification rides on it.
    pub(crate) notice: bool,
    /// It was refused: its acknowledgement delivers nothing.
    pub(crate) refused: bool,
}

/// One direction each to and from another NIC.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    /// Sequence number of the next frame.
    pub(crate) next_sequence: u64,
    /// Frames of writes in flight, oldest first.
    pub(crate) in_flight: VecDeque<InFlight>,
    /// Read requests that were not answered.
    pub(crate) reads: u32,
    /// Operations that wait for a place in one of these two windows.
    pub(crate) blocked: Vec<OperationId>,
    /// Incarnation of the peer, once it is known.
    pub(crate) incarnation: Option<u32>,
    /// That incarnation has ended; the next one is expected.
    pub(crate) ended: bool,
    /// Everything up to this sequence number has arrived.
    pub(crate) received: u64,
    /// What the peer was told of that.
    pub(crate) acknowledged: u64,
    /// Refusals of frames of writes, by rising sequence number: each leaves
    /// before the acknowledgement that covers its frame.
    pub(crate) naks: VecDeque<FrameHeader>,
    /// All other answers.
    pub(crate) answers: VecDeque<FrameHeader>,
    /// The peer must be told to start over: it goes on with something that this
    /// NIC knows nothing of.
    pub(crate) introduce: bool,
    /// Stands in [`PeerTable::listed`].
    listed: bool,
}

impl Peer {
    fn new(node: NodeId) -> Self {
        Peer {
            node,
            next_sequence: 1,
            in_flight: VecDeque::new(),
            reads: 0,
            blocked: Vec::new(),
            incarnation: None,
            ended: false,
            received: 0,
            acknowledged: 0,
            naks: VecDeque::new(),
            answers: VecDeque::new(),
            introduce: false,
            listed: false,
        }
    }

    /// Starts over in both directions.
    pub(crate) fn restart(&mut self) {
        self.next_sequence = 1;
        self.received = 0;
        self.acknowledged = 0;
        self.forget_traffic();
    }

    /// Forgets what is under way; numbers go on.
    pub(crate) fn forget_traffic(&mut self) {
        self.in_flight.clear();
        self.reads = 0;
        self.blocked.clear();
        self.naks.clear();
        self.answers.clear();
    }

    /// What a frame may acknowledge now: all that has arrived, up to the first
    /// refusal that has not left.
    pub(crate) fn acknowledgement(&self) -> u64 {
        match self.naks.front() {
            Some(nak) => nak.argument.get() - 1,
            None => self.received,
        }
    }

    /// Places a frame in the window; it was sent.
    pub(crate) fn sent(&mut self, operation: OperationId, piece: Piece, notice: bool) {
        self.in_flight.push_back(InFlight {
            sequence: self.next_sequence - 1,
            operation,
            piece,
            notice,
            refused: false,
        });
    }

    /// The frame of that number, while it is in flight.
    pub(crate) fn find_in_flight(&mut self, sequence: u64) -> Option<&mut InFlight> {
        let place = self
            .in_flight
            .binary_search_by_key(&sequence, |frame| frame.sequence)
            .ok()?;
        self.in_flight.get_mut(place)
    }

    /// Takes the oldest frame out of the window if `acknowledge` covers it.
    pub(crate) fn pop_acknowledged(&mut self, acknowledge: u64) -> Option<InFlight> {
        let oldest = self.in_flight.front()?;
        (oldest.sequence <= acknowledge)
            .then(|| self.in_flight.pop_front())
            .flatten()
    }

    /// Says whether an acknowledgement covers any frame in the window.
    pub(crate) fn is_covered(&self, acknowledge: u64) -> bool {
        let oldest = self.in_flight.front();
        oldest.is_some_and(|frame| frame.sequence <= acknowledge)
    }

    /// Says whether the oldest frame in the window is covered too, and of the same
    /// operation.
    pub(crate) fn covers_next(&self, acknowledge: u64, operation: OperationId) -> bool {
        let oldest = self.in_flight.front();
        oldest.is_some_and(|frame| frame.sequence <= acknowledge && frame.operation == operation)
    }

    fn has_output(&self) -> bool {
        self.introduce
            || !self.naks.is_empty()
            || !self.answers.is_empty()
            || self.acknowledged < self.acknowledgement()
    }
}

/// All peers of a NIC, found by node number in constant time.
#[derive(Debug, Default)]
pub(crate) struct PeerTable {
    peers: Vec<Peer>,
    /// Place + 1 by node number, or 0.
    places: Vec<u16>,
    /// Peers that something may have to be sent to.
    listed: Vec<PeerIndex>,
    /// One of them has more to be sent than an acknowledgement.
    urgent: bool,
    /// Buffer of the list before.
    spare: Vec<PeerIndex>,
}

impl PeerTable {
    /// The peer of that node, a new one if need be; `None` beyond `limit` peers.
    #[inline]
    pub(crate) fn find_or_add(&mut self, node: NodeId, limit: u32) -> Option<PeerIndex> {
        match self.places.get(usize::from(node.0)) {
            Some(place) if *place != 0 => Some(PeerIndex(place - 1)),
            _ => self.add(node, limit),
        }
    }

    #[cold]
    fn add(&mut self, node: NodeId, limit: u32) -> Option<PeerIndex> {
        let number = usize::from(node.0);
        if self.peers.len() >= (limit.min(u32::from(u16::MAX))) as usize {
            return None;
        }
        if number >= self.places.len() {
            self.places.resize(number + 1, 0);
        }
        self.peers.push(Peer::new(node));
        self.places[number] = self.peers.len() as u16;
        Some(PeerIndex((self.peers.len() - 1) as u16))
    }

    /// Every peer.
    pub(crate) fn all(&self) -> impl Iterator<Item = PeerIndex> {
        (0..self.peers.len() as u16).map(PeerIndex)
    }

    /// Notes that a peer may have to be told what has arrived from it.
    pub(crate) fn list(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[usize::from(index.0)];
        if !peer.listed {
            peer.listed = true;
            self.listed.push(index);
        }
    }

    /// Queues an answer to a peer.
    pub(crate) fn answer(&mut self, index: PeerIndex, answer: FrameHeader) {
        self[index].answers.push_back(answer);
        self.hurry(index);
    }

    /// Notes that there is more to send to a peer than an acknowledgement.
    pub(crate) fn hurry(&mut self, index: PeerIndex) {
        self.urgent = true;
        self.list(index);
    }

    /// Says whether something has to be sent to any peer.
    pub(crate) fn has_output(&self) -> bool {
        self.listed.iter().any(|index| self[*index].has_output())
    }

    /// Says whether something may have to be sent to any peer; with `urgent`, more
    /// than acknowledgements.
    pub(crate) fn has_listed(&self, urgent: bool) -> bool {
        !self.listed.is_empty() && (self.urgent || !urgent)
    }

    /// Takes the list of peers that something may have to be sent to.
    pub(crate) fn take_listed(&mut self) -> Vec<PeerIndex> {
        for index in &self.listed {
            self.peers[usize::from(index.0)].listed = false;
        }
        self.urgent = false;
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.listed, spare)
    }

    /// Gives back the buffer of a list that was worked off.
    pub(crate) fn reuse(&mut self, mut list: Vec<PeerIndex>) {
        list.clear();
        self.spare = list;
    }

    pub(crate) fn clear(&mut self) {
        *self = PeerTable::default();
    }
}

impl Index<PeerIndex> for PeerTable {
    type Output = Peer;

    fn index(&self, index: PeerIndex) -> &Peer {
        &self.peers[usize::from(index.0)]
    }
}

impl IndexMut<PeerIndex> for PeerTable {
    fn index_mut(&mut self, index: PeerIndex) -> &mut Peer {
        &mut self.peers[usize::from(index.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn peers_are_found_again_and_bounded() {
        let mut table = PeerTable::default();
        let a = table.find_or_add(NodeId(7), 2).unwrap();
        let b = table.find_or_add(NodeId(0), 2).unwrap();
        assert_ne!(a, b);
        assert_eq!(table.find_or_add(NodeId(7), 2), Some(a));
        assert_eq!(table.find_or_add(NodeId(9), 2), None);
        assert_eq!(table[a].node, NodeId(7));
        assert_eq!(table.all().count(), 2);
    }

    #[test]
    fn acknowledgements_wait_for_refusals() {
        let mut peer = Peer::new(NodeId(1));
        peer.received = 9;
        assert_eq!(peer.acknowledgement(), 9);
        let mut nak = FrameHeader::new_zeroed();
        nak.argument = 5.into();
        peer.naks.push_back(nak);
        assert_eq!(peer.acknowledgement(), 4);
        assert!(peer.has_output());
        peer.naks.clear();
        peer.acknowledged = 9;
        assert!(!peer.has_output());
    }

    #[test]
    fn frames_leave_the_window_in_order() {
        let mut peer = Peer::new(NodeId(1));
        for sequence in [3, 4, 8] {
            peer.next_sequence = sequence + 1;
            peer.sent(OperationId(sequence), Piece::default(), false);
        }
        assert!(peer.find_in_flight(5).is_none());
        peer.find_in_flight(4).unwrap().refused = true;
        assert_eq!(peer.pop_acknowledged(5).unwrap().sequence, 3);
        assert!(peer.pop_acknowledged(5).unwrap().refused);
        assert!(peer.pop_acknowledged(5).is_none());
        assert!(peer.find_in_flight(8).is_some());
    }
}
