//! An object and the lines that joined it, as the changes at its home tell.

use super::line::{Entry, Line, Structure};
use super::Kind;
use crate::memory::Words;

/// An object at its home.
#[derive(Default)]
pub(super) struct Object {
    /// The line that is joined now is the last.
    pub(super) lines: Vec<Line>,
    /// Somebody recovers it, but has not emptied it yet.
    pub(super) reviving: bool,
    /// When somebody has claimed it to recover it.
    pub(super) claimed_at: u64,
    /// When the name in a lock's holder word came there.
    pub(super) named_at: u64,
}

impl Object {
    pub(super) fn new() -> Self {
        Object {
            lines: vec![Line::default()],
            ..Object::default()
        }
    }

    /// The last line that an entry has joined.
    pub(super) fn line_of(&self, entry: Entry) -> Option<&Line> {
        self.lines.iter().rev().find(|line| line.holds(entry))
    }

    pub(super) fn line_of_mut(&mut self, entry: Entry) -> Option<&mut Line> {
        self.lines.iter_mut().rev().find(|line| line.holds(entry))
    }

    /// Entries that were served in all lines.
    pub(super) fn served(&self) -> u64 {
        self.lines.iter().map(|line| line.count() as u64).sum()
    }

    pub(super) fn last(&mut self) -> &mut Line {
        if self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        let last = self.lines.len() - 1;
        &mut self.lines[last]
    }

    /// The object is empty again.
    pub(super) fn empty(&mut self) {
        self.reviving = false;
        self.lines.push(Line::default());
    }

    /// Checks that an entry which is served is so by its turn.
    pub(super) fn check_served(&self, place: usize, entry: Entry) {
        let served = self.line_of(entry).is_some_and(|line| line.served(entry));
        assert!(served, "member {place} is woken out of turn");
    }

    /// What the tail of a lock says; returns who has joined.
    pub(super) fn lock_changed(
        &mut self,
        now: u64,
        before: &Words,
        after: &Words,
    ) -> Option<Entry> {
        if before[1] != after[1] {
            self.named_at = now;
        }
        if before[0] == after[0] {
            return None;
        }
        let Some(entry) = Entry::of(after[0]) else {
            if self.reviving {
                self.empty();
                return None;
            }
            let first = self.last().first();
            assert_eq!(first, None, "a lock that is held becomes free");
            return None;
        };
        let before = Entry::of(before[0]);
        let line = self.last();
        assert!(
            before.is_some() || line.first().is_none(),
            "a lock that is held is given to somebody else"
        );
        line.join(entry);
        Some(entry)
    }

    /// What became of a wait queue; returns who has joined.
    pub(super) fn queue_changed(
        &mut self,
        kind: Kind,
        before: &Structure,
        after: &Structure,
    ) -> Option<Entry> {
        if after.waiting() < before.waiting() {
            let woken = before.waiting() - after.waiting();
            (0..woken).for_each(|_| self.last().serve());
        }
        assert!(
            after.value <= before.value || before.waiting() == 0,
            "a unit becomes free while somebody waits for it"
        );
        if after.count <= before.count {
            return None;
        }
        assert!(
            kind == Kind::Queue || before.value == 0,
            "somebody waits for a unit that is free"
        );
        let entry = Entry::of(after.tail)?;
        self.last().join(entry);
        Some(entry)
    }
}
