//! The trace of a NIC ([`mod@crate::trace`]): its entry points, and what is noted outside of the core.
//!
//! A caller of a `trace_…` has tested `core.tracing.on`, or is seldom called itself.

use qnic_abi::wire::Frame;

use super::Nic;
use crate::env::{Host, Time};
use crate::frame::{Arrival, StoredFrame};
use crate::ids::{OperationId, PeerIndex};
use crate::protocols::{Outgoing, Protocols, Received};
use crate::trace::{Event, Record, Scope, Taken, What};

impl Nic {
    /// Begins a trace of the operations whose running number is a multiple of `sample`. The
    /// capacity of `buffer` is the bound of what is kept between two calls of [`Nic::take_trace`].
    /// Returns false if there is a trace.
    pub fn begin_trace(&mut self, sample: u32, buffer: Vec<Record>) -> bool {
        self.core.tracing.begin(sample, buffer)
    }

    /// What the trace has kept since the last call; what comes goes into `buffer`, as above.
    pub fn take_trace(&mut self, buffer: Vec<Record>) -> Taken {
        self.core.tracing.take(buffer)
    }

    /// Ends the trace, and returns what it has kept since the last call.
    pub fn end_trace(&mut self) -> Taken {
        self.core.tracing.end()
    }

    /// Notes in the trace what the NIC holds at present.
    pub fn trace_load<H: Host>(&mut self, host: &H) {
        let Some(now) = host.clock().filter(|_| self.core.tracing.on) else {
            return;
        };
        let counters = self.counters();
        let budgets = self.transport.budgets();
        let credits = budgets.iter().find(|budget| budget.name == "windows");
        self.core.tracing.push(Event {
            depth: u16::try_from(counters.processes).unwrap_or(u16::MAX),
            bytes: counters.operations,
            detail: credits.map_or(0, |budget| budget.used),
            ..Event::own(now.0, self.config.node.0, What::Load, OperationId(0))
        });
    }

    /// Something happens to an operation of this node.
    #[cold]
    pub(super) fn trace_own<H: Host>(&mut self, host: &H, what: What, id: OperationId) {
        if self.core.tracing.shows(id) {
            if let Some(now) = host.clock() {
                let event = Event::own(now.0, self.config.node.0, what, id);
                self.core.tracing.push(event);
            }
        }
    }

    /// Returns true if a frame that has arrived is shown.
    pub(super) fn shows_arrival(&self, frame: &Frame) -> bool {
        let (from, to) = (frame.envelope.source_node.get(), self.config.node.0);
        let subject = Protocols::subject(frame, from, to);
        self.core.tracing.shows_subject(&subject)
    }

    /// A frame of an operation that is shown has arrived, and is delivered or is not.
    #[cold]
    pub(super) fn trace_received<H: Host>(
        &mut self,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
        received: Received,
    ) {
        let came = arrival.received.map_or(0, |sampled| sampled.time.0);
        let kind = u32::from(arrival.frame.envelope.kind);
        let (what, code, bytes) = match received {
            Received::Done => (What::Delivered, kind, arrival.payload.len() as u64),
            Received::Queue(_) => (What::Queued, kind, 0),
            Received::Wait(..) => (What::Waits, kind, 0),
            Received::Refuse(status) => (What::Refused, status.code(), kind.into()),
        };
        self.trace_frame(host, what, arrival.frame, (code, bytes, came));
    }

    /// A stored frame that is shown waits once more: for other pages, or for those that were taken away
    /// meanwhile.
    #[cold]
    pub(super) fn trace_waits_again<H: Host>(&mut self, host: &H, stored: &StoredFrame) {
        if let Some(sampled) = stored.received.filter(|sampled| sampled.traced) {
            let kind = u32::from(stored.frame.envelope.kind);
            let said = (kind, 0, sampled.time.0);
            self.trace_frame(host, What::Waits, &stored.frame, said);
        }
    }

    /// The same of a frame; `said` are code, bytes and detail.
    #[cold]
    pub(super) fn trace_frame<H: Host>(
        &mut self,
        host: &H,
        what: What,
        frame: &Frame,
        said: (u32, u64, u64),
    ) {
        let at = self.config.node.0;
        let peer = frame.envelope.source_node.get();
        let subject = Protocols::subject(frame, peer, at);
        if !self.core.tracing.shows_subject(&subject) {
            return;
        }
        if let Some(now) = host.clock() {
            let event = of_frame(now.0, (at, peer, peer), what, frame);
            let (code, bytes, detail) = said;
            self.core.tracing.push(Event {
                code,
                bytes,
                detail,
                ..event
            });
        }
    }

    /// A frame goes back to a requester.
    #[cold]
    pub(super) fn trace_response<H: Host>(&mut self, host: &H, outgoing: &Outgoing) {
        let frame = &outgoing.frame;
        let (at, peer) = (self.config.node.0, self.transport.node_of(outgoing.peer).0);
        let subject = Protocols::subject(frame, at, peer);
        if !self.core.tracing.shows_subject(&subject) {
            return;
        }
        if let Some(now) = host.clock() {
            let event = of_frame(now.0, (at, peer, at), What::Responded, frame);
            self.core.tracing.push(Event {
                bytes: outgoing.length as u64,
                ..event
            });
        }
    }

    /// When a frame of the NIC itself begins to be sent, if there is a trace.
    #[cold]
    pub(super) fn trace_sends<H: Host>(&self, host: &H) -> Option<Time> {
        host.clock()
    }

    /// A frame of the NIC itself, which belongs to no command, has gone. A frame to the own node has
    /// been received by now, so it was sent before that.
    #[cold]
    pub(super) fn trace_sent(
        &mut self,
        began: Time,
        index: PeerIndex,
        frame: &Frame,
        length: usize,
    ) {
        let (at, peer) = (self.config.node.0, self.transport.node_of(index).0);
        let subject = Protocols::subject(frame, at, peer);
        let shown = self.core.tracing.shows_subject(&subject);
        if shown && subject.scope != Scope::Command {
            self.core.tracing.push(Event {
                bytes: length as u64,
                ..of_frame(began.0, (at, peer, at), What::Sent, frame)
            });
        }
    }

    /// Sends packets again that were lost. Returns false if there is no route to the peer.
    pub(super) fn send_lost<H: Host, W: crate::env::Wire<H::Memory>>(
        &mut self,
        io: &mut super::Io<'_, H, W>,
        index: PeerIndex,
    ) -> bool {
        let (tracing, at) = (&mut self.core.tracing, self.config.node.0);
        let peer = self.transport.node_of(index).0;
        let host = io.host;
        let mut resent = |frame: &Frame| {
            if !tracing.shows_subject(&Protocols::subject(frame, at, peer)) {
                return;
            }
            if let Some(now) = host.clock() {
                tracing.push(of_frame(now.0, (at, peer, at), What::Resent, frame));
            }
        };
        self.transport
            .send_lost(io.now, io.wire, index, &mut resent)
    }
}

/// An event of a frame: where it happens, the other end, and the end that has sent the frame.
fn of_frame(time: u64, (at, peer, sender): (u16, u16, u16), what: What, frame: &Frame) -> Event {
    let envelope = &frame.envelope;
    let receiver = if sender == at { peer } else { at };
    let subject = Protocols::subject(frame, sender, receiver);
    let port = match sender == at {
        true => envelope.source_port.get(),
        false => envelope.destination_port.get(),
    };
    Event {
        peer,
        port,
        code: envelope.kind.into(),
        ..Event::of(time, at, what, &subject)
    }
}
