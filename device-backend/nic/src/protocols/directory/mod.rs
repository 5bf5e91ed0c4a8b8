//! The directory of exported names (N3): asking another node for a segment by name, and
//! answering.
//!
//! ```text
//!   importer: pending ──ImportRequest──► exporter: exported? ── yes ──► ImportResponse
//!                ▲                              │ no
//!                │                              ▼
//!                └──────ImportResponse──── parked until the name is exported,
//!                                          the deadline, or the importer's end
//! ```
//! A name that is exported is not enough: the exporter decides whom it admits (the module
//! `permissions` of the core). A process that it does not admit is refused at once; it learns that
//! the name exists, and not which condition it does not meet.
//!
//! A node that cannot be reached, or that is reset meanwhile, is asked again until the
//! time is up: the nodes of a cluster come up in any order. Every import gets its reply:
//! if nothing else comes, at its deadline.

use std::collections::BTreeMap;

use qnic_abi::control::{
    Import, Imported, Opcode, ReplyHeader, RequestHeader, Statistics, MAX_IMPORT_WAIT_MS,
    REPLY_BYTES,
};
use qnic_abi::directory::{kind, ImportRequest, ImportResponse};
use qnic_abi::export::Importer;
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Port, Secret, SegmentId, SegmentName, Status, VniId};
use zerocopy::IntoBytes;

use super::protocol::{Context, Ended, Protocol, Received};
use crate::budget::Budget;
use crate::config::Limits;
use crate::control_reply::{body, reply};
use crate::core::Segment;
use crate::env::{Host, Time};
use crate::frame::Arrival;
use crate::ids::{PeerIndex, ProtocolId};
use crate::transport::RETRY_AFTER;

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// The importer waits so much longer than the exporter, in nanoseconds.
const GRACE: u64 = 200 * MILLISECOND;

/// An import of a local process that was not answered.
#[derive(Debug)]
struct Pending {
    token: u64,
    vni: VniId,
    node: NodeId,
    port: Port,
    name: SegmentName,
    secret: Secret,
    /// Names it in frames.
    number: u64,
    /// The time that the process gave is over.
    deadline: Time,
    waits: bool,
    /// When to send the request; `None`: it is on its way.
    send_at: Option<Time>,
}

impl Pending {
    /// When something has to be done about it.
    fn due(&self) -> Time {
        let end = match self.send_at {
            None => self.deadline.after(GRACE),
            Some(_) => self.deadline,
        };
        self.send_at.map_or(end, |send_at| send_at.min(end))
    }
}

/// An import of a peer that waits for a name.
#[derive(Debug)]
struct Parked {
    peer: PeerIndex,
    /// Number of the request.
    sequence: u64,
    importer: Port,
    /// What the importer calls it.
    number: u64,
    port: Port,
    name: SegmentName,
    /// What the importer presents.
    secret: Secret,
    deadline: Time,
}

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pending: Vec<Pending>,
    next_number: u64,
    parked: Vec<Parked>,
}

impl Directory {
    /// Starts an import.
    fn import<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        body: &Import,
        token: u64,
    ) -> Result<(), Status> {
        let wait_ms = body.wait_ms.get();
        if wait_ms > MAX_IMPORT_WAIT_MS {
            return Err(Status::Malformed);
        }
        if cx.core.process(vni).is_none() {
            return Err(Status::NoSuchVni);
        }
        let pending = self.pending.iter().filter(|pending| pending.vni == vni);
        if pending.count() >= cx.core.limits.imports as usize {
            return Err(Status::Exhausted);
        }
        self.next_number += 1;
        self.pending.push(Pending {
            token,
            vni,
            node: NodeId(body.node.get()),
            port: Port(body.port.get()),
            name: SegmentName(body.name.get()),
            secret: body.secret,
            number: self.next_number,
            deadline: cx.now.after(u64::from(wait_ms) * MILLISECOND),
            waits: wait_ms > 0,
            send_at: Some(cx.now),
        });
        self.send(cx, self.pending.len() - 1);
        Ok(())
    }

    /// Queues the request of a pending import, or notes when to try again.
    fn send<H: Host>(&mut self, cx: &mut Context<'_, H>, index: usize) {
        let pending = &mut self.pending[index];
        let left = pending.deadline.0.saturating_sub(cx.now.0);
        let mut frame = Frame::new(&ImportRequest {
            name: pending.name.0.into(),
            wait_ms: (left.div_ceil(MILLISECOND) as u32).into(),
            reserved: 0.into(),
            secret: pending.secret,
        });
        frame.envelope.destination_port = pending.port.0.into();
        frame.envelope.operation = pending.number.into();
        if let Some(process) = cx.core.process(pending.vni) {
            frame.envelope.source_port = process.port.0.into();
        }
        pending.send_at = match cx.transport.find(pending.node) {
            Some(peer) if cx.transport.has_control_room(peer) => {
                cx.transport.send_control(peer, frame);
                None
            }
            found => {
                if found.is_none() {
                    cx.transport.want(pending.node);
                }
                Some(cx.now.after(RETRY_AFTER))
            }
        };
    }

    /// Returns true if another import of a process of a peer may wait here.
    fn may_park(&self, limits: &Limits, peer: PeerIndex, importer: Port) -> bool {
        let of_peer = self.parked.iter().filter(|parked| parked.peer == peer);
        let (mut all, mut own) = (0, 0);
        for parked in of_peer {
            all += 1;
            own += u32::from(parked.importer == importer);
        }
        all < limits.parked_imports_per_peer && own < limits.parked_imports
    }

    fn expire_parked<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let now = cx.now;
        let expired = extract(&mut self.parked, |parked| parked.deadline <= now);
        for parked in &expired {
            let refused = response(Err(Status::NameNotFound));
            answer(cx, parked.peer, parked.importer, parked.number, refused);
        }
        !expired.is_empty()
    }

    /// A peer asks for a segment of this node.
    fn receive_request<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: ImportRequest = arrival.body();
        let envelope = &arrival.frame.envelope;
        let port = Port(envelope.destination_port.get());
        let importer = Port(envelope.source_port.get());
        let number = envelope.operation.get();
        let name = SegmentName(body.name.get());
        let wait_ms = body.wait_ms.get().min(MAX_IMPORT_WAIT_MS);
        let process = cx.core.process_on(port.0).ok();
        let found = process.and_then(|(_, process)| process.segments.find(name));
        let body = match found {
            Some((id, segment)) => {
                let from = (arrival.peer, importer);
                decide(cx, from, &body.secret, (port, id, segment))
            }
            None if wait_ms == 0 => response(Err(Status::NameNotFound)),
            None if !self.may_park(&cx.core.limits, arrival.peer, importer) => {
                response(Err(Status::Exhausted))
            }
            None => {
                return self.parked.push(Parked {
                    peer: arrival.peer,
                    sequence: envelope.sequence.get(),
                    importer,
                    number,
                    port,
                    name,
                    secret: body.secret,
                    deadline: cx.now.after(u64::from(wait_ms) * MILLISECOND),
                });
            }
        };
        answer(cx, arrival.peer, importer, number, body);
    }

    /// The exporter has answered.
    fn receive_response<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let node = cx.transport.node_of(arrival.peer);
        let number = arrival.frame.envelope.operation.get();
        let mut pending = self.pending.iter();
        let found = pending.position(|pending| pending.number == number && pending.node == node);
        let Some(index) = found else {
            return;
        };
        let pending = self.pending.remove(index);
        let body: ImportResponse = arrival.body();
        let status = Status::try_from(body.status.get()).unwrap_or(Status::Malformed);
        let imported = Imported {
            segment: body.segment,
            reserved: 0.into(),
            access: body.access,
            address: body.address,
            length: body.length,
            key: body.key,
        };
        let bytes: &[u8] = match status {
            Status::Ok => imported.as_bytes(),
            _ => &[],
        };
        cx.core
            .replies
            .push_back((pending.token, reply(status, bytes)));
    }

    /// Ends the imports of a process.
    fn abort<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        for pending in extract(&mut self.pending, |pending| pending.vni == vni) {
            cx.core
                .replies
                .push_back((pending.token, reply(Status::Aborted, &[])));
        }
    }
}

/// Takes out what is chosen; the rest stays in its order.
fn extract<T>(list: &mut Vec<T>, chosen: impl Fn(&T) -> bool) -> Vec<T> {
    if !list.iter().any(&chosen) {
        return Vec::new();
    }
    let (taken, rest) = std::mem::take(list).into_iter().partition(chosen);
    *list = rest;
    taken
}

fn response(found: Result<(SegmentId, &Segment), Status>) -> ImportResponse {
    let mut body = ImportResponse {
        address: 0.into(),
        length: 0.into(),
        key: 0.into(),
        status: 0.into(),
        access: 0.into(),
        segment: 0.into(),
        reserved: [0.into(); 3],
    };
    match found {
        Ok((id, segment)) => {
            body.segment = id.0.into();
            body.key = segment.key.0.into();
            body.address = segment.address.into();
            body.length = segment.length.into();
            body.access = segment.access.bits().into();
        }
        Err(status) => body.status = status.code().into(),
    }
    body
}

/// The answer to an import of a segment that is there.
fn decide<H: Host>(
    cx: &Context<'_, H>,
    (peer, port): (PeerIndex, Port),
    secret: &Secret,
    (exporter, id, segment): (Port, SegmentId, &Segment),
) -> ImportResponse {
    let importer = Importer {
        node: cx.transport.node_of(peer).0.into(),
        port: port.0.into(),
    };
    let is_exporter = cx.transport.is_own(peer) && port == exporter;
    match is_exporter || segment.permissions.admits(importer, secret) {
        true => response(Ok((id, segment))),
        false => response(Err(Status::ImportRefused)),
    }
}

/// Sends an answer, and counts it if it is that of a segment that does not admit the importer.
fn answer<H: Host>(
    cx: &mut Context<'_, H>,
    peer: PeerIndex,
    importer: Port,
    number: u64,
    body: ImportResponse,
) {
    if body.status.get() == Status::ImportRefused.code() {
        cx.core.counters.refused(Status::ImportRefused);
    }
    let mut frame = Frame::new(&body);
    frame.envelope.destination_port = importer.0.into();
    frame.envelope.operation = number.into();
    cx.transport.send_control(peer, frame);
}

impl Protocol for Directory {
    const ID: ProtocolId = ProtocolId(2);
    const KINDS: &'static [u8] = &[kind::IMPORT_REQUEST, kind::IMPORT_RESPONSE];
    /// What was said before a response may end what it begins.
    const IN_ORDER: &'static [u8] = &[kind::IMPORT_RESPONSE];

    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::IMPORT_REQUEST => frame.is::<ImportRequest>(),
            _ => frame.is::<ImportResponse>(),
        }
    }

    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        match arrival.frame.envelope.kind {
            kind::IMPORT_REQUEST => self.receive_request(cx, arrival),
            _ => self.receive_response(cx, arrival),
        }
        Received::Done
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        match ended {
            Ended::Operations(_) => {}
            Ended::Process(vni) => self.abort(cx, vni),
            Ended::Session(peer, node, again) => {
                self.parked.retain(|parked| parked.peer != peer);
                for pending in self
                    .pending
                    .iter_mut()
                    .filter(|pending| pending.node == node)
                {
                    pending.send_at = Some(again);
                }
            }
            Ended::PeerProcess(peer, importer, before) => self.parked.retain(|parked| {
                parked.peer != peer || parked.importer != importer || parked.sequence > before
            }),
        }
    }

    fn exported<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        port: Port,
        id: SegmentId,
        segment: &Segment,
    ) {
        let waits = |parked: &Parked| parked.port == port && parked.name == segment.name;
        for parked in extract(&mut self.parked, waits) {
            let from = (parked.peer, parked.importer);
            let body = decide(cx, from, &parked.secret, (port, id, segment));
            answer(cx, parked.peer, parked.importer, parked.number, body);
        }
    }

    fn request<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        header: &RequestHeader,
        bytes: &[u8],
        token: u64,
    ) -> Option<Option<Status>> {
        if header.opcode.get() != Opcode::Import as u32 {
            return None;
        }
        let vni = VniId(header.vni.get());
        let started = body(bytes).and_then(|body| self.import(cx, vni, &body, token));
        Some(started.err())
    }

    fn peers_added<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        for index in 0..self.pending.len() {
            let pending = &self.pending[index];
            if pending.send_at.is_some() && cx.transport.find(pending.node).is_some() {
                self.send(cx, index);
            }
        }
    }

    fn failed_request(&mut self) -> Option<Status> {
        // The own node has answered by now.
        let newest = self.pending.last()?;
        let failed = newest.number == self.next_number && newest.send_at.is_some();
        (failed && !newest.waits).then(|| {
            self.pending.pop();
            Status::NoSuchNode
        })
    }

    fn budgets(&self, limits: &Limits, budgets: &mut Vec<Budget>) {
        let mut own = BTreeMap::<_, u32>::new();
        let mut parked = BTreeMap::<_, u32>::new();
        for pending in &self.pending {
            *own.entry(pending.vni.0).or_default() += 1;
        }
        for waiting in &self.parked {
            *parked.entry(waiting.peer).or_default() += 1;
        }
        let (own, parked) = (own.into_values(), parked.into_values());
        let limit = limits.parked_imports_per_peer;
        budgets.push(Budget::most("imports_of_process", own, limits.imports));
        budgets.push(Budget::most("parked_imports_of_peer", parked, limit));
    }

    fn awaits(&self, node: NodeId) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|pending| pending.node == node && pending.send_at.is_none())
    }

    fn expire<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        if self.pending.is_empty() && self.parked.is_empty() {
            return false;
        }
        let now = cx.now;
        let ended = |pending: &Pending| {
            pending.due() <= now && (pending.send_at.is_none() || pending.deadline <= now)
        };
        let expired = extract(&mut self.pending, ended);
        let mut busy = !expired.is_empty();
        for pending in expired {
            let status = match pending.send_at {
                Some(_) => Status::NoSuchNode,
                None => Status::NameNotFound,
            };
            cx.core
                .replies
                .push_back((pending.token, reply(status, &[])));
        }
        for index in 0..self.pending.len() {
            if self.pending[index].due() <= now {
                busy = true;
                self.send(cx, index);
            }
        }
        self.expire_parked(cx) | busy
    }

    fn deadline(&self) -> Option<Time> {
        let pending = self.pending.iter().map(Pending::due);
        pending
            .chain(self.parked.iter().map(|parked| parked.deadline))
            .min()
    }

    fn statistics(&self, statistics: &mut Statistics) {
        statistics.parked_imports = (self.parked.len() as u32).into();
    }
}

const _: () = assert!(size_of::<ReplyHeader>() + size_of::<Imported>() <= REPLY_BYTES);
