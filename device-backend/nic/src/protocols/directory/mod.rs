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
//! The exporter decides which importers it admits (`Permissions` of the core). It refuses another
//! process at once; that process learns that the name exists, and not which condition it fails.
//!
//! A node that cannot be reached, or that is reset meanwhile, is asked again until the deadline, as
//! the nodes of a cluster come up in any order. Every import gets a reply, at its deadline at the
//! latest.

mod parked;
mod pending;

use std::collections::BTreeSet;

use parked::{Parked, ParkedImports};
use pending::{Pending, PendingImports};
use qnic_abi::control::{
    Import, Imported, Opcode, ReplyHeader, RequestHeader, MAX_IMPORT_WAIT_MS, REPLY_BYTES,
};
use qnic_abi::directory::{kind, ImportRequest, ImportResponse};
use qnic_abi::export::Importer;
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Port, Secret, SegmentId, SegmentName, Status, VniId};
use zerocopy::IntoBytes;

use super::protocol::{Context, Ended, Protocol, Received, Said};
use crate::budget::Budget;
use crate::config::Limits;
use crate::control_reply::{body, reply, Reply};
use crate::core::{Segment, Subject};
use crate::env::{Host, Time};
use crate::frame::Arrival;
use crate::ids::PeerIndex;
use crate::stages::Kind;
use crate::trace::{Scope, What};

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// The importer waits so much longer than the exporter, in nanoseconds.
const GRACE: u64 = 200 * MILLISECOND;

/// Imports that are dealt with in one poll, because their time has come or their name was
/// exported.
const BATCH: usize = 64;

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pending: PendingImports,
    parked: ParkedImports,
    /// Names that were exported, and for which imports are still parked.
    exported: BTreeSet<(Port, SegmentName)>,
}

impl Directory {
    /// Imports of peers that wait here for a name.
    pub(super) fn parked_imports(&self) -> usize {
        self.parked.len()
    }

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
        if self.pending.of_process(vni) >= cx.core.limits.imports {
            return Err(Status::Exhausted);
        }
        let number = self.pending.push(Pending {
            token,
            vni,
            node: NodeId(body.node.get()),
            port: Port(body.port.get()),
            name: SegmentName(body.name.get()),
            secret: body.secret,
            deadline: cx.now.after(u64::from(wait_ms) * MILLISECOND),
            waits: wait_ms > 0,
            send_at: Some(cx.now),
        });
        let said = Said {
            node: Some(body.node.get()),
            detail: body.name.get(),
            ..Said::default()
        };
        let subject = subject(cx.core.geometry.node.0, number);
        cx.trace(vni, What::Fetched, subject, said);
        self.send(cx, number);
        Ok(())
    }

    /// Queues the request of a pending import, or notes when to try again.
    fn send<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64) {
        let Some(pending) = self.pending.get(number) else {
            return;
        };
        let left = pending.deadline.0.saturating_sub(cx.now.0);
        let mut frame = Frame::new(&ImportRequest {
            name: pending.name.0.into(),
            wait_ms: (left.div_ceil(MILLISECOND) as u32).into(),
            reserved: 0.into(),
            secret: pending.secret,
        });
        frame.envelope.destination_port = pending.port.0.into();
        frame.envelope.operation = number.into();
        if let Some(process) = cx.core.process(pending.vni) {
            frame.envelope.source_port = process.port.0.into();
        }
        let send_at = match cx.transport.find(pending.node) {
            Some(peer) if cx.transport.has_control_room(peer) => {
                cx.transport.send_control(peer, frame);
                None
            }
            found => {
                if found.is_none() {
                    cx.transport.want(pending.node);
                }
                Some(cx.now.after(cx.transport.retry_after(pending.node)))
            }
        };
        self.pending.set_send_at(number, send_at);
    }

    /// Deals with some of the imports that have waited for what is exported by now. Returns
    /// true if there were any.
    fn answer_exported<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        for done in 0..BATCH {
            let Some((port, name)) = self.exported.first().copied() else {
                return done > 0;
            };
            let process = cx.core.process_on(port.0).ok();
            let found = process.and_then(|(_, process)| process.segments.find(name));
            let waits = found.and_then(|found| Some((found, self.parked.pop_named(port, name)?)));
            let Some(((id, segment), parked)) = waits else {
                // All are answered, or it was revoked meanwhile.
                self.exported.remove(&(port, name));
                continue;
            };
            let from = (parked.peer, parked.importer);
            let body = decide(cx, from, &parked.secret, (port, id, segment));
            answer(cx, parked.peer, parked.importer, parked.number, body);
        }
        true
    }

    /// Refuses some of the imports that have waited here for too long. Returns true if there
    /// were any.
    fn expire_parked<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        for done in 0..BATCH {
            let Some(parked) = self.parked.pop_expired(cx.now) else {
                return done > 0;
            };
            let refused = response(Err(Status::NameNotFound));
            answer(cx, parked.peer, parked.importer, parked.number, refused);
        }
        true
    }

    /// Ends some of the imports that have waited for too long, or sends them again. Returns
    /// true if there were any.
    fn expire_pending<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        for done in 0..BATCH {
            let Some(number) = self.pending.next_due(cx.now) else {
                return done > 0;
            };
            let ended = self
                .pending
                .get(number)
                .is_some_and(|pending| pending.has_ended(cx.now));
            if !ended {
                self.send(cx, number);
            } else if let Some(pending) = self.pending.remove(number) {
                let status = match pending.send_at {
                    Some(_) => Status::NoSuchNode,
                    None => Status::NameNotFound,
                };
                finish(cx, number, &pending, (status, &[]));
            }
        }
        true
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
            None if !self
                .parked
                .has_room(&cx.core.limits, arrival.peer, importer) =>
            {
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
        let asked = self.pending.get(number);
        if asked.is_none_or(|pending| pending.node != node) {
            return;
        }
        let Some(pending) = self.pending.remove(number) else {
            return;
        };
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
        finish(cx, number, &pending, (status, bytes));
    }

    /// Ends the imports of a process.
    fn abort<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        for number in self.pending.numbers_of(vni) {
            if let Some(pending) = self.pending.remove(number) {
                finish(cx, number, &pending, (Status::Aborted, &[]));
            }
        }
    }
}

/// An import of a node, for a trace.
fn subject(node: u16, number: u64) -> Subject {
    Subject::numbered(Scope::Import, node, number)
}

/// Replies to an import.
fn finish<H: Host>(
    cx: &mut Context<'_, H>,
    number: u64,
    pending: &Pending,
    (status, bytes): (Status, &[u8]),
) {
    let subject = subject(cx.core.geometry.node.0, number);
    cx.trace_ended(pending.vni, subject, status);
    cx.core
        .replies
        .push_back((pending.token, reply(status, bytes)));
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
    const OPERATIONS: Kind = Kind::Names;
    const KINDS: &'static [u8] = &[kind::IMPORT_REQUEST, kind::IMPORT_RESPONSE];
    /// What was said before a response may end what it begins.
    const IN_ORDER: &'static [u8] = &[kind::IMPORT_RESPONSE];

    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::IMPORT_REQUEST => frame.is::<ImportRequest>(),
            _ => frame.is::<ImportResponse>(),
        }
    }

    fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
        let owner = match frame.envelope.kind {
            kind::IMPORT_REQUEST => from,
            _ => to,
        };
        subject(owner, frame.envelope.operation.get())
    }

    #[inline(never)] // It would cost transfers registers.
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
            Ended::Operations(_) | Ended::Segment(..) => {}
            Ended::Process(vni) => self.abort(cx, vni),
            Ended::Session(peer, node, again)
            | Ended::Left(peer, node, again)
            | Ended::Unreached(peer, node, again) => {
                self.parked.forget_peer(peer);
                for sent in [false, true] {
                    for number in self.pending.of_node(node, sent) {
                        self.pending.set_send_at(number, Some(again));
                    }
                }
            }
            Ended::PeerProcess(peer, importer, before) => {
                self.parked.forget_process(peer, importer, before);
            }
        }
    }

    fn exported<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        port: Port,
        _id: SegmentId,
        segment: &Segment,
    ) {
        if self.parked.wants(port, segment.name) {
            self.exported.insert((port, segment.name));
            self.answer_exported(cx);
        }
    }

    fn request<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        header: &RequestHeader,
        bytes: &[u8],
        token: u64,
    ) -> Option<Option<Reply>> {
        if header.opcode.get() != Opcode::Import as u32 {
            return None;
        }
        let vni = VniId(header.vni.get());
        let started = body(bytes).and_then(|body| self.import(cx, vni, &body, token));
        Some(started.err().map(|status| reply(status, &[])))
    }

    fn peers_added<H: Host>(&mut self, cx: &mut Context<'_, H>, _some: bool) {
        for node in self.pending.unasked() {
            if cx.transport.find(node).is_some() {
                for number in self.pending.of_node(node, false) {
                    self.send(cx, number);
                }
            }
        }
    }

    fn failed_request(&mut self) -> Option<Status> {
        // The own node has answered by now.
        let newest = self.pending.newest()?;
        let pending = self.pending.get(newest)?;
        (pending.send_at.is_some() && !pending.waits).then(|| {
            self.pending.remove(newest);
            Status::NoSuchNode
        })
    }

    fn budgets(&self, limits: &Limits, budgets: &mut Vec<Budget>) {
        let own = self.pending.of_processes();
        let parked = self.parked.of_peers();
        let limit = limits.parked_imports_per_peer;
        budgets.push(Budget::most("imports_of_process", own, limits.imports));
        budgets.push(Budget::most("parked_imports_of_peer", parked, limit));
    }

    fn awaits(&self, node: NodeId) -> bool {
        self.pending.awaits(node)
    }

    fn expire<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        if self.pending.is_empty() && self.parked.is_empty() {
            return false;
        }
        let ended = self.expire_pending(cx);
        let answered = self.answer_exported(cx);
        self.expire_parked(cx) | ended | answered
    }

    fn deadline(&self) -> Option<Time> {
        if !self.exported.is_empty() && !self.parked.is_empty() {
            return Some(Time::default());
        }
        let deadlines = [self.pending.deadline(), self.parked.deadline()];
        deadlines.into_iter().flatten().min()
    }
}

const _: () = assert!(size_of::<ReplyHeader>() + size_of::<Imported>() <= REPLY_BYTES);
