//! RDMA read (N9): asking for pieces, answering, and taking what comes.
//!
//! ```text
//!   reader                                   owner
//!   own pages there? ── ReadRequest ───────► job in the owner process's queue
//!                                            its turn: keys, lockPage, send, unlock
//!   lockPage, copy, unlockPageDirty ◄──────── ReadReply
//! ```
//! A request asks for a run of pieces ([`qnic_abi::wire`]), and is answered by one
//! frame or several, each with some of them. A source page that is absent parks the
//! job behind a page fault; others of that process go on. A destination page that is
//! absent sends its piece through bounce memory ([`crate::bounce`]). The reader
//! remembers each piece it asked for; a reply that it did not ask for, or no longer
//! waits for, touches nothing.

use qnic_abi::command::Opcode;
use qnic_abi::wire::{pieces, FrameHeader, FrameKind, MAX_RUN};
use qnic_abi::{Access, Key, Port, SegmentId, Status, VniId, PAGE_SIZE};

use crate::counters::Role;
use crate::deliver::Arrival;
use crate::env::{Host, Payload, Wire};
use crate::fault::{Need, Waiter};
use crate::nic::{Io, Nic};
use crate::operation::{to_border, OperationId, Piece};
use crate::page_table::unlock_page_dirty;
use crate::run::{Destination, PageError};
use crate::segment::{PageKey, Segment, SegmentTable};
use crate::transport::{header, PeerIndex, READ_WINDOW};

/// A read request of a peer that waits for its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyJob {
    pub(crate) peer: PeerIndex,
    /// Port of the reader.
    pub(crate) port: Port,
    operation: OperationId,
    sequence: u64,
    /// What was not sent yet.
    run: Piece,
    address: u64,
    /// Where in its page the reader puts the first byte.
    place: u64,
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
        let start = self.address.checked_sub(self.run.offset);
        let behind = self.remaining.max(u64::from(self.run.length));
        let whole = self.run.offset.checked_add(behind);
        segments.authorise(
            self.segment,
            self.key,
            Access::READ,
            start.ok_or(Status::BadAddress)?,
            whole.ok_or(Status::BadLength)?,
        )
    }

    /// The pieces that one frame can carry: they touch at most so many pages of
    /// either side.
    fn length_within(&self, pages: u32) -> u32 {
        let borders = to_border(self.address, 0, pages).min(to_border(self.place, 0, pages));
        u64::from(self.run.length).min(borders) as u32
    }

    /// Goes on to what is behind the first `length` bytes, if there is anything.
    fn advance(mut self, length: u32) -> Option<Self> {
        self.run.offset += u64::from(length);
        self.run.length -= length;
        self.address += u64::from(length);
        self.place += u64::from(length);
        self.remaining = self.remaining.saturating_sub(u64::from(length));
        (self.run.length > 0).then_some(self)
    }
}

impl Nic {
    /// One turn of an operation: one frame, of at most `most` pieces of a write.
    /// Returns how many they were.
    pub(crate) fn send_for<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
        most: u32,
    ) -> u32 {
        let opcode = self
            .process(vni)
            .map(|process| process.operations.get(slot).command.opcode);
        match opcode {
            Some(Opcode::Write) => return self.send_write(io, vni, slot, most),
            Some(Opcode::Read) => self.send_read(io, vni, slot),
            Some(Opcode::Atomic) => self.send_atomic(io, vni, slot),
            None => {}
        }
        0
    }

    fn send_read<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
    ) {
        let Some((mut header, run, index)) = self.prepare_read(io.host, vni, slot) else {
            return;
        };
        if !self.transmit(io, index, &mut header, Payload::None) {
            self.fail_operation(io.host, vni, slot, Status::NoSuchNode);
            return self.peer_unreachable(io.now, io.host, index);
        }
        if let Some(process) = self.process(vni) {
            let operation = process.operations.get_mut(slot);
            let asked = operation.ask(run);
            operation.advance(run);
            self.peers[index].reads += asked;
        }
        self.reconsider(io.host, vni, slot);
    }

    /// Chooses the next run to ask for, and makes sure that it has a place to go.
    fn prepare_read<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        slot: u8,
    ) -> Option<(FrameHeader, Piece, PeerIndex)> {
        let limit = self.config.limits.requests_per_read.max(1);
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
        let max_payload = peer.max_payload();
        let pages = limit.saturating_sub(operation.requested.len() as u32);
        let pages = pages.min(max_payload / PAGE_SIZE as u32);
        let mut run = operation.next_run(pages, max_payload)?;
        let command = &operation.command;
        let address = command.local.address.wrapping_add(run.offset);
        let mut header = header(FrameKind::ReadRequest);
        header.source_port = process.port.0.into();
        header.destination_port = command.remote.port.0.into();
        header.segment = command.remote.segment.0.into();
        header.key = command.remote.key.0.into();
        header.address = (command.remote.address + run.offset).into();
        header.operation = operation.id.0.into();
        header.offset = run.offset.into();
        header.argument = operation.remaining(run.offset).into();
        header.notification = ((address % PAGE_SIZE as u64) as u32).into();
        if run.length > 0 {
            let (place, key) = ((address, run.length), operation.page_key);
            run.length = match self.count_present(host, vni, place, key) {
                0 => self.bring_in(host, (vni, slot), place, key)?,
                present => present,
            };
        }
        header.length = u64::from(run.length).into();
        Some((header, run, index))
    }

    /// Makes sure that the first page of a destination is there, or parks or fails the
    /// operation. Returns how many bytes have a place.
    fn bring_in<H: Host>(
        &mut self,
        host: &H,
        operation: (VniId, u8),
        place: (u64, u32),
        key: PageKey,
    ) -> Option<u32> {
        let run = self.lock_local(host, operation, place, key, Role::Destination)?;
        let there = run.bytes_from(place.0).min(u64::from(place.1));
        self.unlock_run(host, run, 0);
        Some(there as u32)
    }

    /// Queues a read request of a peer.
    pub(crate) fn take_read_request(&mut self, index: PeerIndex, frame: &FrameHeader) {
        let job = ReplyJob {
            peer: index,
            port: Port(frame.source_port.get()),
            operation: OperationId(frame.operation.get()),
            sequence: frame.sequence.get(),
            run: Piece {
                offset: frame.offset.get(),
                length: frame.length.get().min(u64::from(u32::MAX)) as u32,
            },
            address: frame.address.get(),
            place: u64::from(frame.notification.get()) % PAGE_SIZE as u64,
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
            Some(_) if job.run.length as usize > MAX_RUN => Status::BadLength,
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
        nak.offset = job.run.offset.into();
        nak.argument = job.sequence.into();
        nak.status = status.code().into();
        self.peers.answer(job.peer, nak);
    }

    /// One turn of a reader of this process's memory: one frame of at most `most`
    /// pieces. Returns how many they were.
    pub(crate) fn send_reply<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        job: ReplyJob,
        most: u32,
    ) -> u32 {
        let peer = &mut self.peers[job.peer];
        let most = most.min(peer.send.room());
        if most == 0 {
            peer.blocked_replies.push_back((vni, job));
            return 0;
        }
        let most = most.min(peer.max_payload() / PAGE_SIZE as u32);
        let Some(process) = self.process(vni) else {
            return 0;
        };
        let mut reply = header(FrameKind::ReadReply);
        reply.source_port = process.port.0.into();
        reply.destination_port = job.port.0.into();
        reply.operation = job.operation.0.into();
        reply.offset = job.run.offset.into();
        reply.address = job.place.into();
        let segment = match job.authorise(&process.segments) {
            Ok(segment) => segment,
            Err(status) => {
                self.counters.refused(status);
                self.refuse_read(&job, status);
                return 0;
            }
        };
        let length = job.length_within(most);
        if length == 0 {
            return self.put_reply(io, &job, &mut reply, Payload::None);
        }
        let ahead = job
            .remaining
            .clamp(u64::from(length), segment.end() - job.address);
        let need = Need::new(job.address, ahead);
        let (place, key) = ((job.address, length as usize), segment.page_key);
        let run = match self.lock_some(io.host, vni, place, key, Role::Source) {
            Ok(run) => run,
            Err(PageError::Refused(status)) => {
                self.refuse_read(&job, status);
                return 0;
            }
            Err(PageError::Absent) => {
                self.wait_for_page(vni, need, Waiter::Reply(job));
                return 0;
            }
        };
        let length = run.bytes_from(job.address).min(u64::from(length)) as u32;
        let payload = Payload::Memory {
            memory: io.host.memory(),
            pages: run.addresses(),
            offset: (job.address % PAGE_SIZE as u64) as usize,
            length: length as usize,
        };
        let count = self.put_reply(io, &job, &mut reply, payload);
        self.unlock_run(io.host, run, 0);
        // The rest of it has the next turn.
        if let (Some(rest), Some(process)) = (job.advance(length), self.process(vni)) {
            if count > 0 {
                process.replies.push_front(rest);
            }
        }
        count
    }

    /// Sends a reply. Returns how many pieces it has; 0: there is no way to the reader.
    fn put_reply<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        job: &ReplyJob,
        reply: &mut FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) -> u32 {
        if !self.transmit(io, job.peer, reply, payload) {
            self.peer_unreachable(io.now, io.host, job.peer);
            return 0;
        }
        let count = pieces(reply.address.get(), payload.len()) as u32;
        self.counters.bytes_sent += payload.len() as u64;
        let nobody = OperationId::default();
        self.peers[job.peer].send.sent(nobody, count);
        count
    }

    /// Places one piece, now or after it was held; one that nobody has asked for, or
    /// waits for any more, touches nothing.
    ///
    /// # Errors
    /// The pages that it has to wait for.
    pub(crate) fn try_reply<H: Host>(
        &mut self,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Result<(), (VniId, Need)> {
        let run = run_of(arrival.frame, arrival.payload.len());
        let Some((to, remaining)) = self.asked(arrival, run) else {
            return Ok(());
        };
        let failure = match self.place(host, to, &arrival.payload) {
            Ok(()) => None,
            Err(PageError::Refused(status)) => Some(status),
            Err(PageError::Absent) => return Err((to.vni, Need::new(to.address, remaining))),
        };
        self.reply_placed(host, arrival, run, failure);
        Ok(())
    }

    /// Places as much of a run as goes into pages that are there. Returns how many
    /// bytes that was.
    pub(crate) fn try_replies<H: Host>(
        &mut self,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        let all = run_of(arrival.frame, arrival.payload.len());
        let Some((to, _)) = self.asked(arrival, all) else {
            return 0;
        };
        let done = self.place_run(host, to, &arrival.payload);
        if done > 0 {
            self.reply_placed(host, arrival, run_of(arrival.frame, done), None);
        }
        done
    }

    /// Where a run goes that an operation has asked for and waits for, and how many
    /// bytes of that operation are missing from there on.
    fn asked<M>(&mut self, arrival: &Arrival<'_, M>, run: Piece) -> Option<(Destination, u64)> {
        let id = OperationId(arrival.frame.operation.get());
        let operation = self.operation_at(id, arrival.index)?;
        if operation.command.opcode != Opcode::Read {
            return None;
        }
        let address = operation.command.local.address.wrapping_add(run.offset);
        let placed = (address ^ arrival.frame.address.get()) % PAGE_SIZE as u64 == 0;
        let to = Destination {
            vni: id.vni(),
            address,
            key: operation.page_key,
        };
        let asked = placed && operation.has_asked(run);
        asked.then(|| (to, operation.remaining(run.offset)))
    }

    fn reply_placed<H: Host>(
        &mut self,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
        run: Piece,
        failure: Option<Status>,
    ) {
        let id = OperationId(arrival.frame.operation.get());
        let mut count = 0;
        if let Some(operation) = self.operation(id) {
            count = operation.answer(run);
        }
        match failure {
            None => self.reconsider(host, id.vni(), id.slot()),
            Some(status) => self.fail_operation(host, id.vni(), id.slot(), status),
        }
        self.reads_answered(host, arrival.index, count);
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
        to: Destination,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<(), PageError> {
        let length = payload.len();
        if length == 0 {
            return Ok(());
        }
        let page = self.lock(host, to.vni, to.address, to.key, Role::Destination)?;
        let target = page.address() + to.address % PAGE_SIZE as u64;
        let copied = payload.copy_to(host.memory(), target);
        unlock_page_dirty(host.sram(), &self.geometry, page);
        copied.map_err(|_| PageError::Refused(Status::PageUnavailable))?;
        self.counters.bytes_received += length as u64;
        Ok(())
    }
}

/// What a reply brings.
fn run_of(frame: &FrameHeader, length: usize) -> Piece {
    Piece {
        offset: frame.offset.get(),
        length: length as u32,
    }
}
