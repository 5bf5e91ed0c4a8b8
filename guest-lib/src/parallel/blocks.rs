//! Which rank has which rows: contiguous blocks, whose lengths differ by one at most.

use std::ops::Range;

/// Rows in blocks, one for each rank. The first ranks have the longer blocks; with more ranks
/// than rows, the last ones have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    rows: usize,
    ranks: u32,
}

impl Blocks {
    /// So many rows over so many ranks.
    ///
    /// # Panics
    /// If there are no ranks.
    pub fn new(rows: usize, ranks: u32) -> Self {
        assert!(ranks > 0, "rows need a rank");
        Blocks { rows, ranks }
    }

    /// All rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The rows of a rank; none if there is no such rank.
    pub fn of(&self, rank: u32) -> Range<usize> {
        let (each, more) = self.shares();
        let begin = |rank: usize| (rank * each + rank.min(more)).min(self.rows);
        let rank = rank.min(self.ranks) as usize;
        begin(rank)..begin(rank + 1)
    }

    /// The rank that has a row; that of the last row for those beyond.
    pub fn owner(&self, row: usize) -> u32 {
        let (each, more) = self.shares();
        let longer = more * (each + 1);
        let rank = match row.min(self.rows.saturating_sub(1)) {
            row if row < longer => row / (each + 1),
            row => more + (row - longer) / each.max(1),
        };
        rank as u32
    }

    /// Rows of each rank, and ranks that have one more.
    fn shares(&self) -> (usize, usize) {
        let ranks = self.ranks as usize;
        (self.rows / ranks, self.rows % ranks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each row is in exactly one block, that of its owner; blocks stand in order, and are
        /// of one length or differ by one.
        #[test]
        fn each_row_has_one_owner(rows in 0_usize..500, ranks in 1_u32..40) {
            let blocks = Blocks::new(rows, ranks);
            let mut next = 0;
            for rank in 0..ranks {
                let own = blocks.of(rank);
                prop_assert_eq!(own.start, next);
                next = own.end;
                prop_assert!(own.len().abs_diff(rows / ranks as usize) <= 1);
                for row in own {
                    prop_assert_eq!(blocks.owner(row), rank);
                }
            }
            prop_assert_eq!(next, rows);
            prop_assert!(blocks.of(ranks).is_empty());
        }
    }
}
