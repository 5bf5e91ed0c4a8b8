//! Messages at their source: turns, and what the peer replies.

use std::sync::Arc;

use qnic_abi::verbs::commands::VerbsSendCommand;
use qnic_abi::verbs::frames::{
    kind, MessageFlags, ReplyKind, VerbsMessage, VerbsReply, VerbsUnreliable,
};
use qnic_abi::verbs::rings::SendFlags;
use qnic_abi::verbs::{
    answer_timeout_ns, receiver_not_ready_ns, Outcome, Request, Rights, State, Transport,
};
use qnic_abi::{NodeId, Status, VniId, PAGE_SIZE};

use super::entry::{Bytes, Extents};
use super::memory::Extent;
use super::queue_pair::{Failure, QueuePair, Tables};
use super::requester::{Current, Halt};
use super::{Context, Outgoing, Turn, Verbs};
use crate::core::{to_border, Destination, Fetched, LookupSide, PageError, PageRange};
use crate::env::{Host, Time};
use crate::frame::Arrival;
use crate::ids::OperationId;
use crate::protocols::protocol::{Ends, Source};
use crate::transport::Window;

/// How long a queue pair without a timeout waits before it asks again, in nanoseconds.
const WITHOUT_TIMEOUT_NS: u64 = 1_000_000_000;

/// The codes for "for ever".
const FOR_EVER: u8 = 7;

/// Why a piece has no frame.
pub(super) enum Stop {
    /// The work request fails.
    Wrong(Outcome),
    Wait(PageRange),
}

impl Verbs {
    /// Begins the operation of a queue pair with work, unless it runs.
    pub(super) fn submit_send<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let command: VerbsSendCommand = fetched.descriptor.read();
        let header = &command.header;
        let reserved = command.reserved1.iter().any(|word| word.get() != 0);
        if reserved || command.reserved0.get() != 0 || header.inline_length != 0 {
            return Err(Status::Malformed);
        }
        let queue_pair = self.queue_pairs.get_mut(&command.qp.get());
        let Some(qp) = queue_pair.filter(|qp| qp.vni == vni) else {
            return Ok(());
        };
        if matches!(qp.state, State::Failed | State::SendError) {
            cx.core.was_long = true;
            if !qp.flushes {
                let _told = qp.flush(cx, &mut self.tables, Failure::default());
            }
            return Ok(());
        }
        let node = NodeId(header.remote_node.get());
        let idle = qp.requester.is_idle(cx.host.memory());
        let elsewhere = qp.transport != Transport::Datagram && node != qp.attributes.node;
        let sends = matches!(qp.state, State::ReadyToSend | State::Draining);
        if !sends || elsewhere || idle {
            return Ok(());
        }
        if let Some(id) = qp.operation {
            self.update_queue_pair(cx, id);
            return Ok(());
        }
        // Without acknowledgements the turn finds the peer.
        let own = match qp.transport {
            Transport::Reliable => None,
            _ => cx.transport.find(cx.core.geometry.node),
        };
        let Some(peer) = fetched.peer.or(own) else {
            let failure = Failure::of_oldest(Outcome::RetriesExceeded);
            qp.fail(cx, &mut self.tables, failure);
            return Ok(());
        };
        qp.begin_sending(cx, &mut self.tables, peer);
        Ok(())
    }

    /// The queue pair of an operation.
    pub(super) fn of(&mut self, id: OperationId) -> Option<(&mut QueuePair, &mut Tables)> {
        let number = self.tables.operations.get(&id.0)?;
        let qp = self.queue_pairs.get_mut(number)?;
        Some((qp, &mut self.tables))
    }

    /// Ends the operation of a queue pair that has no work, or lets it send.
    pub(super) fn update_queue_pair<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let Some((qp, tables)) = self.of(id) else {
            return;
        };
        if let Some(outcome) = qp.requester.due_failure() {
            return qp.fail(cx, tables, Failure::of_oldest(outcome));
        }
        qp.note_drained(cx);
        let memory = cx.host.memory();
        if qp.requester.is_idle(memory) {
            return qp.stop_sending(cx, tables);
        }
        let has_work = qp.requester.has_work(memory);
        if let Some(operation) = cx.core.operation(id) {
            let ready = has_work && operation.may_send();
            cx.core.set_ready(id, ready);
        }
    }

    /// One turn: the next piece of the message at the cursor.
    pub(super) fn send_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some(ends) = Ends::of(cx.core, id) else {
            return Turn::Idle;
        };
        let Some((qp, _)) = self.of(id) else {
            return Turn::Idle;
        };
        let memory = cx.host.memory();
        let loaded = qp.requester.has_work(memory) && qp.requester.load(memory, qp.signal_all);
        let Some(current) = qp.requester.current.take().filter(|_| loaded) else {
            self.update_queue_pair(cx, id);
            return Turn::Idle;
        };
        if qp.transport != Transport::Reliable {
            return self.cast_turn(cx, &ends, current, outgoing);
        }
        if current.work.is_asking() {
            return self.ask_turn(cx, ends, current, outgoing);
        }
        if qp.is_fenced(&current) {
            qp.requester.current = Some(current);
            return Turn::Idle;
        }
        let remaining = current.work.length.saturating_sub(current.offset);
        let (room, max_payload) = cx.transport.room(ends.peer, remaining);
        if room == 0 {
            qp.requester.current = Some(current);
            return Turn::Blocked(ends.peer, Window::Fragments);
        }
        self.piece_turn(cx, &ends, current, max_payload, outgoing)
    }

    /// The next piece of the message at the cursor.
    pub(super) fn piece_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ends: &Ends,
        current: Box<Current>,
        max_payload: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let id = ends.operation();
        let Some((qp, tables)) = self.of(id) else {
            return Turn::Idle;
        };
        let message = body_of(qp, &current, qp.requester.cursor_psn());
        match qp.transport {
            Transport::Reliable => ends.begin(outgoing, &message),
            _ => ends.begin(outgoing, &VerbsUnreliable { message }),
        }
        let remaining = message.remaining.get();
        let remote = current.work.remote;
        let border = to_border(remote.address, current.offset, 1);
        let most = remaining.min(u64::from(max_payload)).min(border);
        let filled = fill(cx, qp, tables, &current, most, outgoing);
        qp.requester.current = Some(current);
        self.end_turn(cx, id, filled, outgoing)
    }

    /// What becomes of a turn whose frame has its payload, or cannot have it.
    pub(super) fn end_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        filled: Result<(), Stop>,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some((qp, _)) = self.of(id) else {
            return Turn::Idle;
        };
        match filled {
            Ok(()) => {
                outgoing.owner = id;
                qp.requester.sent(outgoing.length as u64);
                Turn::Send
            }
            Err(Stop::Wait(range)) => Turn::Wait(range),
            Err(Stop::Wrong(outcome)) => {
                qp.requester.set_wrong(outcome);
                self.update_queue_pair(cx, id);
                Turn::Idle
            }
        }
    }

    /// A frame of a queue pair was sent.
    pub(super) fn frame_sent<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        outgoing: &Outgoing,
    ) {
        match self.of(id) {
            Some((qp, _)) if qp.transport != Transport::Reliable => {
                let number = qp.number;
                self.cast(cx, number);
            }
            Some((qp, _)) => {
                if outgoing.frame.envelope.kind == kind::VERBS_READ {
                    let sequence = outgoing.frame.envelope.sequence.get();
                    qp.requester.set_sequence(sequence);
                }
                self.update_queue_pair(cx, id);
            }
            None => {}
        }
    }

    /// The operation of a queue pair cannot go on: its peer is gone, or a page of its memory.
    pub(super) fn fail_operation<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        status: Status,
    ) {
        let Some((qp, tables)) = self.of(id) else {
            return;
        };
        if matches!(status, Status::NoSuchNode | Status::PeerGone) {
            if qp.transport != Transport::Reliable {
                return self.cast_in_vain(cx, id);
            }
            let failure = Failure::of_oldest(Outcome::RetriesExceeded);
            return qp.fail(cx, tables, failure);
        }
        qp.requester.set_wrong(Outcome::LocalProtection);
        self.update_queue_pair(cx, id);
    }

    /// Receives what the peer replies.
    pub(super) fn receive_reply<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: VerbsReply = arrival.body();
        let node = cx.transport.node_of(arrival.peer);
        let tables = &mut self.tables;
        let queue_pair = self.queue_pairs.get_mut(&body.qp.get());
        let peer = (Transport::Reliable, node, body.peer_qp.get());
        let Some(qp) = queue_pair.filter(|qp| qp.is_connected_with(peer)) else {
            return;
        };
        qp.requester.spoke = true;
        let place = qp.requester.place(body.psn.get());
        let (Some(id), Some(place)) = (qp.operation, place) else {
            return;
        };
        let offset = body.offset.get();
        let asked = qp.requester.asked();
        let failure = match ReplyKind::try_from(body.kind) {
            Ok(ReplyKind::Done) => {
                qp.requester.done(place);
                match qp.complete_sends(cx, tables) {
                    Ok(()) => None,
                    Err(_) => Some(Failure::OVERRUN),
                }
            }
            Ok(ReplyKind::ReceiverNotReady) => {
                let again = receiver_not_ready_ns(body.timer);
                qp.not_ready(tables, (place, offset), cx.now.after(again))
            }
            Ok(ReplyKind::NoQueuePair) => qp.ask_again(tables, cx.now),
            Ok(ReplyKind::PageAbsent) => {
                qp.requester.go_back(place, offset);
                qp.set_halt(tables, Some(Halt::Page(node)));
                // Nothing is sent to it meanwhile that would tell of its silence. One that was given up
                // ends the operation.
                let _watched = cx.transport.expect(cx.now, node);
                None
            }
            Ok(ReplyKind::GoOn) => {
                qp.requester.go_back(place, offset);
                qp.set_halt(tables, None);
                None
            }
            // It has been taken before.
            Ok(ReplyKind::Word) | Err(_) => None,
            Ok(ReplyKind::OutOfSequence) => failed_at(place, Outcome::RetriesExceeded),
            Ok(ReplyKind::InvalidRequest) => failed_at(place, Outcome::RemoteInvalidRequest),
            Ok(ReplyKind::AccessDenied) => failed_at(place, Outcome::RemoteAccess),
            Ok(ReplyKind::Failed) => failed_at(place, Outcome::RemoteOperation),
        };
        // The peer has not taken what is sent again.
        let again = asked.saturating_sub(qp.requester.asked());
        if again > 0 {
            cx.transport.answered(arrival.peer, again);
        }
        match failure {
            Some(failure) => qp.fail(cx, tables, failure),
            None => self.update_queue_pair(cx, id),
        }
    }

    /// Goes on with a queue pair that has more to flush. Returns false if there is none.
    pub(super) fn flush_more<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        while let Some(number) = self.tables.flushing.pop_front() {
            let queue_pair = self.queue_pairs.get_mut(&number);
            let Some(qp) = queue_pair.filter(|qp| qp.flushes) else {
                continue;
            };
            qp.flushes = false;
            if qp.flush_some(cx, &mut self.tables, None).is_err() {
                qp.tell_failed(cx);
            }
            return true;
        }
        false
    }

    /// Queue pairs whose time is over send again. Returns true if there were any.
    pub(super) fn send_again<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let mut any = false;
        while let Some((time, number)) = self.tables.deadlines.first().copied() {
            if time > cx.now {
                break;
            }
            any = true;
            self.tables.deadlines.pop_first();
            let Some(qp) = self.queue_pairs.get_mut(&number) else {
                continue;
            };
            qp.set_halt(&mut self.tables, None);
            if let Some(id) = qp.operation {
                self.update_queue_pair(cx, id);
            }
        }
        any
    }
}

impl QueuePair {
    /// The peer has no receive: sends from a position on again at that time.
    fn not_ready(
        &mut self,
        tables: &mut Tables,
        (place, offset): (usize, u64),
        again: Time,
    ) -> Option<Failure> {
        let most = self.attributes.not_ready_retries;
        if most != FOR_EVER && self.requester.not_ready >= most {
            return failed_at(place, Outcome::ReceiverNotReady);
        }
        self.requester.not_ready = self.requester.not_ready.saturating_add(1);
        self.requester.go_back(place, offset);
        self.set_halt(tables, Some(Halt::Until(again)));
        None
    }

    /// The peer has no such queue pair: sends all again after a while. Each frame that was under way
    /// is answered so; the first answer counts.
    fn ask_again(&mut self, tables: &mut Tables, now: Time) -> Option<Failure> {
        if matches!(self.requester.halt, Some(Halt::Until(_))) {
            return None;
        }
        let wait = answer_timeout_ns(self.attributes.timeout);
        if wait.is_some() && self.requester.retries >= self.attributes.retries {
            return failed_at(0, Outcome::RetriesExceeded);
        }
        self.requester.retries = self.requester.retries.saturating_add(1);
        self.requester.go_back(0, 0);
        let again = now.after(wait.unwrap_or(WITHOUT_TIMEOUT_NS));
        self.set_halt(tables, Some(Halt::Until(again)));
        None
    }
}

fn failed_at(place: usize, outcome: Outcome) -> Option<Failure> {
    Some(Failure {
        send: Some((place, outcome)),
        ..Failure::default()
    })
}

/// The body of the next piece of a message.
fn body_of(qp: &QueuePair, current: &Current, psn: u32) -> VerbsMessage {
    let work = &current.work;
    let flags = match work.flags.contains(SendFlags::SOLICITED) {
        true => MessageFlags::SOLICITED,
        false => MessageFlags::empty(),
    };
    let is_write = matches!(work.request, Request::Write | Request::WriteImmediate);
    VerbsMessage {
        qp: qp.attributes.peer_qp.into(),
        peer_qp: qp.number.into(),
        psn: psn.into(),
        immediate: work.immediate,
        offset: current.offset.into(),
        remaining: work.length.saturating_sub(current.offset).into(),
        address: match is_write {
            true => work.remote.address.wrapping_add(current.offset),
            false => 0,
        }
        .into(),
        key: work.remote.key.into(),
        request: work.request as u8,
        flags: flags.bits(),
        reserved: 0.into(),
    }
}

/// Gives a frame its payload: up to `most` bytes of a message from its offset on.
fn fill<H: Host>(
    cx: &mut Context<'_, H>,
    qp: &QueuePair,
    tables: &Tables,
    current: &Current,
    most: u64,
    outgoing: &mut Outgoing,
) -> Result<(), Stop> {
    if most == 0 {
        return Ok(());
    }
    let from = current.offset;
    let extents = match &current.work.bytes {
        Bytes::Inline(bytes) => {
            let range = from as usize..(from + most) as usize;
            let part = bytes.get(range).unwrap_or_default();
            outgoing.set_bytes(Arc::from(part));
            return Ok(());
        }
        Bytes::Extents(extents) => extents,
    };
    let extent = extents.at(from, most);
    if extent.length < most {
        let bytes = gather(cx, qp, tables, extents, (from, most))?;
        outgoing.set_bytes(bytes.into());
        return Ok(());
    }
    let place = source(cx, qp, tables, extent)?;
    let range = (place.address, most as usize);
    let (side, span) = (LookupSide::Source, &mut outgoing.pages);
    let locked = cx
        .core
        .lock_some(cx.host, qp.vni, range, place.key, side, span);
    let ahead = extents.at(from, current.work.length).length;
    locked.map_err(|error| stopped(&error, place.address, ahead))?;
    outgoing.length = outgoing.pages.bytes_from(place.address).min(most) as usize;
    outgoing.source = Source::Pages((place.address % PAGE_SIZE as u64) as usize);
    Ok(())
}

/// Copies bytes of a message that lie in several extents.
pub(super) fn gather<H: Host>(
    cx: &mut Context<'_, H>,
    qp: &QueuePair,
    tables: &Tables,
    extents: &Extents,
    (mut offset, length): (u64, u64),
) -> Result<Vec<u8>, Stop> {
    let mut bytes = vec![0; length as usize];
    let mut rest = &mut bytes[..];
    while !rest.is_empty() {
        let extent = extents.at(offset, rest.len() as u64);
        let place = source(cx, qp, tables, extent)?;
        // The page that is missing is the one that is asked for.
        let length = extent.length.min(to_border(place.address, 0, 1));
        let (part, behind) = rest.split_at_mut(length as usize);
        let copied = cx.core.copy_out(cx.host, place, part);
        copied.map_err(|error| stopped(&error, place.address, extent.length))?;
        offset += length;
        rest = behind;
    }
    Ok(bytes)
}

/// Where bytes of a work request are.
fn source<H: Host>(
    cx: &Context<'_, H>,
    qp: &QueuePair,
    tables: &Tables,
    extent: Extent,
) -> Result<Destination, Stop> {
    let owner = (qp.vni, qp.domain);
    let memory = &tables.memory;
    let place = memory.authorise(cx.core, owner, extent, Rights::empty());
    place.ok_or(Stop::Wrong(Outcome::LocalProtection))
}

/// What a page that cannot be read means for a work request.
fn stopped(error: &PageError, address: u64, ahead: u64) -> Stop {
    match error {
        PageError::Absent => Stop::Wait(PageRange::new(address, ahead, LookupSide::Source)),
        PageError::Refused(_) => Stop::Wrong(Outcome::LocalProtection),
    }
}
