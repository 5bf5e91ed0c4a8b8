//! Verbs ([`qnic_abi::verbs`], X18): queue pairs of programs that use libibverbs. docs/verbs.md has the
//! whole.
//!
//! ```text
//!   source                                              destination
//!   VerbsSend ─► its turn: entry of the send queue
//!                lockPage ──────────── VerbsMessage ──► expected? entry of the receive queue,
//!                                                       lockPage, copy, unlockPageDirty
//!   completion ◄────────────────────── VerbsReply ───── completion
//! ```
//! | module | holds |
//! |---|---|
//! | `receive_queue` | receives that are posted to a queue pair, or to several |
//! | `ring`, `entry` | rings of a program, and copies of their entries |
//! | `completion` | completion queues |
//! | `memory` | registered memory |
//! | `requester`, `responder` | the halves of a queue pair: where each of its messages stands |
//! | `queue_pair` | both, and how they fail |
//! | `sending`, `receiving` | messages at their source, and at their destination |
//! | `casting`, `caught` | messages without acknowledgements, likewise |
//! | `kept` | such messages that wait for a page |
//! | `asking`, `answering` | reads and atomic operations, likewise |
//! | `probing` | peers that do not answer |
//! | `requests` | requests of the driver |
//! | `injection` | faults from outside, and a table for people |
//!
//! # Invariants
//! - What a ring says is copied once and checked; a page of memory is touched only through a key that is
//!   looked up each time.
//! - A queue pair with work has one operation of the core, and ends it when nothing is under way.
//! - Each work request that is taken from a ring has at most one completion, in the order of its ring.
//! - A queue pair that waits has told its peer, or has a deadline.

mod answering;
mod asking;
mod casting;
mod caught;
mod completion;
mod entry;
mod injection;
mod kept;
mod memory;
mod probing;
mod queue_pair;
mod receive_queue;
mod receiving;
mod requester;
mod requests;
mod responder;
mod ring;
mod sending;

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::control::RequestHeader;
use qnic_abi::verbs::commands::{Opcode, VerbsArmCommand, SOLICITED_ONLY};
use qnic_abi::verbs::frames::{
    kind, VerbsAtomic, VerbsDatagram, VerbsMessage, VerbsProbe, VerbsRead, VerbsReadData,
    VerbsReply, VerbsUnreliable,
};
use qnic_abi::verbs::{
    Event, Outcome, Request, Transport, COMPLETION_QUEUES, QUEUE_PAIRS, QUEUE_PAIRS_OF_PROCESS,
    SHARED_RECEIVE_QUEUES,
};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Status, VniId, PAGE_SIZE};

use super::protocol::{Context, Ended, Outgoing, Protocol, Received, Turn};
use crate::budget::Budget;
use crate::config::Limits;
use crate::control_reply::Reply;
use crate::core::Fetched;
use crate::env::{Host, Time};
use crate::frame::{Arrival, StoredFrame};
use crate::ids::OperationId;
use crate::stages::Kind;
use completion::Armed;
use kept::KEPT_OF_NIC;
use queue_pair::{Failure, QueuePair, Tables};

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct Verbs {
    /// By number.
    queue_pairs: BTreeMap<u32, Box<QueuePair>>,
    /// How many of these a process has.
    held: BTreeMap<VniId, usize>,
    tables: Tables,
}

impl Verbs {
    fn arm<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        command: &VerbsArmCommand,
    ) -> Result<(), Status> {
        let armed = match command.flags.get() {
            0 => Armed::Any,
            SOLICITED_ONLY => Armed::Solicited,
            _ => return Err(Status::Malformed),
        };
        let reserved = command.reserved1.iter().any(|word| word.get() != 0);
        if reserved || command.reserved0.get() != 0 || command.header.inline_length != 0 {
            return Err(Status::Malformed);
        }
        let name = (vni, command.cq.get());
        if let Some(queue) = self.tables.completion_queues.get_mut(&name) {
            queue.arm(cx, vni, armed, command.seen.get());
        }
        Ok(())
    }

    /// The command queue of a process starts again: its queue pairs fail.
    fn operations_ended<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        let of_process = |qp: &&mut Box<QueuePair>| qp.vni == vni;
        for qp in self.queue_pairs.values_mut().filter(of_process) {
            let failure = Failure {
                // Without acknowledgements only the send queue would fail.
                event: (qp.transport != Transport::Reliable).then_some(Event::Fatal),
                ..match qp.operation {
                    Some(_) => Failure::of_oldest(Outcome::Fatal),
                    None => Failure::default(),
                }
            };
            qp.fail(cx, &mut self.tables, failure);
        }
    }

    /// A process is gone, and all objects of it.
    fn process_ended<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        let tables = &mut self.tables;
        self.held.remove(&vni);
        self.queue_pairs.retain(|_, qp| {
            let stays = qp.vni != vni;
            if !stays {
                qp.stop(cx, tables);
            }
            stays
        });
        let queues = &mut tables.completion_queues;
        queues.retain(|(owner, _), _| *owner != vni);
        tables.shared.retain(|(owner, _), _| *owner != vni);
        tables.memory.process_ended(vni);
    }
}

impl Protocol for Verbs {
    const OPERATIONS: Kind = Kind::Verbs;
    const OPCODES: &'static [u8] = &[Opcode::VerbsSend as u8, Opcode::VerbsArm as u8];
    const KINDS: &'static [u8] = &[
        kind::VERBS_MESSAGE,
        kind::VERBS_READ,
        kind::VERBS_READ_DATA,
        kind::VERBS_ATOMIC,
        kind::VERBS_REPLY,
        kind::VERBS_PROBE,
        kind::VERBS_UNRELIABLE,
        kind::VERBS_DATAGRAM,
    ];
    const RESPONSES: &'static [u8] = &[kind::VERBS_READ_DATA, kind::VERBS_REPLY];
    const IN_ORDER: &'static [u8] = &[
        kind::VERBS_MESSAGE,
        kind::VERBS_READ,
        kind::VERBS_ATOMIC,
        kind::VERBS_REPLY,
        kind::VERBS_PROBE,
    ];

    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::VERBS_MESSAGE => frame.is::<VerbsMessage>(),
            kind::VERBS_READ => frame.is::<VerbsRead>(),
            kind::VERBS_READ_DATA => frame.is::<VerbsReadData>(),
            kind::VERBS_ATOMIC => frame.is::<VerbsAtomic>(),
            kind::VERBS_PROBE => frame.is::<VerbsProbe>(),
            kind::VERBS_UNRELIABLE => frame.is::<VerbsUnreliable>(),
            kind::VERBS_DATAGRAM => frame.is::<VerbsDatagram>(),
            _ => frame.is::<VerbsReply>(),
        }
    }

    #[inline(never)] // It would cost transfers registers.
    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        match Opcode::try_from(fetched.descriptor.header.opcode) {
            Ok(Opcode::VerbsSend) => self.submit_send(cx, vni, fetched),
            Ok(Opcode::VerbsArm) => self.arm(cx, vni, &fetched.descriptor.read()),
            Err(_) => Err(Status::Malformed),
        }
    }

    #[inline(never)] // It would cost transfers registers.
    fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        self.send_turn(cx, id, outgoing)
    }

    fn respond<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        request: &StoredFrame,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        self.read_turn(cx, vni, request, outgoing)
    }

    fn responded<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        request: &mut StoredFrame,
        frame: &Outgoing,
    ) -> bool {
        self.read_sent(cx, request, frame.length)
    }

    fn unavailable<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        _status: Status,
    ) -> Received {
        self.answer_unavailable(cx, arrival);
        Received::Done
    }

    fn refused<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        sequence: u64,
        status: Status,
    ) {
        self.read_refused(cx, (id, sequence), status);
    }

    #[inline(never)] // It would cost transfers registers.
    fn sent<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, outgoing: &Outgoing) {
        cx.core.count_sent(id.vni(), outgoing.length);
        self.frame_sent(cx, id, outgoing);
    }

    #[inline(never)] // It would cost transfers registers.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        match arrival.frame.envelope.kind {
            kind::VERBS_MESSAGE => self.receive_message(cx, arrival),
            kind::VERBS_READ => return self.receive_read(cx, arrival),
            kind::VERBS_READ_DATA => return self.receive_read_data(cx, arrival),
            kind::VERBS_ATOMIC => self.receive_atomic(cx, arrival),
            kind::VERBS_PROBE => self.receive_probe(cx, arrival),
            kind::VERBS_UNRELIABLE => self.receive_unreliable(cx, arrival),
            kind::VERBS_DATAGRAM => self.receive_datagram(cx, arrival),
            _ => return self.receive_answer(cx, arrival),
        }
        Received::Done
    }

    fn page_offset(frame: &Frame) -> usize {
        let body: VerbsMessage = frame.body();
        match Request::try_from(body.request) {
            Ok(Request::Write | Request::WriteImmediate)
                if frame.envelope.kind == kind::VERBS_MESSAGE =>
            {
                (body.address.get() % PAGE_SIZE as u64) as usize
            }
            _ => 0,
        }
    }

    fn advance(frame: &mut Frame, length: usize) {
        let bytes = length as u64;
        if frame.envelope.kind == kind::VERBS_READ_DATA {
            let mut body: VerbsReadData = frame.body();
            body.offset = body.offset.get().wrapping_add(bytes).into();
            return frame.set_body(&body);
        }
        let mut body: VerbsMessage = frame.body();
        body.offset = body.offset.get().wrapping_add(bytes).into();
        body.remaining = body.remaining.get().saturating_sub(bytes).into();
        if let Ok(Request::Write | Request::WriteImmediate) = Request::try_from(body.request) {
            body.address = body.address.get().wrapping_add(bytes).into();
        }
        frame.set_body(&body);
    }

    fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        job: u64,
        failed: Option<Status>,
    ) {
        self.page_came(cx, vni, job, failed);
    }

    fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        self.update_queue_pair(cx, id);
    }

    fn fail<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        self.fail_operation(cx, id, status);
    }

    fn lost<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        self.fail_operation(cx, id, Status::PeerGone);
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        match ended {
            Ended::Operations(vni) => self.operations_ended(cx, vni),
            Ended::Process(vni) => self.process_ended(cx, vni),
            Ended::Segment(vni, segment) => self.tables.memory.segment_ended(vni, segment),
            // Operations end one by one; what the peer has asked for is void.
            Ended::Session(_, node, _) | Ended::Left(_, node, _) | Ended::Unreached(_, node, _) => {
                for qp in self.queue_pairs.values_mut() {
                    if qp.attributes.node == node {
                        qp.responder.reads.clear();
                    }
                }
            }
            // Its queue pairs tell.
            Ended::PeerProcess(..) => {}
        }
    }

    fn request<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        header: &RequestHeader,
        body: &[u8],
        _token: u64,
    ) -> Option<Option<Reply>> {
        let vni = VniId(header.vni.get());
        self.handle(cx, header.opcode.get(), vni, body).map(Some)
    }

    fn peers_added<H: Host>(&mut self, cx: &mut Context<'_, H>, _some: bool) {
        self.peers_found(cx);
    }

    fn awaits(&self, node: NodeId) -> bool {
        let mut paged = self.tables.paged.range((node, 0)..=(node, u32::MAX));
        paged.next().is_some()
    }

    fn expire<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let again = !self.tables.deadlines.is_empty() && self.send_again(cx);
        let probes = !self.tables.probes.is_empty() && self.probe(cx);
        again | probes | self.flush_more(cx)
    }

    fn deadline(&self) -> Option<Time> {
        if !self.tables.flushing.is_empty() {
            return Some(Time::default());
        }
        let first = |times: &BTreeSet<(Time, u32)>| times.first().map(|(time, _)| *time);
        let again = first(&self.tables.deadlines);
        let probes = first(&self.tables.probes);
        again.into_iter().chain(probes).min()
    }

    fn budgets(&self, _limits: &Limits, budgets: &mut Vec<Budget>) {
        let queue_pairs = self.queue_pairs.len();
        let queues = self.tables.completion_queues.len();
        let shared = self.tables.shared.len();
        let most_shared = SHARED_RECEIVE_QUEUES as u32;
        budgets.extend([
            Budget::new("verbs_queue_pairs", queue_pairs, QUEUE_PAIRS as u32),
            Budget::most(
                "verbs_queue_pairs_of_process",
                self.held.values().copied(),
                QUEUE_PAIRS_OF_PROCESS as u32,
            ),
            Budget::new("verbs_completion_queues", queues, COMPLETION_QUEUES as u32),
            Budget::new("verbs_shared_receive_queues", shared, most_shared),
            Budget::new("verbs_frames_kept", self.tables.kept, KEPT_OF_NIC as u32),
        ]);
    }
}
