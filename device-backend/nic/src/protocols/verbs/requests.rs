//! Requests of the driver about objects ([`qnic_abi::verbs::requests`]). One that is refused changes
//! nothing.

use std::collections::BTreeMap;

use qnic_abi::control::Opcode;
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateQueuePair, CreateSharedReceiveQueue, DestroyObject,
    ModifyQueuePair, ModifySharedReceiveQueue, Object, QueryQueuePair, QueuePairInfo,
    RegisterMemory, Ring, SIGNAL_ALL,
};
use qnic_abi::verbs::rings::WorkCompletion;
use qnic_abi::verbs::{
    PathAddress, Rights, State, Transport, COMPLETION_QUEUES, FIRST_QUEUE_PAIR, MAX_INLINE,
    MAX_READS, MAX_SGES, NUMBERS, QUEUE_PAIRS, QUEUE_PAIRS_OF_PROCESS, SHARED_RECEIVE_QUEUES,
};
use qnic_abi::{NodeId, Status, VniId};
use zerocopy::IntoBytes;

use super::completion::CompletionQueue;
use super::entry::{receive_bytes, send_bytes, Bounds};
use super::queue_pair::{Attributes, Failure, QueuePair};
use super::receive_queue::{ReceiveQueue, SharedReceiveQueue};
use super::requester::Requester;
use super::responder::Responder;
use super::ring::{RingMemory, Side};
use super::{Context, Verbs};
use crate::control_reply::{body, reply, Reply};
use crate::env::Host;
use crate::injection::QueuePairFaults;

impl Verbs {
    /// Handles a request. `None`: it is not one of verbs, or not served yet.
    pub(super) fn handle<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        opcode: u32,
        vni: VniId,
        bytes: &[u8],
    ) -> Option<Reply> {
        let opcode = Opcode::try_from(opcode).ok()?;
        let checked = match cx.core.process(vni) {
            Some(_) => Ok(()),
            None => Err(Status::NoSuchVni),
        };
        let result = match opcode {
            Opcode::CreateCompletionQueue => checked
                .and_then(|()| body(bytes))
                .and_then(|body| self.create_completion_queue(cx, vni, &body)),
            Opcode::CreateSharedReceiveQueue => checked
                .and_then(|()| body(bytes))
                .and_then(|body| self.create_shared_receive_queue(cx, vni, &body)),
            Opcode::ModifySharedReceiveQueue => checked
                .and_then(|()| body(bytes))
                .and_then(|body| self.modify_shared_receive_queue(cx, vni, &body)),
            Opcode::CreateQueuePair => checked
                .and_then(|()| body(bytes))
                .and_then(|body| self.create_queue_pair(cx, vni, &body)),
            Opcode::ModifyQueuePair => checked
                .and_then(|()| body(bytes))
                .and_then(|body| self.modify_queue_pair(cx, vni, &body)),
            Opcode::RegisterMemory => checked
                .and_then(|()| body(bytes))
                .and_then(|body: RegisterMemory| self.tables.memory.register(cx.core, vni, &body)),
            Opcode::DestroyObject => checked
                .and_then(|()| body(bytes))
                .and_then(|body| self.destroy(cx, vni, &body)),
            Opcode::QueryQueuePair => {
                let info = checked.and_then(|()| body(bytes));
                return Some(match info.and_then(|body| self.query(vni, &body)) {
                    Ok(info) => reply(Status::Ok, info.as_bytes()),
                    Err(status) => reply(status, &[]),
                });
            }
            _ => return None,
        };
        Some(reply(result.err().unwrap_or(Status::Ok), &[]))
    }

    fn create_completion_queue<H: Host>(
        &mut self,
        cx: &Context<'_, H>,
        vni: VniId,
        body: &CreateCompletionQueue,
    ) -> Result<(), Status> {
        let queues = &mut self.tables.completion_queues;
        let name = (vni, body.cq.get());
        // An entry of another size could cross a border of pages.
        let sized = usize::from(body.ring.entry_bytes.get()) == size_of::<WorkCompletion>();
        if name.1 == 0 || body.reserved.get() != 0 || !sized {
            return Err(Status::Malformed);
        }
        if queues.contains_key(&name) {
            return Err(Status::NameExists);
        }
        if is_full(queues, vni, COMPLETION_QUEUES) {
            return Err(Status::Exhausted);
        }
        let memory = cx.host.memory();
        let ring = RingMemory::new(memory, &body.ring, Side::Producer, 0)?;
        queues.insert(name, CompletionQueue::new(ring, body.token.get()));
        Ok(())
    }

    fn create_shared_receive_queue<H: Host>(
        &mut self,
        cx: &Context<'_, H>,
        vni: VniId,
        body: &CreateSharedReceiveQueue,
    ) -> Result<(), Status> {
        let queues = &mut self.tables.shared;
        let name = (vni, body.srq.get());
        if queues.contains_key(&name) {
            return Err(Status::NameExists);
        }
        if is_full(queues, vni, SHARED_RECEIVE_QUEUES) {
            return Err(Status::Exhausted);
        }
        let queue = SharedReceiveQueue::new(cx.host.memory(), body)?;
        queues.insert(name, queue);
        Ok(())
    }

    fn modify_shared_receive_queue<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        body: &ModifySharedReceiveQueue,
    ) -> Result<(), Status> {
        let queue = self.tables.shared.get_mut(&(vni, body.srq.get()));
        queue.ok_or(Status::Malformed)?.modify(cx, vni, body);
        Ok(())
    }

    fn create_queue_pair<H: Host>(
        &mut self,
        cx: &Context<'_, H>,
        vni: VniId,
        body: &CreateQueuePair,
    ) -> Result<(), Status> {
        let number = body.qp.get();
        let queues = &self.tables.completion_queues;
        let has_queue = |cq: u32| queues.contains_key(&(vni, cq));
        let has_queues = has_queue(body.send_cq.get()) && has_queue(body.receive_cq.get());
        let inline = usize::from(body.inline.get());
        let send_sges = usize::from(body.send_sges.get());
        let receive_sges = usize::from(body.receive_sges.get());
        let bounded = send_sges <= MAX_SGES && receive_sges <= MAX_SGES && inline <= MAX_INLINE;
        let in_range = (FIRST_QUEUE_PAIR..NUMBERS).contains(&number);
        let plain = body.flags & !SIGNAL_ALL == 0 && body.reserved.get() == 0;
        let transport = Transport::try_from(body.transport).map_err(|_| Status::Malformed)?;
        if !(has_queues && bounded && in_range && plain) {
            return Err(Status::Malformed);
        }
        if self.queue_pairs.contains_key(&number) {
            return Err(Status::NameExists);
        }
        let held = self.held.get(&vni).copied().unwrap_or(0);
        if self.queue_pairs.len() >= QUEUE_PAIRS || held >= QUEUE_PAIRS_OF_PROCESS {
            return Err(Status::Exhausted);
        }
        let memory = cx.host.memory();
        let least = send_bytes(send_sges, inline);
        let send = RingMemory::new(memory, &body.send, Side::Consumer, least)?;
        let receives = self.receives_of(cx, vni, body)?;
        let bounds = Bounds {
            sges: send_sges,
            inline,
            transport,
        };
        let queue_pair = QueuePair {
            vni,
            number,
            token: body.token.get(),
            transport,
            domain: body.domain.get(),
            signal_all: body.flags & SIGNAL_ALL != 0,
            send_cq: body.send_cq.get(),
            receive_cq: body.receive_cq.get(),
            srq: body.srq.get(),
            state: State::Reset,
            attributes: Attributes::NONE,
            requester: Requester::new(send, bounds),
            responder: Responder::new(receives),
            operation: None,
            faults: QueuePairFaults::default(),
            probes_at: None,
            flushes: false,
            draining: false,
        };
        self.queue_pairs.insert(number, Box::new(queue_pair));
        self.held.insert(vni, held + 1);
        Ok(())
    }

    /// The receive queue of a queue pair that is to be made. `None`: it uses a shared one.
    fn receives_of<H: Host>(
        &self,
        cx: &Context<'_, H>,
        vni: VniId,
        body: &CreateQueuePair,
    ) -> Result<Option<ReceiveQueue>, Status> {
        let sges = usize::from(body.receive_sges.get());
        match body.srq.get() {
            0 => {
                let (memory, least) = (cx.host.memory(), receive_bytes(sges));
                let ring = RingMemory::new(memory, &body.receive, Side::Consumer, least)?;
                Ok(Some(ReceiveQueue::new(ring, sges, body.domain.get())))
            }
            srq => {
                let is_there = self.tables.shared.contains_key(&(vni, srq));
                let plain = body.receive.as_bytes() == [0; size_of::<Ring>()];
                match is_there && plain {
                    true => Ok(None),
                    false => Err(Status::Malformed),
                }
            }
        }
    }

    fn modify_queue_pair<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        body: &ModifyQueuePair,
    ) -> Result<(), Status> {
        let tables = &mut self.tables;
        let queue_pair = self.queue_pairs.get_mut(&body.qp.get());
        let queue_pair = queue_pair.filter(|qp| qp.vni == vni);
        let qp = queue_pair.ok_or(Status::Malformed)?;
        let state = State::try_from(body.state).map_err(|_| Status::Malformed)?;
        // It may have failed since the driver has asked.
        if !may_become(qp.state, state) {
            return Err(Status::Malformed);
        }
        let attributes = check_attributes(qp.transport, state, body)?;
        match state {
            State::Reset => {
                qp.stop(cx, tables);
                qp.requester.discard(cx.host.memory());
                qp.responder.discard(cx.host.memory());
            }
            // The rest of it comes with the next polls.
            State::Failed if qp.flushes && qp.state == State::Failed => return Ok(()),
            State::Failed => {
                qp.fail(cx, tables, Failure::default());
                return Ok(());
            }
            State::ReadyToReceive => {
                qp.drop_kept(tables);
                qp.responder.restart(body.receive_psn.get());
            }
            State::ReadyToSend if qp.state == State::ReadyToReceive => {
                qp.requester.restart(body.send_psn.get());
            }
            State::Init => {}
            State::ReadyToSend => {
                qp.end_flush(cx, tables);
                qp.requester.drains = false;
                qp.draining = false;
            }
            State::Draining => {
                qp.attributes = attributes;
                qp.drain(cx);
            }
            State::SendError => return Err(Status::Malformed),
        }
        qp.state = state;
        qp.attributes = attributes;
        if let Some(id) = qp.operation {
            // It may begin messages again.
            self.update_queue_pair(cx, id);
        }
        Ok(())
    }

    fn query(&self, vni: VniId, body: &QueryQueuePair) -> Result<QueuePairInfo, Status> {
        let queue_pair = self.queue_pairs.get(&body.qp.get());
        let queue_pair = queue_pair.filter(|qp| qp.vni == vni && body.reserved.get() == 0);
        let qp = queue_pair.ok_or(Status::Malformed)?;
        Ok(QueuePairInfo {
            state: qp.state as u8,
            draining: qp.draining.into(),
            reserved0: 0.into(),
            send_psn: qp.requester.next_psn().into(),
            receive_psn: qp.responder.psn().into(),
            reserved1: 0.into(),
        })
    }

    fn destroy<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        body: &DestroyObject,
    ) -> Result<(), Status> {
        let number = body.number.get();
        let token = match Object::try_from(body.object.get()) {
            Ok(Object::QueuePair) => {
                let queue_pair = self.queue_pairs.get(&number);
                let owned = queue_pair.is_some_and(|qp| qp.vni == vni);
                let queue_pair = owned.then(|| self.queue_pairs.remove(&number)).flatten();
                queue_pair.map(|mut qp| {
                    if let Some(held) = self.held.get_mut(&vni) {
                        *held = held.saturating_sub(1);
                    }
                    qp.stop(cx, &mut self.tables);
                    qp.token
                })
            }
            Ok(Object::CompletionQueue) => {
                let queues = &mut self.tables.completion_queues;
                queues.remove(&(vni, number)).map(|queue| queue.token())
            }
            Ok(Object::Memory) => match self.tables.memory.deregister(vni, number) {
                true => return Ok(()),
                false => None,
            },
            Ok(Object::SharedReceiveQueue) => {
                let queues = &mut self.tables.shared;
                queues.remove(&(vni, number)).map(|queue| queue.token())
            }
            Err(_) => None,
        };
        let token = token.ok_or(Status::Malformed)?;
        cx.core.events.forget_token(token);
        Ok(())
    }
}

/// Returns true if there are as many queues as may be, or a process has half of them.
fn is_full<Q>(queues: &BTreeMap<(VniId, u32), Q>, vni: VniId, most: usize) -> bool {
    let own = queues.range((vni, 0)..=(vni, u32::MAX));
    queues.len() >= most || own.count() >= most / 2
}

/// Returns true if a request may take a queue pair from one state to another, as the specification has them. Only the
/// NIC itself lets a send queue fail.
fn may_become(from: State, to: State) -> bool {
    use State::{Draining, Failed, Init, ReadyToReceive, ReadyToSend, Reset, SendError};
    match to {
        Reset | Failed => true,
        Init => matches!(from, Reset | Init),
        ReadyToReceive => from == Init,
        ReadyToSend => matches!(from, ReadyToReceive | ReadyToSend | Draining | SendError),
        Draining => matches!(from, ReadyToSend | Draining),
        SendError => false,
    }
}

/// Checks what a queue pair is told for a state.
fn check_attributes(
    transport: Transport,
    state: State,
    body: &ModifyQueuePair,
) -> Result<Attributes, Status> {
    let path = PathAddress(body.path.get()).node();
    let needs_path = transport != Transport::Datagram
        && matches!(
            state,
            State::ReadyToReceive | State::ReadyToSend | State::Draining
        );
    let reads = [body.max_reads, body.max_peer_reads];
    let numbers = [body.peer_qp, body.send_psn, body.receive_psn];
    let valid = (path.is_some() || !needs_path)
        && body.timeout < 32
        && body.retries <= 7
        && body.not_ready_timer < 32
        && body.not_ready_retries <= 7
        && body.mtu <= 5
        && body.drain_event <= 1
        && body.reserved == [0; 6]
        && reads.iter().all(|reads| *reads <= MAX_READS)
        && numbers.iter().all(|number| number.get() < NUMBERS);
    let access = Rights::from_bits(body.access.into()).filter(|_| valid);
    Ok(Attributes {
        node: path.unwrap_or(NodeId(0)),
        peer_qp: body.peer_qp.get(),
        access: access.ok_or(Status::Malformed)?,
        timeout: body.timeout,
        retries: body.retries,
        not_ready_timer: body.not_ready_timer,
        not_ready_retries: body.not_ready_retries,
        max_reads: body.max_reads,
        max_peer_reads: body.max_peer_reads,
        qkey: body.qkey.get(),
        drain_event: body.drain_event == 1,
    })
}
