//! The order in which processes joined an object.

use std::collections::{BTreeMap, BTreeSet};

/// The name of a process in a queue, as it stands in objects: node, port, incarnation of
/// the participant, number of its slot + 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry(u64);

impl Entry {
    /// The entry of that name; `None` if the word names none.
    pub(super) fn of(word: u64) -> Option<Self> {
        (word != 0).then_some(Entry(word))
    }

    pub(super) fn port(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(super) fn incarnation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// Entries in the order in which the owner's NIC has executed their joining operations.
/// A participant's slot that is used again is another entry.
#[derive(Debug, Default)]
pub(super) struct FifoQueue {
    joined: Vec<Entry>,
    /// The last position of each.
    positions: BTreeMap<Entry, usize>,
    /// So many of them, from the front, have been served.
    pub(super) count: usize,
    /// Signs that some of those that only try have withdrawn, at most two of each.
    pub(super) withdrawn: u64,
    /// Those that only try.
    tries: BTreeSet<usize>,
    /// Those that gave up: a turn that comes to one of them passes on, or never does.
    gave_up: BTreeSet<usize>,
}

impl FifoQueue {
    pub(super) fn join(&mut self, entry: Entry) {
        self.positions.insert(entry, self.joined.len());
        self.joined.push(entry);
    }

    /// The entry that has joined last only tries: it may withdraw.
    pub(super) fn join_tries(&mut self) {
        self.tries.extend(self.joined.len().checked_sub(1));
    }

    /// An entry gives up.
    pub(super) fn give_up(&mut self, entry: Entry) {
        self.gave_up.extend(self.positions.get(&entry));
    }

    /// Passes over those in front of an entry, or of the end, that have withdrawn or given up.
    /// The entry counts as it has joined last.
    pub(super) fn pass_withdrawn(&mut self, entry: Option<Entry>) {
        let end = entry.and_then(|entry| self.positions.get(&entry).copied());
        while end != Some(self.count) {
            if self.gave_up.contains(&self.count) {
                self.count += 1;
            } else if self.withdrawn > 0 && self.tries.contains(&self.count) {
                self.withdrawn -= 1;
                self.count += 1;
            } else {
                return;
            }
        }
    }

    pub(super) fn serve(&mut self) {
        self.count += 1;
    }

    /// The first that is not served.
    pub(super) fn first(&self) -> Option<Entry> {
        self.joined.get(self.count).copied()
    }

    /// Returns true if an entry has joined.
    pub(super) fn holds(&self, entry: Entry) -> bool {
        self.positions.contains_key(&entry)
    }

    /// Returns true if an entry, which has joined, is served.
    pub(super) fn served(&self, entry: Entry) -> bool {
        let position = self.positions.get(&entry);
        position.is_some_and(|at| *at < self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_served_in_its_order() {
        let entry = |word| Entry::of(word).unwrap();
        let mut queue = FifoQueue::default();
        assert_eq!(queue.first(), None);
        queue.join(entry(7));
        queue.join(entry(9));
        queue.serve();
        assert_eq!(queue.first(), Some(entry(9)));
        assert!(queue.served(entry(7)) && !queue.served(entry(9)));
        assert!(queue.holds(entry(9)) && !queue.holds(entry(8)));
        queue.join(entry(7));
        assert!(!queue.served(entry(7)), "it has joined once more");
        queue.join_tries();
        queue.serve();
        queue.pass_withdrawn(None);
        assert_eq!(queue.first(), Some(entry(7)), "it has not withdrawn");
        queue.withdrawn = 1;
        queue.pass_withdrawn(Some(entry(7)));
        assert_eq!(
            queue.first(),
            Some(entry(7)),
            "it is the one that is served"
        );
        queue.pass_withdrawn(None);
        assert_eq!((queue.first(), queue.withdrawn), (None, 0));
        queue.join(entry(8));
        queue.join(entry(6));
        queue.give_up(entry(8));
        assert_eq!(queue.first(), Some(entry(8)));
        queue.pass_withdrawn(None);
        assert_eq!(queue.first(), Some(entry(6)));
    }

    #[test]
    fn entries_are_those_of_the_library() {
        let entry = Entry::of(3 << 48 | 57 << 32 | 0xabcd << 16 | 4).unwrap();
        assert_eq!((entry.port(), entry.incarnation()), (57, 0xabcd));
        assert_eq!(Entry::of(0), None);
    }
}
