//! A word behind the sections of each target that all RDMA workers increment atomically.
//! Each increment is executed once; one that ends with an error, and whose target or route
//! was disturbed, is executed once or not at all (N20).

use std::collections::BTreeSet;

/// Bytes behind the sections of a target, with room to align the word.
pub(crate) const ROOM: u64 = 16;

/// Address of the word of a target with sections up to that address.
pub(crate) fn word(sections_end: u64) -> u64 {
    sections_end.next_multiple_of(8)
}

/// What is known of the word of one process.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// What successful increments found.
    found: BTreeSet<u64>,
    /// Increments that may have been executed or not.
    open: u64,
}

impl Count {
    /// An increment has ended well and has found that value.
    ///
    /// # Panics
    /// If another one has found it, too.
    pub(crate) fn found(&mut self, value: u64) {
        assert!(
            self.found.insert(value),
            "two increments found {value}: one of them is lost"
        );
    }

    /// An increment has ended and may have been executed.
    pub(crate) fn ended_open(&mut self) {
        self.open += 1;
    }

    /// Nothing is under way any more: the word must count what was executed.
    ///
    /// # Panics
    /// If it does not.
    pub(crate) fn audit(&self, value: u64) {
        let sure = self.found.len() as u64;
        assert!(
            (sure..=sure + self.open).contains(&value),
            "{value} counted: {sure} increments were executed, {} perhaps",
            self.open
        );
        let last = self.found.last();
        assert!(
            last.is_none_or(|last| *last < value),
            "an increment found {last:?}, but only {value} are counted"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(check: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(check).is_err()
    }

    #[test]
    fn lost_and_doubled_increments_are_noticed() {
        let count = |open| {
            let mut count = Count::default();
            count.found(0);
            count.found(1);
            (0..open).for_each(|_| count.ended_open());
            count
        };
        count(0).audit(2);
        count(2).audit(4);
        assert!(fails(|| count(0).found(1)), "lost");
        assert!(fails(|| count(0).audit(3)), "executed twice");
        assert!(fails(|| count(0).audit(1)), "not executed");
        assert!(fails(|| count(1).audit(4)), "more than were open");
    }
}
