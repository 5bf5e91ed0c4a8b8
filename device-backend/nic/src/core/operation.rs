//! Commands that were read and are not complete: what is the same for all protocols,
//! and the table of those of one process.
//!
//! ```text
//!   begun ──► ready ──► has a turn ──► waits: for an answer, a page, a window
//!     │         ▲                        │
//!     │         └────────────────────────┘
//!     └──► finished: its counter moves, an error is recorded, the slot is free
//! ```
//! What a protocol has to remember of an operation stands in the protocol, by VNI and
//! slot.

use qnic_abi::{Port, Status};

use super::order::Counter;
use crate::ids::{OperationId, PeerIndex, ProtocolId};

/// Slots for operations of one process.
pub(crate) const OPERATION_SLOTS: usize = 64;

/// A command that runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operation {
    pub(crate) id: OperationId,
    pub(crate) protocol: ProtocolId,
    /// Number of the command, from 0 at registration.
    pub(crate) number: u64,
    /// What counts it when it is complete, and its number there.
    pub(crate) counter: Counter,
    pub(crate) order: u64,
    pub(crate) peer: PeerIndex,
    /// Port of the process at the other end.
    pub(crate) remote_port: Port,
    /// Waits for a page of its own process.
    pub(crate) faulted: bool,
    /// Waits for a window of its peer.
    pub(crate) blocked: bool,
    /// Why it was given up.
    pub(crate) failure: Option<Status>,
}

impl Operation {
    /// Returns true if nothing of the NIC holds it back.
    pub(crate) fn may_send(&self) -> bool {
        !self.faulted && !self.blocked && self.failure.is_none()
    }

    /// Gives it up, if it was not before.
    pub(crate) fn fail(&mut self, status: Status) {
        self.failure.get_or_insert(status);
        self.faulted = false;
        self.blocked = false;
    }
}

/// The operations of one process.
#[derive(Debug)]
pub(crate) struct OperationTable {
    slots: Box<[Operation; OPERATION_SLOTS]>,
    /// Bit *i*: slot *i* is in use.
    used: u64,
    count: u32,
    /// Bit *i*: slot *i* can send a frame.
    ready: u64,
    /// Slot that had the last turn.
    last: u8,
}

impl OperationTable {
    pub(crate) fn new() -> Self {
        OperationTable {
            slots: Box::new([Operation::default(); OPERATION_SLOTS]),
            used: 0,
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
        let slot = self.used.trailing_ones();
        if slot as usize >= OPERATION_SLOTS {
            return None;
        }
        self.used |= 1 << slot;
        self.count += 1;
        Some(slot as u8)
    }

    /// Gives a slot back.
    pub(crate) fn release(&mut self, slot: u8) {
        self.used &= !(1 << slot);
        self.count -= 1;
        self.ready &= !(1 << slot);
        self.get_mut(slot).id = OperationId::default();
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u8) -> &mut Operation {
        &mut self.slots[usize::from(slot) % OPERATION_SLOTS]
    }

    /// The operation of that name, if it still runs.
    #[inline]
    pub(crate) fn find(&mut self, id: OperationId) -> Option<&mut Operation> {
        let operation = self.get_mut(id.slot());
        (operation.id == id && id.0 != 0).then_some(operation)
    }

    /// The operation of that name, if it still runs.
    #[inline]
    pub(crate) fn get(&self, id: OperationId) -> Option<&Operation> {
        let operation = &self.slots[usize::from(id.slot()) % OPERATION_SLOTS];
        (operation.id == id && id.0 != 0).then_some(operation)
    }

    /// Operations that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Operation> {
        let used = self.used;
        let slots = self.slots.iter().enumerate();
        slots.filter_map(move |(slot, operation)| (used >> slot & 1 == 1).then_some(operation))
    }

    /// Returns true if any operation can send a frame.
    pub(crate) fn any_ready(&self) -> bool {
        self.ready != 0
    }

    /// Notes whether the operation in a slot can send a frame.
    #[inline]
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
