//! What goes out: commands become operations, operations and frames that are to be answered have
//! turns, and what the transport has queued is sent.
//!
//! The core reads commands, and the protocol of an opcode checks its command and begins the
//! operation.

use qnic_abi::wire::{Class, Frame};
use qnic_abi::{NodeId, Status, VniId};
use zerocopy::IntoBytes;

use super::{Io, Nic};
use crate::core::{Fetched, Owner, Waiter, Work};
use crate::env::{Host, Payload, Sent, Time, Wire};
use crate::frame::StoredFrame;
use crate::ids::{OperationId, PeerIndex, ProtocolId};
use crate::protocols;
use crate::protocols::{Outgoing, Source, Turn};
use crate::trace::What;
use crate::transport::Window;

impl Nic {
    /// Gives turns until none is wanted, or the bound of one poll is reached.
    pub(super) fn give_turns<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
    ) -> bool {
        if !self.core.has_turns() {
            return false;
        }
        let limit = self.core.limits.fragments_per_poll.max(1);
        let outgoing = &mut Outgoing::default();
        let mut fragments = 0;
        while fragments < limit {
            let Some(owner) = self.core.next_turn() else {
                break;
            };
            let budget = limit - fragments;
            let sent = match owner {
                Owner::Process(vni) => {
                    let sent = match self.core.take_work(vni) {
                        Some(Work::Operation(id, protocol, sampled)) => {
                            self.operation_turn(io, (id, sampled), protocol, budget, outgoing)
                        }
                        Some(Work::Response(request)) => {
                            self.response_turn(io, vni, request, budget, outgoing)
                        }
                        None => 0,
                    };
                    self.core.end_turn(vni);
                    sent
                }
                Owner::Nic(protocol) => self.nic_turn(io, protocol, budget, outgoing),
            };
            fragments += sent.max(1);
            self.resume_unblocked(io.now, io.host);
        }
        self.take_receipts(io);
        fragments > 0
    }

    /// Ends what peers have received within the calls that sent it.
    #[inline]
    fn take_receipts<H: Host, W: Wire<H::Memory>>(&mut self, io: &mut Io<'_, H, W>) {
        while let Some(index) = self.transport.next_called() {
            if let Some(receipt) = io.wire.receipt(self.transport.node_of(index)) {
                if let Some(received) = self.transport.take_receipt(io.now, index, receipt) {
                    self.acknowledged(io.now, io.host, index, received);
                }
            }
        }
        self.resume_unblocked(io.now, io.host);
    }

    /// One turn of an operation. Returns how many fragments were sent.
    #[inline]
    fn operation_turn<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        (id, sampled): (OperationId, bool),
        protocol: ProtocolId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> u32 {
        let (protocols, mut cx) = self.parts(io.now, io.host);
        match protocols.turn(&mut cx, protocol, id, budget, outgoing) {
            Turn::Send => {
                if sampled {
                    self.core.sample_sent(io.host, id);
                }
                if !self.send(io, outgoing) {
                    let (protocols, mut cx) = self.parts(io.now, io.host);
                    protocols.fail(&mut cx, id, Status::NoSuchNode);
                    self.peer_unreachable(io.now, io.host, outgoing.peer);
                    return 0;
                }
                // One to the own node was received within the call, and may have ended.
                let runs = !self.transport.is_own(outgoing.peer);
                if runs || self.core.operation(id).is_some() {
                    let (protocols, mut cx) = self.parts(io.now, io.host);
                    protocols.sent(&mut cx, protocol, id, outgoing);
                }
                return outgoing.fragments();
            }
            turn => self.operation_stopped(io, id, turn),
        }
        0
    }

    /// An operation has not sent a frame in its turn.
    #[cold]
    fn operation_stopped<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &Io<'_, H, W>,
        id: OperationId,
        turn: Turn,
    ) {
        match turn {
            Turn::Send | Turn::Idle => {}
            Turn::Blocked(peer, window) => {
                if let Some(operation) = self.core.operation(id) {
                    operation.blocked = true;
                    let core = &mut self.core;
                    let runs = |id: &OperationId| core.operation(*id).is_some();
                    self.transport.block(peer, window, id, runs);
                    if self.core.tracing.on {
                        self.trace_own(io.host, What::Blocked, id);
                    }
                }
            }
            Turn::Wait(range) => {
                if let Some(operation) = self.core.operation(id) {
                    operation.faulted = true;
                    let waiter = Waiter::Operation(id);
                    self.core.wait_for_pages(id.vni(), range, waiter);
                    if self.core.tracing.on {
                        self.trace_own(io.host, What::Waits, id);
                    }
                }
            }
            Turn::Refuse(status) => {
                let (protocols, mut cx) = self.parts(io.now, io.host);
                protocols.fail(&mut cx, id, status);
            }
        }
    }

    /// One turn of a frame of a peer that has to be answered. Returns how many fragments
    /// were sent.
    #[inline(never)] // It would cost operations registers.
    fn response_turn<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        mut request: StoredFrame,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> u32 {
        let (protocols, mut cx) = self.parts(io.now, io.host);
        match protocols.respond(&mut cx, vni, &request, budget, outgoing) {
            Turn::Send => {
                if self.core.tracing.on {
                    self.trace_response(io.host, outgoing);
                }
                if !self.send(io, outgoing) {
                    self.peer_unreachable(io.now, io.host, outgoing.peer);
                    return 0;
                }
                let (protocols, mut cx) = self.parts(io.now, io.host);
                // The rest of it has the next turn.
                if protocols.responded(&mut cx, &mut request, outgoing) {
                    self.core.requeue_response(vni, request, true);
                }
                return u32::from(outgoing.frame.envelope.fragments);
            }
            Turn::Idle => {}
            Turn::Blocked(_, Window::Fragments | Window::Requests) => {
                self.transport.block_response(vni, request);
            }
            Turn::Wait(range) => {
                let waiter = Waiter::Response(Box::new(request));
                self.core.wait_for_pages(vni, range, waiter);
            }
            Turn::Refuse(status) => self.transport.refuse(request.peer, &request.frame, status),
        }
        0
    }

    /// One turn of the NIC itself. Returns how many fragments were sent.
    #[inline(never)] // As response_turn.
    fn nic_turn<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        protocol: ProtocolId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> u32 {
        let (protocols, mut cx) = self.parts(io.now, io.host);
        match protocols.nic_turn(&mut cx, protocol, budget, outgoing) {
            Turn::Send => {}
            Turn::Blocked(peer, _) => {
                self.transport.block_protocol(peer, protocol);
                self.core.schedule_nic(protocol);
                return 0;
            }
            _ => return 0,
        }
        self.core.schedule_nic(protocol);
        let began = match self.core.tracing.on {
            true => self.trace_sends(io.host),
            false => None,
        };
        if !self.send(io, outgoing) {
            self.peer_unreachable(io.now, io.host, outgoing.peer);
            return 0;
        }
        if let Some(began) = began {
            self.trace_sent(began, outgoing.peer, &outgoing.frame, outgoing.length);
        }
        u32::from(outgoing.frame.envelope.fragments)
    }

    /// Sends the frame of a turn, and unlocks the pages of its payload, unless the wire keeps
    /// them. Returns false if there is no route to the peer.
    #[inline(always)]
    fn send<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        outgoing: &mut Outgoing,
    ) -> bool {
        let (index, length) = (outgoing.peer, outgoing.length);
        let frame = &mut outgoing.frame;
        let payload = match outgoing.source {
            Source::Nothing => Payload::None,
            Source::Inline(offset) => {
                Payload::Bytes(&outgoing.inline.as_bytes()[offset..offset + length])
            }
            Source::Pages(offset) => Payload::Memory {
                memory: io.host.memory(),
                pages: outgoing.pages.addresses(),
                offset,
                length,
            },
            Source::Bytes => match &outgoing.bytes {
                Some(bytes) => Payload::Bytes(bytes),
                None => Payload::None,
            },
        };
        let sent = self.transmit(io, index, frame, payload);
        if let Source::Pages(_) = outgoing.source {
            match sent {
                Sent::Kept(ticket) => self.core.keep(ticket, &mut outgoing.pages),
                _ => self.core.unlock_span(io.host, &mut outgoing.pages, 0),
            }
        }
        let sent = sent != Sent::NoRoute;
        if sent && Class::of(frame.envelope.kind) == Class::Windowed {
            let fragments = frame.envelope.fragments;
            self.transport.in_window(index, outgoing.owner, fragments);
        }
        sent
    }

    /// Sends a frame with the next number, if its class has numbers. If there is no route to
    /// the peer, no number was used.
    #[inline]
    fn transmit<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        frame: &mut Frame,
        payload: Payload<'_, H::Memory>,
    ) -> Sent {
        let numbered = Class::of(frame.envelope.kind).is_numbered();
        if numbered {
            self.transport.number(index, frame);
        }
        let sent = self.put(io, index, frame, payload);
        if numbered && sent == Sent::NoRoute {
            self.transport.withdraw(index, frame);
        }
        sent
    }

    /// Sends a frame whose number is set. One to the own node is received at once.
    #[inline]
    fn put<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        frame: &mut Frame,
        payload: Payload<'_, H::Memory>,
    ) -> Sent {
        if !self.transport.is_own(index) {
            return self.transport.put(io.now, io.wire, index, frame, payload);
        }
        self.transport.address(index, frame, payload.len());
        self.receive(io.now, io.host, frame, payload);
        Sent::Taken
    }

    /// Sends what was queued for peers: Hellos, lost frames, control frames, then, if
    /// `acknowledge`, acknowledgements that no frame has carried.
    #[inline]
    pub(super) fn flush<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        acknowledge: bool,
    ) -> bool {
        self.transport.has_listed(!acknowledge) && self.flush_listed(io, acknowledge)
    }

    #[inline(never)] // Mostly there is nothing to do.
    fn flush_listed<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        acknowledge: bool,
    ) -> bool {
        let mut busy = false;
        let listed = self.transport.take_listed();
        for index in listed.iter().copied() {
            match self.flush_peer(io, index, acknowledge, &mut busy) {
                false => self.peer_unreachable(io.now, io.host, index),
                true => self.transport.list_again(index, !acknowledge),
            }
        }
        self.transport.reuse(listed);
        self.resume_unblocked(io.now, io.host);
        busy
    }

    /// Returns false if there is no route to the peer.
    fn flush_peer<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        acknowledge: bool,
        busy: &mut bool,
    ) -> bool {
        if self.transport.has_hello(index) {
            *busy = true;
            if !self.transport.send_hello(io.now, io.wire, index) {
                return false;
            }
        }
        if self.transport.has_leave(index) {
            *busy = true;
            if !self.flush_leave(io, index) {
                return false;
            }
        }
        if self.transport.is_ready(index) {
            if self.transport.has_lost(index) {
                *busy = true;
                if !self.send_lost(io, index) {
                    return false;
                }
            }
            while let Some((mut frame, refused)) = self.transport.next_control(index) {
                *busy = true;
                let began = match self.core.tracing.on {
                    true => self.trace_sends(io.host),
                    false => None,
                };
                if self.transmit(io, index, &mut frame, Payload::None) == Sent::NoRoute {
                    return false;
                }
                if let Some(began) = began {
                    self.trace_sent(began, index, &frame, 0);
                }
                if let Some(refused) = refused {
                    self.transport.nak_sent(index, &frame, refused);
                }
            }
        }
        while acknowledge && self.transport.must_ack(io.now, index) {
            *busy = true;
            let (mut ack, more) = self.transport.make_ack(index);
            if self.put(io, index, &mut ack, Payload::None) == Sent::NoRoute {
                return false;
            }
            if !more {
                break;
            }
        }
        true
    }

    /// Lets a peer leave that asks and may, or asks it. Returns false if there is no route to
    /// it.
    #[cold]
    fn flush_leave<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
    ) -> bool {
        if self.transport.take_asked(io.now, index) && !self.is_used(index) {
            self.transport.agree(io.now, io.wire, index);
            self.peer_left(io.now, io.host, index);
            return true;
        }
        self.transport.send_leave(io.now, io.wire, index)
    }

    /// Lets operations and answers go on that have waited for a window.
    #[inline]
    pub(super) fn resume_unblocked<H: Host>(&mut self, now: Time, host: &H) {
        if self.transport.has_unblocked() {
            self.resume_all_unblocked(now, host);
        }
    }

    #[cold]
    fn resume_all_unblocked<H: Host>(&mut self, now: Time, host: &H) {
        while let Some(unblocked) = self.transport.take_unblocked() {
            for id in unblocked.operations {
                if let Some(operation) = self.core.operation(id) {
                    operation.blocked = false;
                    if self.core.tracing.on {
                        self.trace_own(host, What::Unblocked, id);
                    }
                    let (protocols, mut cx) = self.parts(now, host);
                    protocols.update(&mut cx, id);
                }
            }
            for (vni, request) in unblocked.responses {
                self.core.requeue_response(vni, request, false);
            }
            for (protocol, peer) in unblocked.protocols {
                let (protocols, mut cx) = self.parts(now, host);
                protocols.unblocked(&mut cx, protocol, peer);
            }
        }
    }
}

impl Nic {
    /// Reads commands of all active queues; those that had none for long enough are idle then.
    #[inline(always)]
    pub(super) fn fetch_commands<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &Io<'_, H, W>,
    ) -> bool {
        let (now, host) = (io.now, io.host);
        let mut busy = false;
        let mut idle = false;
        let mut index = 0;
        self.core.activate_rung(now);
        let (own, mut cx) = self.parts(now, host);
        while let Some(vni) = cx.core.active_queue(index) {
            index += 1;
            let limit = cx.core.limits.commands_per_poll.max(1);
            for _ in 0..limit {
                let Some(first) = cx.core.next_command(host, vni) else {
                    idle |= cx.core.is_idle(now, vni);
                    break;
                };
                busy = true;
                let mut command = Fetched::default();
                let fetched = cx.core.fetch(now, host, vni, first, &mut command);
                if let Ok(sampled) = fetched {
                    if sampled {
                        let kind = protocols::kind_of_command(&command.descriptor);
                        let handle = command.descriptor.handle();
                        let described = protocols::describe(&command);
                        cx.core.sample(host, vni, (kind, handle), described);
                    }
                    let node = NodeId(command.descriptor.header.remote_node.get());
                    command.peer = cx.transport.reach(now, io.wire, node);
                }
                let submitted = fetched.and_then(|_| own.submit(&mut cx, vni, &command));
                if let Err(status) = submitted {
                    cx.core.fail_queue(host, vni, status);
                }
                if std::mem::take(&mut cx.core.was_long) {
                    break;
                }
            }
        }
        if idle {
            busy |= self.core.rest_queues(now, host);
        }
        self.resume_unblocked(now, host);
        busy
    }
}
