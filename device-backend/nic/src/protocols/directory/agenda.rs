//! Things to do, by number and by time.

use std::collections::{BTreeMap, BTreeSet};

use crate::env::Time;

/// Entries that have a number and a time at which something is to be done about them. Each
/// is found by either; no access takes longer than the logarithm of their number.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    entries: BTreeMap<u64, (Time, T)>,
    due: BTreeSet<(Time, u64)>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Agenda {
            entries: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }
}

impl<T> Agenda<T> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of that number.
    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.entries.get(&number).map(|(_, entry)| entry)
    }

    /// Puts an entry in; there is none of that number.
    pub(super) fn insert(&mut self, number: u64, due: Time, entry: T) {
        self.due.insert((due, number));
        self.entries.insert(number, (due, entry));
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let (due, entry) = self.entries.remove(&number)?;
        self.due.remove(&(due, number));
        Some(entry)
    }

    /// When something is to be done next.
    pub(super) fn first_due(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The number of the entry about which something is to be done next, if that is by now.
    pub(super) fn next_due(&self, now: Time) -> Option<u64> {
        let (due, number) = *self.due.first()?;
        (due <= now).then_some(number)
    }
}
