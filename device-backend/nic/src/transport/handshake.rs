//! How conversations with peers begin and end.
//!
//! ```text
//!   first need ──► Hello ──► [peer begins, or knows it] ──► HelloReply ──► ready
//!   frame of another life ──► Hello: the sender learns who is here
//! ```
//! Nothing numbered is sent before the other side has granted a window. Whatever
//! ends a conversation (the peer says so, or begins a new one, or cannot be
//! reached), ends all that ran in it, at once and on this side alone.

use qnic_abi::wire::{FrameHeader, FrameKind};

use super::rtt::RoundTrip;
use super::{header, PeerIndex, Verdict};
use crate::env::{Host, Payload, Time, Wire};
use crate::nic::{Io, Nic};

impl Nic {
    /// Sends the Hello and the HelloReply that are due. `false`: no way to the peer.
    pub(super) fn shake_hands<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
    ) -> bool {
        let peer = &mut self.peers[index];
        if peer.path.is_none() {
            match io.wire.path(peer.node) {
                Some(path) => peer.take_path(path),
                None => return false,
            }
        }
        let mut sent = true;
        if let Some(session) = peer.reply.take() {
            let mut reply = header(FrameKind::HelloReply);
            reply.length = u64::from(peer.grant).into();
            sent = self.greet(io, index, &mut reply, session);
        }
        let peer = &mut self.peers[index];
        if sent && std::mem::take(&mut peer.greet) {
            peer.greeted = !peer.is_ready();
            let mut hello = header(FrameKind::Hello);
            hello.length = u64::from(peer.grant).into();
            let session = peer.session.peer();
            if !peer.is_perfect() {
                self.watch(io.now, index);
            }
            sent = self.greet(io, index, &mut hello, session);
        }
        sent
    }

    fn greet<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        frame: &mut FrameHeader,
        session: u64,
    ) -> bool {
        let peer = &self.peers[index];
        frame.magic = super::FRAME_MAGIC.into();
        frame.version = super::WIRE_VERSION;
        frame.source_node = self.config.node.0.into();
        frame.destination_node = peer.node.0.into();
        frame.source_session = peer.session.own().into();
        frame.destination_session = session.into();
        io.wire.send(frame, Payload::None, super::Channel::Priority)
    }

    /// Deals with a frame that does not belong to the conversation as it is.
    /// `false` drops it.
    #[cold]
    pub(super) fn meet<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        verdict: Verdict,
    ) -> bool {
        let peer = &mut self.peers[index];
        match verdict {
            Verdict::Accept => return true,
            Verdict::Begin => {
                if peer.session.is_known() {
                    self.conversation_ended(Time::default(), host, index);
                }
                let peer = &mut self.peers[index];
                peer.session.begin(frame.source_session.get());
                if frame.kind != FrameKind::HelloReply as u8 {
                    // It may not know yet what it is granted here, nor this side
                    // what it grants.
                    self.peers.introduce(index);
                }
                return true;
            }
            Verdict::Stale => {}
            Verdict::Stranger if frame.kind == FrameKind::Hello as u8 => {
                peer.reply = Some(peer.session.floor());
                self.peers.hurry(index);
            }
            Verdict::Stranger => {
                peer.greet = true;
                self.peers.hurry(index);
            }
            Verdict::Outgrown => {
                let larger = frame.destination_session.get().saturating_add(1);
                self.conversation_ended(Time::default(), host, index);
                let peer = &mut self.peers[index];
                peer.session.end_own(larger);
                self.peers.introduce(index);
            }
        }
        self.counters.stale_frames += 1;
        false
    }

    /// Takes a Hello or its answer.
    pub(super) fn take_hello<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        kind: FrameKind,
    ) {
        let most = self.config.limits.window.max(1);
        let peer = &mut self.peers[index];
        if kind == FrameKind::Hello {
            peer.reply = Some(frame.source_session.get());
            self.peers.hurry(index);
        }
        let peer = &mut self.peers[index];
        if peer.is_ready() {
            return;
        }
        let granted = frame.length.get().min(u64::from(most)) as u32;
        peer.send.grant(granted);
        peer.greet = false;
        peer.greeted = false;
        peer.round_trip = RoundTrip::default();
        self.peers.hurry(index);
        self.unblock(host, index);
        self.reads_answered(host, index, 0);
    }

    /// A peer says that its session has ended. It may not know this side's.
    pub(super) fn peer_left<H: Host>(&mut self, host: &H, index: PeerIndex, sessions: (u64, u64)) {
        let session = &mut self.peers[index].session;
        if !session.end_peer(sessions.0, sessions.1) {
            self.counters.stale_frames += 1;
            return;
        }
        self.conversation_ended(Time::default(), host, index);
    }

    /// There is no way to a peer: this side ends the conversation.
    pub(crate) fn peer_unreachable<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) {
        let next = self.peers.new_session();
        self.conversation_ended(now.after(crate::import::RETRY_AFTER), host, index);
        self.peers[index].session.end_own(next);
    }

    /// Forgets and gives up all that runs between a peer and this node. Imports
    /// from it are asked for again at `again`.
    fn conversation_ended<H: Host>(&mut self, again: Time, host: &H, index: PeerIndex) {
        self.forget_packets(index);
        let peer = &mut self.peers[index];
        peer.restart();
        let node = peer.node;
        for process in self.processes.iter_mut().flatten() {
            process.replies.retain(|job| job.peer != index);
        }
        self.forget_waiting(host, index);
        self.parked.forget(index);
        self.imports.resend(node, again);
        self.abort_to(host, index, None);
    }
}
