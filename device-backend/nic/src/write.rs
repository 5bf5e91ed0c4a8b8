//! RDMA write at its source (N9, N10), and what its destination answers.
//!
//! A write is sent piece by piece, each within one page of either side. The
//! source page is locked while the frame that carries it is sent; a wire has
//! taken the bytes when it returns, so nothing is copied here. A page that is
//! absent parks the operation until the driver has brought it in (N13).
//!
//! # Notifications (N18)
//! `NOTIFY` rides on the last piece of a write if every earlier write of the
//! process to that node is settled: all of it, its notification included, was sent.
//! Otherwise a frame without payload carries it as soon as that is so. The peer
//! signals it when everything with a lower number is delivered.

use qnic_abi::command::Opcode;
use qnic_abi::page_table::Tag;
use qnic_abi::wire::{FrameFlags, FrameHeader, FrameKind};
use qnic_abi::{Status, VniId, PAGE_SIZE};
use zerocopy::IntoBytes;

use crate::command::INLINE_WORDS;
use crate::counters::Role;
use crate::env::{Host, HostMemory, Payload, Wire};
use crate::fault::{Need, Waiter};
use crate::nic::{Io, Nic};
use crate::operation::{Notice, Operation, OperationId, Piece};
use crate::page_table::{page_key, try_lock_page, unlock_page, LockedPage, Missed};
use crate::run::LockedRun;
use crate::segment::PageKey;
use crate::transport::{header, PeerIndex};

/// Why a page cannot be used.
pub(crate) enum PageError {
    /// It is not in the page table.
    Absent,
    /// It never will be of use to this transfer.
    Refused(Status),
}

/// Where the payload of a frame comes from.
enum Source {
    Nothing,
    Inline([u64; INLINE_WORDS]),
    /// A locked page, and the offset within it.
    Page(LockedPage, u64),
}

/// A frame of a write, ready to be sent.
struct Outgoing {
    header: FrameHeader,
    source: Source,
    peer: PeerIndex,
    id: OperationId,
    /// `None`: the notification alone.
    piece: Option<Piece>,
    notice: bool,
}

/// Several frames of one write in a row.
struct Burst {
    header: FrameHeader,
    id: OperationId,
    peer: PeerIndex,
    key: PageKey,
    /// Source pages of the next pieces.
    run: LockedRun,
}

impl Nic {
    /// Locks a page of a process, and checks that it was entered for this range.
    #[inline]
    pub(crate) fn lock<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        address: u64,
        key: PageKey,
        role: Role,
    ) -> Result<LockedPage, PageError> {
        let PageKey::Table(key) = key else {
            return pinned(host, address);
        };
        let tag = Tag::new(vni, address);
        let page = match try_lock_page(host.sram(), &self.geometry, tag) {
            Ok(page) => page,
            Err(missed) => {
                self.counters.lookups(role).misses += 1;
                self.counters.lookups_lost += u64::from(missed == Missed::Lost);
                return Err(PageError::Absent);
            }
        };
        self.counters.lookups(role).hits += 1;
        if page_key(host.sram(), &self.geometry, &page) != key {
            unlock_page(host.sram(), &self.geometry, page);
            self.counters.refused(Status::BadKey);
            return Err(PageError::Refused(Status::BadKey));
        }
        if !host.memory().contains(page.address(), PAGE_SIZE as u64) {
            unlock_page(host.sram(), &self.geometry, page);
            return Err(PageError::Refused(Status::PageUnavailable));
        }
        Ok(page)
    }

    /// One turn of a write: one frame.
    pub(crate) fn send_write<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
    ) {
        let Some(mut outgoing) = self.prepare_write(io.host, vni, slot) else {
            return;
        };
        let length = outgoing.piece.map_or(0, |piece| piece.length as usize);
        let offset = outgoing.header.offset.get() as usize;
        let index = outgoing.peer;
        let header = &mut outgoing.header;
        let taken = match outgoing.source {
            Source::Nothing => self.transmit(io, index, header, Payload::None),
            Source::Inline(words) => {
                let words = words.map(u64::to_le);
                let bytes = &words.as_bytes()[offset..offset + length];
                self.transmit(io, index, header, Payload::Bytes(bytes))
            }
            Source::Page(page, within) => {
                let payload = Payload::Memory {
                    memory: io.host.memory(),
                    address: page.address() + within,
                    length,
                };
                let taken = self.transmit(io, index, header, payload);
                unlock_page(io.host.sram(), &self.geometry, page);
                taken
            }
        };
        if !taken {
            self.fail_operation(io.host, vni, slot, Status::NoSuchNode);
            return self.peer_unreachable(io.now, io.host, index);
        }
        self.counters.bytes_sent += length as u64;
        self.peers[index].send.sent(outgoing.id);
        self.note_sent(io.host, vni, slot, outgoing.piece, outgoing.notice);
    }

    /// Sends up to `limit` further pieces of a write whose turn it is, for as long
    /// as nobody else wants one: the same frames in the same order as by turns,
    /// without going through the scheduler for each. What is not plain (a page
    /// that is absent, a notification, a full window) is left to the next turn.
    pub(crate) fn send_burst<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
        limit: u32,
    ) -> u32 {
        let Some(mut burst) = self.prepare_burst(vni, slot) else {
            return 0;
        };
        let mut frames = 0;
        while frames < limit && self.send_next(io, vni, slot, &mut burst) {
            frames += 1;
        }
        self.unlock_run(io.host, burst.run);
        if frames > 0 {
            self.settle_sent(io.host, vni, slot);
        }
        self.reconsider(io.host, vni, slot);
        frames
    }

    /// The header that all frames of a burst share, if this is a write from memory.
    fn prepare_burst(&mut self, vni: VniId, slot: u8) -> Option<Burst> {
        let process = self.process(vni)?;
        let operation = process.operations.get(slot);
        let plain = operation.command.opcode == Opcode::Write && !operation.command.inline;
        if !plain || !operation.unsent {
            return None;
        }
        let mut header = write_header(operation, None, false);
        header.source_port = process.port.0.into();
        Some(Burst {
            header,
            id: operation.id,
            peer: operation.peer,
            key: operation.page_key,
            run: LockedRun::default(),
        })
    }

    /// Sends the next piece of a burst; `false` if it is not plain.
    fn send_next<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
        burst: &mut Burst,
    ) -> bool {
        let limit = self.config.limits.frames_per_write;
        if !self.is_alone(vni, slot) || !self.peers[burst.peer].send.is_open() {
            return false;
        }
        let Some(process) = self.process(vni) else {
            return false;
        };
        let operation = process.operations.get(slot);
        let piece = match operation.piece() {
            Some(piece) if operation.is_plain(piece, limit) => piece,
            _ => return false,
        };
        let address = operation.command.local.address + piece.offset;
        let header = &mut burst.header;
        header.offset = piece.offset.into();
        header.address = (operation.command.remote.address + piece.offset).into();
        header.length = operation.remaining(piece.offset).into();
        let left = operation.remaining(piece.offset);
        if burst.run.address_of(address).is_none() {
            self.unlock_run(io.host, std::mem::take(&mut burst.run));
            let pages = (address % PAGE_SIZE as u64 + left).div_ceil(PAGE_SIZE as u64);
            burst.run = self.lock_run(io.host, vni, address, pages, burst.key);
        }
        let Some(source) = burst.run.address_of(address) else {
            return false;
        };
        let payload = Payload::Memory {
            memory: io.host.memory(),
            address: source,
            length: piece.length as usize,
        };
        if !self.transmit(io, burst.peer, header, payload) {
            return false;
        }
        self.counters.bytes_sent += u64::from(piece.length);
        self.peers[burst.peer].send.sent(burst.id);
        if let Some(operation) = self.operation(burst.id) {
            operation.in_flight += 1;
            operation.advance(piece);
        }
        true
    }

    /// Chooses the next frame of a write and locks its source page. `None`: it
    /// has to wait, and is parked where it will be found.
    fn prepare_write<H: Host>(&mut self, host: &H, vni: VniId, slot: u8) -> Option<Outgoing> {
        let process = self.processes[usize::from(vni.0)].as_deref_mut()?;
        process.operations.set_ready(slot, false);
        let first = process
            .streams
            .is_first(process.operations.get(slot).stream);
        let operation = process.operations.get_mut(slot);
        let (id, index) = (operation.id, operation.peer);
        let peer = &mut self.peers[index];
        if !peer.send.is_open() {
            operation.blocked = true;
            peer.blocked.push(id);
            if !peer.is_ready() {
                self.peers.introduce(index);
            }
            return None;
        }
        operation.max_piece = peer.max_payload();
        let piece = operation.piece();
        let last = match piece {
            Some(piece) => operation.is_last(piece),
            None => true,
        };
        let notice = operation.notice == Notice::Pending && first && last;
        if piece.is_none() && !notice {
            return None;
        }
        let mut header = write_header(operation, piece, notice);
        header.source_port = process.port.0.into();
        let source = match piece {
            None | Some(Piece { length: 0, .. }) => Source::Nothing,
            Some(_) if operation.command.inline => Source::Inline(operation.inline),
            Some(piece) => {
                let address = operation.command.local.address + piece.offset;
                let page = self.lock_source(host, vni, slot, address)?;
                Source::Page(page, address % PAGE_SIZE as u64)
            }
        };
        Some(Outgoing {
            header,
            source,
            peer: index,
            id,
            piece,
            notice,
        })
    }

    /// Locks a page of the local memory of an operation, or parks or fails it.
    fn lock_source<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        slot: u8,
        address: u64,
    ) -> Option<LockedPage> {
        let key = self.process(vni)?.operations.get(slot).page_key;
        match self.lock(host, vni, address, key, Role::Source) {
            Ok(page) => Some(page),
            Err(PageError::Refused(status)) => {
                self.fail_operation(host, vni, slot, status);
                None
            }
            Err(PageError::Absent) => {
                self.park(vni, slot, address);
                None
            }
        }
    }

    /// Parks an operation until a page of its own process is there.
    pub(crate) fn park(&mut self, vni: VniId, slot: u8, address: u64) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let operation = process.operations.get_mut(slot);
        operation.faulted = true;
        let offset = address - operation.command.local.address;
        let need = Need::new(address, operation.remaining(offset));
        let waiter = Waiter::Local(operation.id);
        self.wait_for_page(vni, need, waiter);
    }

    fn note_sent<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        slot: u8,
        piece: Option<Piece>,
        notice: bool,
    ) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let operation = process.operations.get_mut(slot);
        operation.in_flight += 1;
        if let Some(piece) = piece {
            operation.advance(piece);
        }
        if notice {
            operation.notice = Notice::None;
        }
        let more = operation.has_piece();
        // Without another piece it waits for its acknowledgement.
        process.operations.set_ready(slot, false);
        if more {
            self.reconsider(host, vni, slot);
        } else {
            self.settle_sent(host, vni, slot);
        }
    }

    /// Lets later writes notify if all of this one was sent.
    fn settle_sent<H: Host>(&mut self, host: &H, vni: VniId, slot: u8) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let operation = process.operations.get(slot);
        if operation.has_piece() || operation.notice != Notice::None {
            return;
        }
        if let Some(next) = process.streams.settle(operation.stream) {
            self.reconsider(host, vni, next);
        }
    }

    /// A peer has refused a frame (N11).
    pub(crate) fn handle_nak<H: Host>(&mut self, host: &H, index: PeerIndex, frame: &FrameHeader) {
        let id = OperationId(frame.operation.get());
        let sequence = frame.argument.get();
        let Some(operation) = self.operation_at(id, index) else {
            return;
        };
        let offset = frame.offset.get();
        let asked = operation.requested.iter().position(|p| p.offset == offset);
        if let Some(place) = asked {
            operation.requested.swap_remove(place);
            self.reads_answered(host, index, 1);
        } else {
            let Some(sent) = self.peers[index].send.find(sequence) else {
                return;
            };
            if sent.operation != id || std::mem::replace(&mut sent.refused, true) {
                return;
            }
            if let Some(operation) = self.operation(id) {
                operation.in_flight = operation.in_flight.saturating_sub(1);
            }
        }
        self.fail_operation(host, id.vni(), id.slot(), refusal(frame));
    }
}

/// A page of a physical segment (N25): nobody takes it away, but the guest's memory
/// may end before it.
fn pinned<H: Host>(host: &H, address: u64) -> Result<LockedPage, PageError> {
    let page = address & !(PAGE_SIZE as u64 - 1);
    let inside = host.memory().contains(page, PAGE_SIZE as u64);
    let page = LockedPage::pinned(page).filter(|_| inside);
    page.ok_or(PageError::Refused(Status::BadAddress))
}

/// Why a peer has refused; a number that is no reason counts as malformed.
fn refusal(frame: &FrameHeader) -> Status {
    match Status::try_from(frame.status.get()) {
        Ok(Status::Ok) | Err(_) => Status::Malformed,
        Ok(status) => status,
    }
}

fn write_header(operation: &Operation, piece: Option<Piece>, notice: bool) -> FrameHeader {
    let remote = &operation.command.remote;
    let mut header = header(FrameKind::Write);
    header.destination_port = remote.port.0.into();
    header.segment = remote.segment.0.into();
    header.key = remote.key.0.into();
    header.operation = operation.id.0.into();
    if let Some(piece) = piece {
        header.offset = piece.offset.into();
        header.address = (remote.address + piece.offset).into();
        header.length = operation.remaining(piece.offset).into();
    } else {
        header.offset = operation.command.length.into();
        header.address = remote.address.into();
    }
    if notice {
        header.flags = FrameFlags::NOTIFY.bits().into();
        header.notification = operation.command.notification.unwrap_or(0).into();
    }
    header
}
