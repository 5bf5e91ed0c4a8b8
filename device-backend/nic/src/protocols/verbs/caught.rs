//! Unreliable connections and datagrams at their destination. What finds no receive, or has lost a
//! piece, is dropped and counted; what finds a page absent is kept until the page is there.
//!
//! # Invariants
//! - A queue pair that keeps anything waits for a page, and keeps what comes behind in its order.
//! - At most [`KEPT`] frames are kept for a queue pair, and [`KEPT_OF_NIC`] for all.

use qnic_abi::verbs::frames::{
    MessageFlags, ReplyKind, VerbsDatagram, VerbsMessage, VerbsUnreliable,
};
use qnic_abi::verbs::rings::{CompletionFlags, WorkCompletion};
use qnic_abi::verbs::{
    route_header, Completed, Outcome, Request, Transport, MAX_DATAGRAM, ROUTE_HEADER_BYTES,
};
use qnic_abi::{NodeId, Status, PAGE_SIZE};
use zerocopy::FromZeros;

use super::kept::{Cast, Kept, KEPT, KEPT_OF_NIC};
use super::queue_pair::{Failure, QueuePair, Tables};
use super::receiving::{scatter, Part, Stop};
use super::{Context, Protocol, Verbs};
use crate::core::{PageRange, Waiter};
use crate::env::{Host, Payload};
use crate::frame::Arrival;

/// Why a frame is not taken.
enum Missed {
    /// It can be when these pages are there.
    Wait(PageRange),
    /// It is counted, and its queue pair may have failed.
    Dropped,
}

impl Verbs {
    /// Receives a piece of a message of an unreliable connection.
    pub(super) fn receive_unreliable<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body = arrival.body::<VerbsUnreliable>().message;
        let node = cx.transport.node_of(arrival.peer);
        let peer = (Transport::Unreliable, node, body.peer_qp.get());
        let found = self.queue_pairs.get_mut(&body.qp.get());
        let found = found.filter(|qp| qp.receives() && qp.is_connected_with(peer));
        match found {
            None => cx.core.counters.verbs_drops_queue_pair += 1,
            Some(_) if arrival.payload.len() > PAGE_SIZE => {
                cx.core.counters.verbs_drops_length += 1;
            }
            Some(qp) => qp.catch(cx, &mut self.tables, Cast::Message(body), &arrival.payload),
        }
    }

    /// Receives a datagram.
    pub(super) fn receive_datagram<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: VerbsDatagram = arrival.body();
        let node = cx.transport.node_of(arrival.peer);
        let found = self.queue_pairs.get_mut(&body.qp.get());
        let found = found.filter(|qp| qp.receives() && qp.transport == Transport::Datagram);
        let counters = &mut cx.core.counters;
        match found {
            None => counters.verbs_drops_queue_pair += 1,
            Some(qp) if qp.attributes.qkey != body.qkey.get() => counters.verbs_drops_key += 1,
            Some(_) if arrival.payload.len() > MAX_DATAGRAM => counters.verbs_drops_length += 1,
            Some(qp) => {
                let cast = Cast::Datagram(body, node);
                qp.catch(cx, &mut self.tables, cast, &arrival.payload);
            }
        }
    }
}

impl QueuePair {
    /// Takes a frame, unless it has to wait for a page, or behind one that does.
    fn catch<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        cast: Cast,
        payload: &Payload<'_, H::Memory>,
    ) {
        if self.responder.kept.is_empty() {
            match self.deliver(cx, tables, &cast, payload) {
                Ok(()) | Err(Missed::Dropped) => return,
                Err(Missed::Wait(range)) => self.fetch(cx, range),
            }
        }
        let mut bytes = vec![0; payload.len()].into_boxed_slice();
        let has_room = self.responder.kept.len() < KEPT && tables.kept < KEPT_OF_NIC;
        if !has_room || payload.read(&mut bytes).is_err() {
            cx.core.counters.verbs_drops_memory += 1;
            return;
        }
        tables.kept += 1;
        self.responder.kept.push_back(Kept { cast, bytes });
    }

    /// Has a page brought in, unless one is on its way: when that comes, this one is asked for.
    fn fetch<H: Host>(&mut self, cx: &mut Context<'_, H>, range: PageRange) {
        if self.responder.fetches.is_none() {
            self.responder.fetches = Some(range);
            let waiter = Waiter::Job(Verbs::ID, self.number.into());
            cx.core.wait_for_pages(self.vni, range, waiter);
        }
    }

    /// The page that it has waited for is there, or never will be: takes what was kept.
    pub(super) fn catch_kept<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        failed: Option<Status>,
    ) {
        let fetched = self.responder.fetches.take();
        let mut lost = fetched.filter(|_| failed.is_some());
        while let Some(kept) = self.responder.kept.pop_front() {
            tables.kept -= 1;
            let payload = Payload::Bytes(&kept.bytes);
            if let Err(Missed::Wait(range)) = self.deliver(cx, tables, &kept.cast, &payload) {
                // What has failed may have been for a frame that was forgotten since.
                if lost.take() == Some(range) {
                    self.page_lost(cx, tables, &kept.cast);
                    continue;
                }
                tables.kept += 1;
                self.responder.kept.push_front(kept);
                return self.fetch(cx, range);
            }
        }
    }

    /// The page that a frame goes to cannot be brought in: its receive fails.
    fn page_lost<H: Host>(&mut self, cx: &mut Context<'_, H>, tables: &mut Tables, cast: &Cast) {
        cx.core.counters.verbs_drops_memory += 1;
        let is_write = match cast {
            Cast::Message(message) => is_write(message),
            Cast::Datagram(..) => false,
        };
        self.responder.offset = 0;
        if !is_write {
            let failure = Failure {
                receive: Some(Outcome::LocalProtection),
                ..Failure::default()
            };
            self.fail(cx, tables, failure);
        }
    }

    /// Forgets what was kept. A page that is on its way stays so: a queue pair has one at a time.
    pub(super) fn drop_kept(&mut self, tables: &mut Tables) {
        tables.kept -= self.responder.kept.len();
        self.responder.kept.clear();
    }

    fn deliver<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        cast: &Cast,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), Missed> {
        let taken = match cast {
            Cast::Message(message) => self.take_piece(cx, tables, message, payload),
            Cast::Datagram(body, node) => self.take_datagram(cx, tables, (body, *node), payload),
        };
        let counters = &mut cx.core.counters;
        let stop = match taken {
            Ok(()) => return Ok(()),
            Err(stop) => stop,
        };
        match stop {
            Stop::Wait(range) => {
                // It begins again where it began.
                if let Cast::Message(message) = cast {
                    self.responder.offset = message.offset.get();
                }
                return Err(Missed::Wait(range));
            }
            Stop::NotReady => counters.verbs_drops_receive += 1,
            Stop::Fail(ReplyKind::Failed, failure) => self.fail(cx, tables, failure),
            Stop::Fail(ReplyKind::AccessDenied, _) => counters.verbs_drops_key += 1,
            Stop::Fail(ReplyKind::OutOfSequence, _) => counters.verbs_drops_gap += 1,
            Stop::Fail(..) => counters.verbs_drops_length += 1,
        }
        self.responder.offset = 0;
        Err(Missed::Dropped)
    }

    /// Takes a piece of a message. One that is not expected ends what has come of its message.
    fn take_piece<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        body: &VerbsMessage,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), Stop> {
        let (psn, offset) = (body.psn.get(), body.offset.get());
        let part = Part::new(*body, payload).ok_or_else(Stop::invalid)?;
        let expected = (self.responder.psn(), self.responder.offset);
        if offset == 0 {
            self.responder.begin(psn, part.whole);
        } else if expected != (psn, offset) {
            return Err(Stop::Fail(ReplyKind::OutOfSequence, Failure::default()));
        }
        self.establish(cx);
        self.take(cx, tables, &part, payload)?;
        match part.is_last {
            true => self.finish_message(cx, tables, &part),
            false => Ok(()),
        }
    }

    fn take_datagram<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        (body, node): (&VerbsDatagram, NodeId),
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), Stop> {
        if self.responder.current.is_none() && self.lacks_receive() {
            return Err(Stop::NotReady);
        }
        let length = (ROUTE_HEADER_BYTES + payload.len()) as u64;
        self.take_receive(cx, tables, length)?;
        let Some((receive, _)) = &self.responder.current else {
            return Err(Stop::NotReady);
        };
        if length > receive.extents.length() {
            return Err(Stop::invalid());
        }
        let flags = MessageFlags::from_bits_truncate(body.flags);
        let has_header = flags.contains(MessageFlags::ROUTE_HEADER);
        let owner = (self.vni, receive.domain);
        if has_header {
            let own = cx.core.geometry.node;
            let header = route_header(node, own, payload.len() as u16);
            let header = Payload::Bytes(&header);
            scatter(cx, tables, owner, (&receive.extents, 0), &header).1?;
        }
        let place = (&receive.extents, ROUTE_HEADER_BYTES as u64);
        scatter(cx, tables, owner, place, payload).1?;
        let mut completion = WorkCompletion::new_zeroed();
        completion.id = receive.id.into();
        completion.length = (length as u32).into();
        completion.opcode = (Completed::Receive as u32).into();
        completion.peer_qp = body.peer_qp;
        completion.source_lid = node.0.wrapping_add(1).into();
        completion.service_level = body.service_level;
        let mut told = CompletionFlags::empty();
        told.set(CompletionFlags::ROUTE_HEADER, has_header);
        if body.request == Request::SendImmediate as u8 {
            told |= CompletionFlags::IMMEDIATE;
            completion.immediate = body.immediate;
        }
        completion.flags = told.bits().into();
        self.responder.current = None;
        let solicited = flags.contains(MessageFlags::SOLICITED);
        let told = self.complete_receive(cx, tables, completion, solicited);
        told.map_err(|_| Stop::overrun())?;
        cx.core.arrived(self.vni, cx.now);
        Ok(())
    }
}

fn is_write(message: &VerbsMessage) -> bool {
    let request = Request::try_from(message.request);
    matches!(request, Ok(Request::Write | Request::WriteImmediate))
}
