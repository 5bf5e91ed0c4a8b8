//! Atomic operations (N20, N22, N24): asking for one, and executing it where the
//! memory is.
//!
//! ```text
//!   issuer                                   owner of the memory
//!   its turn ─────────────── Atomic ───────► keys, lockPage, change, unlockPageDirty
//!   result record, completion ◄── AtomicReply ┘        │ page absent
//!                                                      └─► waits for the page, then the same
//! ```
//! # Once
//! A request is executed when it is taken, and each frame is taken once, whatever
//! the wire does. One whose page is absent waits here, as a whole; it has touched
//! nothing. If the conversation ends first, it is dropped, and its issuer learns
//! that the peer is gone: then it was executed once or not at all.
//!
//! # Atomic
//! A word is changed by one atomic access to memory, so it is atomic to the owner's
//! processors too. A wait queue is read, changed and written; that is atomic
//! because only this NIC does it, and one at a time.

use qnic_abi::atomic::{Function, WaitQueue};
use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::{Access, Key, Port, SegmentId, Status, VniId, PAGE_SIZE};
use zerocopy::{FromZeros, IntoBytes};

use crate::counters::Role;
use crate::env::{Change, Host, HostMemory, OutOfRange, Payload, Time, Width, Wire};
use crate::fault::{Need, Waiter};
use crate::nic::{Io, Nic};
use crate::operation::{OperationId, Piece};
use crate::page_table::unlock_page_dirty;
use crate::run::PageError;
use crate::segment::PageKey;
use crate::transport::{header, PeerIndex, READ_WINDOW};
use crate::wait_queue::{execute, Outcome};

/// A request of a peer that was not executed yet.
#[derive(Debug)]
pub(crate) struct AtomicJob {
    pub(crate) peer: PeerIndex,
    /// Port of the issuer.
    port: Port,
    owner: Port,
    operation: OperationId,
    sequence: u64,
    address: u64,
    length: u64,
    segment: SegmentId,
    key: Key,
    function: u32,
    operands: [u64; 2],
}

impl AtomicJob {
    fn new(peer: PeerIndex, frame: &FrameHeader) -> Self {
        AtomicJob {
            peer,
            port: Port(frame.source_port.get()),
            owner: Port(frame.destination_port.get()),
            operation: OperationId(frame.operation.get()),
            sequence: frame.sequence.get(),
            address: frame.address.get(),
            length: frame.length.get(),
            segment: SegmentId(frame.segment.get()),
            key: Key(frame.key.get()),
            function: frame.notification.get(),
            operands: [frame.argument.get(), frame.offset.get()],
        }
    }

    /// Says whether a process of a peer has asked for it.
    pub(crate) fn is_of(&self, peer: PeerIndex, port: Port) -> bool {
        self.peer == peer && self.port == port
    }

    /// Number of the frame that asked for it.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// Why a request is not executed.
enum Unexecuted {
    Refused(Status),
    /// It has to wait for its page.
    Absent(VniId),
}

impl Nic {
    /// One turn of an atomic command: its request.
    pub(crate) fn send_atomic<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
    ) {
        let Some((mut header, index)) = self.prepare_atomic(vni, slot) else {
            return;
        };
        if !self.transmit(io, index, &mut header, Payload::None) {
            self.fail_operation(io.host, vni, slot, Status::NoSuchNode);
            return self.peer_unreachable(io.now, io.host, index);
        }
        self.peers[index].reads += 1;
        if let Some(process) = self.process(vni) {
            let operation = process.operations.get_mut(slot);
            let piece = operand(operation.command.length);
            operation.requested.push(piece);
            operation.advance(piece);
        }
        self.reconsider(io.host, vni, slot);
    }

    fn prepare_atomic(&mut self, vni: VniId, slot: u8) -> Option<(FrameHeader, PeerIndex)> {
        let process = self.processes[usize::from(vni.0)].as_deref_mut()?;
        process.operations.set_ready(slot, false);
        let operation = process.operations.get_mut(slot);
        let index = operation.peer;
        let peer = &mut self.peers[index];
        if !peer.is_ready() || peer.reads >= READ_WINDOW {
            operation.blocked = true;
            peer.blocked_reads.push(operation.id);
            if !peer.is_ready() {
                self.peers.introduce(index);
            }
            return None;
        }
        let command = &operation.command;
        let atomic = command.atomic?;
        let mut header = header(FrameKind::Atomic);
        header.source_port = process.port.0.into();
        header.destination_port = command.remote.port.0.into();
        header.segment = command.remote.segment.0.into();
        header.key = command.remote.key.0.into();
        header.address = command.remote.address.into();
        header.operation = operation.id.0.into();
        header.length = command.length.into();
        header.notification = (atomic.function as u32).into();
        header.argument = atomic.operands[0].into();
        header.offset = atomic.operands[1].into();
        Some((header, index))
    }

    /// Takes a request of a peer.
    pub(crate) fn take_atomic<H: Host>(&mut self, host: &H, index: PeerIndex, frame: &FrameHeader) {
        let job = AtomicJob::new(index, frame);
        match self.try_atomic(host, &job) {
            Ok(outcome) => self.answer_atomic(&job, outcome),
            Err(Unexecuted::Refused(status)) => self.refuse_atomic(&job, status),
            Err(Unexecuted::Absent(vni)) => self.wait_atomic(vni, Box::new(job)),
        }
    }

    /// Tries again to execute a request; `failed` says that its page will never be there.
    pub(crate) fn retry_atomic<H: Host>(
        &mut self,
        host: &H,
        job: Box<AtomicJob>,
        failed: Option<Status>,
    ) {
        let tried = match failed {
            None => self.try_atomic(host, &job),
            Some(status) => Err(Unexecuted::Refused(status)),
        };
        match tried {
            Ok(outcome) => self.answer_atomic(&job, outcome),
            Err(Unexecuted::Refused(status)) => self.refuse_atomic(&job, status),
            Err(Unexecuted::Absent(vni)) => self.wait_atomic(vni, job),
        }
    }

    fn wait_atomic(&mut self, vni: VniId, job: Box<AtomicJob>) {
        let limit = self.config.limits.replies as usize;
        let process = self.process(vni);
        if process.is_none_or(|process| process.replies_held() >= limit) {
            return self.refuse_atomic(&job, Status::Exhausted);
        }
        let need = Need::new(job.address, job.length);
        self.wait_for_page(vni, need, Waiter::Atomic(job));
    }

    /// Executes a request, if it may be and its page is there.
    fn try_atomic<H: Host>(&mut self, host: &H, job: &AtomicJob) -> Result<Outcome, Unexecuted> {
        let (vni, function, key) = self.check_atomic(job).map_err(|status| {
            self.counters.refused(status);
            Unexecuted::Refused(status)
        })?;
        let page = match self.lock(host, vni, job.address, key, Role::Destination) {
            Ok(page) => page,
            Err(PageError::Absent) => return Err(Unexecuted::Absent(vni)),
            Err(PageError::Refused(status)) => return Err(Unexecuted::Refused(status)),
        };
        let address = page.address() + job.address % PAGE_SIZE as u64;
        let outcome = match word_change(function, job.operands) {
            Some(change) => {
                let width = match job.length {
                    4 => Width::Four,
                    _ => Width::Eight,
                };
                let before = host.memory().modify(address, width, change);
                before.map(Outcome::word)
            }
            None => change_queue(host.memory(), address, function, job.operands[0]),
        };
        unlock_page_dirty(host.sram(), &self.geometry, page);
        let outcome = outcome.map_err(|_| Unexecuted::Refused(Status::PageUnavailable))?;
        self.counters.atomics += 1;
        Ok(outcome)
    }

    /// Checks what a request says of its operand (N11).
    fn check_atomic(&self, job: &AtomicJob) -> Result<(VniId, Function, PageKey), Status> {
        let vni = self.vni_of(job.owner).ok_or(Status::NoSuchPort)?;
        let process = self.processes[usize::from(vni.0)].as_deref();
        let process = process.ok_or(Status::NoSuchPort)?;
        let function = Function::try_from(job.function).map_err(|_| Status::Malformed)?;
        if !function.takes(job.length) {
            return Err(Status::BadLength);
        }
        let segment = process.segments.authorise(
            job.segment,
            job.key,
            Access::READ | Access::WRITE,
            job.address,
            job.length,
        )?;
        match job.address % job.length {
            0 => Ok((vni, function, segment.page_key)),
            _ => Err(Status::Misaligned),
        }
    }

    fn answer_atomic(&mut self, job: &AtomicJob, outcome: Outcome) {
        let mut reply = header(FrameKind::AtomicReply);
        reply.destination_port = job.port.0.into();
        reply.operation = job.operation.0.into();
        reply.argument = outcome.value.into();
        reply.length = outcome.detail.into();
        self.peers.answer(job.peer, reply);
    }

    fn refuse_atomic(&mut self, job: &AtomicJob, status: Status) {
        let mut nak = header(FrameKind::Nak);
        nak.destination_port = job.port.0.into();
        nak.operation = job.operation.0.into();
        nak.argument = job.sequence.into();
        nak.status = status.code().into();
        self.peers.answer(job.peer, nak);
    }

    /// Takes the result of an operation that this node has asked for.
    pub(crate) fn take_atomic_reply<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
    ) {
        let id = OperationId(frame.operation.get());
        let Some(operation) = self.operation_at(id, index) else {
            return;
        };
        let Some(atomic) = operation.command.atomic else {
            return;
        };
        if operation.requested.pop().is_none() {
            return;
        }
        let outcome = Outcome {
            value: frame.argument.get(),
            detail: frame.length.get(),
        };
        if let Some(process) = self.process(id.vni()) {
            let area = &process.host_area;
            area.store_result(host.memory(), atomic.record, outcome);
        }
        self.reconsider(host, id.vni(), id.slot());
        self.reads_answered(host, index, 1);
        self.heat(id.vni(), Some(now));
    }
}

/// The operand of an atomic command as the piece that its request asks for.
fn operand(length: u64) -> Piece {
    Piece {
        offset: 0,
        length: length as u32,
    }
}

/// What a function does to a word; `None` if it works on a wait queue.
fn word_change(function: Function, [first, second]: [u64; 2]) -> Option<Change> {
    match function {
        Function::TestAndSet => Some(Change::CompareSwap {
            expected: 0,
            new: 1,
        }),
        Function::Increment => Some(Change::Add(1)),
        Function::Decrement => Some(Change::Add(u64::MAX)),
        Function::Swap => Some(Change::Swap(first)),
        Function::CompareSwap => Some(Change::CompareSwap {
            expected: second,
            new: first,
        }),
        Function::FetchAdd => Some(Change::Add(first)),
        Function::Enqueue
        | Function::Dequeue
        | Function::NewHead
        | Function::SemaphoreP
        | Function::SemaphoreV => None,
    }
}

fn change_queue<M: HostMemory>(
    memory: &M,
    address: u64,
    function: Function,
    entry: u64,
) -> Result<Outcome, OutOfRange> {
    let mut queue = WaitQueue::new_zeroed();
    memory.read(address, queue.as_mut_bytes())?;
    let outcome = execute(&mut queue, function, entry);
    memory.write(address, queue.as_bytes())?;
    Ok(outcome)
}
