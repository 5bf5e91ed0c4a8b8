//! How long a thread spins in its next wait, by what came of the last ones.
//!
//! ```text
//!   a wait ends within the budget      ──► the whole budget next time
//!   a wait is longer than the budget   ──► half of what was spun, down to a 32nd
//! ```
//! A thread that waits for a slow link would otherwise spin most of the time, and take the processor from
//! threads that wait for fast ones, and from the device process.

use std::cell::Cell;
use std::time::Duration;

/// How often a budget is halved at most.
const HALVED: u32 = 5;

thread_local! {
    /// How often the budget of this thread is halved.
    static LONG: Cell<u32> = const { Cell::new(0) };
}

/// What the calling thread spins of a budget.
pub(super) fn part_of(budget: Duration) -> Duration {
    budget / (1 << LONG.get())
}

/// A wait of the calling thread has ended, after that time, or while it spun (`None`).
pub(super) fn note(waited: Option<Duration>, budget: Duration) {
    let long = match waited {
        Some(waited) if waited > budget => (LONG.get() + 1).min(HALVED),
        _ => 0,
    };
    LONG.set(long);
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(1000);

    #[test]
    fn long_waits_make_a_thread_spin_less_and_one_short_wait_undoes_that() {
        assert_eq!(part_of(BUDGET), BUDGET);
        for part in [500, 250, 125] {
            note(Some(2 * BUDGET), BUDGET);
            assert_eq!(part_of(BUDGET), Duration::from_micros(part));
        }
        (0..100).for_each(|_| note(Some(2 * BUDGET), BUDGET));
        assert_eq!(part_of(BUDGET), BUDGET / 32);
        assert!(std::thread::spawn(|| part_of(BUDGET) == BUDGET)
            .join()
            .unwrap());
        // It has slept, but the whole budget would have been enough.
        note(Some(BUDGET / 2), BUDGET);
        assert_eq!(part_of(BUDGET), BUDGET);
        note(Some(2 * BUDGET), BUDGET);
        note(None, BUDGET);
        assert_eq!(part_of(BUDGET), BUDGET);
    }
}
