//! How sessions with peers begin and end, and how peers leave.
//!
//! ```text
//!   first need ──► Hello ──► [peer begins, or knows it] ──► HelloReply ──► ready
//!   frame of another incarnation ──► Hello: the sender learns the session of this side
//! ```
//! No numbered frame is sent before the other side has granted a window. A session ends when the
//! peer says so, begins a new one, or cannot be reached. All that ran in it ends at once, on this
//! side alone.
//!
//! Each session asks the wire anew what the route is like, with its first Hello or HelloReply. A
//! frame of the peer may come before that: the peer has begun anew, and knows this side's session
//! from a Hello to the one before. So page spans are taken as long as the route is not known.
//!
//! # Peers that leave
//! A *quiet* peer has delivered everything, and is owed nothing. While there are so many peers that
//! they share windows or places, a sweep runs each [`Limits::idle_peer`](crate::Limits::idle_peer).
//! A peer leaves (X8) if it is quiet and its numbers have not changed since the last sweep. With few
//! peers there is no sweep, and no timer.
//! ```text
//!   this side                                     the peer
//!   quiet for a sweep: closed ──── Leave 1 ─────► quiet, too: its session ends, and it
//!   session ends ◄──────────────── Goodbye ────── forgets this side
//!   and forgets the peer
//!
//!   closed, and something is to be sent:
//!   Hello, leaves 1 ────────────────────────────► takes Leave 1 for void from now on
//!   open again ◄────────── HelloReply, leaves 1 ── or says that the session has ended
//! ```
//! A side that has sent a Leave sends nothing numbered until the peer has said whether the session
//! goes on. The peer keeps to its first answer: once its HelloReply has named a Leave as void, it
//! answers that Leave with no Goodbye, even if the Leave had arrived before the Hello. So no
//! numbered frame goes into a session that the peer has ended, and nothing ran in a session that
//! ends like this. What waits for the peer is then sent once, in a new session with a larger number.
//!
//! A late Leave changes nothing: it is void, or names fewer frames than have been sent since. Both
//! sides count Leaves from the beginning of a session: a Hello that names another session of its
//! receiver voids none in this one.
//!
//! Whether an operation runs with a peer takes a look at all operations. So for each peer one Leave
//! in half a sweep is looked at, and others are dropped; a peer that still wants to leave asks again
//! with its next sweep.

use qnic_abi::wire::{kind, Frame, Goodbye, Hello, Leave};
use qnic_shared::timing::RoundTrip;

use super::incoming::{End, Opened};
use super::reliable::Alarm;
use super::session::Verdict;
use super::Transport;
use crate::env::{Channel, HostMemory, Payload, Sent, Time, Wire};
use crate::ids::PeerIndex;

impl Transport {
    /// Returns true if a Hello or a HelloReply has to be sent to a peer.
    #[inline]
    pub(crate) fn has_hello(&self, index: PeerIndex) -> bool {
        let peer = &self.peers[index];
        peer.hello_pending || peer.hello_reply.is_some()
    }

    /// Sends the Hello and the HelloReply that are due. Returns false if there is no
    /// route to the peer.
    pub(crate) fn send_hello<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
    ) -> bool {
        let peer = &mut self.peers[index];
        if !peer.has_path {
            match wire.path(peer.node) {
                Some(path) => peer.set_path(path),
                None => return false,
            }
        }
        self.schedule_sweep(now);
        let peer = &mut self.peers[index];
        let window = peer.grant.into();
        let mut sent = true;
        if let Some(session) = peer.hello_reply.take() {
            let body = Hello::<{ kind::HELLO_REPLY }> {
                window,
                leaves: peer.leaving.void.into(),
            };
            sent = self.send_session_frame(wire, index, Frame::new(&body), session);
        }
        let peer = &mut self.peers[index];
        if sent && std::mem::take(&mut peer.hello_pending) {
            peer.hello_sent = !peer.is_ready();
            let (session, leaves) = (peer.session.peer(), peer.leaving.count.into());
            if !peer.is_lossless() {
                self.watch(now, index);
            }
            let body = Hello::<{ kind::HELLO }> { window, leaves };
            sent = self.send_session_frame(wire, index, Frame::new(&body), session);
        }
        sent
    }

    /// Sends a frame that acknowledges nothing.
    fn send_session_frame<M: HostMemory, W: Wire<M>>(
        &self,
        wire: &mut W,
        index: PeerIndex,
        mut frame: Frame,
        session: u64,
    ) -> bool {
        let peer = &self.peers[index];
        let envelope = &mut frame.envelope;
        envelope.source_node = self.node.0.into();
        envelope.destination_node = peer.node.0.into();
        envelope.source_session = peer.session.own().into();
        envelope.destination_session = session.into();
        wire.send(&frame, Payload::None, Channel::Priority) != Sent::NoRoute
    }

    /// Tells a peer that this session ends. One that cannot be reached will not miss it.
    pub(crate) fn send_goodbye<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
    ) {
        let mut goodbye = Frame::new::<Goodbye>(&qnic_abi::wire::Empty);
        let _unreachable = self.put(now, wire, index, &mut goodbye, Payload::None);
    }

    /// Checks a frame that does not belong to the session as it is.
    #[cold]
    pub(super) fn check_session(
        &mut self,
        now: Time,
        index: PeerIndex,
        frame: &Frame,
        verdict: Verdict,
    ) -> Opened {
        let mut opened = Opened {
            ended: None,
            accepted: None,
        };
        let frame_kind = frame.envelope.kind;
        let peer = &mut self.peers[index];
        match verdict {
            Verdict::Accept => opened.accepted = Some(index),
            Verdict::Begin => {
                if peer.session.is_known() {
                    let knows = frame.envelope.destination_session.get() == peer.session.own();
                    opened.ended = Some(self.end(index, true, knows));
                }
                let peer = &mut self.peers[index];
                peer.session.begin(frame.envelope.source_session.get());
                self.returned(now, index);
                if frame_kind != kind::HELLO_REPLY {
                    // It may not know yet what it is granted here, nor this side what
                    // it grants.
                    self.peers.ensure_session(index);
                }
                opened.accepted = Some(index);
                return opened;
            }
            Verdict::Stale => {}
            Verdict::Stranger if matches!(frame_kind, kind::HELLO | kind::LEAVE) => {
                peer.hello_reply = Some(peer.session.floor());
                self.peers.mark_urgent(index);
            }
            Verdict::Stranger => {
                peer.hello_pending = true;
                self.peers.mark_urgent(index);
            }
            Verdict::Outgrown => {
                let larger = frame.envelope.destination_session.get().saturating_add(1);
                let begun = peer.session.is_known();
                let ended = self.end(index, begun, false);
                self.peers[index].session.end_own(larger);
                self.returned(now, index);
                if let End::Lost(_) = ended {
                    self.peers.ensure_session(index);
                }
                opened.ended = Some(ended);
            }
        }
        self.counters.stale_frames += 1;
        opened
    }

    /// Receives a Hello or its answer.
    #[cold]
    pub(super) fn receive_hello(&mut self, index: PeerIndex, frame: &Frame) {
        let hello: Hello<{ kind::HELLO }> = frame.body();
        let peer = &mut self.peers[index];
        let asks = frame.envelope.kind == kind::HELLO;
        if asks {
            peer.hello_reply = Some(frame.envelope.source_session.get());
            if frame.envelope.destination_session.get() == peer.session.own() {
                let leaving = &mut peer.leaving;
                leaving.void = leaving.void.max(hello.leaves.get());
            }
            self.peers.mark_urgent(index);
        }
        let peer = &mut self.peers[index];
        // A side that has asked to leave is open again once the peer takes that for void.
        let holds = asks || hello.leaves.get() != peer.leaving.count;
        if peer.is_ready() || peer.leaving.closed && holds {
            return;
        }
        peer.leaving.closed = false;
        // It may have been renewed meanwhile.
        let window = peer.taken.unwrap_or(hello.window.get());
        self.granted(index, window);
        // This session began in the middle of another one. What is sent next asks the wire what the
        // route is like.
        let peer = &mut self.peers[index];
        peer.hello_pending |= !asks && !peer.has_path;
        self.confirm_window(index);
        self.peers.mark_urgent(index);
        self.renew(index);
    }

    /// A peer grants a window: the first, or another one.
    pub(super) fn granted(&mut self, index: PeerIndex, window: u32) {
        let most = self.peers.most();
        let peer = &mut self.peers[index];
        if !peer.is_ready() {
            peer.hello_pending = false;
            peer.hello_sent = false;
            peer.round_trip = RoundTrip::default();
        }
        peer.send.grant(window.min(most));
        self.unblock(index);
        self.unblock_requests(index);
    }

    /// A peer says that its session has ended. It may not know this side's.
    #[cold]
    pub(super) fn goodbye(&mut self, index: PeerIndex, source: u64, destination: u64) -> Opened {
        let session = &mut self.peers[index].session;
        let begun = session.is_known();
        let ended = session.end_peer(source, destination);
        let ended = ended.then(|| self.end(index, begun, false));
        self.counters.stale_frames += u64::from(ended.is_none());
        Opened {
            ended,
            accepted: None,
        }
    }

    /// The peer has ended the session. Nothing ran in one that this side has asked to leave, or
    /// that had not `begun`: operations that wait for it go on in the next. `knows`: the peer
    /// goes on with this side's session.
    fn end(&mut self, index: PeerIndex, begun: bool, knows: bool) -> End {
        let next = self.peers.new_session();
        let peer = &mut self.peers[index];
        let quiet = peer.leaving.closed || !begun;
        if quiet {
            let waiting = [&mut peer.blocked.operations, &mut peer.blocked.requests];
            for waiting in waiting {
                waiting.append_to(&mut self.unblocked.operations);
            }
        }
        self.restart(index);
        if quiet && !knows {
            // The peer takes the old one for ended, too.
            self.peers[index].session.renew_own(next);
        }
        match quiet {
            true => End::Left(index),
            false => End::Lost(index),
        }
    }

    /// There is no route to a peer: this side ends the session. All that ran in it has
    /// to be given up.
    pub(crate) fn end_session(&mut self, index: PeerIndex) {
        let next = self.peers.new_session();
        self.restart(index);
        self.peers[index].session.end_own(next);
    }

    /// Forgets all that is under way between a peer and this node.
    pub(super) fn restart(&mut self, index: PeerIndex) {
        self.forget_packets(index);
        self.peers.restart(index);
        self.grow_windows();
    }
}

/// Longest time in nanoseconds for which Leaves of a peer are dropped after one that was looked
/// at.
const LONGEST_PAUSE: u64 = 5_000_000_000;

/// How far leaving has come, for one peer.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// This side has asked to leave, and sends nothing numbered.
    pub(super) closed: bool,
    /// How often it has asked in this session.
    pub(super) count: u32,
    /// It has to ask, once more.
    pub(super) due: bool,
    /// The last Leave of the peer that is to be looked at with the next flush.
    asked: u32,
    /// Before this time, no other one is.
    next_look: Time,
    /// What the peer has asked up to here counts no more.
    pub(super) void: u32,
    /// The numbers of both directions at the last sweep.
    mark: (u64, u64),
}

impl Leaving {
    /// Returns true if a Leave has to be sent, or was received.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.due | self.is_asked()
    }

    /// Returns true if the peer has asked, and has not taken that back.
    #[inline]
    fn is_asked(&self) -> bool {
        self.asked > self.void
    }
}

impl Transport {
    /// Makes sure that peers are swept, if they are many.
    pub(super) fn schedule_sweep(&mut self, now: Time) {
        if !self.sweeping && self.peers.is_crowded() {
            self.sweeping = true;
            let next = now.after(self.limits.idle_peer.max(1));
            self.timers.check_in(next, Alarm::Sweep);
        }
    }

    /// Looks at all peers. Returns those that may leave, if nothing else refers to them.
    #[cold]
    pub(crate) fn sweep(&mut self, now: Time) -> Vec<PeerIndex> {
        self.sweeping = false;
        let mut peers = self.peers.all();
        let crowded = self.peers.is_crowded();
        self.schedule_sweep(now);
        peers.retain(|index| {
            if !crowded || self.is_own(*index) || self.peers[*index].given_up.is_some() {
                return false;
            }
            let peer = &mut self.peers[*index];
            let numbers = (peer.send.next(), peer.receive.received());
            let unchanged = std::mem::replace(&mut peer.leaving.mark, numbers) == numbers;
            unchanged && peer.is_quiet()
        });
        peers
    }

    /// Asks a peer to leave. One whose session is not known need not be asked: returns
    /// true if it can go.
    pub(crate) fn leave(&mut self, index: PeerIndex) -> bool {
        let peer = &mut self.peers[index];
        if !peer.session.is_known() {
            return true;
        }
        if !peer.leaving.closed {
            peer.leaving.closed = true;
            peer.leaving.count += 1;
            peer.send.close();
        }
        peer.leaving.due = true;
        self.peers.mark_urgent(index);
        false
    }

    /// Asks, if that is due. Returns false if there is no route to the peer.
    pub(crate) fn send_leave<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
    ) -> bool {
        let peer = &mut self.peers[index];
        if !std::mem::take(&mut peer.leaving.due) || !peer.leaving.closed {
            return true;
        }
        let mut leave = Frame::new(&Leave {
            leaves: peer.leaving.count.into(),
            reserved: 0.into(),
            next: peer.send.next().into(),
        });
        self.put(now, wire, index, &mut leave, Payload::None) != Sent::NoRoute
    }

    /// A peer asks. It is answered with the next flush, if it still can leave then.
    #[cold]
    pub(super) fn receive_leave(&mut self, index: PeerIndex, frame: &Frame) {
        let leave: Leave = frame.body();
        let peer = &mut self.peers[index];
        let arrived = peer.receive.received() + 1 == leave.next.get();
        if arrived && peer.is_quiet() {
            peer.leaving.asked = peer.leaving.asked.max(leave.leaves.get());
            self.peers.mark_urgent(index);
        }
    }

    /// Returns true if a Leave has to be sent to a peer, or was received.
    #[inline]
    pub(crate) fn has_leave(&self, index: PeerIndex) -> bool {
        self.peers[index].leaving.is_pending()
    }

    /// Returns true if a peer has asked to leave, and it may unless something else refers to
    /// it: the caller has a look at all operations. If it asks over and over, that is true now and
    /// then only.
    pub(crate) fn take_asked(&mut self, now: Time, index: PeerIndex) -> bool {
        let pause = (self.limits.idle_peer / 2).min(LONGEST_PAUSE);
        let peer = &mut self.peers[index];
        let asked = peer.leaving.is_asked();
        peer.leaving.asked = 0;
        if !asked || !peer.is_quiet() || now < peer.leaving.next_look {
            return false;
        }
        peer.leaving.next_look = now.after(pause);
        true
    }

    /// Agrees: the session ends, and what the peer has sent in it counts no more.
    pub(crate) fn agree<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
    ) {
        self.send_goodbye(now, wire, index);
        let session = &mut self.peers[index].session;
        session.end_peer(session.peer(), session.own());
        self.end_session(index);
    }
}
