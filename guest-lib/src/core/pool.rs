//! Which pages of the buffer pool are free (Q7).

use qnic_abi::context::POOL_PAGES;
use qnic_abi::host_area::{POOL, SEND_DOORBELLS};
use qnic_abi::PAGE_SIZE;

const _: () = assert!(POOL_PAGES < u32::BITS as usize);

/// Pages of the pool, one behind the other; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: usize,
    pub(crate) pages: usize,
}

impl Run {
    /// Where it begins in the writable pages of the host area.
    pub(crate) fn offset(self) -> usize {
        POOL - SEND_DOORBELLS + self.first * PAGE_SIZE
    }

    /// Its length in bytes.
    pub(crate) fn len(self) -> usize {
        self.pages * PAGE_SIZE
    }

    fn bits(self) -> u32 {
        ((1 << self.pages) - 1) << self.first
    }
}

/// The pages that are taken, as a bitmap.
#[derive(Debug)]
pub(crate) struct PoolPages {
    /// How many there are.
    pages: usize,
    taken: u32,
}

impl PoolPages {
    /// All of so many pages are free, up to [`POOL_PAGES`].
    pub(crate) fn new(pages: usize) -> Self {
        PoolPages { pages, taken: 0 }
    }

    /// Takes the first run of so many pages.
    pub(crate) fn take(&mut self, pages: usize) -> Option<Run> {
        let last = self.pages.checked_sub(pages)?;
        let mut runs = (0..=last).map(|first| Run { first, pages });
        let run = runs.find(|run| self.taken & run.bits() == 0)?;
        self.taken |= run.bits();
        Some(run)
    }

    pub(crate) fn give_back(&mut self, run: Run) {
        self.taken &= !run.bits();
    }

    /// Pages that are free.
    pub(crate) fn free(&self) -> usize {
        self.pages - self.taken.count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_do_not_overlap_and_come_back() {
        let mut pool = PoolPages::new(POOL_PAGES);
        let all = pool.take(POOL_PAGES).unwrap();
        assert_eq!((all.first, pool.free(), pool.take(1)), (0, 0, None));
        pool.give_back(all);
        let runs: Vec<_> = (0..4).map(|_| pool.take(4).unwrap()).collect();
        let firsts: Vec<_> = runs.iter().map(|run| run.first).collect();
        assert_eq!(firsts, [0, 4, 8, 12]);
        pool.give_back(runs[0]);
        pool.give_back(runs[2]);
        assert_eq!((pool.free(), pool.take(5)), (8, None));
        assert_eq!(pool.take(2).unwrap().first, 0);
        assert_eq!(pool.take(4).unwrap().first, 8);
        assert_eq!(pool.take(POOL_PAGES + 1), None);
    }
}
