//! The table of peers, and what all of them share: windows, places, numbers of sessions. Also what
//! the transport reports to people of them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};

use qnic_abi::NodeId;

use super::gone::Gone;
use super::peer::Peer;
use super::pool::Pool;
use super::session::Session;
use super::{Transport, CONTROL_LIMIT, REQUEST_WINDOW};
use crate::budget::Budget;
use crate::config::Limits;
use crate::env::{Path, Time};
use crate::ids::PeerIndex;
use crate::occupants::PeerReport;

/// All peers of a NIC, found by node number in constant time.
#[derive(Debug)]
pub(crate) struct PeerTable {
    peers: Vec<Peer>,
    /// Most peers.
    limit: usize,
    /// This node itself, once it is there.
    own: Option<PeerIndex>,
    /// Index + 1 by node number, or 0.
    indices: Vec<u16>,
    /// Peers that something may have to be sent to.
    listed: Vec<PeerIndex>,
    /// One of them has more to be sent than an acknowledgement.
    urgent: bool,
    /// Buffer of the list before.
    spare: Vec<PeerIndex>,
    /// The next session of this NIC with any peer.
    next_session: u64,
    /// The windows that were granted to peers.
    pool: Pool,
    /// The share of each when the windows of all were looked at.
    shared: u32,
    /// Peers with less than their share, in the order in which they grow.
    growing: VecDeque<PeerIndex>,
    /// Places of peers that have left.
    vacant: Vec<PeerIndex>,
    /// The last sessions with nodes that were peers before: the next are larger.
    ended: BTreeMap<NodeId, Session>,
    /// Peers that were given up: [`PeerTable::find`] does not find them.
    gone: BTreeMap<NodeId, PeerIndex>,
}

impl PeerTable {
    /// A table without peers.
    pub(super) fn new(limits: &Limits) -> Self {
        let pool = Pool::new(limits);
        PeerTable {
            peers: Vec::new(),
            limit: limits.peers.min(u32::from(u16::MAX)) as usize,
            own: None,
            indices: Vec::new(),
            listed: Vec::new(),
            urgent: false,
            spare: Vec::new(),
            next_session: 0,
            shared: pool.share(),
            pool,
            growing: VecDeque::new(),
            vacant: Vec::new(),
            ended: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// The peer of that node, if it is one.
    #[inline]
    pub(super) fn find(&self, node: NodeId) -> Option<PeerIndex> {
        let entry = *self.indices.get(usize::from(node.0))?;
        entry.checked_sub(1).map(PeerIndex)
    }

    /// The peer of a node that was given up.
    #[cold]
    pub(super) fn find_gone(&self, node: NodeId) -> Option<PeerIndex> {
        self.gone.get(&node).copied()
    }

    /// Any peer that was given up.
    pub(super) fn any_gone(&self) -> Option<PeerIndex> {
        self.gone.values().next().copied()
    }

    /// A peer was given up: it keeps its place, and the smallest window.
    pub(super) fn give_up(&mut self, index: PeerIndex, gone: Gone) {
        let peer = &mut self.peers[usize::from(index.0)];
        peer.given_up = Some(gone);
        self.pool.leave(peer.grant);
        peer.grant = self.pool.least();
        self.indices[usize::from(peer.node.0)] = 0;
        self.gone.insert(peer.node, index);
    }

    /// A peer that was given up has answered.
    pub(super) fn take_back(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[usize::from(index.0)];
        peer.given_up = None;
        self.pool.rejoin();
        self.indices[usize::from(peer.node.0)] = index.0 + 1;
        self.gone.remove(&peer.node);
    }

    /// Makes a node that is no peer one; `None` beyond the limit.
    #[cold]
    pub(super) fn add(&mut self, node: NodeId) -> Option<PeerIndex> {
        if self.peers.len() >= self.limit && self.vacant.is_empty() {
            return None;
        }
        let grant = self.pool.join();
        Some(self.place(node, grant))
    }

    fn place(&mut self, node: NodeId, grant: u32) -> PeerIndex {
        let next = self.new_session();
        let session = match self.ended.get(&node) {
            None => Session::new(next),
            Some(ended) => {
                let mut session = ended.clone();
                session.end_own(next);
                session
            }
        };
        let mut peer = Peer::new(node, session, grant);
        let index = match self.vacant.pop() {
            Some(index) => {
                let old = &mut self[index];
                peer.incarnation = old.incarnation.wrapping_add(1);
                peer.listed = old.listed;
                peer.called = old.called;
                peer.growing = old.growing;
                *old = peer;
                index
            }
            None => {
                self.peers.push(peer);
                PeerIndex((self.peers.len() - 1) as u16)
            }
        };
        let number = usize::from(node.0);
        if number >= self.indices.len() {
            self.indices.resize(number + 1, 0);
        }
        self.indices[number] = index.0 + 1;
        index
    }

    /// Lets a peer leave whose session has ended, and of which nothing else is known any
    /// more. Its window goes back to all.
    pub(super) fn vacate(&mut self, index: PeerIndex) {
        let peer = &mut self[index];
        if std::mem::replace(&mut peer.vacant, true) {
            return;
        }
        let (node, grant, session) = (peer.node, peer.grant, peer.session.clone());
        if peer.given_up.take().is_none() {
            self.pool.leave(grant);
        }
        // Nothing was heard of others, and the next number is larger anyway.
        if session.floor() > 1 || session.own() >= self.next_session {
            self.ended.insert(node, session);
        }
        self.indices[usize::from(node.0)] = 0;
        self.gone.remove(&node);
        self.vacant.push(index);
    }

    /// Makes the own node known: frames to it take no wire.
    pub(super) fn add_own(&mut self, node: NodeId) {
        let most = self.pool.most();
        let index = self.find(node).unwrap_or_else(|| self.place(node, most));
        let session = Session::with_itself(self.new_session());
        let peer = &mut self[index];
        peer.session = session;
        peer.set_path(Path::LOSSLESS);
        peer.send.grant(most);
        self.own = Some(index);
    }

    /// Returns true if a peer is this node itself.
    #[inline]
    pub(super) fn is_own(&self, index: PeerIndex) -> bool {
        self.own == Some(index)
    }

    /// Returns true if peers have no whole windows, or half of the places are taken.
    pub(super) fn is_crowded(&self) -> bool {
        let taken = self.peers.len() - self.vacant.len();
        taken > 1 && (self.pool.share() < self.pool.most() || taken * 2 > self.limit)
    }

    /// The largest window.
    pub(super) fn most(&self) -> u32 {
        self.pool.most()
    }

    /// Returns true if the share of each peer is not what it was when this was asked last.
    pub(super) fn share_has_changed(&mut self) -> bool {
        let share = self.pool.share();
        std::mem::replace(&mut self.shared, share) != share
    }

    /// Begins to renew the window of a peer that has not its share; returns the new one.
    pub(super) fn renew(&mut self, index: PeerIndex) -> Option<u32> {
        let peer = &mut self.peers[usize::from(index.0)];
        if peer.vacant || !peer.is_ready() || peer.renewal.is_some() || self.own == Some(index) {
            return None;
        }
        let (before, share) = (peer.grant, self.pool.share());
        let window = match before < share {
            true => self.pool.grow(before),
            false => share,
        };
        peer.grant = before.max(window);
        peer.renewal = (window != before).then_some(window);
        if window < share && !std::mem::replace(&mut peer.growing, true) {
            self.growing.push_back(index);
        }
        peer.renewal
    }

    /// A peer has confirmed a window. Returns false if it is not the one that was announced.
    pub(super) fn taken(&mut self, index: PeerIndex, window: u32) -> bool {
        let peer = &mut self.peers[usize::from(index.0)];
        let confirms = peer.renewal == Some(window);
        if confirms {
            peer.renewal = None;
            self.pool.shrink(peer.grant, window);
            peer.grant = window;
        }
        confirms
    }

    /// The next peer whose window can grow, if there is anything to grow by.
    pub(super) fn next_growing(&mut self) -> Option<PeerIndex> {
        let index = self.pool.has_free().then(|| self.growing.pop_front())??;
        self[index].growing = false;
        Some(index)
    }

    /// Starts over with a peer: what it held has gone with its session, so it has its share.
    pub(super) fn restart(&mut self, index: PeerIndex) {
        let own = self.is_own(index);
        let peer = &mut self.peers[usize::from(index.0)];
        if !own && !peer.vacant && peer.given_up.is_none() {
            peer.grant = self.pool.renew(peer.grant);
        }
        peer.restart();
    }

    /// A number that no session of this NIC has had: an even one ([`Session`]).
    pub(super) fn new_session(&mut self) -> u64 {
        let session = self.next_session.max(2).next_multiple_of(2);
        self.next_session = session.saturating_add(2);
        session
    }

    /// Lets sessions go on from `base`, unless they are beyond it.
    pub(super) fn raise_sessions(&mut self, base: u64) {
        self.next_session = self.next_session.max(base);
    }

    /// Every peer.
    pub(super) fn all(&self) -> Vec<PeerIndex> {
        self.present().map(|(index, _)| index).collect()
    }

    /// All peers there are.
    pub(super) fn present(&self) -> impl Iterator<Item = (PeerIndex, &Peer)> {
        let peers = (0u16..).zip(&self.peers);
        let peers = peers.filter(|(_, peer)| !peer.vacant);
        peers.map(|(index, peer)| (PeerIndex(index), peer))
    }

    /// Notes that an acknowledgement may have to be sent to a peer.
    #[inline]
    pub(super) fn list(&mut self, index: PeerIndex) -> &mut Peer {
        let peer = &mut self.peers[usize::from(index.0)];
        if !peer.listed {
            peer.listed = true;
            self.listed.push(index);
        }
        peer
    }

    /// Takes a peer off the list that was put there last, if nothing has to be sent to it.
    #[inline]
    pub(super) fn unlist_last(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[usize::from(index.0)];
        if self.listed.last() == Some(&index) && !peer.has_output(Time(u64::MAX)) {
            peer.listed = false;
            self.listed.pop();
        }
    }

    /// Makes sure that a session with a peer comes about, and that what waits for
    /// it is sent.
    pub(super) fn ensure_session(&mut self, index: PeerIndex) {
        self[index].ensure_session();
        self.mark_urgent(index);
    }

    /// Notes that there is more to send to a peer than an acknowledgement.
    pub(super) fn mark_urgent(&mut self, index: PeerIndex) {
        self.urgent = true;
        self.list(index);
    }

    /// Returns true if something has to be sent to any peer.
    pub(super) fn has_output(&self, now: Time) -> bool {
        let mut listed = self.listed.iter();
        listed.any(|index| self[*index].has_output(now))
    }

    /// When the next acknowledgement is due that waits.
    pub(super) fn deadline(&self) -> Option<Time> {
        let listed = self.listed.iter();
        listed.filter_map(|index| self[*index].ack_at).min()
    }

    /// Returns true if something may have to be sent to any peer; with `urgent`, more
    /// than acknowledgements.
    pub(super) fn has_listed(&self, urgent: bool) -> bool {
        !self.listed.is_empty() && (self.urgent || !urgent)
    }

    /// Takes the list of peers that something may have to be sent to.
    pub(super) fn take_listed(&mut self) -> Vec<PeerIndex> {
        for index in &self.listed {
            self.peers[usize::from(index.0)].listed = false;
        }
        self.urgent = false;
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.listed, spare)
    }

    /// Gives back the buffer of a list that was processed.
    pub(super) fn reuse(&mut self, mut list: Vec<PeerIndex>) {
        list.clear();
        self.spare = list;
    }

    /// Forgets all peers; session numbers go on.
    pub(super) fn clear(&mut self, limits: &Limits) {
        *self = PeerTable {
            next_session: self.next_session,
            ..PeerTable::new(limits)
        };
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

impl Transport {
    /// What is kept for peers, and how much may be.
    pub(crate) fn budgets(&self) -> Vec<Budget> {
        let all = self.peers.all();
        let all = || all.iter().map(|index| &self.peers[*index]);
        let limits = &self.limits;
        let granted: u32 = all().map(|peer| peer.grant).sum();
        let control = all().map(|peer| peer.control.len());
        let requests = all().map(|peer| peer.requests);
        vec![
            Budget::new("peers", all().count(), limits.peers),
            Budget::new("windows", granted, limits.granted_windows()),
            Budget::most("control_frames_of_peer", control, CONTROL_LIMIT as u32),
            Budget::most("requests_of_peer", requests, REQUEST_WINDOW),
        ]
    }

    /// Every peer, by node.
    pub(crate) fn peer_reports(&self) -> Vec<PeerReport> {
        let peers = self.peers.present();
        let reports = peers.map(|(index, peer)| peer.report(self.peers.is_own(index)));
        let mut reports: Vec<_> = reports.collect();
        reports.sort_by_key(|report| report.node);
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_again_and_bounded() {
        let limits = Limits {
            peers: 2,
            ..Limits::default()
        };
        let mut table = PeerTable::new(&limits);
        let a = table.add(NodeId(7)).unwrap();
        let b = table.add(NodeId(0)).unwrap();
        assert_ne!(a, b);
        assert_eq!(table.find(NodeId(7)), Some(a));
        assert_eq!(table.add(NodeId(9)), None);
        assert_eq!(table[a].node, NodeId(7));
        assert_eq!(table.all().len(), 2);
    }

    #[test]
    fn a_peer_that_has_left_gives_its_place_and_its_window_back() {
        let limits = Limits {
            peers: 2,
            window: 64,
            held_frames: 2 * 16 + 48 + 68,
            ..Limits::default()
        };
        let mut table = PeerTable::new(&limits);
        let a = table.add(NodeId(7)).unwrap();
        let b = table.add(NodeId(8)).unwrap();
        assert_eq!((table[a].grant, table[b].grant), (64, 36), "the rest");
        table[a].session.begin(5);
        let before = table[a].incarnation;
        for _ in 0..2 {
            table.vacate(a);
        }
        assert_eq!(table.find(NodeId(7)), None);
        assert_eq!(table.all(), [b]);
        let c = table.add(NodeId(9)).unwrap();
        assert_eq!(
            (c, table[c].grant),
            (a, 50),
            "its place, and half of the rest"
        );
        assert_ne!(table[c].incarnation, before);
        assert_eq!(table.add(NodeId(7)), None);
        table.vacate(c);
        let again = table.add(NodeId(7)).unwrap();
        assert_eq!(
            table[again].session.floor(),
            5,
            "its old sessions stay over"
        );
    }

    #[test]
    fn a_session_beyond_what_the_nic_counts_does_not_come_back_either() {
        let mut table = PeerTable::new(&Limits::default());
        let a = table.add(NodeId(7)).unwrap();
        table[a].session.end_own(1001);
        table.vacate(a);
        let again = table.add(NodeId(7)).unwrap();
        assert_eq!(table[again].session.own(), 1004);
        let other = table.add(NodeId(8)).unwrap();
        assert!(
            table[other].session.own() < 1000,
            "one peer does not count for another"
        );
    }

    #[test]
    fn sessions_never_repeat_not_even_after_a_reset() {
        let limits = Limits::default();
        let mut table = PeerTable::new(&limits);
        let a = table.add(NodeId(1)).unwrap();
        let first = table[a].session.own();
        assert!(first > 0);
        table.clear(&limits);
        table.raise_sessions(first);
        let a = table.add(NodeId(1)).unwrap();
        assert!(table[a].session.own() > first);
        table.raise_sessions(1000);
        assert_eq!(table.new_session(), 1000);
    }
}
