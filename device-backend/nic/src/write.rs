//! RDMA write at its source (N9, N10), and what its destination answers.
//!
//! A write is cut into pieces at the page borders of both sides; a frame carries one
//! of them, or a run of them where the way takes that ([`qnic_abi::wire`]). The
//! source pages are locked while the frame that carries them is sent; a wire has
//! taken the bytes when it returns, so nothing is copied here. A run ends before a
//! page that is absent; if that is its first, the operation is parked until the
//! driver has brought it in (N13).
//!
//! # Notifications (N18)
//! `NOTIFY` rides on the last piece of a write if every earlier write of the
//! process to that node is settled: all of it, its notification included, was sent.
//! Otherwise a frame without payload carries it as soon as that is so. The peer
//! signals it when everything with a lower number is delivered.

use qnic_abi::wire::{pieces, FrameFlags, FrameHeader, FrameKind};
use qnic_abi::{Status, VniId, PAGE_SIZE};
use zerocopy::IntoBytes;

use crate::command::INLINE_WORDS;
use crate::counters::Role;
use crate::env::{Host, Payload, Wire};
use crate::fault::{Need, Waiter};
use crate::nic::{Io, Nic};
use crate::operation::{Notice, Operation, OperationId, Piece};
use crate::run::{LockedRun, PageError};
use crate::segment::PageKey;
use crate::transport::{header, PeerIndex};

/// Where the payload of a frame comes from.
enum Source {
    Nothing,
    Inline([u64; INLINE_WORDS]),
    /// Locked pages, and the offset in the first.
    Run(LockedRun, usize),
}

/// A frame of a write, ready to be sent.
struct Outgoing {
    header: FrameHeader,
    source: Source,
    peer: PeerIndex,
    id: OperationId,
    /// `None`: the notification alone.
    run: Option<Piece>,
    notice: bool,
}

impl Nic {
    /// One turn of a write: one frame of at most `most` pieces. Returns how many they
    /// were.
    pub(crate) fn send_write<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        slot: u8,
        most: u32,
    ) -> u32 {
        let Some(mut outgoing) = self.prepare_write(io.host, vni, slot, most) else {
            return 0;
        };
        let length = outgoing.run.map_or(0, |run| run.length as usize);
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
            Source::Run(run, offset) => {
                let payload = Payload::Memory {
                    memory: io.host.memory(),
                    pages: run.addresses(),
                    offset,
                    length,
                };
                let taken = self.transmit(io, index, header, payload);
                self.unlock_run(io.host, run, 0);
                taken
            }
        };
        if !taken {
            self.fail_operation(io.host, vni, slot, Status::NoSuchNode);
            self.peer_unreachable(io.now, io.host, index);
            return 0;
        }
        let count = pieces(outgoing.header.address.get(), length) as u32;
        self.counters.bytes_sent += length as u64;
        self.peers[index].send.sent(outgoing.id, count);
        let sent = (outgoing.run, outgoing.notice);
        self.note_sent(io.host, vni, slot, sent, count);
        count
    }

    /// Chooses the next frame of a write and locks its source pages. `None`: it
    /// has to wait, and is parked where it will be found.
    fn prepare_write<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        slot: u8,
        most: u32,
    ) -> Option<Outgoing> {
        let limit = self.config.limits.frames_per_write.max(1);
        let process = self.processes[usize::from(vni.0)].as_deref_mut()?;
        process.operations.set_ready(slot, false);
        let first = process
            .streams
            .is_first(process.operations.get(slot).stream);
        let operation = process.operations.get_mut(slot);
        let (id, index) = (operation.id, operation.peer);
        let peer = &mut self.peers[index];
        let room = peer.send.room();
        if room == 0 {
            operation.blocked = true;
            peer.blocked.push(id);
            if !peer.is_ready() {
                self.peers.introduce(index);
            }
            return None;
        }
        let max_payload = peer.max_payload();
        let most = most
            .min(room)
            .min(limit.saturating_sub(operation.in_flight));
        let pages = most.min(max_payload / PAGE_SIZE as u32);
        let mut run = operation.next_run(pages, max_payload);
        let source = match run {
            None | Some(Piece { length: 0, .. }) => Source::Nothing,
            Some(_) if operation.command.inline => Source::Inline(operation.inline),
            Some(Piece { offset, length }) => {
                let address = operation.command.local.address + offset;
                let key = operation.page_key;
                let place = (address, length);
                let locked = self.lock_local(host, (vni, slot), place, key, Role::Source)?;
                let there = locked.bytes_from(address).min(u64::from(length)) as u32;
                run = Some(Piece {
                    offset,
                    length: there,
                });
                Source::Run(locked, (address % PAGE_SIZE as u64) as usize)
            }
        };
        let process = self.processes[usize::from(vni.0)].as_deref_mut()?;
        let operation = process.operations.get(slot);
        let last = run.is_none_or(|run| operation.is_last(run));
        let notice = operation.notice == Notice::Pending && first && last;
        if run.is_none() && !notice {
            return None;
        }
        let mut header = write_header(operation, run, notice);
        header.source_port = process.port.0.into();
        Some(Outgoing {
            header,
            source,
            peer: index,
            id,
            run,
            notice,
        })
    }

    /// Locks pages of the local memory of an operation, at least the first; or parks
    /// or fails it.
    pub(crate) fn lock_local<H: Host>(
        &mut self,
        host: &H,
        (vni, slot): (VniId, u8),
        (address, length): (u64, u32),
        key: PageKey,
        role: Role,
    ) -> Option<LockedRun> {
        match self.lock_some(host, vni, (address, length as usize), key, role) {
            Ok(run) => return Some(run),
            Err(PageError::Refused(status)) => self.fail_operation(host, vni, slot, status),
            Err(PageError::Absent) => self.park(vni, slot, address),
        }
        None
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
        (run, notice): (Option<Piece>, bool),
        count: u32,
    ) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let operation = process.operations.get_mut(slot);
        operation.in_flight += count;
        if let Some(run) = run {
            operation.advance(run);
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

/// Why a peer has refused; a number that is no reason counts as malformed.
fn refusal(frame: &FrameHeader) -> Status {
    match Status::try_from(frame.status.get()) {
        Ok(Status::Ok) | Err(_) => Status::Malformed,
        Ok(status) => status,
    }
}

fn write_header(operation: &Operation, run: Option<Piece>, notice: bool) -> FrameHeader {
    let remote = &operation.command.remote;
    let mut header = header(FrameKind::Write);
    header.destination_port = remote.port.0.into();
    header.segment = remote.segment.0.into();
    header.key = remote.key.0.into();
    header.operation = operation.id.0.into();
    if let Some(run) = run {
        header.offset = run.offset.into();
        header.address = (remote.address + run.offset).into();
        header.length = operation.remaining(run.offset).into();
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
