//! Counting in order what is started in order and ends in any order: completions of a process,
//! and its writes to one node. The count passes a member when it and all before it have ended.

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
        // Nearly all end in order.
        if number == self.ended && self.mask == 0 {
            self.ended += 1;
            return true;
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

/// What counts an operation when it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Counter {
    /// Operations that send.
    #[default]
    Writes,
    /// Operations that bring something.
    Reads,
    /// None: operations that end with an entry of the completion queue, in any order.
    Own,
}

/// Completion of the operations of one counter, in the order of issue (N12).
#[derive(Debug, Default)]
pub(crate) struct Completion {
    order: Order,
    /// Bit *i*: the process asked to learn when operation `done + i` is complete.
    wanted: u64,
}

impl Completion {
    /// Returns true if another operation can start.
    pub(crate) fn has_room(&self) -> bool {
        self.order.has_room()
    }

    /// Starts an operation; `publish` asks to write the counter back once it and all
    /// earlier ones are complete. There must be room.
    pub(crate) fn start(&mut self, publish: bool) -> u64 {
        let number = self.order.start();
        self.wanted |= u64::from(publish) << (number - self.order.ended());
        number
    }

    /// Completes an operation. Returns true if the counter has to be written back now.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        let before = self.done();
        self.order.end(number);
        if self.wanted == 0 {
            return false;
        }
        let run = (self.done() - before) as u32;
        let passed = 1u64.checked_shl(run).map_or(u64::MAX, |bit| bit - 1);
        let due = self.wanted & passed != 0;
        self.wanted = self.wanted.checked_shr(run).unwrap_or(0);
        due
    }

    /// Operations complete, up to the first that is not.
    pub(crate) fn done(&self) -> u64 {
        self.order.ended()
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

    #[test]
    fn a_counter_is_due_when_it_passes_a_command_that_asked() {
        let mut completion = Completion::default();
        for publish in [false, false, true, false] {
            completion.start(publish);
        }
        assert!(!completion.end(2), "earlier ones are not complete");
        assert!(!completion.end(0));
        assert_eq!(completion.done(), 1);
        assert!(completion.end(1));
        assert_eq!(completion.done(), 3);
        assert!(!completion.end(3));
        for number in 4..68 {
            assert_eq!(completion.start(number == 67), number);
        }
        assert!(!completion.has_room());
        for number in (4..68).rev() {
            assert_eq!(completion.end(number), number == 4);
        }
        assert_eq!(completion.done(), 68);
    }
}
