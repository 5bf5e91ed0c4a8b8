//! Messages at their source.
//!
//! ```text
//!   Unsent ── first of its stream, short ──► Eager ── delivered ─────────────► Ok
//!     │                                        └─ Nak: not staged ─┐
//!     └── long, or its stream asks first ────────────────────► Requested
//!                                                                  │ permit
//!                                            Permitted: data ◄─────┘
//!                                                └─ all delivered ─► Ok or Truncated
//! ```
//! The first frame of a message is sent after the first frames of all earlier messages to that
//! process ([`super::streams`]). It names the frame behind which it is to be matched, unless that
//! frame is known to have arrived.
//!
//! A node keeps messages that it knows of and that are not staged
//! (`envelopes_per_peer`). A process tells it of no more than its share of them, and of the next one
//! when one has ended: so it waits in its stream, and no other process does.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::context::CONTEXTS;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::message::{kind, MessageEnd, MessagePermit, MessageRequest};
use qnic_abi::wire::Frame;
use qnic_abi::{SegmentId, Status, VniId};

use super::command::{Handle, Name, Send};
use super::context::complete;
use super::sending::{Sending, State};
use super::streams::Streams;
use super::{Context, Messages, Outgoing, Protocol, Turn};
use crate::core::{Core, PerProcess, OPERATION_SLOTS};
use crate::env::Host;
use crate::frame::Arrival;
use crate::ids::{OperationId, PeerIndex};
use crate::protocols::protocol::{Ends, News};

/// The messages that one process sends, by slot of their operation.
#[derive(Debug, Default)]
pub(super) struct Sends {
    /// From the first slot of a message on, as many as were needed.
    slots: Vec<Option<Box<Sending>>>,
    /// The memory of the message that ended last.
    spare: Option<Box<Sending>>,
    pub(super) streams: Streams,
    /// Messages that wait for permission of a node.
    asked: BTreeMap<u16, u32>,
    /// Send contexts that are under way, a bit each.
    contexts: u32,
    /// Nodes that know of as many messages as they may, while others wait.
    held_up: BTreeSet<u16>,
}

const _: () = assert!(CONTEXTS <= u32::BITS as usize);

impl Sends {
    /// Returns true if a Send context is under way.
    pub(super) fn has_context(&self, index: u8) -> bool {
        self.contexts & 1 << index != 0
    }

    pub(super) fn take_context(&mut self, index: u8) {
        self.contexts |= 1 << index;
    }

    /// Begins an operation.
    pub(super) fn put(&mut self, id: OperationId, sending: Sending) {
        let index = usize::from(id.slot()) - OPERATION_SLOTS;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(match self.spare.take() {
            Some(mut spare) => {
                *spare = sending;
                spare
            }
            None => Box::new(sending),
        });
    }

    fn slot(&mut self, id: OperationId) -> Option<&mut Option<Box<Sending>>> {
        let index = usize::from(id.slot()).checked_sub(OPERATION_SLOTS)?;
        self.slots.get_mut(index)
    }

    fn has(&self, id: OperationId) -> bool {
        let index = usize::from(id.slot()).checked_sub(OPERATION_SLOTS);
        index.is_some_and(|index| matches!(self.slots.get(index), Some(Some(_))))
    }

    pub(super) fn get(&mut self, id: OperationId) -> Option<&mut Sending> {
        self.slot(id)?.as_deref_mut()
    }

    /// Takes a message out that has ended.
    fn take(&mut self, id: OperationId) -> Option<Box<Sending>> {
        if let State::Requested(_) = self.get(id)?.state {
            self.set_state(id, State::Failed);
        }
        self.streams.ended();
        self.slot(id)?.take()
    }

    /// Notes where a message stands now. Returns where it stood.
    fn set_state(&mut self, id: OperationId, state: State) -> Option<State> {
        let sending = self.get(id)?;
        let node = sending.destination.node;
        let before = std::mem::replace(&mut sending.state, state);
        let asks = |state| matches!(state, State::Requested(_));
        match (asks(before), asks(state)) {
            (false, true) => *self.asked.entry(node).or_default() += 1,
            (true, false) => {
                if let Some(count) = self.asked.get_mut(&node) {
                    *count -= 1;
                    if *count == 0 {
                        self.asked.remove(&node);
                    }
                }
            }
            _ => {}
        }
        Some(before)
    }

    /// Returns true if a node may not learn of another message of this process before one has
    /// ended: its NIC keeps so many of a process, and may be without room for more.
    pub(super) fn is_held_up(&mut self, core: &Core, node: u16) -> bool {
        // The one that asks has a slot, too.
        if self.slots.len() < 2 {
            return false;
        }
        let most = core.limits.envelopes_per_process(core.geometry.windows) as usize;
        // As a rule there are fewer messages.
        self.slots.len() > most && self.knows(node, most)
    }

    /// Returns true if a node knows of so many messages; notes that then.
    #[cold]
    fn knows(&mut self, node: u16, most: usize) -> bool {
        let sendings = self.slots.iter().flatten();
        let known = sendings.filter(|it| it.destination.node == node && it.state != State::Unsent);
        let is_held_up = known.count() >= most;
        if is_held_up {
            self.held_up.insert(node);
        }
        is_held_up
    }

    /// Lets the messages to a node go on that wait for the end of another one.
    #[cold]
    fn go_on<H: Host>(&mut self, cx: &mut Context<'_, H>, node: u16) {
        for id in self.streams.firsts(node) {
            self.update(cx, id);
        }
    }

    /// Returns true if a message waits for permission of a node.
    pub(super) fn await_permit(&self, node: u16) -> bool {
        self.asked.contains_key(&node)
    }

    /// Lets a message send, or ends it, as things stand now.
    pub(super) fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let Some(operation) = cx.core.operation(id) else {
            return;
        };
        let (may_send, failure) = (operation.may_send(), operation.failure);
        let Some(sending) = self.get(id) else {
            return;
        };
        let all_sent = sending.sent >= sending.allowed;
        let idle = sending.in_flight == 0;
        let room = sending.in_flight < sending.limit;
        let truncated = sending.allowed < sending.command.length;
        let (state, destination) = (sending.state, sending.destination);
        match (state, failure) {
            (_, Some(status)) if idle => self.finish(cx, id, status),
            (State::Unsent, None) => {
                let stream = self.streams.get(destination);
                let first = stream.is_some_and(|stream| stream.first() == Some(id));
                cx.core.set_ready(id, first && may_send);
            }
            (State::Eager(_), None) if idle => {
                if let Some(stream) = self.streams.get(destination) {
                    stream.taken();
                }
                self.finish(cx, id, Status::Ok);
            }
            (State::Permitted, None) if all_sent && idle => {
                let status = match truncated {
                    true => Status::Truncated,
                    false => Status::Ok,
                };
                self.finish(cx, id, status);
            }
            (State::Permitted, None) => cx.core.set_ready(id, !all_sent && room && may_send),
            _ => cx.core.set_ready(id, false),
        }
    }

    fn finish<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        let Some(mut sending) = self.take(id) else {
            return;
        };
        cx.core.finish(cx.host, id, status);
        if let Handle::Context { index, .. } = sending.command.handle {
            self.contexts &= !(1 << index);
        }
        let destination = sending.destination;
        tell(cx, id.vni(), &sending.command, destination, status);
        sending.pages = None;
        self.spare = Some(sending);
        if let Some(next) = self.streams.leave(destination, id) {
            self.update(cx, next);
        }
        if !self.held_up.is_empty() && self.held_up.remove(&destination.node) {
            self.go_on(cx, destination.node);
        }
    }

    /// Gives a message up; its destination learns of it, if it waits for more.
    pub(super) fn fail<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        status: Status,
    ) {
        let Some(operation) = cx.core.operation(id) else {
            return;
        };
        let peer = operation.peer;
        operation.fail(status);
        if matches!(status, Status::Aborted | Status::PeerGone) {
            cx.core.counters.aborted += 1;
        }
        let Some(sending) = self.get(id) else {
            return;
        };
        let destination = sending.destination;
        let next = match self.set_state(id, State::Failed) {
            Some(State::Unsent) => self.streams.leave(destination, id),
            Some(State::Requested(_) | State::Permitted) => {
                send_end(cx, peer, (destination.port, id.0), status);
                None
            }
            Some(State::Eager(_) | State::Failed) | None => None,
        };
        self.update(cx, id);
        if let Some(next) = next {
            self.update(cx, next);
        }
    }
}

/// Tells a process of its message.
fn tell<H: Host>(
    cx: &mut Context<'_, H>,
    vni: VniId,
    command: &Send,
    destination: Name,
    status: Status,
) {
    let entry = CompletionEntry {
        tag: command.tag.into(),
        length: command.length.into(),
        status: status.code().into(),
        node: destination.node.into(),
        port: destination.port.into(),
        kind: CompletionKind::Send as u8,
        endpoint: command.space.endpoint.into(),
        ..CompletionEntry::default()
    };
    complete(cx.host, cx.core, vni, command.handle, entry);
}

/// Says that an operation of this node runs no more. It is said again to a peer that gives it
/// permission. Also if the process there has ended: the news of that may be late, and the next one
/// on its port have the message.
fn send_end<H>(
    cx: &mut Context<'_, H>,
    peer: PeerIndex,
    (port, operation): (u16, u64),
    status: Status,
) {
    let status = match status {
        Status::PeerGone => Status::Aborted,
        status => status.for_peer(),
    };
    if status != Status::NoSuchPort && cx.transport.is_ready(peer) {
        answer_end(cx, peer, (port, operation), status);
    }
}

fn answer_end<H>(
    cx: &mut Context<'_, H>,
    peer: PeerIndex,
    (port, operation): (u16, u64),
    status: Status,
) {
    if cx.transport.has_control_room(peer) {
        let mut end = Frame::new(&MessageEnd {
            status: status.code().into(),
            ..MessageEnd::default()
        });
        end.envelope.destination_port = port.into();
        end.envelope.operation = operation.into();
        cx.transport.send_control(peer, end);
    }
}

impl PerProcess<Sends> {
    pub(super) fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let (Some(ends), Some(sends)) = (Ends::of(cx.core, id), self.get(id.vni())) else {
            return Turn::Idle;
        };
        match sends.get(id).map(|sending| sending.state) {
            Some(State::Unsent) => sends.first_turn(cx, id, &ends, outgoing),
            Some(State::Permitted) => sends.data_turn(cx, id, &ends, budget, outgoing),
            _ => Turn::Idle,
        }
    }

    pub(super) fn sent<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        outgoing: &Outgoing,
    ) {
        cx.core.count_sent(id.vni(), outgoing.length);
        let Some(sends) = self.get(id.vni()) else {
            return;
        };
        let Some(sending) = sends.get(id) else {
            return;
        };
        let envelope = &outgoing.frame.envelope;
        let sequence = envelope.sequence.get();
        if envelope.kind != kind::MESSAGE_REQUEST {
            sending.in_flight += u32::from(envelope.fragments);
        }
        if envelope.kind == kind::MESSAGE_DATA {
            sending.sent += outgoing.length as u64;
            return sends.update(cx, id);
        }
        let destination = sending.destination;
        if envelope.kind == kind::MESSAGE_REQUEST {
            let request: MessageRequest = outgoing.frame.body();
            sending.packet_length = request.packet_length.get();
        }
        let (state, asks) = match envelope.kind {
            kind::MESSAGE => (State::Eager(sequence), false),
            _ => (State::Requested(sequence), true),
        };
        if sending.state == State::Unsent {
            sends.set_state(id, state);
        }
        if let Some(stream) = sends.streams.get(destination) {
            stream.last = sequence;
            if asks {
                stream.has_asked();
            }
        }
        let next = sends.streams.leave(destination, id);
        sends.update(cx, id);
        if let Some(next) = next {
            sends.update(cx, next);
        }
    }

    pub(super) fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        if let Some(sends) = self.get(id.vni()) {
            sends.update(cx, id);
        }
    }

    pub(super) fn settled<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        fragments: u32,
    ) {
        let Some(sends) = self.get(id.vni()) else {
            return;
        };
        if let Some(sending) = sends.get(id) {
            sending.in_flight = sending.in_flight.saturating_sub(fragments);
        }
        sends.update(cx, id);
    }

    pub(super) fn refused<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        sequence: u64,
        status: Status,
    ) {
        let peer = cx.core.operation(id).map(|operation| operation.peer);
        let (Some(peer), Some(sends)) = (peer, self.get(id.vni())) else {
            return;
        };
        let Some(sending) = sends.get(id) else {
            return;
        };
        let windowed = cx.transport.refused(peer, sequence, id);
        if windowed {
            sending.in_flight = sending.in_flight.saturating_sub(1);
        }
        match (sending.state, status) {
            (State::Eager(number), Status::NotStaged) if windowed && number == sequence => {
                let destination = sending.destination;
                if let Some(stream) = sends.streams.get(destination) {
                    stream.refused();
                }
                sends.set_state(id, State::Requested(sequence));
                sends.update(cx, id);
            }
            // The permit has overtaken it.
            (State::Permitted, Status::NotStaged) if windowed => sends.update(cx, id),
            // It was given up on its way; its destination keeps the envelope.
            (State::Failed, Status::NotStaged) if windowed => {
                let port = sending.destination.port;
                send_end(cx, peer, (port, id.0), Status::Aborted);
                sends.update(cx, id);
            }
            (State::Requested(number), _) if number == sequence => {
                sends.set_state(id, State::Failed);
                sends.fail(cx, id, status);
            }
            _ if windowed => {
                sends.set_state(id, State::Failed);
                sends.fail(cx, id, status);
            }
            _ => {}
        }
    }

    /// A receive has taken a message.
    pub(super) fn permit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let id = arrival.operation();
        let body: MessagePermit = arrival.body();
        let runs = cx.core.operation_with(id, Messages::ID, arrival.peer);
        let sends = self.get(id.vni()).filter(|_| runs.is_some());
        let Some(sends) = sends.filter(|sends| sends.has(id)) else {
            // Also if this node has said that it leaves the session.
            let port = arrival.frame.envelope.source_port.get();
            return answer_end(cx, arrival.peer, (port, id.0), Status::Aborted);
        };
        let Some(sending) = sends.get(id) else {
            return;
        };
        let awaited = matches!(sending.state, State::Eager(_) | State::Requested(_));
        if !awaited || body.length.get() > sending.command.length {
            return;
        }
        sending.receive = body.receive.get();
        sending.allowed = body.length.get();
        sending.page_offset = body.page_offset.get().into();
        sending.newest = arrival.frame.envelope.sequence.get();
        sends.set_state(id, State::Permitted);
        sends.update(cx, id);
    }

    pub(super) fn fail<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        status: Status,
    ) {
        if let Some(sends) = self.get(id.vni()) {
            sends.fail(cx, id, status);
        }
    }

    pub(super) fn lost<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let Some(sends) = self.get(id.vni()) else {
            return;
        };
        let Some(sending) = sends.get(id) else {
            return;
        };
        sending.in_flight = 0;
        let status = match sending.state {
            State::Unsent => Status::NoSuchNode,
            _ => Status::PeerGone,
        };
        if sending.state != State::Unsent {
            sends.set_state(id, State::Failed);
        }
        sends.fail(cx, id, status);
    }

    /// Numbers of a session that has ended mean nothing any more.
    pub(super) fn session_ended(&mut self, peer: PeerIndex) {
        for (_, sends) in self.iter_mut() {
            sends.streams.session_ended(peer);
        }
    }

    /// Returns true if a message goes to a later process than the one that has ended: it was known
    /// when the message was issued, has permitted it, or was there when its frame came.
    pub(super) fn outlives(&mut self, id: OperationId, news: News) -> bool {
        let sending = self.get(id.vni()).and_then(|sends| sends.get(id));
        sending.is_some_and(|sending| {
            let came_later = match sending.state {
                State::Eager(number) | State::Requested(number) => number > news.last_received,
                State::Unsent | State::Permitted | State::Failed => false,
            };
            came_later || sending.newest > news.number
        })
    }

    pub(super) fn uses_segment(&mut self, id: OperationId, segment: SegmentId) -> bool {
        let sending = self.get(id.vni()).and_then(|sends| sends.get(id));
        sending.is_some_and(|sending| match &sending.pages {
            Some(pages) => pages.uses(segment),
            None => sending.command.local.uses(segment),
        })
    }

    /// The operations of a process run no more; `tell` the destinations. A process that ends
    /// is reported otherwise.
    pub(super) fn forget<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, tell: bool) {
        let running = cx.core.process(vni).into_iter();
        let running = running.flat_map(|process| process.operations.running());
        let running: Vec<_> = running
            .map(|operation| (operation.id, operation.peer))
            .collect();
        let Some(mut sends) = self.take(vni) else {
            return;
        };
        for (id, peer) in running {
            let Some(sending) = sends.slot(id).and_then(Option::take) else {
                continue;
            };
            let asked = matches!(sending.state, State::Requested(_) | State::Permitted);
            if tell && asked {
                let to = (sending.destination.port, id.0);
                send_end(cx, peer, to, Status::Aborted);
            }
        }
    }
}
