//! The word of a lock that says whether it is free.
//!
//! ```text
//!   bits 0–31   turns taken since the lock was free, the holder's included; 0: it is free
//!   bits 32–62  generation: the recoveries of the lock
//!   bit  63     frozen: a recovery looks at the lock
//! ```
//! The owner's NIC counts a turn when a process joins (Enqueue). Each holder knows the number
//! of its own turn: the first has 1, and a hand-over tells the next. So a holder is the last
//! of the queue if the word counts no more turns than its own. Generation and frozen are never
//! those of a holder while a recovery looks, or after it has freed the lock: then the release
//! of an old holder, which may arrive late, changes nothing.

/// Turns from which on a holder begins to count at one again: the NIC stops at `u32::MAX`.
pub(crate) const MANY: u32 = 1 << 30;

const FROZEN: u64 = 1 << 63;

/// A generation that no lock has: nothing is known.
const UNKNOWN: u32 = u32::MAX;

/// The word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turns(pub(crate) u64);

/// The turn of a process in the queue of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Its number.
    pub(crate) number: u32,
    /// The lock's generation before the process joined.
    pub(crate) generation: u32,
}

impl Turn {
    /// The word while no process is behind.
    pub(crate) fn as_last(self) -> Turns {
        Turns(u64::from(self.generation) << 32 | u64::from(self.number))
    }
}

impl Turns {
    /// A free lock.
    pub(crate) fn free(generation: u32) -> Self {
        Turns(u64::from(generation) << 32 & !FROZEN)
    }

    /// The generation of a lock with that epoch, if the epoch is one of an intact object.
    pub(crate) fn generation_of(epoch: u64) -> u32 {
        match epoch & 3 {
            0 => (epoch >> 2) as u32 & !(1 << 31),
            _ => UNKNOWN,
        }
    }

    pub(crate) fn count(self) -> u32 {
        self.0 as u32
    }

    /// The generation, without the frozen bit.
    pub(crate) fn generation(self) -> u32 {
        ((self.0 & !FROZEN) >> 32) as u32
    }

    pub(crate) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Returns true if it counts turns of that generation, and no recovery looks.
    pub(crate) fn is_of(self, generation: u32) -> bool {
        !self.is_frozen() && self.generation() == generation
    }

    pub(crate) fn frozen(self) -> Self {
        Turns(self.0 | FROZEN)
    }

    pub(crate) fn thawed(self) -> Self {
        Turns(self.0 & !FROZEN)
    }

    /// The word with so many turns less; it keeps one.
    pub(crate) fn less(self, turns: u32) -> Self {
        let count = self.count().saturating_sub(turns).max(1);
        Turns(self.0 >> 32 << 32 | u64::from(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_turn_is_the_last_only_in_its_generation(number in 1u32.., epoch: u64, other: u64) {
            let generation = Turns::generation_of(epoch & !3);
            let last = Turn { number, generation }.as_last();
            prop_assert_eq!((last.count(), last.generation()), (number, generation));
            prop_assert!(last.is_of(generation) && !last.frozen().is_of(generation));
            prop_assert_eq!(last.frozen().thawed(), last);
            prop_assert_eq!(last.frozen().generation(), generation);
            prop_assert_eq!(Turns::free(generation).count(), 0);
            let other = Turns::generation_of(other & !3);
            prop_assert_eq!(last.is_of(other), generation == other);
        }

        #[test]
        fn fewer_turns_change_nothing_else(word: u64, turns: u32) {
            let less = Turns(word).less(turns);
            prop_assert_eq!(less.0 >> 32, word >> 32);
            prop_assert_eq!(less.count(), Turns(word).count().saturating_sub(turns).max(1));
        }
    }

    #[test]
    fn an_epoch_that_is_not_intact_gives_no_generation_of_a_lock() {
        for epoch in [1, 3, 5, 7, u64::MAX] {
            let turn = Turn {
                number: 1,
                generation: Turns::generation_of(epoch),
            };
            assert!(turn.as_last().is_frozen(), "{epoch}: no holder's word is");
        }
        assert_eq!(Turns::generation_of(8), 2);
    }
}
