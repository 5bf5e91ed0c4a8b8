//! What a NIC remembers of another one.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use qnic_abi::wire::{FrameHeader, FRAME_MAGIC, MAX_PAYLOAD, MAX_RUN, WIRE_VERSION};
use qnic_abi::{NodeId, VniId};

use super::packets::Packets;
use super::receive::ReceiveWindow;
use super::rtt::RoundTrip;
use super::send::SendWindow;
use super::session::Session;
use super::timer::TimerId;
use crate::config::Limits;
use crate::env::{Path, Time};
use crate::operation::OperationId;
use crate::read::ReplyJob;

/// Place of a peer in the [`PeerTable`]; it keeps it until the NIC is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PeerIndex(u16);

/// Smallest window that a peer is granted, whatever others were granted before.
const SMALLEST_WINDOW: u32 = 16;

/// One direction each to and from another NIC.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) session: Session,
    /// Changes whenever everything starts over: tells frames apart that are held.
    pub(crate) life: u32,
    /// Frames with a payload that the peer may have on their way or undelivered.
    pub(crate) grant: u32,
    /// What the way to it is like, as the wire said when the conversation began.
    pub(crate) path: Option<Path>,
    perfect: bool,
    /// Copies of what it has not received, where the way is not perfect.
    pub(crate) packets: Packets,
    pub(crate) round_trip: RoundTrip,
    /// When it was heard of last.
    pub(crate) heard: Time,
    /// The timer that watches its silence.
    pub(crate) watch: Option<TimerId>,
    /// It has to be asked whether it is there.
    pub(crate) probe: bool,
    /// Probes since something that it owed has come.
    pub(crate) probes: u32,
    /// When it has to be told how far things are, if that can wait.
    tell_at: Option<Time>,
    /// It has to be told at once, whatever it knows.
    tell_now: bool,
    /// A Hello has to be sent.
    pub(crate) greet: bool,
    /// A Hello was sent and not answered.
    pub(crate) greeted: bool,
    /// A HelloReply has to be sent, to this session.
    pub(crate) reply: Option<u64>,
    pub(crate) send: SendWindow,
    pub(crate) receive: ReceiveWindow,
    /// Read requests and atomic operations that were not answered.
    pub(crate) reads: u32,
    /// Writes that wait for a place in the window.
    pub(crate) blocked: Vec<OperationId>,
    /// Reads and atomic operations that wait for others to be answered.
    pub(crate) blocked_reads: Vec<OperationId>,
    /// Replies to readers there that wait for a place in the window.
    pub(crate) blocked_replies: VecDeque<(VniId, ReplyJob)>,
    /// Refusals of frames that are held until the peer knows.
    pub(crate) naks: VecDeque<FrameHeader>,
    /// All other answers.
    pub(crate) answers: VecDeque<FrameHeader>,
    /// Stands in [`PeerTable::listed`].
    listed: bool,
}

impl Peer {
    fn new(node: NodeId, session: Session, grant: u32) -> Self {
        Peer {
            node,
            session,
            life: 0,
            grant,
            path: None,
            perfect: false,
            packets: Packets::default(),
            round_trip: RoundTrip::default(),
            heard: Time::default(),
            watch: None,
            probe: false,
            probes: 0,
            tell_at: None,
            tell_now: false,
            greet: false,
            greeted: false,
            reply: None,
            send: SendWindow::new(),
            receive: ReceiveWindow::default(),
            reads: 0,
            blocked: Vec::new(),
            blocked_reads: Vec::new(),
            blocked_replies: VecDeque::new(),
            naks: VecDeque::new(),
            answers: VecDeque::new(),
            listed: false,
        }
    }

    /// Starts over in both directions: forgets all that is under way. Its timers
    /// are checked out already.
    pub(crate) fn restart(&mut self) {
        self.life = self.life.wrapping_add(1);
        self.path = None;
        self.perfect = false;
        self.round_trip = RoundTrip::default();
        self.probe = false;
        self.probes = 0;
        self.tell_at = None;
        self.tell_now = false;
        self.greet = false;
        self.greeted = false;
        self.reply = None;
        self.send.clear();
        self.receive.clear();
        self.reads = 0;
        self.blocked.clear();
        self.blocked_reads.clear();
        self.blocked_replies.clear();
        self.naks.clear();
        self.answers.clear();
    }

    /// Says whether numbered frames may be sent: both sides know each other.
    pub(crate) fn is_ready(&self) -> bool {
        self.send.is_granted()
    }

    /// Makes sure that a session comes about.
    pub(crate) fn introduce(&mut self) {
        self.greet |= !self.greeted && !self.is_ready();
    }

    /// Notes what the way to it is like.
    pub(crate) fn take_path(&mut self, path: Path) {
        self.path = Some(path);
        self.perfect = path.perfect;
    }

    /// Says whether neither copies nor timers are needed.
    #[inline]
    pub(crate) fn is_perfect(&self) -> bool {
        self.perfect
    }

    /// Most payload bytes in a frame to it.
    pub(crate) fn max_payload(&self) -> u32 {
        let path = self.path.unwrap_or(Path::UNKNOWN);
        let most = match path.perfect {
            true => MAX_RUN,
            false => MAX_PAYLOAD,
        };
        path.max_payload.clamp(1, most as u32)
    }

    /// Says whether it owes this node an answer.
    pub(crate) fn is_owed(&self) -> bool {
        !self.packets.is_empty() || self.reads > 0 || !self.send.is_empty()
    }

    /// Completes a header that is sent to it: names, sessions, and how far the
    /// other direction has come.
    #[inline]
    pub(crate) fn address(&mut self, from: NodeId, header: &mut FrameHeader) {
        let (received, delivered) = self.receive.tell();
        self.tell_at = None;
        self.tell_now = false;
        header.magic = FRAME_MAGIC.into();
        header.version = WIRE_VERSION;
        header.source_node = from.0.into();
        header.destination_node = self.node.0.into();
        header.source_session = self.session.own().into();
        header.destination_session = self.session.peer().into();
        header.acknowledge = received.into();
        header.delivered = delivered.into();
    }

    /// Notes that it has to be told how far things are, but not before other frames
    /// had a chance to carry that.
    pub(crate) fn tell_soon(&mut self, now: Time, delay: u64) {
        if self.receive.has_gap() || self.receive.untold() * 2 >= u64::from(self.grant) {
            self.tell_now = true;
        } else if self.tell_at.is_none() {
            self.tell_at = Some(now.after(delay));
        }
    }

    /// Notes that it has to be told at once.
    pub(crate) fn tell_now(&mut self) {
        self.tell_now = true;
    }

    /// Says whether it has to be told now how far things are.
    #[inline]
    pub(crate) fn must_tell(&self, now: Time) -> bool {
        let news = self.receive.has_news() && self.tell_at.is_none_or(|time| time <= now);
        let ahead = self.receive.has_unknown();
        (news || ahead || self.tell_now || self.probe) && self.session.is_known()
    }

    /// Says whether it stays listed after its turn: something has to be sent later,
    /// or more than one turn allows.
    pub(crate) fn keeps_place(&self) -> bool {
        self.tell_at.is_some() || self.packets.has_waiting()
    }

    fn has_output(&self, now: Time) -> bool {
        let answers = !self.naks.is_empty() || !self.answers.is_empty();
        self.greet
            || self.reply.is_some()
            || answers && self.is_ready() && self.send.has_number()
            || self.packets.has_waiting()
            || self.must_tell(now)
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
    /// The next session of this NIC with anybody.
    next_session: u64,
    /// Frames that were granted to peers, all together.
    granted: u32,
}

impl PeerTable {
    /// The peer of that node, a new one if need be; `None` beyond the limit.
    #[inline]
    pub(crate) fn find_or_add(&mut self, node: NodeId, limits: &Limits) -> Option<PeerIndex> {
        match self.places.get(usize::from(node.0)) {
            Some(place) if *place != 0 => Some(PeerIndex(place - 1)),
            _ => self.add(node, limits),
        }
    }

    #[cold]
    fn add(&mut self, node: NodeId, limits: &Limits) -> Option<PeerIndex> {
        let number = usize::from(node.0);
        if self.peers.len() >= (limits.peers.min(u32::from(u16::MAX))) as usize {
            return None;
        }
        if number >= self.places.len() {
            self.places.resize(number + 1, 0);
        }
        // A quarter of what is left, so that who comes late finds some too.
        let share = limits.held_frames.saturating_sub(self.granted) / 4;
        let grant = share.max(SMALLEST_WINDOW).min(limits.window.max(1));
        self.granted = self.granted.saturating_add(grant);
        let session = Session::new(self.new_session());
        self.peers.push(Peer::new(node, session, grant));
        self.places[number] = self.peers.len() as u16;
        Some(PeerIndex((self.peers.len() - 1) as u16))
    }

    /// Makes the own node known: frames to it take no wire.
    pub(crate) fn add_own(&mut self, node: NodeId, limits: &Limits) {
        if let Some(index) = self.find_or_add(node, limits) {
            let session = Session::with_itself(self.new_session());
            let peer = &mut self[index];
            peer.session = session;
            peer.take_path(Path::PERFECT);
            peer.send.grant(peer.grant);
        }
    }

    /// A number that no session of this NIC has had.
    pub(crate) fn new_session(&mut self) -> u64 {
        let session = self.next_session.max(1);
        self.next_session = session.saturating_add(1);
        session
    }

    /// Lets sessions go on from `base`, unless they are beyond it.
    pub(crate) fn raise_sessions(&mut self, base: u64) {
        self.next_session = self.next_session.max(base);
    }

    /// Every peer.
    pub(crate) fn all(&self) -> impl Iterator<Item = PeerIndex> {
        (0..self.peers.len() as u16).map(PeerIndex)
    }

    /// Notes that a peer may have to be told what has arrived from it.
    #[inline]
    pub(crate) fn list(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[usize::from(index.0)];
        if !peer.listed {
            peer.listed = true;
            self.listed.push(index);
        }
    }

    /// Queues an answer to a peer, or a question.
    pub(crate) fn answer(&mut self, index: PeerIndex, answer: FrameHeader) {
        self[index].answers.push_back(answer);
        self.introduce(index);
    }

    /// Makes sure that a session with a peer comes about, and that what waits for
    /// it is sent.
    pub(crate) fn introduce(&mut self, index: PeerIndex) {
        self[index].introduce();
        self.hurry(index);
    }

    /// Notes that there is more to send to a peer than an acknowledgement.
    pub(crate) fn hurry(&mut self, index: PeerIndex) {
        self.urgent = true;
        self.list(index);
    }

    /// Says whether something has to be sent to any peer.
    pub(crate) fn has_output(&self, now: Time) -> bool {
        let mut listed = self.listed.iter();
        listed.any(|index| self[*index].has_output(now))
    }

    /// When somebody has to be told how far things are at the latest.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let listed = self.listed.iter();
        listed.filter_map(|index| self[*index].tell_at).min()
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

    /// Forgets all peers; session numbers go on.
    pub(crate) fn clear(&mut self) {
        *self = PeerTable {
            next_session: self.next_session,
            ..PeerTable::default()
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
        let mut table = PeerTable::default();
        let a = table.find_or_add(NodeId(7), &limits).unwrap();
        let b = table.find_or_add(NodeId(0), &limits).unwrap();
        assert_ne!(a, b);
        assert_eq!(table.find_or_add(NodeId(7), &limits), Some(a));
        assert_eq!(table.find_or_add(NodeId(9), &limits), None);
        assert_eq!(table[a].node, NodeId(7));
        assert_eq!(table.all().count(), 2);
    }

    #[test]
    fn windows_that_are_granted_are_bounded_for_all_peers_together() {
        let limits = Limits {
            window: 64,
            held_frames: 300,
            ..Limits::default()
        };
        let mut table = PeerTable::default();
        let grants: Vec<_> = (0..8)
            .map(|node| {
                let index = table.find_or_add(NodeId(node), &limits).unwrap();
                table[index].grant
            })
            .collect();
        assert_eq!(grants, [64, 59, 44, 33, 25, 18, 16, 16]);
    }

    #[test]
    fn sessions_never_repeat_not_even_after_a_reset() {
        let limits = Limits::default();
        let mut table = PeerTable::default();
        let a = table.find_or_add(NodeId(1), &limits).unwrap();
        let first = table[a].session.own();
        assert!(first > 0);
        table.clear();
        table.raise_sessions(first);
        let a = table.find_or_add(NodeId(1), &limits).unwrap();
        assert!(table[a].session.own() > first);
        table.raise_sessions(1000);
        assert_eq!(table.new_session(), 1000);
    }
}
