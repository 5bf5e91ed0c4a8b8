//! Lines of those who wait, and how they look at a home.

use std::collections::BTreeMap;

use qnic_abi::atomic::WaitQueue;

use crate::memory::Words;

/// Name of a slot as it stands at homes: node, port, life of the participant,
/// slot + 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry(u64);

impl Entry {
    /// The entry of that name; `None` for nobody.
    pub(super) fn of(word: u64) -> Option<Self> {
        (word != 0).then_some(Entry(word))
    }

    pub(super) fn port(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(super) fn life(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// Entries in the order in which their home has executed their joining operations.
/// A slot that is used again is another entry.
#[derive(Debug, Default)]
pub(super) struct Line {
    joined: Vec<Entry>,
    /// The last place of each.
    places: BTreeMap<Entry, usize>,
    /// So many of them, from the front, have been served.
    served: usize,
}

impl Line {
    pub(super) fn join(&mut self, entry: Entry) {
        self.places.insert(entry, self.joined.len());
        self.joined.push(entry);
    }

    /// Serves the next one.
    pub(super) fn serve(&mut self) {
        self.served += 1;
    }

    /// How many have been served.
    pub(super) fn count(&self) -> usize {
        self.served
    }

    /// The first that is not served.
    pub(super) fn first(&self) -> Option<Entry> {
        self.joined.get(self.served).copied()
    }

    /// Says whether an entry has joined.
    pub(super) fn holds(&self, entry: Entry) -> bool {
        self.places.contains_key(&entry)
    }

    /// Says whether an entry, which has joined, is served.
    pub(super) fn served(&self, entry: Entry) -> bool {
        self.places.get(&entry).is_some_and(|at| *at < self.served)
    }
}

/// The central structure of a wait queue or a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Structure {
    head: u64,
    pub(super) tail: u64,
    pub(super) count: u64,
    pending: u64,
    pub(super) value: u64,
}

impl Structure {
    pub(super) fn of(words: &Words) -> Self {
        let words = [words[0], words[1], words[2], words[3]];
        let queue: WaitQueue = zerocopy::transmute!(words.map(u64::to_le));
        Structure {
            head: queue.head.get(),
            tail: queue.tail.get(),
            count: queue.count.get().into(),
            pending: queue.pending.get().into(),
            value: queue.value.get().into(),
        }
    }

    /// Entries that wait and that no wake-up is meant for.
    pub(super) fn waiting(&self) -> u64 {
        self.count.saturating_sub(self.pending)
    }

    /// Says whether nobody has ever joined.
    pub(super) fn is_empty(&self) -> bool {
        (self.head, self.tail, self.count, self.pending) == (0, 0, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_served_in_its_order() {
        let entry = |word| Entry::of(word).unwrap();
        let mut line = Line::default();
        assert_eq!(line.first(), None);
        line.join(entry(7));
        line.join(entry(9));
        line.serve();
        assert_eq!(line.first(), Some(entry(9)));
        assert!(line.served(entry(7)) && !line.served(entry(9)));
        assert!(line.holds(entry(9)) && !line.holds(entry(8)));
        line.join(entry(7));
        assert!(!line.served(entry(7)), "it has joined once more");
    }

    #[test]
    fn entries_are_those_of_the_library() {
        let entry = Entry::of(3 << 48 | 57 << 32 | 0xabcd << 16 | 4).unwrap();
        assert_eq!((entry.port(), entry.life()), (57, 0xabcd));
        assert_eq!(Entry::of(0), None);
    }

    #[test]
    fn a_structure_tells_who_waits_without_a_wake_up() {
        let mut words = Words::default();
        words[1] = 5;
        words[2] = 3 | 1 << 32;
        words[3] = 2;
        let structure = Structure::of(&words);
        assert_eq!((structure.waiting(), structure.value), (2, 2));
        assert!(!structure.is_empty() && Structure::of(&Words::default()).is_empty());
    }
}
