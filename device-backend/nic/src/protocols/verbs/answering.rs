//! Reads and atomic operations where the memory is.

use qnic_abi::verbs::frames::{ReplyKind, VerbsAtomic, VerbsRead, VerbsReadData, VerbsReply};
use qnic_abi::verbs::{Request, Rights, MAX_MESSAGE};
use qnic_abi::{Status, VniId, PAGE_SIZE};
use zerocopy::FromZeros;

use super::entry::WORD_BYTES;
use super::memory::Extent;
use super::queue_pair::{send_reply, QueuePair, Tables};
use super::receiving::Stop;
use super::{Context, Outgoing, Received, Turn, Verbs};
use crate::core::{LookupSide, PageError, PageRange};
use crate::env::{Change, Host, HostMemory, Width};
use crate::frame::{Arrival, StoredFrame};
use crate::protocols::protocol::Source;
use crate::transport::Window;

impl Verbs {
    /// Takes a read: it is answered when its process has a turn.
    pub(super) fn receive_read<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let body: VerbsRead = arrival.body();
        let names = (body.qp, body.peer_qp);
        let Some((qp, tables)) = self.expecting(cx, arrival, names, (body.psn, 0)) else {
            return Received::Done;
        };
        let wanted = Extent {
            address: body.address.get(),
            length: body.length.get(),
            key: body.key.get(),
        };
        let granted = qp.attributes.access.contains(Rights::REMOTE_READ)
            && (wanted.length == 0 || qp.grants(cx, tables, wanted, Rights::REMOTE_READ));
        let under_way = qp.responder.reads.len() < usize::from(qp.attributes.max_peer_reads);
        let stop = match (under_way && wanted.length <= MAX_MESSAGE, granted) {
            (false, _) => Stop::invalid(),
            (true, false) => Stop::denied(),
            (true, true) if qp.denies() => Stop::denied(),
            (true, true) => {
                qp.responder.reads.push((body.psn.get(), 0));
                qp.responder.pass();
                return Received::Queue(qp.vni);
            }
        };
        let to = (arrival.peer, arrival.operation().0);
        qp.stopped(cx, tables, to, stop);
        Received::Done
    }

    /// One turn of a read: the next fragment of its answer.
    pub(super) fn read_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        request: &StoredFrame,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let body: VerbsRead = request.frame.body();
        let queue_pair = self.queue_pairs.get_mut(&body.qp.get());
        let Some(qp) = queue_pair.filter(|qp| qp.vni == vni) else {
            return Turn::Idle;
        };
        let reads = &qp.responder.reads;
        let Some((psn, offset)) = reads.iter().find(|read| read.0 == body.psn.get()).copied()
        else {
            return Turn::Idle;
        };
        let remaining = body.length.get().saturating_sub(offset);
        let (room, max_payload) = cx.transport.room(request.peer, remaining);
        if room == 0 {
            return Turn::Blocked(request.peer, Window::Fragments);
        }
        let answer = VerbsReadData {
            qp: body.peer_qp,
            peer_qp: body.qp,
            psn: psn.into(),
            reserved: 0.into(),
            offset: offset.into(),
        };
        outgoing.begin(request.peer, &answer);
        outgoing.frame.envelope.operation = request.frame.envelope.operation;
        if remaining == 0 {
            return Turn::Send;
        }
        let most = remaining.min(u64::from(max_payload)).min(PAGE_SIZE as u64);
        let extent = Extent {
            address: body.address.get().wrapping_add(offset),
            length: most,
            key: body.key.get(),
        };
        let owner = (qp.vni, qp.domain);
        let memory = &self.tables.memory;
        let Some(from) = memory.authorise(cx.core, owner, extent, Rights::REMOTE_READ) else {
            return Turn::Refuse(Status::AccessDenied);
        };
        let (range, side) = ((from.address, most as usize), LookupSide::Source);
        let span = &mut outgoing.pages;
        match cx.core.lock_some(cx.host, vni, range, from.key, side, span) {
            Ok(()) => {}
            Err(PageError::Refused(status)) => return Turn::Refuse(status),
            Err(PageError::Absent) => {
                return Turn::Wait(PageRange::new(from.address, remaining, side));
            }
        }
        outgoing.length = outgoing.pages.bytes_from(from.address).min(most) as usize;
        outgoing.source = Source::Pages((from.address % PAGE_SIZE as u64) as usize);
        Turn::Send
    }

    /// A fragment of the answer was sent. Returns true if there is more.
    pub(super) fn read_sent<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        request: &StoredFrame,
        length: usize,
    ) -> bool {
        let body: VerbsRead = request.frame.body();
        let Some(qp) = self.queue_pairs.get_mut(&body.qp.get()) else {
            return false;
        };
        cx.core.count_sent(qp.vni, length);
        let reads = &mut qp.responder.reads;
        let Some(index) = reads.iter().position(|read| read.0 == body.psn.get()) else {
            return false;
        };
        reads[index].1 += length as u64;
        let more = reads[index].1 < body.length.get();
        if !more {
            reads.remove(index);
        }
        more
    }

    /// Executes an atomic operation, once: nothing is taken that was taken before.
    pub(super) fn receive_atomic<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: VerbsAtomic = arrival.body();
        let to = (arrival.peer, arrival.operation().0);
        let names = (body.qp, body.peer_qp);
        let Some((qp, tables)) = self.expecting(cx, arrival, names, (body.psn, 0)) else {
            return;
        };
        let executed = match qp.denies() {
            true => Err(Stop::denied()),
            false => qp.execute(cx, tables, &body),
        };
        match executed {
            Ok(word) => {
                qp.responder.pass();
                let mut reply = VerbsReply::new_zeroed();
                (reply.qp, reply.peer_qp, reply.psn) = (body.peer_qp, body.qp, body.psn);
                reply.kind = ReplyKind::Word as u8;
                reply.value = word.into();
                send_reply(cx, to, &reply);
                cx.core.arrived(qp.vni, cx.now);
            }
            Err(stop) => qp.stopped(cx, tables, to, stop),
        }
    }
}

impl QueuePair {
    fn grants<H: Host>(
        &self,
        cx: &Context<'_, H>,
        tables: &Tables,
        extent: Extent,
        rights: Rights,
    ) -> bool {
        let owner = (self.vni, self.domain);
        let granted = tables.memory.authorise(cx.core, owner, extent, rights);
        granted.is_some()
    }

    fn execute<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        tables: &Tables,
        body: &VerbsAtomic,
    ) -> Result<u64, Stop> {
        let extent = Extent {
            address: body.address.get(),
            length: WORD_BYTES,
            key: body.key.get(),
        };
        let rights = Rights::REMOTE_ATOMIC;
        let owner = (self.vni, self.domain);
        let allowed = self.attributes.access.contains(rights);
        let word = tables.memory.authorise(cx.core, owner, extent, rights);
        let word = word.filter(|_| allowed).ok_or_else(Stop::denied)?;
        if word.address % WORD_BYTES != 0 {
            return Err(Stop::invalid());
        }
        let side = LookupSide::Destination;
        let page = cx
            .core
            .lock(cx.host, self.vni, word.address, word.key, side)
            .map_err(|error| match error {
                PageError::Absent => Stop::Wait(PageRange::new(word.address, WORD_BYTES, side)),
                PageError::Refused(_) => Stop::fatal(),
            })?;
        let change = match Request::try_from(body.request) {
            Ok(Request::CompareSwap) => Change::CompareSwap {
                expected: body.operand.get(),
                new: body.swap.get(),
            },
            _ => Change::Add(body.operand.get()),
        };
        let at = page.address() + word.address % PAGE_SIZE as u64;
        let before = cx.host.memory().modify(at, Width::Eight, change);
        cx.core.unlock_dirty(cx.host, page);
        cx.core.counters.atomics += u64::from(before.is_ok());
        before.map_err(|_| Stop::fatal())
    }
}
