//! How sessions with peers begin and end.
//!
//! ```text
//!   first need ──► Hello ──► [peer begins, or knows it] ──► HelloReply ──► ready
//!   frame of another incarnation ──► Hello: the sender learns the session of this side
//! ```
//! Nothing numbered is sent before the other side has granted a window. Whatever ends a
//! session (the peer says so, or begins a new one, or cannot be reached), ends all that
//! ran in it, at once and on this side alone.

use qnic_abi::wire::{kind, Frame, Goodbye, Hello};
use qnic_shared::timing::RoundTrip;

use super::incoming::{End, Opened};
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
