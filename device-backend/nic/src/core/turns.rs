//! Turns of the operations of one process: by destination, then by operation (Q10, U6).
//!
//! ```text
//!   destinations:  B ─ C ─ D ─┐        one frame each, then to the back
//!     ▲  └────────────────────┘
//!     └── of each: the slots of its operations that can send, in the order in which they became so
//! ```
//! A process with thirty-two writes to B and one to C sends to both alike.
//!
//! # Invariants
//! - A slot stands in one line at most, once; its destination is in the round if and only if its
//!   line is not empty.
//! - As many lines are kept as the NIC has peers, so their number is bounded by
//!   [`Limits::peers`](crate::Limits::peers), that of places by the operations of the process.

use std::collections::VecDeque;

use crate::ids::PeerIndex;

/// Slots that can send, by destination.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By peer.
    lines: Vec<VecDeque<u16>>,
    /// Peers whose lines are not empty.
    round: VecDeque<PeerIndex>,
}

impl Turns {
    /// Returns true if any slot can send.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.round.is_empty()
    }

    /// Puts a slot, which stands in no line, into that of a peer.
    #[inline]
    pub(super) fn push(&mut self, peer: PeerIndex, slot: u16) {
        let index = usize::from(peer.0);
        if index >= self.lines.len() {
            self.lines.resize_with(index + 1, VecDeque::new);
        }
        let line = &mut self.lines[index];
        if line.is_empty() {
            self.round.push_back(peer);
        }
        line.push_back(slot);
    }

    /// Takes the slot whose turn it is.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<u16> {
        let peer = self.round.pop_front()?;
        let line = &mut self.lines[usize::from(peer.0)];
        let slot = line.pop_front();
        if !line.is_empty() {
            self.round.push_back(peer);
        }
        slot
    }

    /// Takes a slot out of the line of a peer, in which it stands.
    #[cold]
    pub(super) fn remove(&mut self, peer: PeerIndex, slot: u16) {
        let line = &mut self.lines[usize::from(peer.0)];
        if line.front() == Some(&slot) {
            line.pop_front();
        } else {
            line.retain(|other| *other != slot);
        }
        if line.is_empty() {
            self.round.retain(|other| *other != peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn destinations_share_turns_whatever_they_have_to_send() {
        let mut turns = Turns::default();
        let (b, c) = (PeerIndex(1), PeerIndex(7));
        (0..32).for_each(|slot| turns.push(b, slot));
        turns.push(c, 99);
        let mut sent = [0, 0];
        for _ in 0..100 {
            let slot = turns.pop().unwrap();
            let peer = if slot == 99 { c } else { b };
            sent[usize::from(slot == 99)] += 1;
            turns.push(peer, slot);
        }
        assert_eq!(sent, [50, 50]);
    }

    proptest! {
        /// Each slot that was put in and not taken out has its turn, once.
        #[test]
        fn no_slot_is_lost_or_served_twice(
            steps in prop::collection::vec((0u8..4, 0u16..4, 0u16..40), 0..300),
        ) {
            let mut turns = Turns::default();
            let mut lines = std::collections::BTreeMap::new();
            for (action, peer, slot) in steps {
                match action {
                    0 | 1 if !lines.contains_key(&slot) => {
                        lines.insert(slot, peer);
                        turns.push(PeerIndex(peer), slot);
                    }
                    2 => {
                        if let Some(peer) = lines.remove(&slot) {
                            turns.remove(PeerIndex(peer), slot);
                        }
                    }
                    3 => {
                        let taken = turns.pop();
                        prop_assert_eq!(taken.is_some(), !lines.is_empty());
                        if let Some(slot) = taken {
                            prop_assert!(lines.remove(&slot).is_some());
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(turns.any(), !lines.is_empty());
            }
            let mut rest: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
            rest.sort_unstable();
            prop_assert!(rest.into_iter().eq(lines.into_keys()));
        }
    }
}
