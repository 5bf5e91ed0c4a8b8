//! Turns of the operations of one process: by destination, then by operation (Q10, U6).
//!
//! ```text
//!   destinations:  B ─ C ─ D ─┐        one frame each, then to the back
//!     ▲  └────────────────────┘
//!     └── of each: the slots of its operations that can send, in the order in which they became so
//! ```
//! A process with thirty-two writes to B and one to C sends to both alike. A slot that finds no other, such as
//! that of a tiny write on an idle queue, stands alone, in no line (U7).
//!
//! # Invariants
//! - A slot stands in one line at most, once; its destination is in the round if and only if its
//!   line is not empty. While one stands alone, all lines are empty.
//! - As many lines are kept as the NIC has peers, so their number is bounded by
//!   [`Limits::peers`](crate::Limits::peers), that of places by the operations of the process.
//! - Lines and the round are lists: what stands in one names the next. To enter and to have a turn
//!   takes the same few steps however long they are.

use crate::ids::PeerIndex;

/// Behind the last of a list.
const END: u16 = u16::MAX;
/// What stands in no list.
const ABSENT: u16 = u16::MAX - 1;

/// The slots of one destination that can send.
#[derive(Debug, Clone, Copy)]
struct Line {
    first: u16,
    last: u16,
    /// The peer behind this one in the round.
    next: u16,
}

const EMPTY: Line = Line {
    first: END,
    last: END,
    next: ABSENT,
};

/// Slots that can send, by destination.
#[derive(Debug)]
pub(super) struct Turns {
    /// By peer.
    lines: Vec<Line>,
    /// By slot: the one behind it in its line.
    behind: Vec<u16>,
    /// The peer whose turn it is, and the last one of the round.
    first: u16,
    last: u16,
    /// The slot that stands alone, and its peer.
    alone: u16,
    alone_peer: PeerIndex,
}

impl Default for Turns {
    fn default() -> Self {
        Turns {
            lines: Vec::new(),
            behind: Vec::new(),
            first: END,
            last: END,
            alone: ABSENT,
            alone_peer: PeerIndex::default(),
        }
    }
}

impl Turns {
    /// Returns true if any slot can send.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.alone != ABSENT || self.first != END
    }

    /// Lets a slot of a peer have a turn, unless it is to have one.
    #[inline]
    pub(super) fn push(&mut self, peer: PeerIndex, slot: u16) {
        match std::mem::replace(&mut self.alone, ABSENT) {
            ABSENT if self.first == END => {
                (self.alone, self.alone_peer) = (slot, peer);
                return;
            }
            ABSENT => {}
            alone => self.line_up(self.alone_peer, alone),
        }
        self.line_up(peer, slot);
    }

    /// Puts a slot into the line of a peer, unless it stands there.
    fn line_up(&mut self, peer: PeerIndex, slot: u16) {
        let index = usize::from(slot);
        match self.behind.get(index) {
            Some(&ABSENT) => {}
            Some(_) => return,
            None => self.behind.resize(index + 1, ABSENT),
        }
        self.behind[index] = END;
        if usize::from(peer.0) >= self.lines.len() {
            self.lines.resize(usize::from(peer.0) + 1, EMPTY);
        }
        let line = &mut self.lines[usize::from(peer.0)];
        let last = std::mem::replace(&mut line.last, slot);
        match last {
            END => {
                line.first = slot;
                self.enter(peer.0);
            }
            last => self.behind[usize::from(last)] = slot,
        }
    }

    /// Puts a peer at the end of the round.
    #[inline]
    fn enter(&mut self, peer: u16) {
        self.lines[usize::from(peer)].next = END;
        match std::mem::replace(&mut self.last, peer) {
            END => self.first = peer,
            last => self.lines[usize::from(last)].next = peer,
        }
    }

    /// Takes the slot whose turn it is.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<u16> {
        if self.alone != ABSENT {
            return Some(std::mem::replace(&mut self.alone, ABSENT));
        }
        let peer = self.first;
        let line = self.lines.get_mut(usize::from(peer))?;
        let slot = line.first;
        line.first = std::mem::replace(&mut self.behind[usize::from(slot)], ABSENT);
        let stays = line.first != END;
        if stays && peer == self.last {
            return Some(slot);
        }
        // It leaves the round, and has its next turn behind all others.
        self.first = std::mem::replace(&mut line.next, ABSENT);
        if !stays {
            line.last = END;
        }
        if self.first == END {
            self.last = END;
        }
        if stays {
            self.enter(peer);
        }
        Some(slot)
    }

    /// Takes a slot out of the line of a peer, if it stands there.
    #[inline]
    pub(super) fn remove(&mut self, peer: PeerIndex, slot: u16) {
        if self.alone == slot {
            self.alone = ABSENT;
        }
        let behind = self.behind.get(usize::from(slot));
        if behind.is_some_and(|behind| *behind != ABSENT) {
            self.search(peer.0, slot);
        }
    }

    /// Takes a slot out that stands in the line of a peer.
    #[cold]
    fn search(&mut self, peer: u16, slot: u16) {
        let line = &mut self.lines[usize::from(peer)];
        let behind = std::mem::replace(&mut self.behind[usize::from(slot)], ABSENT);
        let before = find(line.first, slot, |slot| self.behind[usize::from(slot)]);
        match before {
            END => line.first = behind,
            before => self.behind[usize::from(before)] = behind,
        }
        if behind == END {
            line.last = before;
        }
        if line.first != END {
            return;
        }
        let behind = std::mem::replace(&mut line.next, ABSENT);
        let before = find(self.first, peer, |peer| self.lines[usize::from(peer)].next);
        match before {
            END => self.first = behind,
            before => self.lines[usize::from(before)].next = behind,
        }
        if behind == END {
            self.last = before;
        }
    }
}

/// What stands before `wanted` in a list that begins with `first`: [`END`] if nothing does.
fn find(first: u16, wanted: u16, next: impl Fn(u16) -> u16) -> u16 {
    let (mut before, mut place) = (END, first);
    while place != wanted {
        (before, place) = (place, next(place));
    }
    before
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

    /// On an idle queue; with the next slot it goes to its line, before that.
    #[test]
    fn a_slot_without_others_enters_no_line() {
        let mut turns = Turns::default();
        let (b, c) = (PeerIndex(1), PeerIndex(7));
        for slot in 0..3 {
            turns.push(b, slot);
            assert_eq!((turns.first, turns.any()), (END, true));
            assert_eq!(turns.pop(), Some(slot));
            assert!(!turns.any());
        }
        for (peer, slot) in [(b, 1), (b, 2), (c, 3)] {
            turns.push(peer, slot);
        }
        assert_eq!([(); 3].map(|()| turns.pop()), [1, 3, 2].map(Some));
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
                    0 | 1 => {
                        // What stands in a line already stays there.
                        let peer = *lines.entry(slot).or_insert(peer);
                        turns.push(PeerIndex(peer), slot);
                    }
                    2 => {
                        let peer = lines.remove(&slot).unwrap_or(peer);
                        turns.remove(PeerIndex(peer), slot);
                    }
                    _ => {
                        let taken = turns.pop();
                        prop_assert_eq!(taken.is_some(), !lines.is_empty());
                        if let Some(slot) = taken {
                            prop_assert!(lines.remove(&slot).is_some());
                        }
                    }
                }
                prop_assert_eq!(turns.any(), !lines.is_empty());
            }
            let mut rest: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
            rest.sort_unstable();
            prop_assert!(rest.into_iter().eq(lines.into_keys()));
        }
    }
}
