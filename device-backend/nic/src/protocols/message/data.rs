//! How the bytes of a message get into the memory of its receive.

use qnic_abi::message::{MessageData, MessagePermit};
use qnic_abi::wire::Frame;
use qnic_abi::{Status, VniId, PAGE_SIZE};

use super::inbox::Inbox;
use super::staging::{Bytes, Header, Landing, Place, Staging};
use super::straight::Straight;
use super::{Context, Messages, Protocol, Received};
use crate::core::{Core, Destination, LookupSide, PageError, PageRange, PerProcess, Waiter};
use crate::env::{Host, Payload};
use crate::frame::Arrival;

/// The pages that the rest of a message needs next.
pub(super) fn pages_from(inbox: &Inbox, landing: &Landing, offset: u64) -> PageRange {
    let (address, run) = inbox.at(&landing.memory, landing.offset + offset);
    let left = (landing.allowed - offset).min(run);
    PageRange::new(address, left, LookupSide::Destination)
}

/// Where data of a message goes, how much of the payload has room there in one piece, and what the
/// message is to count it with.
fn check_data<'a, H: Host>(
    core: &Core,
    inboxes: &mut PerProcess<Inbox>,
    staging: &'a mut Staging,
    arrival: &Arrival<'_, H::Memory>,
) -> Result<(Destination, &'a mut Landing, usize), Status> {
    let body: MessageData = arrival.body();
    let message = staging.get(body.receive.get());
    let message = message.ok_or(Status::Aborted)?;
    let header = &message.header;
    let known = header.peer == arrival.peer
        && header.operation == arrival.operation().0
        && matches!(message.bytes, Bytes::AtSource);
    let Place::Landing(landing) = &mut message.place else {
        return Err(Status::Aborted);
    };
    if !known {
        return Err(Status::Aborted);
    }
    let (offset, length) = (body.offset.get(), arrival.payload.len() as u64);
    let end = offset.checked_add(length).ok_or(Status::BadAddress)?;
    let missing = landing.allowed - landing.arrived;
    if length == 0 || end > landing.allowed || length > missing.min(header.packet_length) {
        return Err(Status::BadLength);
    }
    let inbox = inboxes.get_or_insert(header.vni);
    let (address, run) = inbox.at(&landing.memory, landing.offset + offset);
    if address % PAGE_SIZE as u64 != u64::from(body.page_offset.get()) {
        return Err(Status::BadAddress);
    }
    let key = inbox.authorise(core, header.vni, &landing.memory)?;
    let to = Destination {
        vni: header.vni,
        address,
        key,
    };
    Ok((to, landing, run.min(length) as usize))
}

impl Messages {
    /// Receives a fragment of a message that has permission.
    pub(super) fn receive_data<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let body: MessageData = arrival.body();
        let number = body.receive.get();
        match self.receive_staged(cx, arrival) {
            Some(Ok(())) => return Received::Done,
            Some(Err(status)) => return Received::Refuse(status),
            None => {}
        }
        let (inboxes, staging) = (&mut self.inboxes, &mut self.staging);
        let checked = check_data::<H>(cx.core, inboxes, staging, arrival);
        let (to, landing, run) = match checked {
            Ok(checked) => checked,
            Err(status) => return Received::Refuse(status),
        };
        if run < arrival.payload.len() {
            return Received::Refuse(Status::BadLength);
        }
        match cx.core.copy_in(cx.host, to, &arrival.payload) {
            Ok(()) => {}
            Err(PageError::Refused(status)) => {
                self.end_landing(cx, number, status);
                return Received::Refuse(status);
            }
            Err(PageError::Absent) => {
                let inbox = inboxes.get_or_insert(to.vni);
                return Received::Wait(to.vni, pages_from(inbox, landing, body.offset.get()));
            }
        }
        landing.arrived += arrival.payload.len() as u64;
        if landing.arrived == landing.allowed {
            self.end_landing(cx, number, Status::Ok);
        }
        Received::Done
    }

    /// Receives data of a message that is staged; `None`: it goes into the memory of a receive.
    fn receive_staged<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Option<Result<(), Status>> {
        let body: MessageData = arrival.body();
        let number = body.receive.get();
        let message = self.staging.get(number)?;
        let Bytes::Coming(bytes, missing) = &message.bytes else {
            return None;
        };
        let header = &message.header;
        if header.peer != arrival.peer || header.operation != arrival.operation().0 {
            return Some(Err(Status::Aborted));
        }
        let (offset, length) = (body.offset.get(), arrival.payload.len());
        let end = offset.saturating_add(length as u64);
        let most = header.packet_length.min(*missing as u64);
        if length == 0 || length as u64 > most || end > bytes.len() as u64 {
            return Some(Err(Status::BadLength));
        }
        if offset % PAGE_SIZE as u64 != u64::from(body.page_offset.get()) {
            return Some(Err(Status::BadAddress));
        }
        if self.bytes_come(cx, number, offset, &arrival.payload) {
            self.staged(cx, number);
        }
        Some(Ok(()))
    }

    /// Bytes of a message come that is staged. Returns true if they were the last.
    pub(super) fn bytes_come<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        number: u64,
        offset: u64,
        payload: &Payload<'_, H::Memory>,
    ) -> bool {
        match self.go_straight(cx, number, offset, payload) {
            true => self.staging.come(number, payload.len()),
            false => self.staging.fill(number, offset as usize, payload),
        }
    }

    /// Copies data of a message that is staged into the pages of its receive, which has come
    /// meanwhile. Returns false if it has to be staged as what came before: there is no receive, a page
    /// is absent or refused, or ranges are many. Absent pages are asked for once, for those behind it.
    fn go_straight<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        number: u64,
        offset: u64,
        payload: &Payload<'_, H::Memory>,
    ) -> bool {
        let Some(message) = self.staging.get(number) else {
            return false;
        };
        let Place::Landing(landing) = message.place else {
            return false;
        };
        if !message.straight.has_room() {
            return false;
        }
        let vni = message.header.vni;
        let end = offset + payload.len() as u64;
        // What the receive does not take goes nowhere.
        let mut part = Landing {
            offset: landing.offset + offset,
            allowed: landing.allowed.min(end).saturating_sub(offset),
            arrived: 0,
            ..landing
        };
        let inbox = self.inboxes.get_or_insert(vni);
        match copy_in(cx, inbox, vni, &mut part, payload) {
            Ok(()) => {
                message.straight.note(offset, end);
                true
            }
            Err(PageError::Absent) => {
                if !std::mem::replace(&mut message.asked, true) {
                    let range = pages_from(inbox, &landing, offset);
                    let job = Waiter::Job(Self::ID, number);
                    cx.core.wait_for_pages(vni, range, job);
                }
                false
            }
            Err(PageError::Refused(_)) => false,
        }
    }

    /// All bytes of a message have come into staging memory.
    pub(super) fn staged<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64) {
        match self.staging.get(number).map(|message| message.place) {
            Some(Place::Landing(_)) => self.proceed(cx, number),
            Some(Place::Discarded) => drop(self.staging.remove(number)),
            _ => {}
        }
    }

    /// Receives fragments together whose pages are there.
    pub(super) fn receive_data_span<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        match self.receive_staged(cx, arrival) {
            Some(Ok(())) => return arrival.payload.len(),
            Some(Err(_)) => return 0,
            None => {}
        }
        let (inboxes, staging) = (&mut self.inboxes, &mut self.staging);
        let checked = check_data::<H>(cx.core, inboxes, staging, arrival);
        let Ok((to, landing, run)) = checked else {
            return 0;
        };
        let payload = arrival.payload.part(0, run);
        let copied = cx.core.copy_in_span(cx.host, to, &payload);
        landing.arrived += copied as u64;
        if landing.arrived == landing.allowed {
            let body: MessageData = arrival.body();
            self.end_landing(cx, body.receive.get(), Status::Ok);
        }
        copied
    }

    /// Data of a message will never have its pages.
    pub(super) fn data_unavailable<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        status: Status,
    ) {
        let body: MessageData = arrival.body();
        let (inboxes, staging) = (&mut self.inboxes, &mut self.staging);
        if check_data::<H>(cx.core, inboxes, staging, arrival).is_ok() {
            self.end_landing(cx, body.receive.get(), status.for_owner());
        }
    }
}

/// Copies bytes of a message, from [`Landing::arrived`] on, into the memory of its receive.
pub(super) fn copy_in<H: Host>(
    cx: &mut Context<'_, H>,
    inbox: &Inbox,
    vni: VniId,
    landing: &mut Landing,
    payload: &Payload<'_, H::Memory>,
) -> Result<(), PageError> {
    let key = inbox.authorise(cx.core, vni, &landing.memory);
    let key = key.map_err(PageError::Refused)?;
    while landing.arrived < landing.allowed {
        let (address, run) = inbox.at(&landing.memory, landing.offset + landing.arrived);
        let to = Destination { vni, address, key };
        let left = (landing.allowed - landing.arrived).min(run) as usize;
        let part = payload.part(landing.arrived as usize, left);
        let page = PAGE_SIZE - (address % PAGE_SIZE as u64) as usize;
        let mut copied = match part.len() > page {
            true => cx.core.copy_in_span(cx.host, to, &part),
            false => 0,
        };
        if copied == 0 {
            let first = part.part(0, page);
            cx.core.copy_in(cx.host, to, &first)?;
            copied = first.len();
        }
        if copied == 0 {
            return Err(PageError::Refused(Status::BadLength));
        }
        landing.arrived += copied as u64;
    }
    Ok(())
}

/// Copies all bytes of a staged message but those that went straight, from [`Landing::arrived`] on.
pub(super) fn copy_gaps<H: Host>(
    cx: &mut Context<'_, H>,
    inbox: &Inbox,
    vni: VniId,
    landing: &mut Landing,
    straight: &Straight,
    payload: &Payload<'_, H::Memory>,
) -> Result<(), PageError> {
    loop {
        let (from, to) = straight.gap(landing.arrived);
        let until = to.map_or(landing.allowed, |to| to.min(landing.allowed));
        let mut gap = Landing {
            arrived: from.min(landing.allowed),
            allowed: until,
            ..*landing
        };
        let copied = copy_in(cx, inbox, vni, &mut gap, payload);
        landing.arrived = gap.arrived;
        copied?;
        if landing.arrived >= landing.allowed {
            return Ok(());
        }
    }
}

/// Lets so many bytes of a message come, the first of them to an address.
pub(super) fn permit<H: Host>(
    cx: &mut Context<'_, H>,
    header: &Header,
    number: u64,
    allowed: u64,
    address: u64,
) {
    let mut permit = Frame::new(&MessagePermit {
        receive: number.into(),
        length: allowed.into(),
        page_offset: ((address % PAGE_SIZE as u64) as u16).into(),
        ..MessagePermit::default()
    });
    let port = cx.core.process(header.vni).map(|process| process.port);
    permit.envelope.source_port = port.map_or(0, |port| port.0).into();
    permit.envelope.destination_port = header.source.port.into();
    permit.envelope.operation = header.operation.into();
    cx.transport.send_control(header.peer, permit);
}
