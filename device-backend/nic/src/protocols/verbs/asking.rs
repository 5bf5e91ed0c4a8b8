//! Reads and atomic operations at their source: they are asked for by one frame each, and the peer
//! sends something back.
//!
//! Requests count in the window of requests to a peer, until they are answered.

use qnic_abi::verbs::frames::{ReplyKind, VerbsAtomic, VerbsRead, VerbsReadData, VerbsReply};
use qnic_abi::verbs::rings::SendFlags;
use qnic_abi::verbs::{Outcome, Request, Rights, Transport};
use qnic_abi::Status;
use zerocopy::little_endian::U32;
use zerocopy::FromZeros;

use super::entry::WORD_BYTES;
use super::queue_pair::{Failure, QueuePair, Tables};
use super::receiving::store;
use super::requester::Current;
use super::{Context, Outgoing, Received, Turn, Verbs};
use crate::core::{LookupSide, PageError, PageRange};
use crate::env::{Host, Payload};
use crate::frame::Arrival;
use crate::ids::OperationId;
use crate::protocols::protocol::Ends;
use crate::transport::Window;

impl Verbs {
    /// One turn: asks for what the current work request wants.
    pub(super) fn ask_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ends: Ends,
        current: Box<Current>,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let id = ends.operation();
        let Some((qp, _)) = self.of(id) else {
            return Turn::Idle;
        };
        let most = u32::from(qp.attributes.max_reads);
        if most == 0 {
            qp.requester.set_wrong(Outcome::LocalOperation);
            self.update_queue_pair(cx, id);
            return Turn::Idle;
        }
        let has_room = cx.transport.has_request_room(ends.peer);
        if qp.requester.asked() >= most || qp.is_fenced(&current) || !has_room {
            qp.requester.current = Some(current);
            return match has_room {
                // What is asked for goes on with an answer.
                true => Turn::Idle,
                false => Turn::Blocked(ends.peer, Window::Requests),
            };
        }
        begin(&ends, qp, &current, outgoing);
        qp.requester.ask();
        cx.transport.requested(ends.peer, 1);
        Turn::Send
    }

    /// Receives a reply. The word of an atomic operation waits for the page that it goes to.
    pub(super) fn receive_answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let body: VerbsReply = arrival.body();
        if ReplyKind::try_from(body.kind) != Ok(ReplyKind::Word) {
            self.receive_reply(cx, arrival);
            return Received::Done;
        }
        let word = body.value.get().to_le_bytes();
        let names = (body.qp, body.peer_qp, body.psn);
        self.answered(cx, arrival, names, (0, &Payload::Bytes(&word)), true)
    }

    /// Receives a fragment of what a read has asked for.
    pub(super) fn receive_read_data<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let body: VerbsReadData = arrival.body();
        let names = (body.qp, body.peer_qp, body.psn);
        let data = (body.offset.get(), &arrival.payload);
        self.answered(cx, arrival, names, data, false)
    }

    /// Stores a part of an answer. One that nothing waits for touches nothing.
    fn answered<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        (number, peer_qp, psn): (U32, U32, U32),
        (offset, data): (u64, &Payload<'_, H::Memory>),
        is_word: bool,
    ) -> Received {
        let node = cx.transport.node_of(arrival.peer);
        let tables = &mut self.tables;
        let queue_pair = self.queue_pairs.get_mut(&number.get());
        let peer = (Transport::Reliable, node, peer_qp.get());
        let Some(qp) = queue_pair.filter(|qp| qp.is_connected_with(peer)) else {
            return Received::Done;
        };
        qp.requester.spoke = true;
        let place = qp.requester.place(psn.get());
        let (Some(id), Some(place)) = (qp.operation, place) else {
            return Received::Done;
        };
        let Some(message) = qp.requester.asking(place) else {
            return Received::Done;
        };
        let is_right = (message.request != Request::Read) == is_word;
        let end = offset.checked_add(data.len() as u64);
        if !is_right || end.is_none_or(|end| end > message.length) {
            return Received::Done;
        }
        match qp.store_answer(cx, tables, place, offset, data) {
            Ok(()) => {}
            Err(PageError::Absent) => {
                let Some((address, ahead)) = qp.absent_answer(cx, tables, place, offset) else {
                    return Received::Done;
                };
                let range = PageRange::new(address, ahead, LookupSide::Destination);
                return Received::Wait(qp.vni, range);
            }
            Err(PageError::Refused(_)) => {
                qp.fail(cx, tables, failed_at(place, Outcome::LocalProtection));
                return Received::Done;
            }
        }
        if qp.requester.answer(place, data.len() as u64) {
            cx.transport.answered(arrival.peer, 1);
        }
        match qp.complete_sends(cx, tables) {
            Ok(()) => self.update_queue_pair(cx, id),
            Err(_) => qp.fail(cx, tables, Failure::OVERRUN),
        }
        Received::Done
    }

    /// The page that an answer goes to will never be there.
    pub(super) fn answer_unavailable<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        // Both bodies begin with these.
        let body: VerbsReadData = arrival.body();
        let node = cx.transport.node_of(arrival.peer);
        let queue_pair = self.queue_pairs.get_mut(&body.qp.get());
        let peer = (Transport::Reliable, node, body.peer_qp.get());
        let Some(qp) = queue_pair.filter(|qp| qp.is_connected_with(peer)) else {
            return;
        };
        if let Some(place) = qp.requester.place(body.psn.get()) {
            let failure = failed_at(place, Outcome::LocalProtection);
            qp.fail(cx, &mut self.tables, failure);
        }
    }

    /// The peer could not answer a read.
    pub(super) fn read_refused<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        (id, sequence): (OperationId, u64),
        status: Status,
    ) {
        let Some((qp, tables)) = self.of(id) else {
            return;
        };
        let outcome = match status {
            Status::AccessDenied => Outcome::RemoteAccess,
            _ => Outcome::RemoteOperation,
        };
        if let Some(place) = qp.requester.asked_by(sequence) {
            qp.fail(cx, tables, failed_at(place, outcome));
        }
    }
}

impl QueuePair {
    /// Returns true if a work request has to wait for reads and atomic operations before it.
    pub(super) fn is_fenced(&self, current: &Current) -> bool {
        current.work.flags.contains(SendFlags::FENCE) && self.requester.asked() > 0
    }

    /// Where in its extents, and in how much of one, an answer goes.
    fn answer_extent(&self, place: usize, offset: u64, most: u64) -> super::memory::Extent {
        let message = self.requester.asking(place);
        message.map_or_else(Default::default, |message| message.into.at(offset, most))
    }

    fn store_answer<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        tables: &Tables,
        place: usize,
        mut offset: u64,
        data: &Payload<'_, H::Memory>,
    ) -> Result<(), PageError> {
        let owner = (self.vni, self.domain);
        let mut done = 0;
        while done < data.len() {
            let left = data.part(done, data.len());
            let extent = self.answer_extent(place, offset, left.len() as u64);
            let rights = Rights::LOCAL_WRITE;
            let to = tables.memory.authorise(cx.core, owner, extent, rights);
            let to = to.ok_or(PageError::Refused(Status::AccessDenied))?;
            let (stored, result) = store(cx, to, &left.part(0, extent.length as usize));
            result?;
            offset += stored;
            done += stored as usize;
        }
        Ok(())
    }

    /// The address of the first absent page of an answer, and how many bytes are wanted from there.
    fn absent_answer<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        tables: &Tables,
        place: usize,
        mut offset: u64,
    ) -> Option<(u64, u64)> {
        let owner = (self.vni, self.domain);
        loop {
            let extent = self.answer_extent(place, offset, u64::MAX);
            let rights = Rights::LOCAL_WRITE;
            let to = tables.memory.authorise(cx.core, owner, extent, rights)?;
            let side = LookupSide::Destination;
            match cx.core.lock(cx.host, to.vni, to.address, to.key, side) {
                Ok(page) => cx.core.unlock_dirty(cx.host, page),
                Err(PageError::Absent) => return Some((to.address, extent.length)),
                Err(PageError::Refused(_)) => return None,
            }
            offset += crate::core::to_border(to.address, 0, 1).min(extent.length);
        }
    }
}

fn failed_at(place: usize, outcome: Outcome) -> Failure {
    Failure {
        send: Some((place, outcome)),
        ..Failure::default()
    }
}

/// Makes a frame the question of a work request.
fn begin(ends: &Ends, qp: &QueuePair, current: &Current, outgoing: &mut Outgoing) {
    let work = &current.work;
    let psn = qp.requester.cursor_psn();
    if work.request == Request::Read {
        let mut body = VerbsRead::new_zeroed();
        (body.qp, body.peer_qp) = (qp.attributes.peer_qp.into(), qp.number.into());
        (body.psn, body.key) = (psn.into(), work.remote.key.into());
        body.address = work.remote.address.into();
        body.length = work.length.into();
        return ends.begin(outgoing, &body);
    }
    debug_assert_eq!(work.length, WORD_BYTES);
    let mut body = VerbsAtomic::new_zeroed();
    (body.qp, body.peer_qp) = (qp.attributes.peer_qp.into(), qp.number.into());
    (body.psn, body.key) = (psn.into(), work.remote.key.into());
    body.address = work.remote.address.into();
    [body.operand, body.swap] = work.operands;
    body.request = work.request as u8;
    ends.begin(outgoing, &body);
}
