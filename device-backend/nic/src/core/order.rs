//! Things that are started in order, end in any order, and are counted in order: the
//! completions of a process, the writes of a process to one node.

/// Most members between the oldest that has not ended and the newest.
pub(crate) const ORDER_WINDOW: u64 = 64;

/// A window over numbered members: which of the last 64 have ended.
#[derive(Debug, Default)]
pub(crate) struct Order {
    started: u64,
    /// All members below this number have ended.
    ended: u64,
    /// Bit *i*: member `ended + i` has ended.
    mask: u64,
}

impl Order {
    /// Returns true if another one can start.
    pub(crate) fn has_room(&self) -> bool {
        self.started - self.ended < ORDER_WINDOW
    }

    /// Starts one; returns its number.
    ///
    /// There must be room.
    pub(crate) fn start(&mut self) -> u64 {
        debug_assert!(self.has_room());
        let number = self.started;
        self.started += 1;
        number
    }

    /// Notes that one has ended (again, without effect). Returns `true` if the
    /// count of [`Order::ended`] has moved.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        if number < self.ended {
            return false;
        }
        self.mask |= 1 << (number - self.ended);
        let count = self.mask.trailing_ones();
        self.ended += u64::from(count);
        self.mask = self.mask.checked_shr(count).unwrap_or(0);
        count > 0
    }

    /// How many have ended, up to the first that has not.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns true if all that have started have ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.started == self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ended_counts_the_unbroken_run(ends in prop::collection::vec(0u64..64, 0..200)) {
            let mut order = Order::default();
            let mut ended = std::collections::BTreeSet::new();
            for choice in ends {
                while order.has_room() {
                    order.start();
                }
                let number = order.ended() + choice;
                let before = order.ended();
                ended.insert(number);
                let moved = order.end(number);
                let run = (0..).find(|n| !ended.contains(n)).unwrap();
                prop_assert_eq!(order.ended(), run);
                prop_assert_eq!(moved, run != before);
            }
        }
    }
}
