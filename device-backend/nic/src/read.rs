//! RDMA read (N9): asking for pieces, answering, and taking what comes.
//!
//! ```text
//!   reader                                   owner
//!   own page there? ── ReadRequest ────────► job in the owner process's queue
//!                                            its turn: keys, lockPage, send, unlock
//!   lockPage, copy, unlockPageDirty ◄──────── ReadReply
//! ```
//! A source page that is absent parks the job behind a page fault; others of that
//! process go on. A destination page that is absent sends the reply through bounce
//! memory ([`crate::bounce`]). The reader remembers each piece it asked for; a reply that it did not ask for,
//! or no longer waits for, touches nothing.

use qnic_abi::command::Opcode;
use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::{Access, Key, Port, SegmentId, Status, VniId, PAGE_SIZE};

use crate::bounce::PageWork;
use crate::counters::Role;
use crate::env::{Host, HostMemory, Payload, Time, Wire};
use crate::fault::{Need, Waiter};
use crate::nic::{Io, Nic};
use crate::operation::{OperationId, Piece};
use crate::page_table::{unlock_page, unlock_page_dirty};
use crate::segment::{PageKey, Segment, SegmentTable};
use crate::transport::{header, PeerIndex, READ_WINDOW};
use crate::write::PageError;

/// A read request of a peer that waits for its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyJob {
    pub(crate) peer: PeerIndex,
    /// Port of the reader.
    pub(crate) port: Port,
    operation: OperationId,
    sequence: u64,
    piece: Piece,
    address: u64,
    segment: SegmentId,
    key: Key,
    /// Bytes from here to the end of the transfer.
    remaining: u64,
}

impl ReplyJob {
    /// Says whether a process of a peer has asked for it.
    pub(crate) fn is_of(&self, peer: PeerIndex, port: Port) -> bool {
        self.peer == peer && self.port == port
    }

    /// Number of the frame that asked for it.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Checks the whole transfer, not only this piece of it: one that is refused
    /// has touched no memory (N11).
    fn authorise<'a>(&self, segments: &'a SegmentTable) -> Result<&'a Segment, Status> {
        let start = self.address.checked_sub(self.piece.offset);
        let behind = self.remaining.max(u64::from(self.piece.length));
        let whole = self.piece.offset.checked_add(behind);
        segments.authorise(
            self.segment,
            self.key,
            Access::READ,
            start.ok_or(Status::BadAddress)?,
            whole.ok_or(Status::BadLength)?,
        )
    }
}

impl Nic {
    /// One turn of an operation: one frame.
    pub(crate) fn send_for<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
    ) {
        let opcode = self
            .process(vni)
            .map(|process| process.operations.get(slot).command.opcode);
        match opcode {
            Some(Opcode::Write) => self.send_write(io, vni, slot),
            Some(Opcode::Read) => self.send_read(io, vni, slot),
            Some(Opcode::Atomic) => self.send_atomic(io, vni, slot),
            None => {}
        }
    }

    fn send_read<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
    ) {
        let Some((mut header, piece, index)) = self.prepare_read(io.host, vni, slot) else {
            return;
        };
        if !self.transmit(io, index, &mut header, Payload::None) {
            self.fail_operation(io.host, vni, slot, Status::NoSuchNode);
            return self.peer_unreachable(io.now, io.host, index);
        }
        self.peers[index].reads += 1;
        if let Some(process) = self.process(vni) {
            let operation = process.operations.get_mut(slot);
            operation.requested.push(piece);
            operation.advance(piece);
        }
        self.reconsider(io.host, vni, slot);
    }

    /// Chooses the next piece to ask for, and makes sure that it has a place to go.
    fn prepare_read<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        slot: u8,
    ) -> Option<(FrameHeader, Piece, PeerIndex)> {
        let process = self.processes[usize::from(vni.0)].as_deref_mut()?;
        process.operations.set_ready(slot, false);
        let operation = process.operations.get_mut(slot);
        let index = operation.peer;
        let peer = &mut self.peers[index];
        if !peer.is_ready() {
            operation.blocked = true;
            peer.blocked_reads.push(operation.id);
            self.peers.introduce(index);
            return None;
        }
        if peer.reads >= READ_WINDOW {
            operation.blocked = true;
            peer.blocked_reads.push(operation.id);
            return None;
        }
        operation.max_piece = peer.max_payload();
        let piece = operation.piece()?;
        let command = &operation.command;
        let mut header = header(FrameKind::ReadRequest);
        header.source_port = process.port.0.into();
        header.destination_port = command.remote.port.0.into();
        header.segment = command.remote.segment.0.into();
        header.key = command.remote.key.0.into();
        header.address = (command.remote.address + piece.offset).into();
        header.operation = operation.id.0.into();
        header.offset = piece.offset.into();
        header.length = u64::from(piece.length).into();
        header.argument = operation.remaining(piece.offset).into();
        if piece.length > 0 {
            let (address, key) = (command.local.address + piece.offset, operation.page_key);
            match self.lock(host, vni, address, key, Role::Destination) {
                Ok(page) => unlock_page(host.sram(), &self.geometry, page),
                Err(PageError::Absent) => {
                    self.park(vni, slot, address);
                    return None;
                }
                Err(PageError::Refused(status)) => {
                    self.fail_operation(host, vni, slot, status);
                    return None;
                }
            }
        }
        Some((header, piece, index))
    }

    /// Queues a read request of a peer.
    pub(crate) fn take_read_request(&mut self, index: PeerIndex, frame: &FrameHeader) {
        let job = ReplyJob {
            peer: index,
            port: Port(frame.source_port.get()),
            operation: OperationId(frame.operation.get()),
            sequence: frame.sequence.get(),
            piece: Piece {
                offset: frame.offset.get(),
                length: frame.length.get().min(u64::from(u32::MAX)) as u32,
            },
            address: frame.address.get(),
            segment: SegmentId(frame.segment.get()),
            key: Key(frame.key.get()),
            remaining: frame.argument.get(),
        };
        let limit = self.config.limits.replies as usize;
        let blocked = self.peers[index].blocked_replies.len();
        let vni = self.vni_of(Port(frame.destination_port.get()));
        let process = vni.and_then(|vni| self.process(vni));
        let refused = match process {
            None => Status::NoSuchPort,
            Some(_) if !within_page(job.address, u64::from(job.piece.length)) => Status::BadLength,
            Some(process) if process.replies_held() >= limit => Status::Exhausted,
            Some(_) if blocked >= limit => Status::Exhausted,
            Some(process) => {
                process.replies.push_back(job);
                return self.schedule_process(vni.unwrap_or_default());
            }
        };
        self.counters.refused(refused);
        self.refuse_read(&job, refused);
    }

    /// Answers a reader without data.
    pub(crate) fn refuse_read(&mut self, job: &ReplyJob, status: Status) {
        let mut nak = header(FrameKind::Nak);
        nak.destination_port = job.port.0.into();
        nak.operation = job.operation.0.into();
        nak.offset = job.piece.offset.into();
        nak.argument = job.sequence.into();
        nak.status = status.code().into();
        self.peers.answer(job.peer, nak);
    }

    /// One turn of a reader of this process's memory: one frame.
    pub(crate) fn send_reply<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        job: ReplyJob,
    ) {
        let peer = &mut self.peers[job.peer];
        if !peer.send.is_open() {
            peer.blocked_replies.push_back((vni, job));
            return;
        }
        let mut reply = header(FrameKind::ReadReply);
        reply.destination_port = job.port.0.into();
        reply.operation = job.operation.0.into();
        reply.offset = job.piece.offset.into();
        let length = u64::from(job.piece.length);
        let Some(process) = self.process(vni) else {
            return;
        };
        reply.source_port = process.port.0.into();
        let segment = match job.authorise(&process.segments) {
            Ok(segment) => segment,
            Err(status) => {
                self.counters.refused(status);
                return self.refuse_read(&job, status);
            }
        };
        if length == 0 {
            match self.transmit(io, job.peer, &mut reply, Payload::None) {
                true => self.reply_sent(job.peer, 0),
                false => self.peer_unreachable(io.now, io.host, job.peer),
            }
            return;
        }
        let ahead = job.remaining.clamp(length, segment.end() - job.address);
        let key = segment.page_key;
        let need = Need::new(job.address, ahead);
        let page = match self.lock(io.host, vni, job.address, key, Role::Source) {
            Ok(page) => page,
            Err(PageError::Refused(status)) => return self.refuse_read(&job, status),
            Err(PageError::Absent) => {
                return self.wait_for_page(vni, need, Waiter::Reply(job));
            }
        };
        let payload = Payload::Memory {
            memory: io.host.memory(),
            address: page.address() + job.address % PAGE_SIZE as u64,
            length: length as usize,
        };
        let taken = self.transmit(io, job.peer, &mut reply, payload);
        unlock_page(io.host.sram(), &self.geometry, page);
        match taken {
            true => self.reply_sent(job.peer, length),
            false => self.peer_unreachable(io.now, io.host, job.peer),
        }
    }

    fn reply_sent(&mut self, index: PeerIndex, length: u64) {
        self.counters.bytes_sent += length;
        let nobody = OperationId::default();
        self.peers[index].send.sent(nobody);
    }

    /// Takes a piece that this node has asked for.
    pub(crate) fn deliver_read<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) {
        match self.try_reply(host, index, frame, payload) {
            Ok(()) => self.heat(OperationId(frame.operation.get()).vni(), Some(now)),
            Err(absent) => self.bounce::<H>(absent, index, frame, payload, PageWork::Reply),
        }
    }

    /// Places a piece, now or after it was held; one that nobody has asked for, or
    /// waits for any more, touches nothing.
    ///
    /// # Errors
    /// The pages that it has to wait for.
    pub(crate) fn try_reply<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), (VniId, Need)> {
        let id = OperationId(frame.operation.get());
        let (vni, slot) = (id.vni(), id.slot());
        let piece = Piece {
            offset: frame.offset.get(),
            length: payload.len() as u32,
        };
        let Some(operation) = self.operation_at(id, index) else {
            return Ok(());
        };
        if !operation.requested.contains(&piece) {
            return Ok(());
        }
        let address = operation.command.local.address.wrapping_add(piece.offset);
        let need = Need::new(address, operation.remaining(piece.offset));
        let key = operation.page_key;
        let failure = match self.place(host, vni, address, key, payload) {
            Ok(()) => None,
            Err(PageError::Refused(status)) => Some(status),
            Err(PageError::Absent) => return Err((vni, need)),
        };
        if let Some(operation) = self.operation(id) {
            operation.requested.retain(|other| *other != piece);
        }
        match failure {
            None => self.reconsider(host, vni, slot),
            Some(status) => self.fail_operation(host, vni, slot, status),
        }
        self.reads_answered(host, index, 1);
        Ok(())
    }

    /// The place of a piece that was held will never be there.
    pub(crate) fn reply_failed<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        status: Status,
    ) {
        let id = OperationId(frame.operation.get());
        if self.operation_at(id, index).is_some() {
            self.fail_operation(host, id.vni(), id.slot(), status);
        }
    }

    /// Copies a payload into a page of a process, once.
    #[inline]
    pub(crate) fn place<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        address: u64,
        key: PageKey,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), PageError> {
        let length = payload.len();
        if length == 0 {
            return Ok(());
        }
        let page = self.lock(host, vni, address, key, Role::Destination)?;
        let target = page.address() + address % PAGE_SIZE as u64;
        let copied = match payload {
            Payload::None => Ok(()),
            Payload::Bytes(bytes) => host.memory().write(target, bytes),
            Payload::Memory {
                memory, address, ..
            } => host.memory().copy_from(target, memory, *address, length),
        };
        unlock_page_dirty(host.sram(), &self.geometry, page);
        copied.map_err(|_| PageError::Refused(Status::PageUnavailable))?;
        self.counters.bytes_received += length as u64;
        Ok(())
    }
}

/// Says whether a piece of a transfer stays within one page.
pub(crate) fn within_page(address: u64, length: u64) -> bool {
    let page = PAGE_SIZE as u64;
    length <= page && address % page + length <= page
}
