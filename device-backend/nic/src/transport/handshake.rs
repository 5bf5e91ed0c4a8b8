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

use super::incoming::Opened;
use super::rtt::RoundTrip;
use super::session::Verdict;
use super::Transport;
use crate::env::{Channel, HostMemory, Payload, Time, Wire};
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
        if peer.path.is_none() {
            match wire.path(peer.node) {
                Some(path) => peer.set_path(path),
                None => return false,
            }
        }
        let window = peer.grant.into();
        let mut sent = true;
        if let Some(session) = peer.hello_reply.take() {
            let body = Hello::<{ kind::HELLO_REPLY }> {
                window,
                reserved: 0.into(),
            };
            sent = self.send_session_frame(wire, index, Frame::new(&body), session);
        }
        let peer = &mut self.peers[index];
        if sent && std::mem::take(&mut peer.hello_pending) {
            peer.hello_sent = !peer.is_ready();
            let session = peer.session.peer();
            if !peer.is_lossless() {
                self.watch(now, index);
            }
            let body = Hello::<{ kind::HELLO }> {
                window,
                reserved: 0.into(),
            };
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
        wire.send(&frame, Payload::None, Channel::Priority)
    }

    /// Tells a peer that this session ends.
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
                    opened.ended = Some(index);
                    self.restart(index);
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
            Verdict::Stranger if frame_kind == kind::HELLO => {
                peer.hello_reply = Some(peer.session.floor());
                self.peers.mark_urgent(index);
            }
            Verdict::Stranger => {
                peer.hello_pending = true;
                self.peers.mark_urgent(index);
            }
            Verdict::Outgrown => {
                let larger = frame.envelope.destination_session.get().saturating_add(1);
                opened.ended = Some(index);
                self.restart(index);
                self.peers[index].session.end_own(larger);
                self.peers.ensure_session(index);
            }
        }
        self.counters.stale_frames += 1;
        opened
    }

    /// Receives a Hello or its answer.
    pub(super) fn receive_hello(&mut self, index: PeerIndex, frame: &Frame) {
        let hello: Hello<{ kind::HELLO }> = frame.body();
        let most = self.limits.window.max(1);
        let peer = &mut self.peers[index];
        if frame.envelope.kind == kind::HELLO {
            peer.hello_reply = Some(frame.envelope.source_session.get());
            self.peers.mark_urgent(index);
        }
        let peer = &mut self.peers[index];
        if peer.is_ready() {
            return;
        }
        peer.send.grant(hello.window.get().min(most));
        peer.hello_pending = false;
        peer.hello_sent = false;
        peer.round_trip = RoundTrip::default();
        self.peers.mark_urgent(index);
        self.unblock(index);
        self.unblock_requests(index);
    }

    /// A peer says that its session has ended. It may not know this side's.
    pub(super) fn goodbye(&mut self, index: PeerIndex, source: u64, destination: u64) -> Opened {
        let session = &mut self.peers[index].session;
        let ended = session.end_peer(source, destination);
        match ended {
            true => self.restart(index),
            false => self.counters.stale_frames += 1,
        }
        Opened {
            ended: ended.then_some(index),
            accepted: None,
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
        self.peers[index].restart();
    }
}
