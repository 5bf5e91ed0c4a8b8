//! Trials side by side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use qnic_cluster::Cancel;

use crate::output::Quiet;
use crate::trial::Trial;
use crate::verdict::Outcome;

/// Runs `trials`, so many `at_once`, and tells of each when it has ended, with its index. Once
/// `cancel` is pulled, those that run end and no other begins. Returns the outcomes in the
/// order of the trials; `None` for those that did not run.
pub fn run(
    trials: &[Trial],
    at_once: usize,
    cancel: &Cancel,
    told: &mut dyn FnMut(usize, &Outcome),
) -> Vec<Option<Outcome>> {
    run_with(trials.len(), at_once, cancel, told, &|index| {
        trials[index].run(cancel, &Quiet)
    })
}

fn run_with<T: Send>(
    count: usize,
    at_once: usize,
    cancel: &Cancel,
    told: &mut dyn FnMut(usize, &T),
    run: &(dyn Fn(usize) -> T + Sync),
) -> Vec<Option<T>> {
    let mut outcomes: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let next = AtomicUsize::new(0);
    let (done, results) = channel();
    std::thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, count.max(1)) {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                while !cancel.is_cancelled() {
                    // Only the number counts: what trials do is ordered by the channel.
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || done.send((index, run(index))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (index, outcome) in results {
            told(index, &outcome);
            outcomes[index] = Some(outcome);
        }
    });
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn so_many_run_at_once_and_all_are_told_once() {
        let (cancel, meeting) = (Cancel::new().unwrap(), Barrier::new(3));
        let mut told = Vec::new();
        let run = |index: usize| {
            // Passes only if three run at the same time.
            meeting.wait();
            index * 10
        };
        let outcomes = run_with(9, 3, &cancel, &mut |index, _| told.push(index), &run);
        let expected: Vec<_> = (0..9).map(|index| Some(index * 10)).collect();
        assert_eq!(outcomes, expected);
        told.sort_unstable();
        assert_eq!(told, (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn none_begins_after_the_cancel() {
        let cancel = Cancel::new().unwrap();
        let run = |index: usize| {
            if index == 1 {
                cancel.cancel();
            }
            index
        };
        let outcomes = run_with(5, 1, &cancel, &mut |_, _| {}, &run);
        assert_eq!(outcomes, [Some(0), Some(1), None, None, None]);
    }
}
