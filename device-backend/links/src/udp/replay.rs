//! The replay window: each datagram of a peer is accepted once.

/// How far behind the newest a datagram may be, in datagrams.
pub(super) const WIDTH: u64 = 4096;

const WORDS: usize = WIDTH as usize / 64;

/// Counters that were seen: a ring of bits that ends at the highest.
#[derive(Debug, Clone)]
pub(super) struct ReplayWindow {
    /// One more than the highest counter seen.
    next: u64,
    seen: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        ReplayWindow {
            next: 0,
            seen: [0; WORDS],
        }
    }
}

impl ReplayWindow {
    /// Accepts a counter. Returns false if it was accepted before, or is too old to tell.
    pub(super) fn take(&mut self, counter: u64) -> bool {
        if counter >= self.next {
            let steps = counter - self.next;
            if steps >= WIDTH {
                self.seen = [0; WORDS];
            } else {
                (self.next..counter).for_each(|passed| self.clear(passed));
            }
            let Some(next) = counter.checked_add(1) else {
                return false;
            };
            self.next = next;
        } else if self.next - counter > WIDTH || self.bit(counter) {
            return false;
        }
        let (word, bit) = position(counter);
        self.seen[word] |= bit;
        true
    }

    fn bit(&self, counter: u64) -> bool {
        let (word, bit) = position(counter);
        self.seen[word] & bit != 0
    }

    fn clear(&mut self, counter: u64) {
        let (word, bit) = position(counter);
        self.seen[word] &= !bit;
    }
}

fn position(counter: u64) -> (usize, u64) {
    let index = counter % WIDTH;
    ((index / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        /// Against a set that remembers everything.
        #[test]
        fn each_counter_is_accepted_once(steps in prop::collection::vec((any::<bool>(), 0u64..6000), 1..400)) {
            let mut window = ReplayWindow::default();
            let mut seen = HashSet::new();
            let mut highest = 0u64;
            for (back, step) in steps {
                let counter = if back { highest.saturating_sub(step) } else { highest + step };
                let old = !seen.is_empty() && highest >= counter && highest - counter >= WIDTH;
                let expected = !old && seen.insert(counter);
                prop_assert_eq!(window.take(counter), expected, "{}", counter);
                highest = highest.max(counter);
            }
        }
    }

    #[test]
    fn the_last_number_ends_a_session() {
        let mut window = ReplayWindow::default();
        assert!(!window.take(u64::MAX));
        assert!(window.take(u64::MAX - 1));
    }
}
