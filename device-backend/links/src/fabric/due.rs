//! Which NICs have something to do. A round visits only these, so NICs at rest cost it nothing
//! (P9, P10).
//!
//! ```text
//!              doorbell, request, frame,
//!              deadline, command of its node
//!   at rest ────────────────────────────────► due: has a turn in each round
//!      ▲                                           │
//!      └───────────────────────────────────────────┘
//!        a turn found nothing, and no queue is active
//! ```
//! A NIC at rest that has idle queues is *watched*: processes may post to them without a doorbell,
//! so the engine looks at them while it runs. All other NICs at rest are in the state in which the
//! engine could sleep: only what makes one due can give it work. So all code that touches a NIC makes
//! it due; one turn too many costs little, one too few loses work.
//!
//! A frame that comes by a call of its sender makes a NIC due, too. If it was at rest before, and its
//! sender learns by a receipt what a turn would tell it, and nothing else is left to do, it is
//! *dismissed*: at rest as before, without a turn.

use qnic_nic::env::Time;

/// The deadline of a slot that has none.
const NEVER: Time = Time(u64::MAX);

/// Slots per word.
const BITS: usize = u64::BITS as usize;

/// A set of slots.
#[derive(Debug, Default)]
struct Slots(Vec<u64>);

impl Slots {
    #[inline]
    fn insert(&mut self, slot: usize) {
        self.0[slot / BITS] |= 1 << (slot % BITS);
    }

    #[inline]
    fn remove(&mut self, slot: usize) {
        self.0[slot / BITS] &= !(1 << (slot % BITS));
    }

    fn contains(&self, slot: usize) -> bool {
        self.0[slot / BITS] >> (slot % BITS) & 1 == 1
    }

    /// The first one from `from` on.
    #[inline]
    fn next(&self, from: usize) -> Option<usize> {
        let start = from / BITS;
        let mut words = (start..).zip(self.0.get(start..)?);
        let (word, bits) = words.find_map(|(word, bits)| {
            let skipped = if word == start { from % BITS } else { 0 };
            let bits = bits & (u64::MAX << skipped);
            (bits != 0).then_some((word, bits))
        })?;
        Some(word * BITS + bits.trailing_zeros() as usize)
    }
}

/// The slots that are due, those that are watched, and when those are due that are at rest.
#[derive(Debug)]
pub(super) struct Due {
    due: Slots,
    /// Those of them that were at rest, and are due only as frames came by calls of their senders.
    called: Slots,
    watched: Slots,
    /// When each slot is due again that is at rest; of others, what it was.
    deadlines: Vec<Time>,
    /// None of them is earlier.
    first: Time,
    /// Where the next search for watched slots begins.
    next_watched: usize,
}

impl Default for Due {
    fn default() -> Self {
        Due {
            due: Slots::default(),
            called: Slots::default(),
            watched: Slots::default(),
            deadlines: Vec::new(),
            first: NEVER,
            next_watched: 0,
        }
    }
}

impl Due {
    /// Adds the next slot, which is due.
    pub(super) fn add(&mut self) {
        let slot = self.deadlines.len();
        self.deadlines.push(NEVER);
        let words = self.deadlines.len().div_ceil(BITS);
        self.due.0.resize(words, 0);
        self.called.0.resize(words, 0);
        self.watched.0.resize(words, 0);
        self.mark(slot);
    }

    /// A slot is due.
    #[inline]
    pub(super) fn mark(&mut self, slot: usize) {
        self.due.insert(slot);
        self.called.remove(slot);
    }

    /// A slot is due, as a frame comes by a call of its sender.
    #[inline]
    pub(super) fn call(&mut self, slot: usize) {
        if !self.due.contains(slot) {
            self.due.insert(slot);
            self.called.insert(slot);
        }
    }

    /// Returns true if a slot is due for calls only.
    #[inline]
    pub(super) fn is_called(&self, slot: usize) -> bool {
        self.called.contains(slot)
    }

    /// A slot is at rest as it was before calls.
    #[inline]
    pub(super) fn dismiss(&mut self, slot: usize) {
        self.due.remove(slot);
        self.called.remove(slot);
    }

    pub(super) fn is_marked(&self, slot: usize) -> bool {
        self.due.contains(slot)
    }

    /// A slot is at rest until it is due again, at `deadline` at the latest.
    pub(super) fn rest(&mut self, slot: usize, deadline: Option<Time>) {
        let deadline = deadline.unwrap_or(NEVER);
        self.dismiss(slot);
        self.deadlines[slot] = deadline;
        self.first = self.first.min(deadline);
    }

    /// The first slot that is due, of those from `from` on.
    #[inline]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        self.due.next(from)
    }

    /// How many slots are watched.
    #[inline]
    pub(super) fn watched(&self) -> usize {
        let counts = self.watched.0.iter().map(|bits| bits.count_ones() as usize);
        counts.sum()
    }

    /// The next slot to look at, of those that are watched, in turn.
    #[inline]
    pub(super) fn next_watched(&mut self) -> Option<usize> {
        let found = self.watched.next(self.next_watched);
        let slot = found.or_else(|| self.watched.next(0))?;
        self.next_watched = slot + 1;
        Some(slot)
    }

    /// A slot at rest has idle queues.
    pub(super) fn watch(&mut self, slot: usize) {
        self.watched.insert(slot);
    }

    /// A slot has no idle queues, or looks at them itself.
    pub(super) fn unwatch(&mut self, slot: usize) {
        self.watched.remove(slot);
    }

    /// All slots that are watched are due.
    pub(super) fn mark_watched(&mut self) {
        self.called.0.fill(0);
        let words = self.watched.0.iter_mut().zip(&mut self.due.0);
        words.for_each(|(watched, due)| *due |= std::mem::take(watched));
    }

    /// Slots whose deadlines have come are due.
    #[inline]
    pub(super) fn expire(&mut self, now: Time) {
        if self.first <= now {
            self.expire_some(now);
        }
    }

    fn expire_some(&mut self, now: Time) {
        for slot in 0..self.deadlines.len() {
            if self.deadlines[slot] <= now {
                self.deadlines[slot] = NEVER;
                self.mark(slot);
            }
        }
        self.first = self.deadlines.iter().copied().min().unwrap_or(NEVER);
    }

    /// When a slot is due again that is at rest.
    pub(super) fn deadline(&self, slot: usize) -> Option<Time> {
        Some(self.deadlines[slot]).filter(|deadline| *deadline != NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(due: &Due) -> Vec<usize> {
        let mut from = 0;
        std::iter::from_fn(|| {
            let slot = due.next(from)?;
            from = slot + 1;
            Some(slot)
        })
        .collect()
    }

    #[test]
    fn slots_are_found_in_their_order_across_words() {
        let mut due = Due::default();
        assert_eq!(due.next(0), None);
        for _ in 0..130 {
            due.add();
        }
        assert_eq!(all(&due), (0..130).collect::<Vec<_>>());
        for slot in 0..130 {
            due.rest(slot, None);
        }
        assert!(all(&due).is_empty());
        for slot in [129, 63, 64, 0] {
            due.mark(slot);
        }
        assert_eq!(all(&due), [0, 63, 64, 129]);
        assert_eq!(due.next(130), None);
        assert_eq!(due.next(1000), None);
    }

    #[test]
    fn a_deadline_counts_until_the_slot_rests_again() {
        let mut due = Due::default();
        for _ in 0..3 {
            due.add();
        }
        due.rest(0, Some(Time(10)));
        due.rest(1, Some(Time(20)));
        due.rest(2, None);
        due.expire(Time(9));
        assert!(all(&due).is_empty());
        due.expire(Time(10));
        assert_eq!(all(&due), [0]);
        // The second deadline is put off, the first one renewed.
        due.rest(1, Some(Time(40)));
        due.rest(0, Some(Time(30)));
        due.expire(Time(29));
        assert!(all(&due).is_empty());
        due.expire(Time(50));
        assert_eq!(all(&due), [0, 1]);
        assert_eq!(due.deadline(2), None);
    }
}
