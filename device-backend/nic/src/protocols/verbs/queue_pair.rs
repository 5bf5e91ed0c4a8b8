//! Queue pairs: their states, their completions, and how they fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use qnic_abi::verbs::frames::{ReplyKind, VerbsReply};
use qnic_abi::verbs::requests::{MIN_ENTRY_BYTES, RING_BYTES};
use qnic_abi::verbs::rings::WorkCompletion;
use qnic_abi::verbs::{Completed, Event, Outcome, Request, Rights, State, Transport};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Status, VniId};
use zerocopy::FromZeros;

use super::completion::{CompletionQueue, Overrun};
use super::entry::is_asking;
use super::memory::RegisteredMemory;
use super::receive_queue::SharedReceiveQueue;
use super::requester::{Halt, Requester, MESSAGES};
use super::responder::Responder;
use super::Context;
use crate::core::Pending;
use crate::env::{Host, Time};
use crate::ids::{OperationId, PeerIndex};
use crate::injection::QueuePairFaults;

/// Completions that a flush makes in a row, at most: more than a queue pair has messages under way.
const FLUSHED: usize = 256;

const _: () = assert!(FLUSHED > MESSAGES);

/// What queue pairs share.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// By process and number.
    pub(super) completion_queues: BTreeMap<(VniId, u32), CompletionQueue>,
    /// Shared receive queues, likewise.
    pub(super) shared: BTreeMap<(VniId, u32), SharedReceiveQueue>,
    pub(super) memory: RegisteredMemory,
    /// When a queue pair asks its peer.
    pub(super) probes: BTreeSet<(Time, u32)>,
    /// Queue pairs whose peer waits for a page, by its node.
    pub(super) paged: BTreeSet<(NodeId, u32)>,
    /// When a queue pair sends again.
    pub(super) deadlines: BTreeSet<(Time, u32)>,
    /// Queue pair by operation of the core.
    pub(super) operations: BTreeMap<u64, u32>,
    /// Queue pairs that have failed, and have more to flush.
    pub(super) flushing: VecDeque<u32>,
    /// Queue pairs whose message goes to a node that is no peer yet.
    pub(super) seeking: BTreeSet<u32>,
    /// Frames that are kept for queue pairs without acknowledgements.
    pub(super) kept: usize,
}

/// What a queue pair is told when it is modified.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    /// Node of its peer.
    pub(super) node: NodeId,
    /// Queue pair of its peer.
    pub(super) peer_qp: u32,
    /// Rights of its peer.
    pub(super) access: Rights,
    pub(super) timeout: u8,
    pub(super) retries: u8,
    pub(super) not_ready_timer: u8,
    pub(super) not_ready_retries: u8,
    /// Reads and atomic operations that it has under way, at most.
    pub(super) max_reads: u8,
    /// Those of its peer.
    pub(super) max_peer_reads: u8,
    /// Key of datagrams.
    pub(super) qkey: u32,
    /// An event tells that the send queue is drained.
    pub(super) drain_event: bool,
}

impl Attributes {
    /// Those of a queue pair that was not modified yet.
    pub(super) const NONE: Attributes = Attributes {
        node: NodeId(0),
        peer_qp: 0,
        access: Rights::empty(),
        timeout: 0,
        retries: 0,
        not_ready_timer: 0,
        not_ready_retries: 0,
        max_reads: 0,
        max_peer_reads: 0,
        qkey: 0,
        drain_event: false,
    };
}

/// How a queue pair fails.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Failure {
    /// How the work request at that place of the send queue ends; all others are flushed.
    pub(super) send: Option<(usize, Outcome)>,
    /// How the oldest receive ends, likewise.
    pub(super) receive: Option<Outcome>,
    /// What no completion tells.
    pub(super) event: Option<Event>,
}

impl Failure {
    /// A completion queue takes nothing more.
    pub(super) const OVERRUN: Failure = Failure {
        send: None,
        receive: None,
        event: Some(Event::Fatal),
    };

    /// Returns true if only a work request of the send queue has failed.
    fn is_of_send(&self) -> bool {
        self.send.is_some() && self.receive.is_none() && self.event.is_none()
    }

    /// That of the oldest work request of the send queue.
    pub(super) fn of_oldest(outcome: Outcome) -> Self {
        Failure {
            send: Some((0, outcome)),
            ..Failure::default()
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) vni: VniId,
    pub(super) number: u32,
    pub(super) token: u64,
    pub(super) transport: Transport,
    /// Protection domain.
    pub(super) domain: u32,
    /// Every work request of the send queue has a completion.
    pub(super) signal_all: bool,
    pub(super) send_cq: u32,
    pub(super) receive_cq: u32,
    /// The shared receive queue that it uses, or zero.
    pub(super) srq: u32,
    pub(super) state: State,
    pub(super) attributes: Attributes,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// That of the core, while anything of the send queue is under way.
    pub(super) operation: Option<OperationId>,
    pub(super) faults: QueuePairFaults,
    /// When it asks its peer.
    pub(super) probes_at: Option<Time>,
    /// It has failed, and has more to flush.
    pub(super) flushes: bool,
    /// Its send queue is being drained.
    pub(super) draining: bool,
}

impl QueuePair {
    /// Returns true if that queue pair is the one that it is connected with.
    pub(super) fn is_connected_with(&self, peer: (Transport, NodeId, u32)) -> bool {
        let attributes = &self.attributes;
        (self.transport, attributes.node, attributes.peer_qp) == peer
    }

    /// Returns true if it receives.
    pub(super) fn receives(&self) -> bool {
        matches!(
            self.state,
            State::ReadyToReceive | State::ReadyToSend | State::Draining | State::SendError
        )
    }

    /// Tells the process of the end of a work request.
    fn complete<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        (cq, solicited): (u32, bool),
        mut completion: WorkCompletion,
    ) -> Result<(), Overrun> {
        completion.qp = self.number.into();
        completion.port = 1;
        // The driver destroys it after all that use it.
        let queue = tables.completion_queues.get_mut(&(self.vni, cq));
        queue
            .ok_or(Overrun)?
            .push(cx, self.vni, &completion, solicited)
    }

    /// Tells the process of a message that it has received.
    pub(super) fn complete_receive<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        completion: WorkCompletion,
        solicited: bool,
    ) -> Result<(), Overrun> {
        self.complete(cx, tables, (self.receive_cq, solicited), completion)
    }

    /// Tells the process of the messages that are complete, in their order.
    pub(super) fn complete_sends<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
    ) -> Result<(), Overrun> {
        while let Some(message) = self.requester.pop_done(cx.host.memory()) {
            if message.signaled {
                let mut completion = WorkCompletion::new_zeroed();
                completion.id = message.id.into();
                completion.opcode = (completed(message.request) as u32).into();
                completion.length = match is_asking(message.request) {
                    true => message.length as u32,
                    false => 0,
                }
                .into();
                self.complete(cx, tables, (self.send_cq, false), completion)?;
            }
        }
        cx.core.activate(self.vni, Some(cx.now));
        Ok(())
    }

    /// Fails: all that is posted ends, and peers get no answer any more. Without acknowledgements a work
    /// request of the send queue that fails leaves the receive queue as it is.
    pub(super) fn fail<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        failure: Failure,
    ) {
        if self.transport != Transport::Reliable && failure.is_of_send() {
            self.stop_sending(cx, tables);
            self.draining = false;
            self.state = State::SendError;
            if self.flush(cx, tables, failure).is_ok() {
                return;
            }
        }
        self.stop(cx, tables);
        let before = std::mem::replace(&mut self.state, State::Failed);
        if self.srq != 0 && before != State::Failed {
            let event = Pending::Verbs(self.vni, self.token, Event::LastReceive);
            cx.core.events.push(event);
        }
        if let Some(event) = failure.event {
            let event = Pending::Verbs(self.vni, self.token, event);
            cx.core.events.push(event);
        }
        if self.flush(cx, tables, failure) == Err(Overrun) && failure.event.is_none() {
            self.tell_failed(cx);
        }
    }

    /// Tells the driver that it has failed, as completions do not.
    pub(super) fn tell_failed<H: Host>(&self, cx: &mut Context<'_, H>) {
        let event = Pending::Verbs(self.vni, self.token, Event::Fatal);
        cx.core.events.push(event);
    }

    /// Ends all that is posted to a queue pair that has failed; what is left after some of it, with the
    /// next polls. What the completion queues do not take stays.
    pub(super) fn flush<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        failure: Failure,
    ) -> Result<(), Overrun> {
        let mut first = Ok(());
        let receive = failure
            .receive
            .and_then(|outcome| Some((self.responder.pop_failed(cx.host.memory())?, outcome)));
        if let Some((id, outcome)) = receive {
            first = self.complete(cx, tables, (self.receive_cq, false), failed(id, outcome));
        }
        let rest = self.flush_some(cx, tables, failure.send);
        first.and(rest)
    }

    /// Ends some of what is posted to a queue pair that has failed. `wrong`: how the work request at that
    /// place ends.
    pub(super) fn flush_some<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        wrong: Option<(usize, Outcome)>,
    ) -> Result<(), Overrun> {
        let memory = cx.host.memory();
        let (mut sends, mut receives) = (Ok(()), Ok(()));
        let mut done = 0;
        while sends.is_ok() && done < FLUSHED {
            let Some(id) = self.requester.pop_failed(memory) else {
                break;
            };
            let outcome = wrong.filter(|(place, _)| *place == done);
            let outcome = outcome.map_or(Outcome::Flushed, |(_, outcome)| outcome);
            sends = self.complete(cx, tables, (self.send_cq, false), failed(id, outcome));
            done += 1;
        }
        while self.state == State::Failed && receives.is_ok() && done < FLUSHED {
            let Some(id) = self.responder.pop_failed(memory) else {
                break;
            };
            let flushed = failed(id, Outcome::Flushed);
            receives = self.complete(cx, tables, (self.receive_cq, false), flushed);
            done += 1;
        }
        let next = self.requester.next_psn();
        self.requester.restart(next);
        let before = std::mem::replace(&mut self.flushes, done == FLUSHED);
        if self.flushes && !before {
            tables.flushing.push_back(self.number);
        }
        sends.and(receives)
    }

    /// Ends all that is posted to a send queue that has failed alone.
    pub(super) fn end_flush<H: Host>(&mut self, cx: &mut Context<'_, H>, tables: &mut Tables) {
        // A program that posts on and on does not keep it here.
        let most = RING_BYTES / usize::from(MIN_ENTRY_BYTES) / FLUSHED;
        for _ in 0..most {
            if !self.flushes || self.flush_some(cx, tables, None).is_err() {
                break;
            }
        }
        self.flushes = false;
    }

    /// Has nothing under way any more: neither here nor, as far as it knows, at its peer.
    pub(super) fn stop<H: Host>(&mut self, cx: &mut Context<'_, H>, tables: &mut Tables) {
        self.stop_sending(cx, tables);
        self.expect_nothing(tables);
        self.draining = false;
        self.flushes = false;
        self.drop_kept(tables);
        self.responder.rewound = false;
        let reads = std::mem::take(&mut self.responder.reads);
        let waits = self.responder.waits.take();
        // Without a peer its session has ended, and it knows.
        let Some(peer) = cx.transport.find(self.attributes.node) else {
            return;
        };
        let kind = ReplyKind::NoQueuePair;
        for (psn, _) in reads {
            self.reply_about(cx, (peer, 0), kind, psn);
        }
        if let Some(operation) = waits {
            self.reply(cx, (peer, operation), kind);
        }
    }

    /// Nothing of the send queue is under way any more.
    pub(super) fn stop_sending<H: Host>(&mut self, cx: &mut Context<'_, H>, tables: &mut Tables) {
        self.set_halt(tables, None);
        if let Some(id) = self.operation.take() {
            tables.operations.remove(&id.0);
            let (asked, peer) = (self.requester.asked(), cx.core.operation(id));
            if let Some(peer) = peer.map(|operation| operation.peer).filter(|_| asked > 0) {
                cx.transport.answered(peer, asked);
            }
            cx.core.finish(cx.host, id, Status::Ok);
        }
    }

    /// Begins no further message; what was begun completes.
    pub(super) fn drain<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        if self.state == State::ReadyToSend {
            self.requester.drains = true;
            self.draining = true;
        }
        self.note_drained(cx);
    }

    /// Tells the driver once that all that was begun is complete.
    pub(super) fn note_drained<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        if self.draining && self.requester.is_drained() {
            self.draining = false;
            if self.attributes.drain_event {
                let event = Pending::Verbs(self.vni, self.token, Event::Drained);
                cx.core.events.push(event);
            }
        }
    }

    /// Lets the send queue wait, or go on.
    pub(super) fn set_halt(&mut self, tables: &mut Tables, halt: Option<Halt>) {
        match std::mem::replace(&mut self.requester.halt, halt) {
            Some(Halt::Until(time)) => {
                tables.deadlines.remove(&(time, self.number));
            }
            Some(Halt::Seek) => {
                tables.seeking.remove(&self.number);
            }
            Some(Halt::Page(node)) => {
                tables.paged.remove(&(node, self.number));
            }
            None => {}
        }
        match halt {
            Some(Halt::Until(time)) => {
                tables.deadlines.insert((time, self.number));
            }
            Some(Halt::Seek) => {
                tables.seeking.insert(self.number);
            }
            Some(Halt::Page(node)) => {
                tables.paged.insert((node, self.number));
            }
            None => {}
        }
    }

    /// Tells the peer something about its message of that number.
    pub(super) fn reply_about<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        to: (PeerIndex, u64),
        kind: ReplyKind,
        psn: u32,
    ) {
        send_reply(cx, to, &self.about(kind, psn));
    }

    fn about(&self, kind: ReplyKind, psn: u32) -> VerbsReply {
        let mut body = VerbsReply::new_zeroed();
        body.qp = self.attributes.peer_qp.into();
        body.peer_qp = self.number.into();
        body.psn = psn.into();
        body.kind = kind as u8;
        body
    }

    /// Tells the peer how it stands with the message that is expected.
    pub(super) fn reply<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        to: (PeerIndex, u64),
        kind: ReplyKind,
    ) {
        let mut body = self.about(kind, self.responder.psn());
        match kind {
            ReplyKind::ReceiverNotReady => {
                body.timer = self.attributes.not_ready_timer;
                body.offset = self.responder.offset.into();
            }
            ReplyKind::PageAbsent | ReplyKind::GoOn => {
                body.offset = self.responder.offset.into();
            }
            _ => {}
        }
        send_reply(cx, to, &body);
    }
}

/// Sends a reply about an operation of a peer.
pub(super) fn send_reply<H: Host>(
    cx: &mut Context<'_, H>,
    (peer, operation): (PeerIndex, u64),
    body: &VerbsReply,
) {
    let mut frame = Frame::new(body);
    frame.envelope.operation = operation.into();
    cx.transport.send_control(peer, frame);
}

/// The completion of a work request that has failed.
fn failed(id: u64, outcome: Outcome) -> WorkCompletion {
    let mut completion = WorkCompletion::new_zeroed();
    completion.id = id.into();
    completion.status = (outcome as u32).into();
    completion
}

/// What the completion of a work request of the send queue is of.
fn completed(request: Request) -> Completed {
    match request {
        Request::Send | Request::SendImmediate => Completed::Send,
        Request::Write | Request::WriteImmediate => Completed::Write,
        Request::Read => Completed::Read,
        Request::CompareSwap => Completed::CompareSwap,
        Request::FetchAdd => Completed::FetchAdd,
    }
}
