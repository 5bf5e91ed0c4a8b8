//! Remote memory access (N9 to N11, N13, N14, N16, N18): writes and reads at both ends.
//!
//! ```text
//!   requester                                    responder
//!   its turn: lockPage ──── Write ─────────────► port, segment, key, access, range,
//!                                                lockPage, copy, unlockPageDirty, notify
//!   own pages there? ────── ReadRequest ───────► queued; its turn: the same checks,
//!   lockPage, copy, unlockPageDirty ◄─────────── ReadResponse ─ lockPage, send, unlock
//! ```
//! | module | holds |
//! |---|---|
//! | `command` | from a descriptor to a checked command |
//! | `fence` | telling when sources may be reused |
//! | `transfer` | what has been sent and what has come of one operation, and the order of writes |
//! | `write` | writes at both ends |
//! | `read` | reads at both ends |
//!
//! A page span that arrives is received as far as possible together:
//! ```text
//!   fragments   ■ ■ ■ ■ ■ □ ■ ■ N
//!               └───┬───┘ │ └┬┘ └── each by itself: as if it had come in a frame of
//!               together  │ together     its own
//!                         └── by itself: its page is absent
//! ```

mod command;
mod fence;
mod read;
mod transfer;
mod write;

use std::ops::{Index, IndexMut};

use command::Command;
use fence::Fences;
use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::rdma::{
    kind, FenceCommand, Opcode, ReadCommand, ReadRequest, ReadResponse, Write, WriteCommand,
};
use qnic_abi::wire::Frame;
use qnic_abi::{Access, Key, NodeId, Port, SegmentId, Status, VniId, PAGE_SIZE};
use transfer::{Next, Notice, Streams, Transfer};

use super::protocol::{Context, Ended, Outgoing, Protocol, Received, Turn};
use crate::core::{Core, Counter, Fetched, PageKey, PerProcess, CHUNK};
use crate::env::Host;
use crate::frame::{Arrival, StoredFrame};
use crate::ids::OperationId;
use crate::stages::Kind;

/// The transfers of one process, by slot of their operation.
#[derive(Debug, Default)]
struct Transfers {
    /// As many chunks of slots as were needed.
    chunks: Vec<Box<[Transfer; CHUNK]>>,
    streams: Streams,
    fences: Fences,
}

impl Index<OperationId> for Transfers {
    type Output = Transfer;

    #[inline]
    fn index(&self, id: OperationId) -> &Transfer {
        let slot = usize::from(id.slot());
        &self.chunks[slot / CHUNK][slot % CHUNK]
    }
}

impl IndexMut<OperationId> for Transfers {
    #[inline]
    fn index_mut(&mut self, id: OperationId) -> &mut Transfer {
        in_slot(&mut self.chunks, id.slot())
    }
}

/// The transfer in a slot.
#[inline]
fn in_slot(chunks: &mut [Box<[Transfer; CHUNK]>], slot: u16) -> &mut Transfer {
    let slot = usize::from(slot);
    &mut chunks[slot / CHUNK][slot % CHUNK]
}

impl Transfers {
    /// Makes room for a slot.
    #[inline]
    fn reserve(&mut self, id: OperationId) {
        while self.chunks.len() <= usize::from(id.slot()) / CHUNK {
            self.chunks.push(new_chunk());
        }
    }

    /// Lets an operation send or ends it, as things stand now.
    #[inline]
    fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let process = cx.core.process(id.vni());
        let Some(operation) = process.and_then(|process| process.operations.get(id)) else {
            return;
        };
        let transfer = &self[id];
        let first = transfer.notice == Notice::Pending && self.streams.is_first(id.slot());
        match transfer.next(operation, first) {
            Next::Send => cx.core.set_ready(id, true),
            Next::Wait => cx.core.set_ready(id, false),
            Next::Finish(status) => {
                if !self.fences.is_empty() {
                    self.source_read(cx, id);
                }
                cx.core.finish(cx.host, id, status);
                // One that has not failed was settled when its last frame was sent.
                if status != Status::Ok && self[id].command.opcode == Opcode::Write {
                    self.settle(cx, id);
                }
            }
        }
    }

    /// Lets later writes notify: all of this one was sent, or it has ended.
    #[inline]
    fn settle<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let Some(slot) = self.streams.settle(id.slot()) else {
            return;
        };
        if in_slot(&mut self.chunks, slot).notice == Notice::Pending {
            let process = cx.core.process(id.vni());
            let next = process.and_then(|process| process.operations.in_slot(slot));
            if let Some(next) = next {
                self.update(cx, next);
            }
        }
    }

    /// Gives an operation up. What is in flight is still waited for.
    fn fail<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        let Some(operation) = cx.core.operation(id) else {
            return;
        };
        let peer = operation.peer;
        operation.fail(status);
        let requests = self[id].fail();
        if !self.fences.is_empty() && !cx.core.has_kept() {
            self.source_read(cx, id);
        }
        if matches!(status, Status::Aborted | Status::PeerGone) {
            cx.core.counters.aborted += 1;
        }
        self.update(cx, id);
        if requests > 0 {
            cx.transport.answered(peer, requests);
        }
    }
}

#[cold]
fn new_chunk() -> Box<[Transfer; CHUNK]> {
    // Made on the heap: together they are too large for a small stack.
    let slots: Box<[_]> = (0..CHUNK).map(|_| Transfer::unused()).collect();
    slots.try_into().expect("as many as there are slots")
}

/// State of the protocol: the transfers of every process.
#[derive(Debug, Default)]
pub(super) struct Rdma {
    processes: PerProcess<Transfers>,
}

/// Checks what a command says of its own side (N11), and that the remote range does not
/// wrap around. Returns how the local pages are found.
fn check_local(core: &Core, vni: VniId, command: &Command) -> Result<PageKey, Status> {
    let remote_end = command.remote.address.checked_add(command.length);
    remote_end.ok_or(Status::BadAddress)?;
    if !command.has_local() {
        return Ok(PageKey::Table(Key(0)));
    }
    let process = core.process(vni).ok_or(Status::NoSuchVni)?;
    let local = &command.local;
    let segment = process.segments.authorise(
        local.segment,
        local.key,
        Access::empty(),
        local.address,
        command.length,
    )?;
    Ok(segment.page_key)
}

impl Protocol for Rdma {
    const OPERATIONS: Kind = Kind::Write;
    const OPCODES: &'static [u8] = &[Opcode::Write as u8, Opcode::Read as u8, Opcode::Fence as u8];
    const KINDS: &'static [u8] = &[kind::WRITE, kind::READ_REQUEST, kind::READ_RESPONSE];
    const RESPONSES: &'static [u8] = &[kind::READ_RESPONSE];
    const UNANSWERED: &'static [u8] = &[kind::WRITE];

    fn kind_of_command(command: &Descriptor) -> Kind {
        match command.header.opcode {
            ReadCommand::OPCODE => Kind::Read,
            FenceCommand::OPCODE => Kind::Fence,
            _ => Kind::Write,
        }
    }

    fn kind_of_frame(kind: u8) -> Kind {
        match kind {
            kind::WRITE => Kind::Write,
            _ => Kind::Read,
        }
    }

    fn describe(command: &Fetched) -> Option<(u64, u64)> {
        let descriptor = &command.descriptor;
        let length = match descriptor.header.opcode {
            FenceCommand::OPCODE => return None,
            ReadCommand::OPCODE => descriptor.read::<ReadCommand>().length,
            _ => descriptor.read::<WriteCommand>().length,
        };
        Some((length.get(), 0))
    }

    #[inline]
    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::WRITE => frame.is::<Write>(),
            kind::READ_REQUEST => frame.is::<ReadRequest>(),
            _ => frame.is::<ReadResponse>(),
        }
    }

    #[inline]
    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let command = match Command::try_from(&fetched.descriptor) {
            Ok(command) => command,
            Err(status) => return self.fence(cx, vni, &fetched.descriptor, status),
        };
        let header = &fetched.descriptor.header;
        let counter = match command.opcode {
            Opcode::Write => Counter::Writes,
            Opcode::Read | Opcode::Fence => Counter::Reads,
        };
        let node = NodeId(header.remote_node.get());
        let peer = fetched.peer;
        // Its page and its window are looked at in its turn.
        let ready = peer.is_some() && command.has_frame();
        let Some(id) = cx
            .core
            .begin((vni, Self::ID), (counter, ready), header, peer)
        else {
            return Ok(());
        };
        if command.handle != 0 {
            cx.core.set_handle(id, command.handle);
        }
        let transfers = self.processes.get_or_insert(vni);
        transfers.reserve(id);
        if command.opcode == Opcode::Write {
            transfers.streams.join(node, id.slot());
        }
        let transfer = &mut transfers[id];
        transfer.begin(command);
        if command.inline {
            transfer.inline = fetched.inline.map(u64::to_le);
        }
        let checked = check_local(cx.core, vni, &command);
        match checked.and_then(|page_key| peer.and(Some(page_key)).ok_or(Status::NoSuchNode)) {
            Ok(page_key) => {
                transfer.page_key = page_key;
                if !ready {
                    transfers.update(cx, id);
                }
            }
            Err(status) => {
                cx.core.counters.refused(status);
                transfers.fail(cx, id, status);
            }
        }
        Ok(())
    }

    #[inline]
    fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some(transfers) = self.processes.get(id.vni()) else {
            return Turn::Idle;
        };
        match transfers[id].command.opcode {
            Opcode::Write => transfers.write_turn(cx, id, budget, outgoing),
            Opcode::Read | Opcode::Fence => transfers.read_turn(cx, id, outgoing),
        }
    }

    fn respond<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        request: &StoredFrame,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        read::respond(cx, vni, request, budget, outgoing)
    }

    #[inline]
    fn sent<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, outgoing: &Outgoing) {
        let Some(transfers) = self.processes.get(id.vni()) else {
            return;
        };
        match outgoing.frame.envelope.kind {
            kind::WRITE => transfers.write_sent(cx, id, outgoing),
            _ => transfers.read_sent(cx, id, outgoing),
        }
    }

    fn responded<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        request: &mut StoredFrame,
        outgoing: &Outgoing,
    ) -> bool {
        let port = Port(request.frame.envelope.destination_port.get());
        match cx.core.vni_of(port) {
            Some(vni) => cx.core.count_sent(vni, outgoing.length),
            // It has ended within the call that has sent the frame.
            None => cx.core.counters.bytes_sent += outgoing.length as u64,
        }
        read::advance_request(&mut request.frame, outgoing.length)
    }

    #[inline]
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        match arrival.frame.envelope.kind {
            kind::WRITE => write::receive(cx, arrival),
            kind::READ_RESPONSE => match self.processes.get(arrival.operation().vni()) {
                Some(transfers) => transfers.receive_response(cx, arrival),
                None => Received::Done,
            },
            _ => read::receive_request(cx, arrival),
        }
    }

    fn receive_span<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        match arrival.frame.envelope.kind {
            kind::WRITE => write::receive_span(cx, arrival),
            _ => match self.processes.get(arrival.operation().vni()) {
                Some(transfers) => transfers.receive_responses(cx, arrival),
                None => 0,
            },
        }
    }

    #[inline]
    fn page_offset(frame: &Frame) -> usize {
        match frame.envelope.kind {
            kind::WRITE => frame.body::<Write>().address.get() as usize % PAGE_SIZE,
            _ => frame.body::<ReadResponse>().page_offset.get().into(),
        }
    }

    fn advance(frame: &mut Frame, length: usize) {
        match frame.envelope.kind {
            kind::WRITE => write::advance(frame, length),
            _ => read::advance_response(frame, length),
        }
    }

    fn unavailable<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        status: Status,
    ) -> Received {
        if arrival.frame.envelope.kind != kind::READ_RESPONSE {
            return Received::Refuse(status);
        }
        let id = arrival.operation();
        if cx.core.operation_with(id, Self::ID, arrival.peer).is_some() {
            self.fail(cx, id, status.for_owner());
        }
        Received::Done
    }

    fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        if let Some(transfers) = self.processes.get(id.vni()) {
            transfers.update(cx, id);
        }
    }

    #[inline]
    fn settled<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, fragments: u32) {
        if let Some(transfers) = self.processes.get(id.vni()) {
            match transfers[id].settled(fragments) && transfers.fences.is_empty() {
                true => cx.core.finish(cx.host, id, Status::Ok),
                false => transfers.update(cx, id),
            }
        }
    }

    fn refused<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        sequence: u64,
        status: Status,
    ) {
        let Some(operation) = cx.core.operation(id) else {
            return;
        };
        let peer = operation.peer;
        let Some(transfers) = self.processes.get(id.vni()) else {
            return;
        };
        let transfer = &mut transfers[id];
        if transfer.requested.is_empty() {
            if !cx.transport.refused(peer, sequence, id) {
                return;
            }
            transfer.in_flight = transfer.in_flight.saturating_sub(1);
        }
        transfers.fail(cx, id, status);
    }

    fn fail<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        if let Some(transfers) = self.processes.get(id.vni()) {
            transfers.fail(cx, id, status);
        }
    }

    fn lost<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let Some(transfers) = self.processes.get(id.vni()) else {
            return;
        };
        let transfer = &mut transfers[id];
        // No answer will come.
        transfer.in_flight = 0;
        transfer.requested.clear();
        let status = match transfer.sent {
            0 => Status::NoSuchNode,
            _ => Status::PeerGone,
        };
        transfers.fail(cx, id, status);
    }

    fn uses_segment(&mut self, id: OperationId, segment: SegmentId) -> bool {
        self.processes.get(id.vni()).is_some_and(|transfers| {
            let command = &transfers[id].command;
            command.has_local() && command.local.segment == segment
        })
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        let (Ended::Operations(vni) | Ended::Process(vni)) = ended else {
            return;
        };
        let Some(mut transfers) = self.processes.take(vni) else {
            return;
        };
        cx.forget_requests(vni, Self::ID, |id| transfers[id].fail());
    }
}
