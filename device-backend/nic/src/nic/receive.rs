//! What comes in: frames, and what waits for pages.
//!
//! ```text
//!   frame ──► transport: session, acknowledgement, number ──► protocol
//!                              │                                 │ Wait
//!                              ▼                                 ▼
//!              settled, refused, notifications      core: bounce memory, fault
//!                                                                │ FaultDone
//!                                                   protocol ◄───┘ again
//! ```

use qnic_abi::wire::{fragments, kind, Class, Frame, Nak, ProcessGone};
use qnic_abi::{Port, Status, VniId, PAGE_SIZE};

use super::Nic;
use crate::core::{Fault, PageRange, Pending, Waiter};
use crate::env::{Host, HostMemory, Payload, Time};
use crate::frame::{Arrival, Sampled, StoredFrame};
use crate::ids::{FaultNumber, OperationId, PeerIndex};
use crate::protocols::{self, News, Protocols, Received};
use crate::trace::What;
use crate::transport::{self, End, Opened};

impl Nic {
    /// Receives a frame: checks its form, its session and its number, then hands it to
    /// the protocol of its kind.
    pub(super) fn receive<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        frame: &Frame,
        payload: Payload<'_, H::Memory>,
    ) {
        let class = Class::of(frame.envelope.kind);
        if class != Class::Session && !is_well_formed(frame) {
            self.transport.counters.malformed_frames += 1;
            return;
        }
        let Opened { ended, accepted } = self.transport.open(now, frame, payload.len());
        match ended {
            None => {}
            Some(End::Lost(index)) => self.session_ended(now, host, index, Time::default()),
            Some(End::Left(index)) => self.session_left(now, host, index),
        }
        let before = self.disturbed;
        self.disturbed = true;
        if let Some(index) = accepted {
            if let Some(settled) = self.acknowledge(now, host, index, frame) {
                let plain = self.dispatch(now, host, index, (class, frame), payload);
                let early = self.core.has_early();
                if early {
                    self.receive_early(now, host, index);
                }
                self.signal_due(host, index);
                self.disturbed = before | settled | !plain | early | ended.is_some();
            }
        }
        self.resume_unblocked(now, host);
    }

    /// Handles what a frame acknowledges. Returns true if there was anything; `None`: that cannot
    /// be true.
    #[inline]
    fn acknowledge<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &Frame,
    ) -> Option<bool> {
        let possible = self.transport.acknowledge(now, index, frame);
        possible.then(|| self.acknowledged(now, host, index, frame.envelope.acknowledge.get()))
    }

    /// A peer has received everything up to this number, and delivered what it says. Returns true if
    /// that was anything new.
    #[inline]
    pub(super) fn acknowledged<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        received: u64,
    ) -> bool {
        let mut refused = false;
        while self.transport.pop_refusal(index, received) {
            self.signal_due(host, index);
            refused = true;
        }
        self.process_delivered(now, host, index) | refused
    }

    /// Takes fragments out of the window that the peer has delivered. Returns true if there were any.
    fn process_delivered<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) -> bool {
        let (protocols, mut cx) = self.parts(now, host);
        let mut settled = false;
        while let Some((id, count)) = cx.transport.pop_settled(index) {
            protocols.settled(&mut cx, id, count);
            settled = true;
        }
        if settled {
            cx.transport.settled(index);
        }
        settled
    }

    /// Hands a frame that is new to its protocol. Returns true if nothing is left to do.
    #[inline]
    fn dispatch<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        (class, frame): (Class, &Frame),
        payload: Payload<'_, H::Memory>,
    ) -> bool {
        let frame_kind = frame.envelope.kind;
        if class == Class::Session {
            self.transport.receive_ack(now, index, frame);
            return false;
        }
        let in_order = protocols::is_in_order(frame_kind);
        if in_order && (self.transport.is_early(index, frame) || self.core.is_due(index)) {
            self.keep_early(now, host, (class, index), frame, payload);
            return false;
        }
        if class.is_numbered() && !self.transport.admit(now, index, frame, in_order) {
            return false;
        }
        let arrival = Arrival {
            peer: index,
            frame,
            payload,
            silenced: false,
            received: match self.core.sampler.choose_frame() | self.core.tracing.on {
                true => self.sample_arrival(host, frame),
                false => None,
            },
        };
        match frame_kind {
            kind::NAK => self.receive_nak(now, host, index, frame),
            kind::PROCESS_GONE => self.peer_process_gone(now, host, index, frame),
            kind::WINDOW | kind::WINDOW_TAKEN => self.transport.receive_window(index, frame),
            _ if frame.envelope.fragments > 1 => self.receive_span(now, host, &arrival),
            _ => {
                let done = self.receive_fragment(now, host, &arrival);
                return done && protocols::is_unanswered(frame_kind);
            }
        }
        false
    }

    /// Receives a frame of one fragment. Returns true if it is done with.
    #[inline]
    fn receive_fragment<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
    ) -> bool {
        let (protocols, mut cx) = self.parts(now, host);
        let received = protocols.receive(&mut cx, arrival);
        match received {
            Received::Done => {
                if arrival.received.is_some() {
                    self.sample_delivered(host, arrival);
                }
                true
            }
            received => {
                if arrival.received.is_some_and(|sampled| sampled.traced) {
                    self.trace_received(host, arrival, received);
                }
                self.keep_or_refuse(arrival, received);
                false
            }
        }
    }

    /// Receives a page span: fragments together, as far as nothing is special about them.
    #[inline(never)]
    fn receive_span<H: Host>(&mut self, now: Time, host: &H, arrival: &Arrival<'_, H::Memory>) {
        let mut frame = *arrival.frame;
        let mut payload = arrival.payload;
        // The times are those of what is received first; a trace shows each part.
        let mut received = arrival.received;
        while !payload.is_empty() {
            let rest = Arrival {
                frame: &frame,
                payload,
                ..*arrival
            };
            let (protocols, mut cx) = self.parts(now, host);
            let mut length = protocols.receive_span(&mut cx, &rest);
            if length > 0 {
                if received.is_some() {
                    let payload = payload.part(0, length);
                    let part = Arrival {
                        payload,
                        received,
                        ..rest
                    };
                    self.sample_delivered(host, &part);
                }
            } else {
                length = payload
                    .len()
                    .min(PAGE_SIZE - Protocols::page_offset(&frame));
                let first = Arrival {
                    payload: payload.part(0, length),
                    // A notification belongs to the last fragment.
                    silenced: length < payload.len(),
                    received,
                    ..rest
                };
                self.receive_fragment(now, host, &first);
            }
            received = received.and_then(Sampled::further);
            payload = payload.part(length, payload.len());
            let passed = fragments(Protocols::page_offset(&frame) as u64, length);
            Protocols::advance(&mut frame, length);
            let sequence = frame.envelope.sequence.get().wrapping_add(passed);
            frame.envelope.sequence = sequence.into();
            let left = u64::from(frame.envelope.fragments).saturating_sub(passed);
            frame.envelope.fragments = left as u8;
        }
    }

    /// Does what a protocol wants of a frame that it has not delivered.
    #[cold]
    pub(super) fn keep_or_refuse<M: HostMemory>(
        &mut self,
        arrival: &Arrival<'_, M>,
        received: Received,
    ) {
        let windowed = Class::of(arrival.frame.envelope.kind) == Class::Windowed;
        match received {
            Received::Done => {}
            Received::Refuse(status) => self.refuse(arrival, status),
            Received::Wait(vni, range) if windowed => self.bounce(vni, range, arrival),
            Received::Wait(vni, range) => {
                let limit = self.core.limits.responses as usize;
                let process = self.core.process(vni);
                if process.is_none_or(|process| process.requests_held() >= limit) {
                    return self.refuse(arrival, Status::Exhausted);
                }
                match self.core.store(arrival, None) {
                    Ok(stored) => self.core.wait_for_pages(vni, range, Waiter::Frame(stored)),
                    Err(_) => self.refuse(arrival, Status::PageUnavailable),
                }
            }
            Received::Queue(vni) => {
                let stored = StoredFrame::request(arrival.peer, arrival.frame);
                let limit = self.core.limits.responses as usize;
                let queued = match self.transport.blocked_responses(arrival.peer) >= limit {
                    true => Err(Status::Exhausted),
                    false => self.core.queue_response(vni, stored),
                };
                if let Err(status) = queued {
                    self.refuse(arrival, status);
                }
            }
        }
    }

    /// Refuses a frame that is being received.
    fn refuse<M>(&mut self, arrival: &Arrival<'_, M>, status: Status) {
        let (index, frame) = (arrival.peer, arrival.frame);
        match Class::of(frame.envelope.kind) {
            Class::Windowed => {
                let sequence = frame.envelope.sequence.get();
                let held = self.transport.hold(index, sequence);
                self.transport.refuse_held(held, frame, status);
            }
            Class::Control => self.transport.refuse(index, frame, status),
            Class::Session | Class::Unreliable => {}
        }
    }

    /// Keeps a frame in bounce memory until pages of a process are there (N14).
    #[cold]
    fn bounce<M: HostMemory>(&mut self, vni: VniId, range: PageRange, arrival: &Arrival<'_, M>) {
        let (index, frame) = (arrival.peer, arrival.frame);
        let held = self.transport.hold(index, frame.envelope.sequence.get());
        match self.core.store(arrival, Some(held)) {
            Ok(stored) => self.wait_in_bounce_memory(vni, range, stored),
            Err(_) => {
                let status = Status::PageUnavailable;
                self.transport.refuse_held(held, frame, status);
            }
        }
    }

    /// Puts a frame behind a page fault. A frame of an operation of which another frame
    /// is refused does not notify; when its pages are there, that may be forgotten.
    pub(super) fn wait_in_bounce_memory(
        &mut self,
        vni: VniId,
        range: PageRange,
        mut stored: Box<StoredFrame>,
    ) {
        let operation = OperationId(stored.frame.envelope.operation.get());
        stored.silenced |= self.transport.is_refused(stored.peer, operation);
        self.core.wait_for_pages(vni, range, Waiter::Frame(stored));
    }

    /// The driver has answered a fault. Only its first page may have failed.
    pub(super) fn fault_done<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
        number: FaultNumber,
        status: Status,
    ) {
        let process = self.core.process_mut(vni);
        if let Some(fault) = process.and_then(|process| process.faults.answer(number)) {
            self.release_fault(now, host, vni, fault, status);
        }
    }

    /// Gives up faults that the driver has not answered in time. Returns true if there were
    /// any.
    #[inline]
    pub(super) fn expire_faults<H: Host>(&mut self, now: Time, host: &H) -> bool {
        let due = self.core.fault_deadline.is_some_and(|time| time <= now);
        due && self.expire_due_faults(now, host)
    }

    #[cold]
    fn expire_due_faults<H: Host>(&mut self, now: Time, host: &H) -> bool {
        let mut busy = false;
        while let Some((vni, fault)) = self.core.expire_fault(now) {
            busy = true;
            // The driver may not even have been told.
            let unheard = Pending::PageFault(vni, fault.number, fault.range);
            self.core.events.retain(|event| *event != unheard);
            self.release_fault(now, host, vni, fault, Status::FaultTimeout);
        }
        busy
    }

    /// Lets everything try again that waits for a fault, or gives up what waits for its
    /// first page, when that has failed; for any of its pages, when it was not answered.
    pub(super) fn release_fault<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
        fault: Fault,
        status: Status,
    ) {
        let reason = match status {
            // The memory went away before this NIC was told.
            Status::Ok | Status::Aborted | Status::NoSuchSegment | Status::FaultTimeout => status,
            Status::ReadOnlyMemory => status,
            _ => Status::PageUnavailable,
        };
        let range = fault.range;
        let covered = |wanted: &PageRange| match reason {
            Status::Ok => false,
            Status::FaultTimeout => range.covers(wanted),
            _ => range.begins_as(wanted),
        };
        for (wanted, waiter) in fault.waiters {
            let failed = covered(&wanted).then_some(reason);
            self.core.counters.restarts += u64::from(failed.is_none());
            match waiter {
                Waiter::Operation(id) => self.restart(now, host, id, failed),
                Waiter::Frame(stored) => self.retry(now, host, stored, failed),
                Waiter::Job(protocol, job) => {
                    let (protocols, mut cx) = self.parts(now, host);
                    protocols.resume(&mut cx, protocol, vni, job, failed);
                }
                Waiter::Response(request) => match (failed, self.core.process(vni)) {
                    (None, Some(_)) => self.core.requeue_response(vni, *request, false),
                    (status, _) => {
                        let status = status.unwrap_or(Status::NoSuchPort);
                        self.transport.refuse(request.peer, &request.frame, status);
                    }
                },
            }
        }
    }

    /// Lets an operation go on that has waited for pages of its own process.
    fn restart<H: Host>(&mut self, now: Time, host: &H, id: OperationId, failed: Option<Status>) {
        if let Some(operation) = self.core.operation(id) {
            operation.faulted = false;
            if self.core.tracing.on {
                self.trace_own(host, What::Resumed, id);
            }
            let (protocols, mut cx) = self.parts(now, host);
            match failed {
                Some(reason) => protocols.fail(&mut cx, id, reason.for_owner()),
                None => protocols.update(&mut cx, id),
            }
        }
    }

    /// Receives a stored frame again; `failed` says that its pages will never be there.
    fn retry<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        mut stored: Box<StoredFrame>,
        failed: Option<Status>,
    ) {
        stored.silenced |= self.core.is_silenced(&stored);
        if stored.received.is_some_and(|sampled| sampled.traced) {
            let kind = u32::from(stored.frame.envelope.kind);
            self.trace_frame(host, What::Resumed, &stored.frame, (kind, 0, 0));
        }
        let (protocols, mut cx) = self.parts(now, host);
        let arrival = stored.arrival();
        let received = match failed {
            None => protocols.receive(&mut cx, &arrival),
            Some(status) => protocols.unavailable(&mut cx, &arrival, status),
        };
        match received {
            Received::Wait(vni, range) if stored.held.is_some() => {
                self.trace_waits_again(host, &stored);
                self.wait_in_bounce_memory(vni, range, stored);
            }
            Received::Refuse(status) if stored.held.is_some() => {
                self.refuse_stored(&stored, status);
            }
            Received::Done => {
                if stored.received.is_some() {
                    let received = stored.received;
                    let arrival = stored.arrival::<H::Memory>();
                    self.sample_delivered(
                        host,
                        &Arrival {
                            received,
                            ..arrival
                        },
                    );
                }
                self.drop_stored(host, &stored);
            }
            received => self.keep_or_refuse::<H::Memory>(&stored.arrival(), received),
        }
    }

    /// When a frame came that is sampled, or that a trace may show.
    #[cold]
    pub(super) fn sample_arrival<H: Host>(&self, host: &H, frame: &Frame) -> Option<Sampled> {
        let counted = self.core.sampler.is_frame_chosen();
        let traced = self.core.tracing.on && self.shows_arrival(frame);
        let time = (counted || traced).then(|| host.clock()).flatten()?;
        Some(Sampled {
            time,
            counted,
            traced,
        })
    }

    /// A sampled frame is in memory, or what it asked for is done.
    #[cold]
    pub(super) fn sample_delivered<H: Host>(&mut self, host: &H, arrival: &Arrival<'_, H::Memory>) {
        let Some(sampled) = arrival.received else {
            return;
        };
        if sampled.counted {
            let kind = protocols::kind_of_frame(arrival.frame.envelope.kind);
            let now = host.clock();
            self.core.sampler.delivered(kind, sampled.time, now);
        }
        if sampled.traced {
            self.trace_received(host, arrival, Received::Done);
        }
    }

    /// Gives a stored frame up; its sender learns why.
    pub(super) fn refuse_stored(&mut self, stored: &StoredFrame, status: Status) {
        self.core.release(stored);
        let operation = OperationId(stored.frame.envelope.operation.get());
        self.core.silence(stored.peer, operation);
        if let Some(held) = stored.held {
            self.transport.refuse_held(held, &stored.frame, status);
        }
    }

    /// Frees a stored frame that is delivered, or that no operation waits for any more.
    pub(super) fn drop_stored<H: Host>(&mut self, host: &H, stored: &StoredFrame) {
        self.core.release(stored);
        if let Some(held) = stored.held {
            if self.transport.delivered(held) {
                self.signal_due(host, held.peer);
            }
        }
    }

    /// Signals the notifications from a peer that have waited long enough.
    #[inline]
    pub(super) fn signal_due<H: Host>(&mut self, host: &H, index: PeerIndex) {
        while let Some(due) = self.transport.pop_notification(index) {
            self.core.signal(host, due.vni, due.notification);
        }
    }

    /// A peer has refused a frame (N11).
    #[cold]
    fn receive_nak<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex, frame: &Frame) {
        let nak: Nak = frame.body();
        let id = OperationId(frame.envelope.operation.get());
        let protocol = protocols::of_kind(nak.kind);
        if self.core.operation_with(id, protocol, index).is_none() {
            return;
        }
        // A number that is no reason counts as malformed.
        let status = match Status::try_from(nak.status.get()) {
            Ok(Status::Ok) | Err(_) => Status::Malformed,
            Ok(status) => status,
        };
        if self.core.tracing.on {
            self.trace_frame(host, What::Nak, frame, (status.code(), 0, 0));
        }
        let (protocols, mut cx) = self.parts(now, host);
        protocols.refused(&mut cx, protocol, id, nak.sequence.get(), status);
    }

    /// A process of a peer has ended.
    #[cold]
    fn peer_process_gone<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex, frame: &Frame) {
        let port = Port(frame.envelope.source_port.get());
        let news = News {
            number: frame.envelope.sequence.get(),
            last_received: frame.body::<ProcessGone>().last_received.get(),
        };
        self.forget_peer_process(now, host, index, port, news);
    }
}

/// Returns true if the body of a numbered frame is as the format of its kind says.
#[inline]
fn is_well_formed(frame: &Frame) -> bool {
    match frame.envelope.kind {
        kind::NAK => frame.is::<Nak>(),
        kind::PROCESS_GONE => frame.is::<ProcessGone>(),
        kind::WINDOW | kind::WINDOW_TAKEN => transport::is_window(frame),
        _ => Protocols::is_well_formed(frame),
    }
}
