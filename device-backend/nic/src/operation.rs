//! One command that was read and is not complete, and the table of those of one
//! process.
//!
//! ```text
//!   unsent ── sent ──► in flight (write) or requested (read) ──► delivered
//! ```
//! Every byte of a transfer is in exactly one of these places. What waits at the
//! other end for a page is in flight.
//!
//! A transfer is cut into *pieces* at the page borders of both sides. One frame
//! carries, or asks for, a run of them; on most ways that is a single one.

use qnic_abi::command::Opcode;
use qnic_abi::{Key, Status, VniId, PAGE_SIZE};

use crate::command::{Command, INLINE_WORDS};
use crate::config::Limits;
use crate::order::StreamPosition;
use crate::segment::PageKey;
use crate::transport::PeerIndex;

/// Slots for operations of one process.
pub(crate) const OPERATION_SLOTS: usize = 64;

/// Names an operation on its NIC, as frames carry it: a running number, the VNI
/// and the slot. Answers to an operation that has ended do not find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OperationId(pub(crate) u64);

impl OperationId {
    pub(crate) fn new(running: u64, vni: VniId, slot: u8) -> Self {
        OperationId(running << 24 | u64::from(vni.0) << 8 | u64::from(slot))
    }

    pub(crate) fn vni(self) -> VniId {
        VniId((self.0 >> 8) as u16)
    }

    pub(crate) fn slot(self) -> u8 {
        self.0 as u8
    }
}

/// A part of a transfer: a piece, or a run of pieces in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Piece {
    /// Says whether all of another one lies in this one.
    fn covers(&self, other: &Piece) -> bool {
        let end = |piece: &Piece| piece.offset.saturating_add(u64::from(piece.length));
        other.offset >= self.offset && end(other) <= end(self)
    }
}

/// Where the notification of a write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Notice {
    /// The write has none, or it is delivered or on its way for good.
    #[default]
    None,
    /// It has to be sent.
    Pending,
}

/// What an operation can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send a frame.
    Send,
    /// Wait for an answer, a page, a place in the window or an earlier write.
    Wait,
    /// End.
    Finish(Status),
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: OperationId,
    /// Number of the command, from 0 at registration.
    pub(crate) number: u64,
    pub(crate) command: Command,
    /// How the pages of the local memory are found.
    pub(crate) page_key: PageKey,
    pub(crate) peer: PeerIndex,
    /// Number among the writes, or the reads and atomic commands, of its process.
    pub(crate) order: u64,
    /// Place among the writes to its node.
    pub(crate) stream: StreamPosition,
    /// Bytes that were sent, or asked for, at least once.
    pub(crate) sent: u64,
    /// Something was never sent.
    pub(crate) unsent: bool,
    /// Pieces of a write in flight, by the pages of its destination.
    pub(crate) in_flight: u32,
    /// Pieces of a read that were asked for and have not arrived; the operand of an
    /// atomic command.
    pub(crate) requested: Vec<Piece>,
    pub(crate) notice: Notice,
    /// Waits for a page of its own process.
    pub(crate) faulted: bool,
    /// Waits for a place in the window to its peer.
    pub(crate) blocked: bool,
    /// Why it was given up.
    pub(crate) failure: Option<Status>,
    pub(crate) inline: [u64; INLINE_WORDS],
}

impl Operation {
    fn unused() -> Self {
        Operation {
            id: OperationId::default(),
            number: 0,
            command: Command::unused(),
            page_key: PageKey::Table(Key(0)),
            peer: PeerIndex::default(),
            order: 0,
            stream: StreamPosition::default(),
            sent: 0,
            unsent: false,
            in_flight: 0,
            requested: Vec::new(),
            notice: Notice::None,
            faulted: false,
            blocked: false,
            failure: None,
            inline: [0; INLINE_WORDS],
        }
    }

    /// Makes this slot a new operation; keeps its buffers.
    pub(crate) fn begin(&mut self, id: OperationId, number: u64, command: Command) {
        self.id = id;
        self.number = number;
        self.command = command;
        self.sent = 0;
        // A notification without data needs no frame in front of its own.
        self.unsent = command.length > 0 || command.notification.is_none();
        self.in_flight = 0;
        self.requested.clear();
        self.notice = match command.notification {
            Some(_) => Notice::Pending,
            None => Notice::None,
        };
        self.faulted = false;
        self.blocked = false;
        self.failure = None;
    }

    /// Gives it up: nothing more is sent for it.
    pub(crate) fn fail(&mut self, status: Status) {
        self.failure.get_or_insert(status);
        self.unsent = false;
        self.notice = Notice::None;
        self.faulted = false;
        self.blocked = false;
    }

    /// Says whether there is a piece to send, if nothing holds it back.
    pub(crate) fn has_piece(&self) -> bool {
        self.unsent
    }

    /// What it can do next. `first` says that every earlier write of its process
    /// to its node is settled.
    pub(crate) fn next(&self, limits: &Limits, first: bool) -> Next {
        match self.command.opcode {
            Opcode::Write => self.next_of_write(limits, first),
            Opcode::Read | Opcode::Atomic => self.next_of_read(limits),
        }
    }

    fn next_of_write(&self, limits: &Limits, first: bool) -> Next {
        if let Some(status) = self.failure {
            return match self.in_flight {
                0 => Next::Finish(status),
                _ => Next::Wait,
            };
        }
        if self.unsent {
            return self.next_piece(self.in_flight, limits.frames_per_write);
        }
        match self.notice {
            Notice::Pending if first && !self.blocked => Next::Send,
            Notice::None if self.in_flight == 0 => Next::Finish(Status::Ok),
            Notice::Pending | Notice::None => Next::Wait,
        }
    }

    fn next_of_read(&self, limits: &Limits) -> Next {
        if let Some(status) = self.failure {
            return Next::Finish(status);
        }
        if !self.unsent && self.requested.is_empty() {
            return Next::Finish(Status::Ok);
        }
        self.next_piece(self.requested.len() as u32, limits.requests_per_read)
    }

    fn next_piece(&self, underway: u32, limit: u32) -> Next {
        if self.unsent && !self.faulted && !self.blocked && underway < limit.max(1) {
            Next::Send
        } else {
            Next::Wait
        }
    }

    /// The next pieces to send: on either side they touch at most so many pages, and
    /// they are no longer than a frame on their way may be (`max_payload`, U5).
    pub(crate) fn next_run(&self, pages: u32, max_payload: u32) -> Option<Piece> {
        if !self.unsent {
            return None;
        }
        let command = &self.command;
        let remaining = command.length - self.sent;
        let most = remaining.min(u64::from(max_payload));
        let mut length = most.min(to_border(command.remote.address, self.sent, pages));
        if !command.inline {
            length = length.min(to_border(command.local.address, self.sent, pages));
        }
        Some(Piece {
            offset: self.sent,
            length: length as u32,
        })
    }

    /// Notes that all pieces of a run of a read were asked for. Returns how many.
    pub(crate) fn ask(&mut self, run: Piece) -> u32 {
        let before = self.requested.len();
        let end = run.offset + u64::from(run.length);
        let mut offset = run.offset;
        loop {
            let local = to_border(self.command.local.address, offset, 1);
            let remote = to_border(self.command.remote.address, offset, 1);
            let length = (end - offset).min(local).min(remote);
            let length = length as u32;
            self.requested.push(Piece { offset, length });
            offset += u64::from(length);
            if offset >= end {
                return (self.requested.len() - before) as u32;
            }
        }
    }

    /// Says whether all of a run was asked for, as whole pieces, and has not come.
    pub(crate) fn has_asked(&self, run: Piece) -> bool {
        let asked = self.requested.iter().filter(|piece| run.covers(piece));
        let (count, bytes) = asked.fold((0, 0), |(count, bytes), piece| {
            (count + 1, bytes + u64::from(piece.length))
        });
        count > 0 && bytes == u64::from(run.length)
    }

    /// Notes that a run of a read has come. Returns how many pieces that was.
    pub(crate) fn answer(&mut self, run: Piece) -> u32 {
        let before = self.requested.len();
        self.requested.retain(|piece| !run.covers(piece));
        (before - self.requested.len()) as u32
    }

    /// Notes that the run that [`Operation::next_run`] returned was sent.
    pub(crate) fn advance(&mut self, piece: Piece) {
        self.sent = piece.offset + u64::from(piece.length);
        self.unsent = self.sent < self.command.length;
    }

    /// Bytes from this offset to the end of the transfer.
    pub(crate) fn remaining(&self, offset: u64) -> u64 {
        self.command.length.saturating_sub(offset)
    }

    /// Says whether a piece that is about to be sent is the last, so that a
    /// notification can ride on it.
    pub(crate) fn is_last(&self, piece: Piece) -> bool {
        piece.offset + u64::from(piece.length) == self.command.length
    }
}

/// Bytes from `address + offset` to the end of the last of so many pages.
pub(crate) fn to_border(address: u64, offset: u64, pages: u32) -> u64 {
    let page = PAGE_SIZE as u64;
    page * u64::from(pages.max(1)) - (address.wrapping_add(offset) & (page - 1))
}

/// The operations of one process.
#[derive(Debug)]
pub(crate) struct OperationTable {
    slots: Box<[Operation]>,
    /// Bit *i*: slot *i* is in use.
    active: u64,
    count: u32,
    /// Bit *i*: slot *i* can send a frame.
    ready: u64,
    /// Slot that had the last turn.
    last: u8,
}

impl OperationTable {
    pub(crate) fn new() -> Self {
        OperationTable {
            slots: (0..OPERATION_SLOTS).map(|_| Operation::unused()).collect(),
            active: 0,
            count: 0,
            ready: 0,
            last: 0,
        }
    }

    /// Number of operations that run.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Takes a free slot.
    pub(crate) fn allocate(&mut self) -> Option<u8> {
        let slot = self.active.trailing_ones();
        if slot as usize >= OPERATION_SLOTS {
            return None;
        }
        self.active |= 1 << slot;
        self.count += 1;
        Some(slot as u8)
    }

    /// Gives a slot back.
    pub(crate) fn release(&mut self, slot: u8) {
        self.active &= !(1 << slot);
        self.count -= 1;
        self.ready &= !(1 << slot);
        self.slots[usize::from(slot)].id = OperationId::default();
    }

    pub(crate) fn get(&self, slot: u8) -> &Operation {
        &self.slots[usize::from(slot)]
    }

    pub(crate) fn get_mut(&mut self, slot: u8) -> &mut Operation {
        &mut self.slots[usize::from(slot)]
    }

    /// The operation of that name, if it still runs.
    pub(crate) fn find(&mut self, id: OperationId) -> Option<&mut Operation> {
        let operation = self.slots.get_mut(usize::from(id.slot()))?;
        (operation.id == id && id.0 != 0).then_some(operation)
    }

    /// Slots in use.
    pub(crate) fn active(&self) -> impl Iterator<Item = u8> {
        let active = self.active;
        (0..OPERATION_SLOTS as u8).filter(move |slot| active >> slot & 1 == 1)
    }

    /// Says whether any operation can send a frame.
    pub(crate) fn any_ready(&self) -> bool {
        self.ready != 0
    }

    /// Notes whether the operation in a slot can send a frame.
    pub(crate) fn set_ready(&mut self, slot: u8, ready: bool) {
        self.ready = self.ready & !(1 << slot) | u64::from(ready) << slot;
    }

    /// The operation whose turn it is: the next that can send after the last one
    /// that did (Q10).
    pub(crate) fn take_turn(&mut self) -> Option<u8> {
        if self.ready == 0 {
            return None;
        }
        let start = u32::from(self.last) + 1;
        let distance = self.ready.rotate_right(start % 64).trailing_zeros();
        self.last = ((start + distance) % 64) as u8;
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_abi::wire::pieces;

    fn operation(opcode: Opcode, length: u64, local: u64, remote: u64) -> Operation {
        let mut command = Command::unused();
        command.opcode = opcode;
        command.length = length;
        command.local.address = local;
        command.remote.address = remote;
        let mut operation = Operation::unused();
        operation.begin(OperationId(1), 0, command);
        operation
    }

    proptest! {
        #[test]
        fn runs_cover_the_transfer_and_keep_to_their_pages(
            length in 1u64..90_000, local in 0u64..8192, remote in 0u64..8192, pages in 1u32..9,
            max_payload in prop_oneof![1000u32..4097, Just(32_768)],
        ) {
            let mut op = operation(Opcode::Write, length, local, remote);
            let mut expected = 0;
            while let Some(run) = op.next_run(pages, max_payload) {
                prop_assert_eq!(run.offset, expected);
                prop_assert!(run.length > 0 && run.length <= max_payload);
                for base in [local, remote] {
                    let count = pieces(base + run.offset, run.length as usize);
                    prop_assert!(count <= u64::from(pages));
                }
                expected += u64::from(run.length);
                prop_assert_eq!(op.is_last(run), expected == length);
                op.advance(run);
            }
            prop_assert_eq!(expected, length);
        }

        /// Whatever runs of whole pieces the answers come in, each piece counts once.
        #[test]
        fn what_was_asked_for_is_answered_once(
            length in 1u64..60_000, local in 0u64..4096, remote in 0u64..4096,
            cuts in prop::collection::vec(1usize..6, 1..40),
        ) {
            let mut op = operation(Opcode::Read, length, local, remote);
            let mut asked = 0;
            while let Some(run) = op.next_run(8, 32_768) {
                asked += op.ask(run);
                op.advance(run);
            }
            let all = op.requested.clone();
            prop_assert_eq!(all.len(), asked as usize);
            for piece in &all {
                prop_assert_eq!(pieces(local + piece.offset, piece.length as usize), 1);
                prop_assert_eq!(pieces(remote + piece.offset, piece.length as usize), 1);
            }
            let mut rest = &all[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                let Some(first) = now.first() else { break };
                let length = now.iter().map(|piece| piece.length).sum();
                let run = Piece { offset: first.offset, length };
                prop_assert!(op.has_asked(run));
                if first.length > 1 {
                    let shifted = Piece { offset: first.offset + 1, length };
                    prop_assert!(!op.has_asked(shifted), "not whole pieces");
                }
                prop_assert_eq!(op.answer(run) as usize, now.len());
                prop_assert!(!op.has_asked(run));
                rest = later;
            }
            prop_assert!(op.requested.is_empty());
        }
    }

    #[test]
    fn frames_in_flight_are_limited() {
        let limits = Limits::default();
        let mut op = operation(Opcode::Write, 3 * 4096, 0, 0);
        let first = op.next_run(1, 4096).unwrap();
        op.advance(first);
        op.in_flight = 1;
        assert_eq!(op.next_run(1, 4096).unwrap().offset, 4096);
        assert_eq!(op.next(&limits, true), Next::Send);
        op.in_flight = limits.frames_per_write;
        assert_eq!(op.next(&limits, true), Next::Wait);
    }

    #[test]
    fn a_notification_waits_for_earlier_writes_and_a_failure_for_its_frames() {
        let limits = Limits::default();
        let mut op = operation(Opcode::Write, 0, 0, 0);
        assert_eq!(op.next(&limits, true), Next::Send, "an empty write checks");
        op.command.notification = Some(3);
        let command = op.command;
        op.begin(OperationId(2), 1, command);
        assert_eq!(op.next(&limits, false), Next::Wait);
        assert_eq!(op.next(&limits, true), Next::Send);
        op.notice = Notice::None;
        op.in_flight = 1;
        op.fail(Status::BadKey);
        op.fail(Status::PeerGone);
        assert_eq!(op.next(&limits, true), Next::Wait);
        op.in_flight = 0;
        assert_eq!(op.next(&limits, true), Next::Finish(Status::BadKey));
    }

    #[test]
    fn turns_go_round() {
        let mut table = OperationTable::new();
        for expected in 0..64 {
            assert_eq!(table.allocate(), Some(expected));
        }
        assert_eq!(table.allocate(), None);
        assert_eq!(table.take_turn(), None);
        for slot in [0, 5, 63] {
            table.set_ready(slot, true);
        }
        let turns: Vec<_> = (0..6).filter_map(|_| table.take_turn()).collect();
        assert_eq!(turns, [5, 63, 0, 5, 63, 0]);
        table.release(5);
        let turns: Vec<_> = (0..3).filter_map(|_| table.take_turn()).collect();
        assert_eq!(turns, [63, 0, 63]);
        assert_eq!(table.count(), 63);
    }
}
