//! Atomic operations (N20, N22, N24): requesting one, and executing it where the memory
//! is.
//!
//! ```text
//!   requester                                responder
//!   its turn ──────────────── AtomicRequest ─► keys, lockPage, change, unlockPageDirty
//!   result, completion ◄───────── AtomicResponse ┘     │ page absent
//!                                                      └─► waits for the page, then the same
//! ```
//! # Once
//! A request is executed when it is received, and each frame is received once, whatever the wire
//! does. A request whose page is absent waits without having touched anything. If the session ends
//! first, the request is dropped and its requester learns that the peer is gone: it cannot tell
//! whether the request was executed once or not at all.
//!
//! # Atomic
//! A word is changed by one atomic access to memory, which is atomic also to the processors of the
//! responder. What no instruction of a processor does is computed, and tried again a bounded number
//! of times if the word has changed meanwhile ([`Status::Contended`]). A wait queue is read, changed
//! and written: this is atomic because only this NIC does it, one request at a time.

mod wait_queue;

use std::cmp::Ordering;

use qnic_abi::atomic::{
    kind, AtomicCommand, AtomicRequest, AtomicResponse, Function, WaitQueue, OPCODE,
};
use qnic_abi::host_area::RESULT_RECORDS;
use qnic_abi::wire::Frame;
use qnic_abi::{Access, Key, SegmentId, Status, VniId, PAGE_SIZE};
use zerocopy::{FromZeros, IntoBytes};

use super::protocol::{Context, Ended, Ends, Outgoing, Protocol, Received, Turn};
use crate::core::{Core, Counter, Fetched, LookupSide, PageError, PageKey, PageRange, PerProcess};
use crate::env::{Change, Host, HostMemory, ModifyError, Number, OutOfRange, Width};
use crate::frame::Arrival;
use crate::ids::OperationId;
use crate::stages::Kind;
use crate::transport::Window;
use wait_queue::{execute, Outcome};

/// Where an operation of this node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unsent,
    Requested,
    Answered,
}

/// An operation of this node.
#[derive(Debug, Clone, Copy)]
struct Operation {
    state: State,
    request: AtomicRequest,
    place: Place,
    /// What it has brought.
    result: [u64; 2],
}

/// Where the result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Record(u16),
    /// The completion with this handle.
    Completion(u64),
}

/// The operations of one process, by slot of the core's, as many as were needed.
#[derive(Debug, Default)]
struct Operations(Vec<Option<Operation>>);

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct AtomicProtocol {
    processes: PerProcess<Operations>,
}

/// From a descriptor to a request and the place of its result.
fn check_command(raw: &AtomicCommand, inline: [u64; 2]) -> Result<(AtomicRequest, Place), Status> {
    let reserved = raw.reserved.iter().any(|word| word.get() != 0);
    let place = match (raw.handle.get(), raw.record.get()) {
        (0, record) if usize::from(record) < RESULT_RECORDS => Place::Record(record),
        (0, _) => return Err(Status::Malformed),
        (handle, 0) => Place::Completion(handle),
        _ => return Err(Status::Malformed),
    };
    let function = Function::try_from(raw.function.get()).map_err(|_| Status::Malformed)?;
    if reserved || raw.header.inline_length != function.inline_length() {
        return Err(Status::Malformed);
    }
    if !function.takes(raw.length.get().into()) {
        return Err(Status::BadLength);
    }
    let [first, second] = raw.operands;
    let [third, fourth] = match function.inline_length() {
        0 => [0; 2],
        _ => inline,
    };
    let request = AtomicRequest {
        address: raw.remote_address,
        key: raw.remote_key,
        operands: [first, second, third.into(), fourth.into()],
        length: raw.length,
        function: raw.function,
        segment: raw.remote_segment,
    };
    Ok((request, place))
}

/// Checks what a request says of its operand (N11).
fn check_request(
    core: &Core,
    port: u16,
    request: &AtomicRequest,
) -> Result<(VniId, Function, PageKey), Status> {
    let (vni, process) = core.process_on(port)?;
    let function = Function::try_from(request.function.get()).map_err(|_| Status::Malformed)?;
    let length = request.length.get().into();
    if !function.takes(length) {
        return Err(Status::BadLength);
    }
    let address = request.address.get();
    let segment = process.segments.authorise(
        SegmentId(request.segment.get()),
        Key(request.key.get()),
        Access::READ | Access::WRITE,
        address,
        length,
    )?;
    match address % length {
        0 => Ok((vni, function, segment.page_key)),
        _ => Err(Status::Misaligned),
    }
}

impl AtomicProtocol {
    fn operation(&mut self, id: OperationId) -> Option<&mut Operation> {
        let operations = &mut self.processes.get(id.vni())?.0;
        operations.get_mut(usize::from(id.slot()))?.as_mut()
    }

    /// Executes a request, if it may be and its page is there.
    fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Result<Outcome, Received> {
        let request: AtomicRequest = arrival.body();
        let port = arrival.frame.envelope.destination_port.get();
        let (vni, function, key) = check_request(cx.core, port, &request).map_err(|status| {
            cx.core.counters.refused(status);
            Received::Refuse(status)
        })?;
        let (address, length) = (request.address.get(), u64::from(request.length.get()));
        let side = LookupSide::Destination;
        let page = match cx.core.lock(cx.host, vni, address, key, side) {
            Ok(page) => page,
            Err(PageError::Absent) => {
                return Err(Received::Wait(vni, PageRange::new(address, length, side)));
            }
            Err(PageError::Refused(status)) => return Err(Received::Refuse(status)),
        };
        let at = page.address() + address % PAGE_SIZE as u64;
        let operands = request.operands.map(|operand| operand.get());
        let memory = cx.host.memory();
        let outcome = match word_change(function, operands) {
            Some(change) => {
                let width = match length {
                    4 => Width::Four,
                    _ => Width::Eight,
                };
                memory.modify(at, width, change).map(Outcome::word)
            }
            None => {
                let [first, second, ..] = operands;
                let changed = change_queue(memory, at, function, [first, second]);
                changed.map_err(ModifyError::from)
            }
        };
        cx.core.unlock_dirty(cx.host, page);
        let outcome = outcome.map_err(|error| {
            Received::Refuse(match error {
                ModifyError::OutOfRange => Status::PageUnavailable,
                ModifyError::Contended => Status::Contended,
            })
        })?;
        cx.core.counters.atomics += 1;
        Ok(outcome)
    }

    fn receive_request<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let outcome = match self.execute(cx, arrival) {
            Ok(outcome) => outcome,
            Err(received) => return received,
        };
        let mut response = Frame::new(&AtomicResponse {
            value: outcome.value.into(),
            detail: outcome.detail.into(),
        });
        response.envelope.destination_port = arrival.frame.envelope.source_port;
        response.envelope.operation = arrival.frame.envelope.operation;
        cx.transport.send_control(arrival.peer, response);
        Received::Done
    }

    /// Receives the result of an operation that this node has asked for.
    fn receive_response<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let id = arrival.operation();
        if cx.core.operation_with(id, Self::ID, arrival.peer).is_none() {
            return;
        }
        let Some(operation) = self.operation(id) else {
            return;
        };
        if std::mem::replace(&mut operation.state, State::Answered) != State::Requested {
            return;
        }
        let body: AtomicResponse = arrival.body();
        operation.result = [body.value.get(), body.detail.get()];
        if let (Place::Record(record), Some(process)) = (operation.place, cx.core.process(id.vni()))
        {
            let area = &process.host_area;
            area.store_result(cx.host.memory(), record, operation.result);
        }
        self.update(cx, id);
        cx.transport.answered(arrival.peer, 1);
        cx.core.activate(id.vni(), Some(cx.now));
    }
}

impl Protocol for AtomicProtocol {
    const OPERATIONS: Kind = Kind::Atomic;
    const OPCODES: &'static [u8] = &[OPCODE];
    const KINDS: &'static [u8] = &[kind::ATOMIC_REQUEST, kind::ATOMIC_RESPONSE];
    const RESPONSES: &'static [u8] = &[kind::ATOMIC_RESPONSE];

    fn describe(command: &Fetched) -> Option<(u64, u64)> {
        let atomic: AtomicCommand = command.descriptor.read();
        Some((atomic.length.get().into(), atomic.function.get().into()))
    }

    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::ATOMIC_REQUEST => frame.is::<AtomicRequest>(),
            _ => frame.is::<AtomicResponse>(),
        }
    }

    #[inline(never)] // It would cost transfers registers.
    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let [third, fourth, ..] = fetched.inline;
        let (request, place) = check_command(&fetched.descriptor.read(), [third, fourth])?;
        let header = &fetched.descriptor.header;
        let peer = fetched.peer;
        let Some(id) = cx
            .core
            .begin((vni, Self::ID), (Counter::Reads, false), header, peer)
        else {
            return Ok(());
        };
        let state = State::Unsent;
        let operation = Operation {
            state,
            request,
            place,
            result: [0; 2],
        };
        if let Place::Completion(handle) = place {
            cx.core.set_handle(id, handle);
        }
        let operations = self.processes.get_or_insert(vni);
        let slot = usize::from(id.slot());
        if slot >= operations.0.len() {
            operations.0.resize(slot + 1, None);
        }
        operations.0[slot] = Some(operation);
        let wraps = request
            .address
            .get()
            .checked_add(request.length.get().into());
        match (wraps, peer) {
            (None, _) => {
                cx.core.counters.refused(Status::BadAddress);
                self.fail(cx, id, Status::BadAddress);
            }
            (Some(_), None) => self.fail(cx, id, Status::NoSuchNode),
            (Some(_), Some(_)) => self.update(cx, id),
        }
        Ok(())
    }

    #[inline(never)] // It would cost transfers registers.
    fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some(ends) = Ends::of(cx.core, id) else {
            return Turn::Idle;
        };
        if !cx.transport.has_request_room(ends.peer) {
            return Turn::Blocked(ends.peer, Window::Requests);
        }
        let Some(operation) = self.operation(id) else {
            return Turn::Idle;
        };
        ends.begin(outgoing, &operation.request);
        Turn::Send
    }

    #[inline(never)] // It would cost transfers registers.
    fn sent<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, outgoing: &Outgoing) {
        if let Some(operation) = self.operation(id) {
            operation.state = State::Requested;
            cx.transport.requested(outgoing.peer, 1);
        }
    }

    #[inline(never)] // It would cost transfers registers.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        match arrival.frame.envelope.kind {
            kind::ATOMIC_REQUEST => self.receive_request(cx, arrival),
            _ => {
                self.receive_response(cx, arrival);
                Received::Done
            }
        }
    }

    fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let Some(Operation { state, result, .. }) = self.operation(id).copied() else {
            return;
        };
        let Some(operation) = cx.core.operation(id) else {
            return;
        };
        match (operation.failure, state) {
            (Some(status), _) => cx.core.finish(cx.host, id, status),
            (None, State::Answered) => cx.core.finish_with(cx.host, id, Status::Ok, result.into()),
            (None, State::Unsent) => {
                let ready = operation.may_send();
                cx.core.set_ready(id, ready);
            }
            (None, State::Requested) => {}
        }
    }

    fn refused<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        _sequence: u64,
        status: Status,
    ) {
        let operation = self.operation(id);
        if operation.is_some_and(|operation| operation.state == State::Requested) {
            self.fail(cx, id, status);
        }
    }

    fn fail<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        let Some(operation) = cx.core.operation(id) else {
            return;
        };
        let peer = operation.peer;
        operation.fail(status);
        if matches!(status, Status::Aborted | Status::PeerGone) {
            cx.core.counters.aborted += 1;
        }
        let requested = self
            .operation(id)
            .is_some_and(|operation| operation.state == State::Requested);
        self.update(cx, id);
        if requested {
            cx.transport.answered(peer, 1);
        }
    }

    fn lost<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let state = self.operation(id).map(|operation| {
            // No answer will come.
            std::mem::replace(&mut operation.state, State::Unsent)
        });
        let status = match state {
            Some(State::Unsent) => Status::NoSuchNode,
            _ => Status::PeerGone,
        };
        self.fail(cx, id, status);
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        let (Ended::Operations(vni) | Ended::Process(vni)) = ended else {
            return;
        };
        let Some(slots) = self.processes.take(vni) else {
            return;
        };
        cx.forget_requests(vni, Self::ID, |id| {
            let slot = slots.0.get(usize::from(id.slot())).copied().flatten();
            slot.is_some_and(|slot| slot.state == State::Requested)
                .into()
        });
    }
}

/// What a function does to a word; `None` if it works on a wait queue.
fn word_change(function: Function, [x, y, z, t]: [u64; 4]) -> Option<Change> {
    let lesser = |number| Change::Extreme(number, Ordering::Less, x);
    let greater = |number| Change::Extreme(number, Ordering::Greater, x);
    let change = match function {
        Function::TestAndSet => Change::CompareSwap {
            expected: 0,
            new: 1,
        },
        Function::Increment => Change::Add(1),
        Function::Decrement => Change::Add(u64::MAX),
        Function::Swap => Change::Swap(x),
        Function::CompareSwap => Change::CompareSwap {
            expected: y,
            new: x,
        },
        Function::MaskedCompareSwap => Change::MaskedCompareSwap {
            expected: (y, z),
            new: (x, t),
        },
        Function::FetchAdd => Change::Add(x),
        Function::And => Change::And(x),
        Function::Or => Change::Or(x),
        Function::Xor => Change::Xor(x),
        Function::Min => lesser(Number::Unsigned),
        Function::Max => greater(Number::Unsigned),
        Function::MinSigned => lesser(Number::Signed),
        Function::MaxSigned => greater(Number::Signed),
        Function::AddFloat => Change::AddFloat(x),
        Function::MinFloat => lesser(Number::Float),
        Function::MaxFloat => greater(Number::Float),
        Function::Enqueue
        | Function::Dequeue
        | Function::NewHead
        | Function::SemaphoreP
        | Function::SemaphoreV
        | Function::Reset => return None,
    };
    Some(change)
}

fn change_queue<M: HostMemory>(
    memory: &M,
    address: u64,
    function: Function,
    operands: [u64; 2],
) -> Result<Outcome, OutOfRange> {
    let mut queue = WaitQueue::new_zeroed();
    memory.read(address, queue.as_mut_bytes())?;
    let outcome = execute(&mut queue, function, operands);
    memory.write(address, queue.as_bytes())?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::command::CommandBody;

    #[test]
    fn commands_have_a_function_operands_and_a_record() {
        let command = || {
            let mut raw = AtomicCommand::command();
            raw.function = (Function::CompareSwap as u16).into();
            raw.operands = [5.into(), 6.into()];
            raw.length = 8.into();
            raw.record = 63.into();
            raw
        };
        let (request, place) = check_command(&command(), [0; 2]).unwrap();
        assert_eq!(request.operands.map(|operand| operand.get()), [5, 6, 0, 0]);
        assert_eq!(place, Place::Record(63));
        let mut told = command();
        (told.record, told.handle) = (0.into(), 9.into());
        assert_eq!(
            check_command(&told, [0; 2]).unwrap().1,
            Place::Completion(9)
        );
        let malformed: [fn(&mut AtomicCommand); 7] = [
            |raw| raw.function = 0.into(),
            |raw| raw.function = 24.into(),
            |raw| raw.function = (Function::MaskedCompareSwap as u16).into(),
            |raw| raw.record = (RESULT_RECORDS as u16).into(),
            |raw| raw.header.inline_length = 1,
            |raw| raw.reserved[2] = 1.into(),
            |raw| raw.handle = 1.into(),
        ];
        for change in malformed {
            let mut raw = command();
            change(&mut raw);
            assert_eq!(check_command(&raw, [0; 2]).err(), Some(Status::Malformed));
        }
        for length in [0, 1, 16, 32] {
            let mut raw = command();
            raw.length = length.into();
            assert_eq!(check_command(&raw, [0; 2]).err(), Some(Status::BadLength));
        }
    }
}
