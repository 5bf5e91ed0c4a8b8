//! Frames that all connections of an endpoint share: each has one of its own, and takes more
//! while there are.

/// The free part of a number of frames.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    free: usize,
}

impl Budget {
    /// `frames` for up to `connections`, each of which has one.
    pub(crate) fn new(frames: usize, connections: usize) -> Self {
        let total = frames - connections;
        Budget { total, free: total }
    }

    /// The most that one of so many connections gets.
    pub(crate) fn share(&self, connections: usize, most: usize) -> usize {
        (1 + self.total / connections.max(1)).min(most)
    }

    /// Changes the frames of a connection from `has` to `wants`, or fewer if there are not so
    /// many; returns the new number. Giving back always works.
    pub(crate) fn change(&mut self, has: usize, wants: usize) -> usize {
        let (extra, wanted) = (has.saturating_sub(1), wants.saturating_sub(1));
        self.free += extra;
        let gets = wanted.min(self.free);
        self.free -= gets;
        wants.min(1) + gets
    }

    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        self.free == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_and_the_rest_is_shared() {
        let mut budget = Budget::new(10, 4);
        assert_eq!(budget.share(1, 100), 7);
        assert_eq!(budget.share(3, 100), 3);
        let first = budget.change(0, 7);
        assert_eq!(first, 7);
        assert_eq!(budget.change(0, 5), 1, "its own");
        let first = budget.change(first, 3);
        assert_eq!((first, budget.change(1, 9)), (3, 5));
        assert_eq!(budget.change(5, 0) + budget.change(3, 0), 0);
        assert!(budget.is_whole());
    }
}
