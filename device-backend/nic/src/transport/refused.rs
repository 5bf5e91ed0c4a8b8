//! Writes of which a frame was refused: they do not notify any more (N11, N16).
//!
//! ```text
//!   refused ──► open ── the requester knows ──► closing ── REACH more frames ──► forgotten
//! ```
//! A write is remembered after its requester knows: frames that were sent before may come
//! as late as the peer's reach allows. So of each peer at most as many writes are remembered
//! as fit into its window and reach together.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use super::REACH;

/// The writes of one peer.
#[derive(Debug, Default)]
pub(super) struct RefusedWrites {
    /// Operations by the number of the frame that is refused.
    open: BTreeMap<u64, u64>,
    /// The number from which on no frame of an operation comes, ascending.
    closing: VecDeque<(u64, u64)>,
    /// How often each operation stands in the two.
    operations: HashMap<u64, u32>,
}

impl RefusedWrites {
    /// Remembers the write of a frame.
    pub(super) fn refuse(&mut self, sequence: u64, operation: u64) {
        if let Entry::Vacant(entry) = self.open.entry(sequence) {
            entry.insert(operation);
            *self.operations.entry(operation).or_default() += 1;
        }
    }

    /// The requester knows of the refusal of a frame, if it was one; everything up to
    /// `received` has arrived.
    #[inline]
    pub(super) fn close(&mut self, sequence: u64, received: u64) {
        if self.open.is_empty() {
            return;
        }
        if let Some(operation) = self.open.remove(&sequence) {
            self.closing
                .push_back((received.saturating_add(REACH), operation));
            self.forget(received);
        }
    }

    /// Returns true if a frame of that write was refused.
    #[inline]
    pub(super) fn contains(&mut self, operation: u64, received: u64) -> bool {
        if self.operations.is_empty() {
            return false;
        }
        self.forget(received);
        self.operations.contains_key(&operation)
    }

    fn forget(&mut self, received: u64) {
        while let Some((end, operation)) = self.closing.front().copied() {
            if end > received {
                break;
            }
            self.closing.pop_front();
            if let Some(count) = self.operations.get_mut(&operation) {
                *count -= 1;
                if *count == 0 {
                    self.operations.remove(&operation);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_remembered_until_its_last_frame_must_have_come() {
        let mut writes = RefusedWrites::default();
        assert!(!writes.contains(7, 0));
        writes.refuse(3, 7);
        writes.refuse(5, 7);
        writes.close(4, 4);
        writes.close(3, 5);
        assert!(writes.contains(7, u64::MAX - 1), "the other is open");
        assert!(!writes.contains(8, 5));
        writes.close(5, 6);
        assert!(writes.contains(7, 6 + REACH - 1));
        assert!(!writes.contains(7, 6 + REACH));
        assert!(writes.operations.is_empty() && writes.closing.is_empty());
    }

    #[test]
    fn those_that_nobody_asks_for_are_forgotten() {
        let mut writes = RefusedWrites::default();
        for sequence in 1..10 * REACH {
            writes.refuse(sequence, sequence);
            writes.close(sequence, sequence);
            assert!(writes.operations.len() as u64 <= REACH);
            assert!(writes.closing.len() as u64 <= REACH);
        }
    }
}
