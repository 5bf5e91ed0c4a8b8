//! What a NIC remembers of another one, and the table of all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};

use qnic_abi::wire::{Frame, MAX_PAYLOAD, MAX_SPAN};
use qnic_abi::NodeId;

use super::blocked::Blocked;
use super::congestion::Congestion;
use super::leave::Leaving;
use super::packets::Packets;
use super::pool::Pool;
use super::receive_window::ReceiveWindow;
use super::rtt::RoundTrip;
use super::send_window::SendWindow;
use super::session::Session;
use super::timer::TimerId;
use crate::config::Limits;
use crate::env::{Path, Time};
use crate::ids::PeerIndex;

/// One direction each to and from another NIC.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(super) session: Session,
    /// Changes whenever everything starts over: tells frames apart that are held.
    pub(super) incarnation: u32,
    /// Fragments that the peer may have on their way or undelivered.
    pub(super) grant: u32,
    /// What it will have instead once it confirms that.
    renewal: Option<u32>,
    /// Stands in [`PeerTable::growing`].
    growing: bool,
    /// A window of the peer that has to be confirmed once no more than that is under way.
    pub(super) taken: Option<u32>,
    pub(super) leaving: Leaving,
    /// The route to it, as the wire described it when the session began.
    pub(super) path: Option<Path>,
    lossless: bool,
    /// Most payload bytes in a frame to it.
    pub(super) max_payload: u32,
    /// Copies of what it has not received, where the route is not lossless.
    pub(super) packets: Packets,
    pub(super) round_trip: RoundTrip,
    pub(super) congestion: Congestion,
    /// When it was last heard that something had arrived.
    pub(super) progress_at: Time,
    /// When it was last asked, or sent something again, because it said nothing: its answer
    /// measures that, and no round trip.
    pub(super) pushed_at: Time,
    /// When the last frame of it was received.
    pub(super) last_received: Time,
    /// The timer that watches its silence.
    pub(super) watch: Option<TimerId>,
    /// It has to be probed.
    pub(super) probe: bool,
    /// How often its silence was looked at, and it was asked if need be, since it last said
    /// anything; and when it last was.
    pub(super) asked: u32,
    pub(super) asked_at: Time,
    /// Probes since something that it owed has come.
    pub(super) probes: u32,
    /// When an acknowledgement is due that can wait.
    ack_at: Option<Time>,
    /// An acknowledgement is due at once.
    immediate_ack: bool,
    /// A Hello has to be sent.
    pub(super) hello_pending: bool,
    /// A Hello was sent and not answered.
    pub(super) hello_sent: bool,
    /// A HelloReply has to be sent, to this session.
    pub(super) hello_reply: Option<u64>,
    pub(super) send: SendWindow,
    pub(super) receive: ReceiveWindow,
    /// Requests to it that were not answered.
    pub(super) requests: u32,
    pub(super) blocked: Blocked,
    /// Refusals of frames that are held until the peer knows: the number of the frame,
    /// and the Nak.
    pub(super) naks: VecDeque<(u64, Frame)>,
    /// All other frames of class Control that wait to be sent.
    pub(super) control: VecDeque<Frame>,
    /// Ports of which one of these says that their process has ended.
    pub(super) gone: BTreeSet<u16>,
    /// Stands in [`PeerTable::listed`].
    listed: bool,
    /// There was no route to it: it is nobody, and its place can be taken.
    vacant: bool,
}

impl Peer {
    fn new(node: NodeId, session: Session, grant: u32) -> Self {
        Peer {
            node,
            session,
            incarnation: 0,
            grant,
            renewal: None,
            growing: false,
            taken: None,
            leaving: Leaving::default(),
            path: None,
            lossless: false,
            max_payload: MAX_PAYLOAD as u32,
            packets: Packets::default(),
            round_trip: RoundTrip::default(),
            congestion: Congestion::default(),
            progress_at: Time::default(),
            pushed_at: Time::default(),
            last_received: Time::default(),
            watch: None,
            probe: false,
            asked: 0,
            asked_at: Time::default(),
            probes: 0,
            ack_at: None,
            immediate_ack: false,
            hello_pending: false,
            hello_sent: false,
            hello_reply: None,
            send: SendWindow::new(),
            receive: ReceiveWindow::default(),
            requests: 0,
            blocked: Blocked::default(),
            naks: VecDeque::new(),
            control: VecDeque::new(),
            gone: BTreeSet::new(),
            listed: false,
            vacant: false,
        }
    }

    /// Starts over in both directions: forgets all that is under way. Its timers
    /// are checked out already.
    pub(super) fn restart(&mut self) {
        let fresh = Peer::new(self.node, self.session.clone(), self.grant);
        let old = std::mem::replace(self, fresh);
        self.incarnation = old.incarnation.wrapping_add(1);
        self.last_received = old.last_received;
        self.packets = old.packets;
        self.listed = old.listed;
        self.growing = old.growing;
    }

    /// Returns true if numbered frames may be sent: both sides know each other.
    pub(super) fn is_ready(&self) -> bool {
        self.send.is_granted()
    }

    /// Makes sure that a session comes about.
    pub(super) fn ensure_session(&mut self) {
        self.hello_pending |= !self.hello_sent && !self.is_ready();
    }

    /// Notes what the route to it is like.
    pub(super) fn set_path(&mut self, path: Path) {
        self.path = Some(path);
        self.lossless = path.lossless;
        let most = match path.lossless {
            true => MAX_SPAN,
            false => MAX_PAYLOAD,
        };
        self.max_payload = path.max_payload.clamp(1, most as u32);
    }

    /// Returns true if neither copies nor timers are needed.
    #[inline]
    pub(super) fn is_lossless(&self) -> bool {
        self.lossless
    }

    /// How many fragments with a payload may be sent: as many as the peer and the links to
    /// it take.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        let room = self.send.room();
        match self.lossless {
            true => room,
            false => room.min(self.congestion.room(self.packets.in_flight())),
        }
    }

    /// Returns true if so much is free that operations that wait for it go on: each is to be
    /// woken once and not for every frame.
    pub(super) fn is_half_open(&self) -> bool {
        let wire = self.lossless || self.congestion.is_open(self.packets.in_flight());
        wire && self.send.is_half_open()
    }

    /// Returns true if a packet is to be sent again, and may be.
    pub(super) fn may_resend(&self) -> bool {
        self.packets.has_waiting() && self.congestion.room(self.packets.in_flight()) > 0
    }

    /// Returns true if nothing is under way between the two, as far as this side knows.
    pub(super) fn is_quiet(&self) -> bool {
        let receives = self.receive.undelivered_count() > 0
            || self.receive.has_gap()
            || self.receive.ack_pending();
        let renews = self.renewal.is_some() || self.taken.is_some();
        let greets = self.hello_pending || self.hello_sent || self.hello_reply.is_some();
        let waits = !self.blocked.is_empty() || !self.naks.is_empty() || !self.control.is_empty();
        !(receives || renews || greets || waits || self.owes_answer()) && self.send.has_arrived()
    }

    /// Returns true if it owes this node an answer.
    pub(super) fn owes_answer(&self) -> bool {
        !self.packets.is_empty() || self.requests > 0 || !self.send.is_empty()
    }

    /// Completes the envelope of a frame that is sent to it: names, sessions, and how
    /// far the other direction has come.
    #[inline]
    pub(super) fn address(&mut self, from: NodeId, frame: &mut Frame) {
        let (received, delivered) = self.receive.take_ack();
        self.ack_at = None;
        self.immediate_ack = false;
        let envelope = &mut frame.envelope;
        envelope.source_node = from.0.into();
        envelope.destination_node = self.node.0.into();
        envelope.source_session = self.session.own().into();
        envelope.destination_session = self.session.peer().into();
        envelope.acknowledge = received.into();
        envelope.delivered = delivered.into();
    }

    /// Schedules an acknowledgement: other frames get a chance to carry it, unless many
    /// are unacknowledged.
    pub(super) fn schedule_ack(&mut self, now: Time, delay: u64) {
        if self.receive.has_gap() || self.receive.unacked() * 2 >= u64::from(self.grant) {
            self.immediate_ack = true;
        } else if self.ack_at.is_none() {
            self.ack_at = Some(now.after(delay));
        }
    }

    /// Lets an acknowledgement go out with the next poll.
    pub(super) fn ack_immediately(&mut self) {
        self.immediate_ack = true;
    }

    /// Returns true if an acknowledgement has to be sent now.
    #[inline]
    pub(super) fn must_ack(&self, now: Time) -> bool {
        let due = self.receive.ack_pending() && self.ack_at.is_none_or(|time| time <= now);
        let ahead = self.receive.sack_pending();
        (due || ahead || self.immediate_ack || self.probe) && self.session.is_known()
    }

    /// Returns true if it stays listed after its turn: something has to be sent later,
    /// or more than one turn allows.
    pub(super) fn stays_listed(&self) -> bool {
        self.ack_at.is_some() || self.may_resend()
    }

    fn has_output(&self, now: Time) -> bool {
        let control = !self.naks.is_empty() || !self.control.is_empty();
        self.hello_pending
            || self.hello_reply.is_some()
            || self.leaving.is_pending()
            || control && self.is_ready() && self.send.has_number()
            || self.may_resend()
            || self.must_ack(now)
    }
}

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
    /// The smallest session that a node may begin with that was a peer before.
    floors: BTreeMap<NodeId, u64>,
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
            floors: BTreeMap::new(),
        }
    }

    /// The peer of that node, if it is one.
    #[inline]
    pub(super) fn find(&self, node: NodeId) -> Option<PeerIndex> {
        let entry = *self.indices.get(usize::from(node.0))?;
        entry.checked_sub(1).map(PeerIndex)
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
        let floor = self.floors.get(&node).copied();
        let session = Session::new(self.new_session()).with_floor(floor.unwrap_or(1));
        let mut peer = Peer::new(node, session, grant);
        let index = match self.vacant.pop() {
            Some(index) => {
                let old = &mut self[index];
                peer.incarnation = old.incarnation.wrapping_add(1);
                peer.listed = old.listed;
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
        let (node, floor) = (peer.node, peer.session.floor());
        self.pool.leave(self.peers[usize::from(index.0)].grant);
        // Nodes without a session were never heard of.
        if floor > 1 {
            self.floors.insert(node, floor);
        }
        self.indices[usize::from(node.0)] = 0;
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
        if !own && !peer.vacant {
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
        let peers = (0u16..).zip(&self.peers);
        let peers = peers.filter(|(_, peer)| !peer.vacant);
        peers.map(|(index, _)| PeerIndex(index)).collect()
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
