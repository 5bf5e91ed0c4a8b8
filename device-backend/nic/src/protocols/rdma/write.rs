//! RDMA write (N9, N10) at its source and at its destination.
//!
//! The source pages are locked while the frame that carries them is sent. The wire has taken the
//! bytes when it returns, so the source makes no copy. A page span ends before an absent page; if
//! its first page is absent, the operation waits for it (N13).
//!
//! At the destination port, segment, key, access and range are checked for every frame,
//! then its pages are locked, written, marked dirty and unlocked.
//!
//! # Notifications (N18)
//! `NOTIFY` rides on the last fragment of a write if every earlier write of the process
//! to that node is settled: all of it, its notification included, was sent. Otherwise a
//! frame without payload carries it as soon as that is so. The responder signals it when
//! everything with a lower number is delivered.
//!
//! Each frame of a write names the notification, and the responder checks each time that writers of
//! the segment may signal it. So a write that may not is refused before any of it is stored.

use qnic_abi::rdma::{Write, WriteFlags};
use qnic_abi::wire::{fragments, Frame};
use qnic_abi::{Access, Key, SegmentId, Status, PAGE_SIZE};

use super::transfer::{Notice, Transfer};
use super::{in_slot, Context, Outgoing, Received, Transfers, Turn};
use crate::core::{Core, Destination, Fragment, LookupSide, PageError, PageRange};
use crate::env::Host;
use crate::frame::Arrival;
use crate::ids::OperationId;
use crate::protocols::protocol::{Ends, Source};
use crate::transport::Window;

impl Transfers {
    /// One turn of a write: chooses its next frame and locks the source pages.
    #[inline]
    pub(super) fn write_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let vni = id.vni();
        let Some(ends) = Ends::of(cx.core, id) else {
            return Turn::Idle;
        };
        let transfer = in_slot(&mut self.chunks, id.slot());
        let (room, max_payload) = cx
            .transport
            .room(ends.peer, transfer.remaining(transfer.sent));
        if room == 0 {
            return Turn::Blocked(ends.peer, Window::Fragments);
        }
        let limit = cx.core.limits.fragments_per_write;
        let budget = budget
            .min(room)
            .min(transfer.room(transfer.in_flight, limit, max_payload));
        let pages = budget.min(max_payload / PAGE_SIZE as u32);
        let mut span = transfer.next_span(pages, max_payload);
        let source = match span {
            None | Some(Fragment { length: 0, .. }) => Source::Nothing,
            Some(Fragment { offset, .. }) if transfer.command.inline => {
                outgoing.inline = transfer.inline;
                Source::Inline(offset as usize)
            }
            Some(Fragment { offset, length }) => {
                let address = transfer.command.local.address + offset;
                let range = (address, length as usize);
                let key = transfer.page_key;
                let side = LookupSide::Source;
                let pages = &mut outgoing.pages;
                match cx.core.lock_some(cx.host, vni, range, key, side, pages) {
                    Ok(()) => {}
                    Err(PageError::Refused(status)) => return Turn::Refuse(status),
                    Err(PageError::Absent) => {
                        let remaining = transfer.remaining(offset);
                        return Turn::Wait(PageRange::new(address, remaining, side));
                    }
                }
                let length = pages.bytes_from(address).min(u64::from(length)) as u32;
                span = Some(Fragment { offset, length });
                Source::Pages((address % PAGE_SIZE as u64) as usize)
            }
        };
        let last = span.is_none_or(|span| transfer.is_last(span));
        let first = self.streams.is_first(id.slot());
        let notifies = transfer.notice == Notice::Pending && first && last;
        if span.is_none() && !notifies {
            return Turn::Idle;
        }
        let body = body_of(transfer, span, notifies);
        ends.begin(outgoing, &body);
        outgoing.source = source;
        outgoing.length = span.map_or(0, |span| span.length as usize);
        let fragments = fragments(body.address.get(), outgoing.length);
        outgoing.frame.envelope.fragments = fragments as u8;
        outgoing.owner = id;
        Turn::Send
    }

    /// A frame of a write was sent.
    #[inline]
    pub(super) fn write_sent<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        outgoing: &Outgoing,
    ) {
        cx.core.count_sent(id.vni(), outgoing.length);
        let transfer = in_slot(&mut self.chunks, id.slot());
        let body: Write = outgoing.frame.body();
        transfer.in_flight += u32::from(outgoing.frame.envelope.fragments);
        if transfer.unsent {
            transfer.advance(Fragment {
                offset: body.offset.get(),
                length: outgoing.length as u32,
            });
        }
        if notifies(&body) {
            transfer.notice = Notice::None;
        }
        // Without another fragment it waits for its acknowledgement.
        if transfer.unsent {
            return self.update(cx, id);
        }
        if !self.fences.is_empty() && !cx.core.has_kept() {
            self.source_read(cx, id);
        }
        if in_slot(&mut self.chunks, id.slot()).notice == Notice::None {
            self.settle(cx, id);
        }
    }
}

fn body_of(transfer: &Transfer, span: Option<Fragment>, notifies: bool) -> Write {
    let command = &transfer.command;
    let remote = &command.remote;
    let (address, offset, remaining) = match span {
        Some(Fragment { offset, .. }) => {
            (remote.address + offset, offset, transfer.remaining(offset))
        }
        None => (remote.address, command.length, 0),
    };
    let flags = match notifies {
        true => WriteFlags::NOTIFY,
        false => WriteFlags::empty(),
    };
    Write {
        address: address.into(),
        key: remote.key.0.into(),
        offset: offset.into(),
        remaining: remaining.into(),
        segment: remote.segment.0.into(),
        flags: (flags.bits() as u16).into(),
        notification: command.notification.unwrap_or(0).into(),
    }
}

fn notifies(body: &Write) -> bool {
    u32::from(body.flags.get()) & WriteFlags::NOTIFY.bits() != 0
}

/// Receives a fragment of a write.
#[inline]
pub(super) fn receive<H: Host>(
    cx: &mut Context<'_, H>,
    arrival: &Arrival<'_, H::Memory>,
) -> Received {
    let body: Write = arrival.body();
    let (to, end) = match check(cx.core, arrival, &body) {
        Ok(checked) => checked,
        Err(status) => {
            cx.core.counters.refused(status);
            return Received::Refuse(status);
        }
    };
    let notifies = notifies(&body) && !arrival.silenced;
    let notification = body.notification.get();
    if notifies && notification == 0 {
        return Received::Refuse(Status::BadNotification);
    }
    match cx.core.copy_in(cx.host, to, &arrival.payload) {
        Ok(()) => {}
        Err(PageError::Refused(status)) => return Received::Refuse(status),
        Err(PageError::Absent) => return Received::Wait(to.vni, pages_ahead(arrival, &body, end)),
    }
    let signal = (to.vni, notification);
    if notifies && cx.transport.notify(arrival.peer, arrival.frame, signal) {
        cx.core.signal(cx.host, to.vni, notification);
    }
    cx.core.arrived(to.vni, cx.now);
    Received::Done
}

/// Receives the fragments of a write together that are there and do not notify.
pub(super) fn receive_span<H: Host>(
    cx: &mut Context<'_, H>,
    arrival: &Arrival<'_, H::Memory>,
) -> usize {
    let body: Write = arrival.body();
    let length = arrival.payload.len();
    let last = (body.address.get() as usize).wrapping_add(length - 1) % PAGE_SIZE + 1;
    let plain = match notifies(&body) {
        true => arrival.payload.part(0, length.saturating_sub(last)),
        false => arrival.payload,
    };
    if plain.is_empty() {
        return 0;
    }
    let Ok((to, _)) = check(cx.core, arrival, &body) else {
        return 0;
    };
    cx.core.arrived(to.vni, cx.now);
    cx.core.copy_in_span(cx.host, to, &plain)
}

/// Goes on to what is behind the first `length` bytes, which are whole fragments.
pub(super) fn advance(frame: &mut Frame, length: usize) {
    let mut body: Write = frame.body();
    let (address, bytes) = (body.address.get(), length as u64);
    body.offset = body.offset.get().wrapping_add(bytes).into();
    body.address = address.wrapping_add(bytes).into();
    body.remaining = body.remaining.get().saturating_sub(bytes).into();
    frame.set_body(&body);
}

/// The pages that the rest of a transfer needs, in a segment with that end.
#[cold]
fn pages_ahead<M>(arrival: &Arrival<'_, M>, body: &Write, end: u64) -> PageRange {
    let (address, length) = (body.address.get(), arrival.payload.len() as u64);
    let ahead = body.remaining.get().clamp(length, end - address);
    PageRange::new(address, ahead, LookupSide::Destination)
}

/// Checks what a frame says of its destination (N11). Returns it with the end of its segment.
#[inline(always)]
fn check<M>(
    core: &Core,
    arrival: &Arrival<'_, M>,
    body: &Write,
) -> Result<(Destination, u64), Status> {
    let length = arrival.payload.len() as u64;
    let address = body.address.get();
    let (vni, process) = core.process_on(arrival.frame.envelope.destination_port.get())?;
    // The whole transfer must lie within the segment, not only this fragment of it: a
    // transfer that is refused has touched no memory (N11).
    let before = if length == 0 { 0 } else { body.offset.get() };
    let start = address.checked_sub(before).ok_or(Status::BadAddress)?;
    let behind = body.remaining.get().max(length);
    let whole = before.checked_add(behind).ok_or(Status::BadLength)?;
    let segment = process.segments.authorise(
        SegmentId(body.segment.get()),
        Key(body.key.get()),
        Access::WRITE,
        start,
        whole,
    )?;
    let notification = body.notification.get();
    if notification != 0 && !segment.permissions.allows(notification) {
        return Err(Status::AccessDenied);
    }
    let to = Destination {
        vni,
        address,
        key: segment.page_key,
    };
    Ok((to, segment.end()))
}
