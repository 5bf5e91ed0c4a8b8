//! Which bytes of a message went straight to the pages of its receive, while it is staged (Q12).
//!
//! ```text
//!   before the receive came      after it
//!   ├──────── staged ──────────┤├── straight ──┤├ staged ┤├─ straight ─┤
//!                                               its page was absent
//! ```
//! Once so many ranges are kept as may be, later fragments are staged like those before the receive.
//! Frames in order make one range, and a sender cannot make the NIC keep more.

/// Ranges that are kept of a message.
const RANGES: usize = 16;

/// Ranges of bytes, from and to, in order, which neither meet nor overlap.
#[derive(Debug, Default)]
pub(super) struct Straight(Vec<(u64, u64)>);

impl Straight {
    /// Returns true if another range can be noted, whatever it is.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < RANGES
    }

    /// Notes bytes from `from` to `to`.
    pub(super) fn note(&mut self, mut from: u64, mut to: u64) {
        let first = self.0.partition_point(|range| range.1 < from);
        let last = self.0.partition_point(|range| range.0 <= to);
        if let Some(met) = self.0.get(first..last).filter(|met| !met.is_empty()) {
            from = from.min(met[0].0);
            to = to.max(met[met.len() - 1].1);
        }
        self.0.splice(first..last, [(from, to)]);
    }

    /// The next bytes from `from` on that did not go straight: where they begin, and where the next
    /// that did so begin.
    pub(super) fn gap(&self, from: u64) -> (u64, Option<u64>) {
        let next = self.0.partition_point(|range| range.1 <= from);
        match self.0.get(next) {
            Some(range) if range.0 <= from => {
                let after = self.0.get(next + 1);
                (range.1, after.map(|range| range.0))
            }
            range => (from, range.map(|range| range.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sender_makes_no_more_ranges_than_are_kept() {
        let mut straight = Straight::default();
        let mut noted = 0;
        for number in 0..1000 {
            if straight.has_room() {
                straight.note(number * 4, number * 4 + 1);
                noted += 1;
            }
        }
        assert_eq!((noted, straight.0.len()), (RANGES, RANGES));
    }

    proptest! {
        /// Against one mark for each byte.
        #[test]
        fn gaps_are_what_was_not_noted(ranges in vec((0u64..100, 1u64..20), 0..30)) {
            let mut straight = Straight::default();
            let mut marks = [false; 120];
            for (from, length) in ranges {
                straight.note(from, from + length);
                marks[from as usize..(from + length) as usize].fill(true);
                prop_assert!(straight.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
            let mut gaps = [true; 120];
            let mut at = 0;
            while at < 120 {
                let (from, to) = straight.gap(at);
                let to = to.unwrap_or(120);
                gaps[at as usize..(from.min(120)) as usize].fill(false);
                at = to.max(from);
            }
            prop_assert!(gaps.iter().zip(&marks).all(|(gap, mark)| gap != mark));
        }
    }
}
