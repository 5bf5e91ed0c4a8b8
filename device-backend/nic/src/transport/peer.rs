//! What a NIC remembers of another one, and what the route to it is like: the wire tells it, and the
//! driver asks for it (U8).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use qnic_abi::control::{PathInfo, PATH_LOSSLESS};
use qnic_abi::message::kind::MESSAGE_GONE;
use qnic_abi::wire::{kind, Frame, MAX_PAYLOAD, MAX_SPAN};
use qnic_abi::{NodeId, Status};
use qnic_shared::timing::{Congestion, RoundTrip, TimerId};

use super::blocked::Blocked;
use super::gone::Gone;
use super::handshake::Leaving;
use super::packets::Packets;
use super::receive_window::ReceiveWindow;
use super::send_window::SendWindow;
use super::session::Session;
use super::Transport;
use crate::env::{Channel, Path, Time, Wire};
use crate::occupants::PeerReport;

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
    pub(super) renewal: Option<u32>,
    /// Stands among the peers whose windows grow.
    pub(super) growing: bool,
    /// A window of the peer that has to be confirmed once no more than that is under way.
    pub(super) taken: Option<u32>,
    pub(super) leaving: Leaving,
    /// The wire has described the route to it.
    pub(super) has_path: bool,
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
    pub(super) ack_at: Option<Time>,
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
    /// By source port: the number of the last frame that has arrived before an earlier one.
    pub(super) ahead: BTreeMap<u16, u64>,
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
    /// Stands in the list of peers that something may have to be sent to.
    pub(super) listed: bool,
    /// Stands in the list of peers to ask for receipts.
    pub(super) called: bool,
    /// There was no route to it: it is no peer any more, and its place can be taken.
    pub(super) vacant: bool,
    /// It was given up, and has not answered since.
    pub(super) given_up: Option<Gone>,
    /// Frames that were sent to it again.
    pub(super) resent: u64,
}

impl Peer {
    pub(super) fn new(node: NodeId, session: Session, grant: u32) -> Self {
        Peer {
            node,
            session,
            incarnation: 0,
            grant,
            renewal: None,
            growing: false,
            taken: None,
            leaving: Leaving::default(),
            has_path: false,
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
            ahead: BTreeMap::new(),
            requests: 0,
            blocked: Blocked::default(),
            naks: VecDeque::new(),
            control: VecDeque::new(),
            gone: BTreeSet::new(),
            listed: false,
            called: false,
            vacant: false,
            given_up: None,
            resent: 0,
        }
    }

    /// Notes that a process was heard from behind what is missing. A Nak or a MessageGone is of its NIC: the process may
    /// have ended.
    pub(super) fn note_ahead(&mut self, frame: &Frame) {
        // What was noted before is behind all that is missing now.
        if !self.receive.has_gap() {
            self.ahead.clear();
        }
        if ![kind::NAK, MESSAGE_GONE].contains(&frame.envelope.kind) {
            let port = frame.envelope.source_port.get();
            self.ahead.insert(port, frame.envelope.sequence.get());
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
        self.called = old.called;
        self.growing = old.growing;
        self.given_up = old.given_up;
        self.resent = old.resent;
    }

    /// What it is and what is under way to it, for people.
    pub(super) fn report(&self, own: bool) -> PeerReport {
        let session = match (own, self.is_ready()) {
            (true, _) => "own",
            _ if self.given_up.is_some() => "gone",
            (false, true) => "open",
            (false, false) if self.hello_pending || self.hello_sent => "opening",
            (false, false) => "closed",
        };
        let waiting = self.blocked.count() + self.naks.len() + self.control.len();
        PeerReport {
            node: self.node.0,
            session,
            window: self.send.granted().into(),
            under_way: self.send.in_flight() as u64,
            granted: self.grant.into(),
            held: self.receive.undelivered_count() as u64,
            requests: self.requests.into(),
            waiting: waiting as u64,
            resent: self.resent,
        }
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
        self.has_path = true;
        self.lossless = path.lossless;
        self.set_max_payload(path.max_payload);
    }

    /// Notes how long a payload may be on the route to it. What is less than a page becomes a
    /// power of two, so that a page is cut into equal fragments.
    pub(super) fn set_max_payload(&mut self, most: u32) {
        self.max_payload = match most as usize {
            MAX_PAYLOAD.. if !self.lossless => MAX_PAYLOAD as u32,
            MAX_PAYLOAD.. => most.min(MAX_SPAN as u32),
            0 => 1,
            _ => 1 << most.ilog2(),
        };
    }

    /// Returns true if neither copies nor timers are needed.
    #[inline]
    pub(super) fn is_lossless(&self) -> bool {
        self.lossless
    }

    /// Returns true if a frame of it may have several fragments: on a lossless route, and on one of
    /// which nothing is known yet.
    #[inline]
    pub(super) fn may_send_spans(&self) -> bool {
        self.lossless || !self.has_path
    }

    /// How many fragments may be sent of a transfer of which `remaining` bytes are left: as
    /// many as the peer and the links to it take. Each channel has a queue of its own in the
    /// network.
    #[inline]
    pub(super) fn room(&self, remaining: u64) -> u32 {
        let room = self.send.room();
        if self.lossless {
            return room;
        }
        let channel = Channel::of(remaining.min(MAX_SPAN as u64) as usize);
        room.min(self.congestion.room(self.packets.in_flight_on(channel)))
    }

    /// Packets in flight, of those for the channel that has more of them.
    pub(super) fn in_flight(&self) -> u32 {
        let on = |channel| self.packets.in_flight_on(channel);
        on(Channel::Priority).max(on(Channel::Data))
    }

    /// Returns true if so much is free that operations that wait for it go on: each is to be
    /// woken once and not for every frame.
    pub(super) fn is_half_open(&self) -> bool {
        let wire = self.lossless || self.congestion.is_open(self.in_flight());
        wire && self.send.is_half_open()
    }

    /// Returns true if a packet is to be sent again, and may be.
    pub(super) fn may_resend(&self) -> bool {
        self.packets.has_waiting() && self.congestion.room(self.in_flight()) > 0
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

    /// Returns true if it has delivered all that was sent to it, and nothing waits to be sent.
    pub(super) fn has_all(&self) -> bool {
        let waits = !self.blocked.is_empty() || !self.naks.is_empty() || !self.control.is_empty();
        !waits && !self.owes_answer() && self.send.has_arrived()
    }

    /// Returns true if it owes this node an answer.
    pub(super) fn owes_answer(&self) -> bool {
        !self.packets.is_empty() || self.requests > 0 || !self.send.is_empty()
    }

    /// Returns true if its silence is to be noticed: it owes an answer, or frames before others that
    /// have arrived.
    pub(super) fn owes_anything(&self) -> bool {
        self.owes_answer() || self.receive.has_gap()
    }

    /// Completes the envelope of a frame that is sent to it: names, sessions, and how
    /// far the other direction has come.
    #[inline]
    pub(super) fn address(&mut self, from: NodeId, frame: &mut Frame) {
        let (received, delivered) = self.take_ack();
        let envelope = &mut frame.envelope;
        envelope.source_node = from.0.into();
        envelope.destination_node = self.node.0.into();
        envelope.source_session = self.session.own().into();
        envelope.destination_session = self.session.peer().into();
        envelope.acknowledge = received.into();
        envelope.delivered = delivered.into();
    }

    /// What it is told of how far the other direction has come; it knows that then.
    #[inline]
    pub(super) fn take_ack(&mut self) -> (u64, u64) {
        self.ack_at = None;
        self.immediate_ack = false;
        self.receive.take_ack()
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

    /// Returns true if something has to be sent to it now.
    pub(super) fn has_output(&self, now: Time) -> bool {
        let control = !self.naks.is_empty() || !self.control.is_empty();
        self.hello_pending
            || self.hello_reply.is_some()
            || self.leaving.is_pending()
            || control && self.is_ready() && self.send.has_number()
            || self.may_resend()
            || self.must_ack(now)
    }
}

impl Transport {
    /// Asks the wire how long frames to each peer may be from now on.
    #[cold]
    pub(crate) fn update_paths<M, W: Wire<M>>(&mut self, wire: &W) {
        for index in self.peers.all() {
            let peer = &mut self.peers[index];
            if let Some(path) = wire.path(peer.node).filter(|_| peer.has_path) {
                peer.set_max_payload(path.max_payload);
            }
        }
    }

    /// What the route to a node is like.
    ///
    /// # Errors
    /// `NoSuchNode` without a session in which frames can be sent.
    pub(crate) fn path_info(&self, node: NodeId) -> Result<PathInfo, Status> {
        let index = self.find(node).ok_or(Status::NoSuchNode)?;
        let peer = &self.peers[index];
        if !peer.is_ready() {
            return Err(Status::NoSuchNode);
        }
        let lossless = u32::from(peer.is_lossless());
        Ok(PathInfo {
            max_payload: peer.max_payload.into(),
            window: peer.send.granted().into(),
            round_trip: peer.round_trip.smoothed().into(),
            flags: (lossless * PATH_LOSSLESS).into(),
            reserved: 0.into(),
        })
    }
}
