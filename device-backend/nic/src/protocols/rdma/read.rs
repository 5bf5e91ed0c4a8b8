//! RDMA read (N9): asking for fragments, answering, and receiving what comes.
//!
//! ```text
//!   requester                                responder
//!   own pages there? ── ReadRequest ───────► queued in the process that has the memory
//!                                            its turn: keys, lockPage, send, unlock
//!   lockPage, copy, unlockPageDirty ◄──────── ReadResponse
//! ```
//! A request asks for a page span ([`qnic_abi::wire`]), and is answered by one frame or
//! several, each with some of its fragments. The requester remembers each fragment that it has
//! asked for; an unexpected or late response touches nothing.

use qnic_abi::rdma::{Opcode, ReadRequest, ReadResponse};
use qnic_abi::wire::{fragments, Frame, MAX_SPAN};
use qnic_abi::{Access, Key, SegmentId, Status, VniId, PAGE_SIZE};

use super::{Context, Outgoing, Protocol, Rdma, Received, Transfers, Turn};
use crate::core::{
    to_border, Destination, Fragment, LookupSide, PageError, PageRange, Process, Segment,
};
use crate::env::Host;
use crate::frame::{Arrival, StoredFrame};
use crate::ids::OperationId;
use crate::protocols::protocol::{Ends, Source};
use crate::transport::Window;

impl Transfers {
    /// One turn of a read: chooses the next span to ask for, and makes sure that there
    /// are pages for it.
    #[inline(never)]
    pub(super) fn read_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let vni = id.vni();
        let Some(ends) = Ends::of(cx.core, id) else {
            return Turn::Idle;
        };
        if !cx.transport.has_request_room(ends.peer) {
            return Turn::Blocked(ends.peer, Window::Requests);
        }
        let transfer = &mut self[id];
        let limit = cx.core.limits.requests_per_read;
        let max_payload = cx.transport.max_payload(ends.peer);
        let requested = transfer.requested.len() as u32;
        let pages = transfer.room(requested, limit, max_payload);
        let pages = pages.min(max_payload / PAGE_SIZE as u32);
        let Some(span) = transfer.next_span(pages, max_payload) else {
            return Turn::Idle;
        };
        let command = &transfer.command;
        let address = command.local.address.wrapping_add(span.offset);
        let mut length = span.length;
        if length > 0 {
            let key = transfer.page_key;
            length = match cx.core.count_present(cx.host, vni, (address, length), key) {
                0 => {
                    let range = (address, length as usize);
                    let side = LookupSide::Destination;
                    let pages = &mut outgoing.pages;
                    match cx.core.lock_some(cx.host, vni, range, key, side, pages) {
                        Ok(()) => {
                            let there = pages.bytes_from(address).min(u64::from(length));
                            cx.core.unlock_span(cx.host, pages, 0);
                            there as u32
                        }
                        Err(PageError::Refused(status)) => return Turn::Refuse(status),
                        Err(PageError::Absent) => {
                            let remaining = transfer.remaining(span.offset);
                            return Turn::Wait(PageRange::new(address, remaining, side));
                        }
                    }
                }
                present => present,
            };
        }
        let body = ReadRequest {
            address: (command.remote.address + span.offset).into(),
            key: command.remote.key.0.into(),
            offset: span.offset.into(),
            remaining: transfer.remaining(span.offset).into(),
            length: length.into(),
            segment: command.remote.segment.0.into(),
            page_offset: ((address % PAGE_SIZE as u64) as u16).into(),
        };
        ends.begin(outgoing, &body);
        Turn::Send
    }

    /// A request was sent.
    pub(super) fn read_sent<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        outgoing: &Outgoing,
    ) {
        let transfer = &mut self[id];
        let body: ReadRequest = outgoing.frame.body();
        let span = Fragment {
            offset: body.offset.get(),
            length: body.length.get(),
        };
        let requests = transfer.request(span);
        transfer.advance(span);
        cx.transport.requested(outgoing.peer, requests);
        self.update(cx, id);
    }

    /// Receives one fragment of a response. One that was not asked for, or is not awaited any more,
    /// touches nothing.
    pub(super) fn receive_response<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let span = span_of(arrival, arrival.payload.len());
        if let Some((to, remaining)) = self.requested(cx, arrival, span) {
            let failure = match cx.core.copy_in(cx.host, to, &arrival.payload) {
                Ok(()) => None,
                Err(PageError::Refused(status)) => Some(status),
                Err(PageError::Absent) => {
                    let side = LookupSide::Destination;
                    return Received::Wait(to.vni, PageRange::new(to.address, remaining, side));
                }
            };
            self.response_copied(cx, arrival, span, failure);
        }
        cx.core.activate(arrival.operation().vni(), Some(cx.now));
        Received::Done
    }

    /// Receives as many fragments of a response together as go into pages that are there.
    pub(super) fn receive_responses<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        cx.core.activate(arrival.operation().vni(), Some(cx.now));
        let all = span_of(arrival, arrival.payload.len());
        let Some((to, _)) = self.requested(cx, arrival, all) else {
            return 0;
        };
        let copied = cx.core.copy_in_span(cx.host, to, &arrival.payload);
        if copied > 0 {
            self.response_copied(cx, arrival, span_of(arrival, copied), None);
        }
        copied
    }

    /// Where a span goes that an operation has asked for and waits for, and how many
    /// bytes of that operation are missing from there on.
    fn requested<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        span: Fragment,
    ) -> Option<(Destination, u64)> {
        let id = arrival.operation();
        cx.core.operation_with(id, Rdma::ID, arrival.peer)?;
        let transfer = &self[id];
        if transfer.command.opcode != Opcode::Read {
            return None;
        }
        let body: ReadResponse = arrival.body();
        let address = transfer.command.local.address.wrapping_add(span.offset);
        let aligned = address % PAGE_SIZE as u64 == u64::from(body.page_offset.get());
        let to = Destination {
            vni: id.vni(),
            address,
            key: transfer.page_key,
        };
        let requested = aligned && transfer.has_requested(span);
        requested.then(|| (to, transfer.remaining(span.offset)))
    }

    fn response_copied<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        span: Fragment,
        failure: Option<Status>,
    ) {
        let id = arrival.operation();
        let count = self[id].arrived(span);
        match failure {
            None => self.update(cx, id),
            Some(status) => self.fail(cx, id, status),
        }
        cx.transport.answered(arrival.peer, count);
    }
}

/// What a response brings.
fn span_of<M>(arrival: &Arrival<'_, M>, length: usize) -> Fragment {
    let body: ReadResponse = arrival.body();
    Fragment {
        offset: body.offset.get(),
        length: length as u32,
    }
}

/// Receives a request: it is answered when its process has a turn.
pub(super) fn receive_request<H: Host>(
    cx: &mut Context<'_, H>,
    arrival: &Arrival<'_, H::Memory>,
) -> Received {
    let body: ReadRequest = arrival.body();
    let refused = match cx
        .core
        .process_on(arrival.frame.envelope.destination_port.get())
    {
        Err(status) => status,
        Ok(_) if body.length.get() as usize > MAX_SPAN => Status::BadLength,
        Ok((vni, _)) => return Received::Queue(vni),
    };
    cx.core.counters.refused(refused);
    Received::Refuse(refused)
}

/// One turn of a request: one frame of at most `budget` fragments.
pub(super) fn respond<H: Host>(
    cx: &mut Context<'_, H>,
    vni: VniId,
    request: &StoredFrame,
    budget: u32,
    outgoing: &mut Outgoing,
) -> Turn {
    let peer = request.peer;
    let body: ReadRequest = request.frame.body();
    let wanted = u64::from(body.length.get());
    let (room, max_payload) = cx.transport.room(peer, wanted);
    let pages = budget.min(room);
    if pages == 0 {
        return Turn::Blocked(peer, Window::Fragments);
    }
    let pages = pages.min(max_payload / PAGE_SIZE as u32);
    let Some(process) = cx.core.process(vni) else {
        return Turn::Idle;
    };
    let address = body.address.get();
    let segment = match authorise(process, &body) {
        Ok(segment) => segment,
        Err(status) => {
            cx.core.counters.refused(status);
            return Turn::Refuse(status);
        }
    };
    let response = ReadResponse {
        offset: body.offset,
        page_offset: body.page_offset,
        reserved: [0.into(); 3],
    };
    outgoing.begin(peer, &response);
    let envelope = &mut outgoing.frame.envelope;
    envelope.source_port = process.port.0.into();
    envelope.destination_port = request.frame.envelope.source_port;
    envelope.operation = request.frame.envelope.operation;
    let mut length = length_within(&body, pages);
    if length > 0 {
        let ahead = body
            .remaining
            .get()
            .clamp(u64::from(length), segment.end() - address);
        let (range, key) = ((address, length as usize), segment.page_key);
        let side = LookupSide::Source;
        let pages = &mut outgoing.pages;
        match cx.core.lock_some(cx.host, vni, range, key, side, pages) {
            Ok(()) => {}
            Err(PageError::Refused(status)) => return Turn::Refuse(status),
            Err(PageError::Absent) => return Turn::Wait(PageRange::new(address, ahead, side)),
        }
        length = pages.bytes_from(address).min(u64::from(length)) as u32;
        outgoing.source = Source::Pages((address % PAGE_SIZE as u64) as usize);
    }
    let page_offset = body.page_offset.get().into();
    outgoing.frame.envelope.fragments = fragments(page_offset, length as usize) as u8;
    outgoing.length = length as usize;
    Turn::Send
}

/// Checks the whole transfer, not only this part of it: one that is refused has touched
/// no memory (N11).
fn authorise<'a>(process: &'a Process, body: &ReadRequest) -> Result<&'a Segment, Status> {
    let start = body.address.get().checked_sub(body.offset.get());
    let behind = body.remaining.get().max(body.length.get().into());
    let whole = body.offset.get().checked_add(behind);
    process.segments.authorise(
        SegmentId(body.segment.get()),
        Key(body.key.get()),
        Access::READ,
        start.ok_or(Status::BadAddress)?,
        whole.ok_or(Status::BadLength)?,
    )
}

/// The bytes that one frame can carry: they touch at most so many pages of either side.
fn length_within(body: &ReadRequest, pages: u32) -> u32 {
    let own = to_border(body.address.get(), 0, pages);
    let theirs = to_border(body.page_offset.get().into(), 0, pages);
    u64::from(body.length.get()).min(own).min(theirs) as u32
}

/// Goes on to what is behind the first `length` bytes of a request. Returns false if
/// there is nothing.
pub(super) fn advance_request(frame: &mut Frame, length: usize) -> bool {
    let mut body: ReadRequest = frame.body();
    let bytes = length as u64;
    let page_offset = (u64::from(body.page_offset.get()) + bytes) % PAGE_SIZE as u64;
    body.offset = body.offset.get().wrapping_add(bytes).into();
    body.length = body.length.get().saturating_sub(length as u32).into();
    body.address = body.address.get().wrapping_add(bytes).into();
    body.page_offset = (page_offset as u16).into();
    body.remaining = body.remaining.get().saturating_sub(bytes).into();
    frame.set_body(&body);
    body.length.get() > 0
}

/// Goes on to what is behind the first `length` bytes of a response, which are whole
/// fragments.
pub(super) fn advance_response(frame: &mut Frame, length: usize) {
    let mut body: ReadResponse = frame.body();
    let page_offset = u64::from(body.page_offset.get());
    let bytes = length as u64;
    body.offset = body.offset.get().wrapping_add(bytes).into();
    body.page_offset = (((page_offset + bytes) % PAGE_SIZE as u64) as u16).into();
    frame.set_body(&body);
}
