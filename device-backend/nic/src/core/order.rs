//! Counting in order what is started in order and ends in any order: operations of one lane, and
//! writes of a process to one node. The count passes a member when it and all before it have ended.
//!
//! ```text
//!   ended ──► │ 1 0 1 1 0 … │ ◄── started        a bit for each that has ended ahead of its turn;
//!             └─ window of 1,024 members ─┘      none is stored while all end in order
//! ```

use std::collections::VecDeque;

use qnic_abi::host_area::OPERATIONS;

/// Most members between the oldest that has not ended and the newest.
pub(crate) const ORDER_WINDOW: u64 = OPERATIONS as u64;

/// Words of a bit for each member of a window.
const WORDS: usize = ORDER_WINDOW as usize / 64;

const _: () = assert!(ORDER_WINDOW as usize == WORDS * 64);

/// A window over numbered members: which of the last [`ORDER_WINDOW`] have ended.
#[derive(Debug, Default)]
pub(crate) struct Order {
    started: u64,
    /// All members below this number have ended.
    ended: u64,
    /// How many have ended ahead of one that has not.
    ahead: u32,
    /// Bit *n* modulo the window: member *n* is one of them.
    bits: Option<Box<[u64; WORDS]>>,
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
    #[inline]
    pub(crate) fn end(&mut self, number: u64) -> bool {
        // Nearly all end in order.
        if number == self.ended && self.ahead == 0 {
            self.ended += 1;
            return true;
        }
        self.end_out_of_order(number)
    }

    #[cold]
    fn end_out_of_order(&mut self, number: u64) -> bool {
        if number < self.ended {
            return false;
        }
        let bits = self.bits.get_or_insert_with(|| Box::new([0; WORDS]));
        let (word, bit) = place(number);
        self.ahead += u32::from(bits[word] & bit == 0);
        bits[word] |= bit;
        let before = self.ended;
        loop {
            let (word, bit) = place(self.ended);
            if bits[word] & bit == 0 {
                return self.ended != before;
            }
            bits[word] &= !bit;
            self.ahead -= 1;
            self.ended += 1;
        }
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

/// The word and the bit of a member.
fn place(number: u64) -> (usize, u64) {
    let index = (number % ORDER_WINDOW) as usize;
    (index / 64, 1 << (index % 64))
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

/// Completion of the operations of one counter of a lane, in the order of issue (N12).
#[derive(Debug, Default)]
pub(crate) struct Completion {
    order: Order,
    /// Operations of which the process asked to learn when they are complete; the oldest first.
    wanted: VecDeque<u64>,
}

impl Completion {
    /// Returns true if another operation can start.
    pub(crate) fn has_room(&self) -> bool {
        self.order.has_room()
    }

    /// Returns true if all that have started are complete.
    pub(crate) fn is_idle(&self) -> bool {
        self.order.is_idle()
    }

    /// Starts an operation; `publish` asks to write the counter back once it and all
    /// earlier ones are complete. There must be room.
    pub(crate) fn start(&mut self, publish: bool) -> u64 {
        let number = self.order.start();
        if publish {
            self.wanted.push_back(number);
        }
        number
    }

    /// Completes an operation. Returns true if the counter has to be written back now.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        self.order.end(number);
        let done = self.done();
        let mut due = false;
        while self.wanted.front().is_some_and(|wanted| *wanted < done) {
            self.wanted.pop_front();
            due = true;
        }
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
        fn ended_counts_the_unbroken_run(
            steps in prop::collection::vec((0u64..ORDER_WINDOW, 0u64..ORDER_WINDOW), 0..200),
        ) {
            let mut order = Order::default();
            let mut ended = std::collections::BTreeSet::new();
            for (first, count) in steps {
                while order.has_room() {
                    order.start();
                }
                let first = order.ended() + first;
                for number in first..(first + count).min(order.ended() + ORDER_WINDOW) {
                    let before = order.ended();
                    ended.insert(number);
                    let moved = order.end(number);
                    let run = (before..).find(|n| !ended.contains(n)).unwrap();
                    prop_assert_eq!(order.ended(), run);
                    prop_assert_eq!(moved, run != before);
                }
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
        let last = 4 + ORDER_WINDOW - 1;
        for number in 4..=last {
            assert_eq!(completion.start(number == last), number);
        }
        assert!(!completion.has_room());
        for number in (4..=last).rev() {
            assert_eq!(completion.end(number), number == 4);
        }
        assert_eq!(completion.done(), last + 1);
        assert!(completion.is_idle());
    }
}
