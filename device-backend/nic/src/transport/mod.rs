//! Transport: sessions, sequence numbers, windows (docs/wire.md). It owns peers and timers. It knows
//! classes of frames, and not kinds. It calls no other part: a call returns what a frame or a timer
//! means for the others, or they take it out afterwards.
//!
//! ```text
//!               number                       [envelope, body, payload]
//!   protocol ──► transmit ──► [send window] ──► wire
//!   protocol ◄── open, acknowledge, admit ◄── [session, receive window] ◄── wire
//!      └──► control frames, Naks, acknowledgement ──flush──► wire
//! ```
//! | module | holds |
//! |---|---|
//! | `session` | which incarnation of a session a frame belongs to |
//! | `send_window` | numbers and the window of fragments that the peer has not delivered |
//! | `receive_window` | which frames have arrived, and which of them are delivered |
//! | `peer` | all of that for one peer |
//! | `blocked` | what waits for room in a window |
//! | `peer_table` | all peers, and what they share; what is told of them to people |
//! | `gone` | nodes that were given up, and those that something waits for |
//! | `pool` | how all windows share their bound, and are renewed |
//! | `handshake` | how sessions begin and end, and peers leave |
//! | `incoming` | how a frame is checked, numbered, acknowledged, and held or refused |
//! | `refused` | operations that do not notify any more |
//! | `reliable` | sending again, probing, giving up: only where the route is not lossless |
//! | `packets` | copies of what may have to be sent again |
//! | [`qnic_shared::timing`] | the timer wheel, how long to wait, how much the links to a peer take |
//!
//! Each ordered pair of nodes has one sequence of frames. A frame is received when it arrives, in
//! any order, once. Each frame that goes the other way tells the peer up to which number all frames
//! have arrived, and up to which all are delivered. If no frame goes, an Ack at the end of a poll
//! does, or a receipt where frames are received within the calls of their sender.
//!
//! A wrong frame (of another incarnation of the session, with a number far outside of the window,
//! or that acknowledges what was never sent) is counted and dropped. Frames come here intact or not
//! at all: a link that can damage them checks them.

mod blocked;
mod gone;
mod handshake;
mod incoming;
mod packets;
mod peer;
mod peer_table;
mod pool;
mod receive_window;
mod refused;
mod reliable;
mod send_window;
mod session;

use blocked::Unblocked;
pub(crate) use blocked::Window;
use gone::Unreached;
use peer_table::PeerTable;
use qnic_abi::verbs::frames::kind::{VERBS_DATAGRAM, VERBS_UNRELIABLE};
use qnic_abi::wire::{kind, Class, Envelope, Frame, ProcessGone};
use qnic_abi::{NodeId, Port};
use qnic_shared::timing::TimerWheel;
use reliable::Alarm;

use crate::config::{Limits, NicConfig, MAX_WINDOW};
use crate::counters::Counters;
use crate::env::{Channel, HostMemory, Payload, Sent, Time, Wire};
use crate::ids::{OperationId, PeerIndex};

pub(crate) use incoming::{End, Opened};
pub(crate) use pool::is_well_formed as is_window;
pub(crate) use reliable::Expired;

/// The channel of a frame that is sent once. Nothing puts those of unreliable queue pairs in order again: a short last
/// piece in front of the others would end its message, so it goes behind them.
#[inline]
fn channel_of(kind: u8, payload: usize) -> Channel {
    match kind {
        VERBS_UNRELIABLE | VERBS_DATAGRAM => Channel::Data,
        _ => Channel::of(payload),
    }
}

/// How far a frame may be ahead of the oldest that is missing: frames without a payload have
/// as many numbers as the largest window.
pub(crate) const REACH: u64 = 2 * MAX_WINDOW as u64;

/// Requests under way to one peer: fragments of reads, and atomic operations. A page
/// span may go beyond.
const REQUEST_WINDOW: u32 = 256;

/// Control frames that may wait to be sent to one peer while it sends: more than all
/// requests that it can have under way. A poll sends them all.
const CONTROL_LIMIT: usize = 4096;

/// A node that could not be reached is tried again after so long, in nanoseconds.
pub(crate) const RETRY_AFTER: u64 = 10_000_000;

/// The transport of one NIC.
#[derive(Debug)]
pub(crate) struct Transport {
    node: NodeId,
    limits: Limits,
    peers: PeerTable,
    timers: TimerWheel<Alarm>,
    /// Peers will be swept.
    sweeping: bool,
    unblocked: Unblocked,
    /// Peers to ask for receipts after these turns.
    called: Vec<PeerIndex>,
    /// Nodes that are to become peers, if there is a route to them.
    wanted: Vec<NodeId>,
    unreached: Unreached,
    pub(crate) counters: Counters,
}

impl Transport {
    /// A transport without peers.
    pub(crate) fn new(config: &NicConfig) -> Self {
        Transport {
            node: config.node,
            limits: config.limits.clone(),
            peers: PeerTable::new(&config.limits),
            timers: TimerWheel::new(),
            sweeping: false,
            unblocked: Unblocked::default(),
            called: Vec::new(),
            wanted: Vec::new(),
            unreached: Unreached::default(),
            counters: Counters::default(),
        }
    }

    /// Begins new sessions with all peers, with numbers from `session` on.
    pub(crate) fn start(&mut self, session: u64) {
        self.counters = Counters::default();
        self.unblocked = Unblocked::default();
        self.peers.raise_sessions(session);
        // Peers of before a start without a reset must start over.
        for index in self.peers.all() {
            let next = self.peers.new_session();
            self.restart(index);
            self.peers[index].session.end_own(next);
            self.peers.ensure_session(index);
        }
        self.peers.add_own(self.node);
    }

    /// Forgets all peers.
    pub(crate) fn clear(&mut self) {
        self.peers.clear(&self.limits);
        self.timers.clear();
        self.called.clear();
        self.sweeping = false;
        self.unreached = Unreached::default();
        self.unblocked = Unblocked::default();
        self.counters = Counters::default();
    }

    /// The peer of a node; `None` if it is none, or has left.
    #[inline]
    pub(crate) fn find(&self, node: NodeId) -> Option<PeerIndex> {
        self.peers.find(node)
    }

    /// The peer of a node, which becomes one if there is a route to it. `None`: there is
    /// none now, it was given up, or there are as many peers as may be. One that was given up is
    /// asked.
    #[inline]
    pub(crate) fn reach<M, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &W,
        node: NodeId,
    ) -> Option<PeerIndex> {
        let found = self.peers.find(node);
        found.or_else(|| self.make_peer(now, wire, node))
    }

    #[cold]
    fn make_peer<M, W: Wire<M>>(&mut self, now: Time, wire: &W, node: NodeId) -> Option<PeerIndex> {
        if self.peers.find_gone(node).is_some() {
            self.hasten(now, node);
            return None;
        }
        wire.path(node)?;
        self.add_peer(node)
    }

    /// Makes a node a peer, unless there are as many as may be.
    #[cold]
    fn add_peer(&mut self, node: NodeId) -> Option<PeerIndex> {
        let index = match self.peers.add(node) {
            None => {
                // What is known of one that is gone needs no place more than another.
                let gone = self.peers.any_gone()?;
                self.forget_packets(gone);
                self.vacate(gone);
                self.peers.add(node)?
            }
            Some(index) => index,
        };
        self.share_windows();
        Some(index)
    }

    /// Asks for a node to become a peer with the next [`Transport::add_wanted`].
    pub(crate) fn want(&mut self, node: NodeId) {
        if !self.wanted.contains(&node) {
            self.wanted.push(node);
        }
    }

    /// Returns true if nodes are wanted.
    #[inline]
    pub(crate) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Makes peers of the nodes that are wanted and to which there is a route. Returns true if one is.
    #[cold]
    pub(crate) fn add_wanted<M, W: Wire<M>>(&mut self, now: Time, wire: &W) -> bool {
        let mut some = false;
        for node in std::mem::take(&mut self.wanted) {
            if let Some(index) = self.reach(now, wire, node) {
                some = true;
                if self.unreached.remove(node) {
                    self.peers.ensure_session(index);
                }
            }
        }
        some
    }

    /// Lets a peer leave that cannot be reached and whose session has ended: nothing
    /// refers to it any more.
    pub(crate) fn vacate(&mut self, index: PeerIndex) {
        // An answer to it must not go to the next peer of that place.
        let responses = &mut self.unblocked.responses;
        responses.retain(|(_, request)| request.peer != index);
        self.peers.vacate(index);
        self.share_windows();
        self.grow_windows();
    }

    /// Every peer.
    pub(crate) fn peers(&self) -> Vec<PeerIndex> {
        self.peers.all()
    }

    /// The node of a peer.
    pub(crate) fn node_of(&self, index: PeerIndex) -> NodeId {
        self.peers[index].node
    }

    /// Returns true if a peer is this node itself: frames to it take no wire.
    #[inline]
    pub(crate) fn is_own(&self, index: PeerIndex) -> bool {
        self.peers.is_own(index)
    }

    /// The peer to which a frame of this NIC goes, if their session is still the one that the frame
    /// was sent in.
    pub(crate) fn session_of(&self, frame: &Frame) -> Option<PeerIndex> {
        let envelope = &frame.envelope;
        let index = self.find(NodeId(envelope.destination_node.get()))?;
        let session = &self.peers[index].session;
        let sent_in = (
            envelope.source_session.get(),
            envelope.destination_session.get(),
        );
        (sent_in == (session.own(), session.peer())).then_some(index)
    }

    /// Returns true if the session of a peer is known here.
    pub(crate) fn has_session(&self, index: PeerIndex) -> bool {
        self.peers[index].session.is_known()
    }

    /// How many fragments may be sent to a peer now of a transfer of which `remaining` bytes are
    /// left, and most payload bytes in a frame to it. If none because there is no session yet,
    /// makes sure that one comes about.
    #[inline]
    pub(crate) fn room(&mut self, index: PeerIndex, remaining: u64) -> (u32, u32) {
        let peer = &self.peers[index];
        let (room, max_payload) = (peer.room(remaining), peer.max_payload);
        if room == 0 && !peer.is_ready() {
            self.peers.ensure_session(index);
        }
        (room, max_payload)
    }

    /// Returns true if frames can be sent to a peer: a session is there. If not, makes sure that
    /// one comes about; what waits for the window of requests learns of it.
    #[inline]
    pub(crate) fn is_open(&mut self, index: PeerIndex) -> bool {
        let ready = self.peers[index].is_ready();
        if !ready {
            self.peers.ensure_session(index);
        }
        ready
    }

    /// Returns true if another request may be sent to a peer now. If not because there
    /// is no session yet, makes sure that one comes about.
    #[inline]
    pub(crate) fn has_request_room(&mut self, index: PeerIndex) -> bool {
        self.is_open(index) && self.peers[index].requests < REQUEST_WINDOW
    }

    /// Most payload bytes in a frame to a peer.
    #[inline]
    pub(crate) fn max_payload(&self, index: PeerIndex) -> u32 {
        self.peers[index].max_payload
    }

    /// Queues a frame of class Control.
    pub(crate) fn send_control(&mut self, index: PeerIndex, frame: Frame) {
        self.peers[index].control.push_back(frame);
        self.peers.ensure_session(index);
    }

    /// Returns true if a frame of class Control that a local process asks for may wait to
    /// be sent to a peer. What peers ask for is bounded by what they may have under way.
    pub(crate) fn has_control_room(&self, index: PeerIndex) -> bool {
        self.peers[index].control.len() < CONTROL_LIMIT
    }

    /// Tells a peer that the process on a port has ended. If a frame waits that says so of the one
    /// before it, that frame says it of both: whatever has been sent since waits behind it. So there are
    /// as many such frames as ports at most, 8 MiB for a peer that takes none.
    pub(crate) fn send_process_gone(&mut self, index: PeerIndex, port: Port) {
        let peer = &mut self.peers[index];
        let body = ProcessGone {
            last_received: peer.receive.highest().into(),
        };
        if peer.gone.insert(port.0) {
            let mut gone = Frame::new(&body);
            gone.envelope.source_port = port.0.into();
            return self.send_control(index, gone);
        }
        let is_its = |frame: &&mut Frame| {
            let Envelope {
                kind, source_port, ..
            } = frame.envelope;
            kind == kind::PROCESS_GONE && source_port.get() == port.0
        };
        if let Some(gone) = peer.control.iter_mut().find(is_its) {
            gone.set_body(&body);
        }
    }

    /// Returns true if peers have all that was sent to them, and nothing waits to be.
    pub(crate) fn has_told_peers(&self) -> bool {
        self.peers.present().all(|(_, peer)| peer.has_all())
    }

    /// Returns true if numbered frames may be sent to a peer: a session is there.
    pub(crate) fn is_ready(&self, index: PeerIndex) -> bool {
        self.peers[index].is_ready()
    }

    /// Returns true if the numbered frame of that sequence number has arrived from a peer.
    pub(crate) fn has_arrived(&self, index: PeerIndex, sequence: u64) -> bool {
        let receive = &self.peers[index].receive;
        receive.position(sequence) == receive_window::Position::Old
    }

    /// The number of the last frame of a process that has arrived from a peer before an earlier
    /// frame, or 0: the news that the process before it on that port has ended may come later, with a
    /// smaller number.
    pub(crate) fn newest(&self, index: PeerIndex, port: u16) -> u64 {
        let ahead = &self.peers[index].ahead;
        match ahead.is_empty() {
            true => 0,
            false => ahead.get(&port).copied().unwrap_or(0),
        }
    }

    /// All numbered frames up to this number have arrived from a peer.
    pub(crate) fn received(&self, index: PeerIndex) -> u64 {
        self.peers[index].receive.received()
    }

    /// Returns true if a peer has acknowledged the frame of that sequence number.
    pub(crate) fn is_acknowledged(&self, index: PeerIndex, sequence: u64) -> bool {
        self.peers[index].send.is_received(sequence)
    }

    /// Gives a frame the next numbers of its peer. `owner` is the operation that learns
    /// when its fragments are delivered. Frames with a payload need room in the window.
    #[inline]
    pub(crate) fn number(&mut self, index: PeerIndex, frame: &mut Frame) {
        let peer = &mut self.peers[index];
        debug_assert!(peer.is_ready());
        frame.envelope.sequence = peer.send.next().into();
        peer.send.advance(frame.envelope.fragments.into());
    }

    /// Takes the numbers of the last frame back: there was no route for it.
    pub(crate) fn withdraw(&mut self, index: PeerIndex, frame: &Frame) {
        let count = frame.envelope.fragments;
        self.peers[index].send.withdraw(count.into());
    }

    /// Notes that the fragments of the last frame are in the window.
    #[inline]
    pub(crate) fn in_window(&mut self, index: PeerIndex, owner: OperationId, fragments: u8) {
        self.peers[index].send.sent(owner, fragments.into());
        self.note_call(index);
    }

    /// Completes the envelope of a frame but for its number.
    #[inline]
    pub(crate) fn address(&mut self, index: PeerIndex, frame: &mut Frame, payload: usize) {
        frame.envelope.payload_length = (payload as u16).into();
        self.peers[index].address(self.node, frame);
    }

    /// Sends a frame that has its number.
    #[inline]
    pub(crate) fn put<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
        frame: &mut Frame,
        payload: Payload<'_, M>,
    ) -> Sent {
        let length = payload.len();
        if self.peers[index].is_lossless() || !Class::of(frame.envelope.kind).is_numbered() {
            self.address(index, frame, length);
            return wire.send(frame, payload, channel_of(frame.envelope.kind, length));
        }
        frame.envelope.payload_length = (length as u16).into();
        match self.transmit_reliably(now, wire, index, frame, payload) {
            true => Sent::Taken,
            false => Sent::NoRoute,
        }
    }

    /// Returns true if something may have to be sent to any peer; with `urgent`, more
    /// than acknowledgements.
    #[inline]
    pub(crate) fn has_listed(&self, urgent: bool) -> bool {
        self.peers.has_listed(urgent)
    }

    /// Takes the list of peers that something may have to be sent to.
    pub(crate) fn take_listed(&mut self) -> Vec<PeerIndex> {
        self.peers.take_listed()
    }

    /// Gives the buffer of the list back.
    pub(crate) fn reuse(&mut self, list: Vec<PeerIndex>) {
        self.peers.reuse(list);
    }

    /// Lists a peer again that needs it; `all` lists it anyway.
    pub(crate) fn list_again(&mut self, index: PeerIndex, all: bool) {
        if all || self.peers[index].stays_listed() {
            self.peers.list(index);
        }
    }

    /// The next control frame for a peer, if one may be sent. A Nak comes with the
    /// number of the frame that it refuses.
    pub(crate) fn next_control(&mut self, index: PeerIndex) -> Option<(Frame, Option<u64>)> {
        let peer = &mut self.peers[index];
        if !peer.send.has_number() {
            return None;
        }
        if let Some((refused, nak)) = peer.naks.pop_front() {
            return Some((nak, Some(refused)));
        }
        let frame = peer.control.pop_front()?;
        if frame.envelope.kind == kind::PROCESS_GONE {
            peer.gone.remove(&frame.envelope.source_port.get());
        }
        Some((frame, None))
    }

    /// Notes that the Nak of a frame was sent.
    pub(crate) fn nak_sent(&mut self, index: PeerIndex, nak: &Frame, refused: u64) {
        let sequence = nak.envelope.sequence.get();
        self.peers[index].receive.refusal_sent(sequence, refused);
    }

    /// Returns true if something has to be sent to any peer.
    pub(crate) fn has_output(&self, now: Time) -> bool {
        self.peers.has_output(now)
    }

    /// When something has to be done at the latest.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let deadlines = [self.timers.deadline(), self.peers.deadline()];
        deadlines.into_iter().flatten().min()
    }
}
