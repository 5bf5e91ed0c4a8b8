//! Messages at their destination.

use qnic_abi::verbs::frames::{MessageFlags, ReplyKind, VerbsMessage, VerbsReply};
use qnic_abi::verbs::rings::{CompletionFlags, WorkCompletion};
use qnic_abi::verbs::{Completed, Event, Outcome, Request, Rights, State, Transport, MAX_MESSAGE};
use qnic_abi::{Status, VniId};
use zerocopy::little_endian::U32;
use zerocopy::FromZeros;

use super::entry::Extents;
use super::memory::Extent;
use super::queue_pair::{send_reply, Failure, QueuePair, Tables};
use super::responder::Place;
use super::{Context, Protocol, Verbs};
use crate::core::{to_border, Destination, LookupSide, PageError, PageRange, Pending, Waiter};
use crate::env::{Host, HostMemory, Payload};
use crate::frame::Arrival;
use crate::ids::PeerIndex;

/// Why a frame at the expected position is not taken, or not completely.
pub(super) enum Stop {
    /// There is no receive.
    NotReady,
    /// What is before is stored.
    Wait(PageRange),
    /// The queue pair fails; the peer learns this.
    Fail(ReplyKind, Failure),
}

impl Stop {
    /// The queue pair fails; the peer learns it by `reply`, the program by `event`.
    fn told(reply: ReplyKind, event: Event) -> Self {
        let failure = Failure {
            event: Some(event),
            ..Failure::default()
        };
        Stop::Fail(reply, failure)
    }

    /// The peer asks for what cannot be.
    pub(super) fn invalid() -> Self {
        Stop::told(ReplyKind::InvalidRequest, Event::RequestError)
    }

    /// The receive ends, and the peer learns this.
    fn receive_fails(reply: ReplyKind, outcome: Outcome) -> Self {
        let receive = Some(outcome);
        let failure = Failure {
            receive,
            ..Failure::default()
        };
        Stop::Fail(reply, failure)
    }

    /// The peer asks for what it may not.
    pub(super) fn denied() -> Self {
        Stop::told(ReplyKind::AccessDenied, Event::AccessError)
    }

    /// Memory of this side cannot be used.
    pub(super) fn fatal() -> Self {
        Stop::told(ReplyKind::Failed, Event::Fatal)
    }

    /// A completion queue takes nothing more.
    pub(super) fn overrun() -> Self {
        Stop::Fail(ReplyKind::Failed, Failure::OVERRUN)
    }
}

/// A piece of a message that is at the expected position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    body: VerbsMessage,
    request: Request,
    /// Bytes of the payload.
    length: u64,
    /// Bytes of the message.
    pub(super) whole: u64,
    pub(super) is_last: bool,
}

impl Part {
    /// Checks what a frame says of itself.
    pub(super) fn new<M: HostMemory>(body: VerbsMessage, payload: &Payload<'_, M>) -> Option<Self> {
        let (offset, remaining) = (body.offset.get(), body.remaining.get());
        let length = payload.len() as u64;
        let whole = offset.checked_add(remaining)?;
        let request = Request::try_from(body.request).ok()?;
        let is_last = remaining == length;
        let goes_on = length > 0 && length < remaining;
        let valid = whole <= MAX_MESSAGE && (is_last || goes_on);
        valid.then_some(Part {
            body,
            request,
            length,
            whole,
            is_last,
        })
    }

    fn is_write(&self) -> bool {
        matches!(self.request, Request::Write | Request::WriteImmediate)
    }

    /// Returns true if the piece ends a receive.
    fn needs_receive(&self) -> bool {
        !self.is_write() || self.request == Request::WriteImmediate && self.is_last
    }
}

impl Verbs {
    /// The queue pair that a frame is for, if it is expected there; else the peer is told.
    pub(super) fn expecting<H: Host, M>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, M>,
        (qp, peer_qp): (U32, U32),
        (psn, offset): (U32, u64),
    ) -> Option<(&mut QueuePair, &mut Tables)> {
        let node = cx.transport.node_of(arrival.peer);
        let to = (arrival.peer, arrival.operation().0);
        let queue_pair = self.queue_pairs.get_mut(&qp.get());
        let peer = (Transport::Reliable, node, peer_qp.get());
        let connected = |qp: &&mut Box<QueuePair>| qp.receives() && qp.is_connected_with(peer);
        let Some(found) = queue_pair.filter(connected) else {
            let mut reply = VerbsReply::new_zeroed();
            (reply.qp, reply.peer_qp, reply.psn) = (peer_qp, qp, psn);
            reply.kind = ReplyKind::NoQueuePair as u8;
            send_reply(cx, to, &reply);
            return None;
        };
        match found.responder.place(psn.get(), offset) {
            Place::Expected => {}
            Place::Again => return None,
            Place::Elsewhere => {
                found.reply_about(cx, to, ReplyKind::OutOfSequence, psn.get());
                return None;
            }
        }
        found.establish(cx);
        Some((found, &mut self.tables))
    }

    /// Receives a piece of a message.
    pub(super) fn receive_message<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: VerbsMessage = arrival.body();
        let to = (arrival.peer, arrival.operation().0);
        let position = (body.psn, body.offset.get());
        let expecting = self.expecting(cx, arrival, (body.qp, body.peer_qp), position);
        let Some((qp, tables)) = expecting else {
            return;
        };
        let part = Part::new(body, &arrival.payload).ok_or_else(Stop::invalid);
        let taken = part.and_then(|part| {
            qp.take(cx, tables, &part, &arrival.payload)?;
            match part.is_last {
                true => {
                    let psn = qp.responder.psn();
                    qp.finish_message(cx, tables, &part)?;
                    qp.reply_about(cx, to, ReplyKind::Done, psn);
                    Ok(())
                }
                false => Ok(()),
            }
        });
        if let Err(stop) = taken {
            qp.stopped(cx, tables, to, stop);
        }
    }

    /// The page that a queue pair has waited for is there, or never will be.
    pub(super) fn page_came<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        job: u64,
        failed: Option<Status>,
    ) {
        let queue_pair = u32::try_from(job).ok();
        let queue_pair = queue_pair.and_then(|number| self.queue_pairs.get_mut(&number));
        let Some(qp) = queue_pair.filter(|qp| qp.vni == vni) else {
            return;
        };
        if qp.transport != Transport::Reliable {
            return qp.catch_kept(cx, &mut self.tables, failed);
        }
        let Some(operation) = qp.responder.waits.take() else {
            return;
        };
        // Without a peer its session has ended, and it knows.
        let peer = cx.transport.find(qp.attributes.node);
        let kind = match failed {
            None => ReplyKind::GoOn,
            Some(_) => ReplyKind::Failed,
        };
        if let Some(peer) = peer {
            qp.reply(cx, (peer, operation), kind);
        }
        if failed.is_some() {
            let has_receive = qp.responder.current.is_some();
            let failure = Failure {
                receive: has_receive.then_some(Outcome::LocalProtection),
                event: (!has_receive).then_some(Event::Fatal),
                ..Failure::default()
            };
            qp.fail(cx, &mut self.tables, failure);
        }
    }
}

impl QueuePair {
    /// A frame at the expected position is not taken, or not completely: tells the peer.
    pub(super) fn stopped<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        to: (PeerIndex, u64),
        stop: Stop,
    ) {
        match stop {
            Stop::NotReady => {
                self.responder.rewound = true;
                self.reply(cx, to, ReplyKind::ReceiverNotReady);
            }
            Stop::Wait(range) => {
                self.responder.rewound = true;
                self.responder.waits = Some(to.1);
                self.reply(cx, to, ReplyKind::PageAbsent);
                let waiter = Waiter::Job(Verbs::ID, self.number.into());
                cx.core.wait_for_pages(self.vni, range, waiter);
            }
            Stop::Fail(kind, failure) => {
                self.reply(cx, to, kind);
                self.fail(cx, tables, failure);
            }
        }
    }

    /// Tells the driver once that something has come before it was ready to send.
    pub(super) fn establish<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        let before = std::mem::replace(&mut self.responder.established, true);
        if !before && self.state == State::ReadyToReceive {
            let event = Pending::Verbs(self.vni, self.token, Event::Established);
            cx.core.events.push(event);
        }
    }

    /// Stores a piece of a message, and takes the receive that it needs.
    pub(super) fn take<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        part: &Part,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), Stop> {
        if part.is_write() {
            self.check_write(cx, tables, part)?;
            if part.body.offset.get() == 0 && self.denies() {
                return Err(Stop::denied());
            }
        }
        if part.needs_receive() {
            if self.responder.current.is_none() && self.lacks_receive() {
                return Err(Stop::NotReady);
            }
            self.take_receive(cx, tables, part.whole)?;
        }
        match part.is_write() {
            true => self.store_write(cx, tables, part, payload),
            false => self.store_send(cx, tables, part, payload),
        }
    }

    /// Takes a receive for a message of so many bytes, unless that was done.
    pub(super) fn take_receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        length: u64,
    ) -> Result<(), Stop> {
        if self.responder.current.is_some() {
            return Ok(());
        }
        let shared = (self.vni, self.srq);
        let taken = match &mut self.responder.own {
            Some(own) => own.take(cx.host.memory()),
            None => tables
                .shared
                .get_mut(&shared)
                .and_then(|queue| queue.take(cx, self.vni)),
        };
        let (receive, right) = taken.ok_or(Stop::NotReady)?;
        self.responder.current = Some((receive, length));
        right.map_err(|outcome| Stop::receive_fails(ReplyKind::Failed, outcome))
    }

    /// The piece of memory that a write names, from its offset in the message on.
    fn written(part: &Part, length: u64) -> Extent {
        Extent {
            address: part.body.address.get(),
            length,
            key: part.body.key.get(),
        }
    }

    /// Checks all of a write, also what comes in other frames: one that is refused has stored
    /// nothing.
    fn check_write<H: Host>(
        &self,
        cx: &Context<'_, H>,
        tables: &Tables,
        part: &Part,
    ) -> Result<(), Stop> {
        let offset = part.body.offset.get();
        let first = part.body.address.get().checked_sub(offset);
        let allowed = self.attributes.access.contains(Rights::REMOTE_WRITE);
        let owner = (self.vni, self.domain);
        let granted = first.filter(|_| allowed).is_some_and(|address| {
            let whole = Extent {
                address,
                ..Self::written(part, part.whole)
            };
            let rights = Rights::REMOTE_WRITE;
            part.whole == 0
                || tables
                    .memory
                    .authorise(cx.core, owner, whole, rights)
                    .is_some()
        });
        match granted {
            true => Ok(()),
            false => Err(Stop::denied()),
        }
    }

    fn store_write<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &Tables,
        part: &Part,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), Stop> {
        if part.length == 0 {
            return Ok(());
        }
        let owner = (self.vni, self.domain);
        let piece = Self::written(part, part.length);
        let rights = Rights::REMOTE_WRITE;
        let Some(to) = tables.memory.authorise(cx.core, owner, piece, rights) else {
            return Err(Stop::invalid());
        };
        let (stored, result) = store(cx, to, payload);
        self.responder.offset += stored;
        result.map_err(|error| match error {
            PageError::Absent => {
                let ahead = part.body.remaining.get() - stored;
                let address = to.address + stored;
                Stop::Wait(PageRange::new(address, ahead, LookupSide::Destination))
            }
            PageError::Refused(_) => Stop::fatal(),
        })
    }

    /// Stores a piece of a Send in the memory of its receive.
    fn store_send<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &Tables,
        part: &Part,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), Stop> {
        let responder = &mut self.responder;
        let Some((receive, whole)) = &responder.current else {
            return Err(Stop::NotReady);
        };
        let owner = (self.vni, receive.domain);
        if part.whole != *whole {
            return Err(Stop::invalid());
        }
        if part.whole > receive.extents.length() {
            let (reply, outcome) = (ReplyKind::InvalidRequest, Outcome::LocalLength);
            return Err(Stop::receive_fails(reply, outcome));
        }
        let place = (&receive.extents, responder.offset);
        let (stored, result) = scatter(cx, tables, owner, place, payload);
        responder.offset += stored;
        result
    }

    /// A message is complete.
    pub(super) fn finish_message<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        part: &Part,
    ) -> Result<(), Stop> {
        if let Some(receive) = self.responder.complete(part.needs_receive()) {
            let body = &part.body;
            let mut completion = WorkCompletion::new_zeroed();
            completion.id = receive.id.into();
            completion.length = (part.whole as u32).into();
            completion.opcode = match part.is_write() {
                true => Completed::ReceiveWrite as u32,
                false => Completed::Receive as u32,
            }
            .into();
            if matches!(
                part.request,
                Request::SendImmediate | Request::WriteImmediate
            ) {
                completion.immediate = body.immediate;
                completion.flags = CompletionFlags::IMMEDIATE.bits().into();
            }
            let flags = MessageFlags::from_bits_truncate(body.flags);
            let solicited = flags.contains(MessageFlags::SOLICITED);
            let told = self.complete_receive(cx, tables, completion, solicited);
            told.map_err(|_| Stop::overrun())?;
            cx.core.arrived(self.vni, cx.now);
        }
        Ok(())
    }
}

/// Stores a payload, page by page. Returns how many bytes were stored, all or up to a page border,
/// and what is wrong with the next page.
pub(super) fn store<H: Host>(
    cx: &mut Context<'_, H>,
    to: Destination,
    payload: &Payload<'_, H::Memory>,
) -> (u64, Result<(), PageError>) {
    let mut done = 0;
    while done < payload.len() as u64 {
        let address = to.address + done;
        let part = payload.part(done as usize, to_border(address, 0, 1) as usize);
        let to = Destination { address, ..to };
        if let Err(error) = cx.core.copy_in(cx.host, to, &part) {
            return (done, Err(error));
        }
        done += part.len() as u64;
    }
    (done, Ok(()))
}

/// Stores bytes of a message in the extents of a receive, from an offset on. Returns how many were
/// stored, and why no more.
pub(super) fn scatter<H: Host>(
    cx: &mut Context<'_, H>,
    tables: &Tables,
    owner: (VniId, u32),
    (extents, offset): (&Extents, u64),
    payload: &Payload<'_, H::Memory>,
) -> (u64, Result<(), Stop>) {
    let denied = || Stop::receive_fails(ReplyKind::Failed, Outcome::LocalProtection);
    let mut done = 0;
    while done < payload.len() as u64 {
        let left = payload.part(done as usize, payload.len());
        let piece = extents.at(offset + done, left.len() as u64);
        let rights = Rights::LOCAL_WRITE;
        let Some(to) = tables.memory.authorise(cx.core, owner, piece, rights) else {
            return (done, Err(denied()));
        };
        let (stored, result) = store(cx, to, &left.part(0, piece.length as usize));
        done += stored;
        match result {
            Ok(()) => {}
            Err(PageError::Refused(_)) => return (done, Err(denied())),
            Err(PageError::Absent) => {
                let ahead = extents.at(offset + done, extents.length()).length;
                let address = to.address + stored;
                let range = PageRange::new(address, ahead, LookupSide::Destination);
                return (done, Err(Stop::Wait(range)));
            }
        }
    }
    (done, Ok(()))
}
