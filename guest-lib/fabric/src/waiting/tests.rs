//! Every order in which two threads that sleep at one queue and one that tells can take their steps.
//!
//! The steps are those of `Cq::wait`, `Cq::take` and `Cq::push`, and stand on a real [`Waiting`]; what is tried are all
//! orders of steps, not all that a processor may reorder.

use std::collections::{BTreeSet, VecDeque};

use super::*;

/// What a sleeper does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sleeper {
    /// Looks, before it has said that it will sleep, or behind that.
    Look {
        armed: bool,
    },
    /// Has taken an entry, and others were left.
    WakesOthers,
    Arm,
    Sleep,
    Done,
}

/// Two sleepers, each of which wants one entry, and a thread that tells of two.
struct Run {
    waiting: Waiting,
    queue: usize,
    sleepers: [Sleeper; 2],
    /// Half of the steps of the one that tells: it puts an entry in, then it wakes.
    told: usize,
}

/// The number of the thread that tells, among the three.
const TELLER: usize = 2;

impl Run {
    fn new() -> Self {
        Run {
            waiting: Waiting::new(WAIT_FD).unwrap(),
            queue: 0,
            sleepers: [Sleeper::Look { armed: false }; 2],
            told: 0,
        }
    }

    fn is_readable(&self) -> bool {
        let wait = self.waiting.wait.as_ref().unwrap();
        let mut descriptors = [PollFd::new(&wait.all, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec::default())).unwrap() > 0
    }

    /// Returns true if a thread can take a step.
    fn can_step(&self, thread: usize) -> bool {
        match self.sleepers.get(thread) {
            None => self.told < 4,
            Some(Sleeper::Done) => false,
            Some(Sleeper::Sleep) => self.is_readable(),
            Some(_) => true,
        }
    }

    fn step(&mut self, thread: usize) {
        if thread == TELLER {
            match self.told % 2 {
                0 => self.queue += 1,
                _ => self.waiting.wake(),
            }
            self.told += 1;
            return;
        }
        self.sleepers[thread] = match self.sleepers[thread] {
            Sleeper::Look { armed } if self.queue == 0 => match armed {
                true => Sleeper::Sleep,
                false => Sleeper::Arm,
            },
            Sleeper::Look { .. } => {
                self.queue -= 1;
                match self.queue {
                    0 => Sleeper::Done,
                    _ => Sleeper::WakesOthers,
                }
            }
            Sleeper::WakesOthers => {
                self.waiting.wake();
                Sleeper::Done
            }
            Sleeper::Arm => {
                self.waiting.prepare().unwrap();
                Sleeper::Look { armed: true }
            }
            Sleeper::Sleep => Sleeper::Look { armed: false },
            Sleeper::Done => Sleeper::Done,
        };
    }

    /// All that matters for what comes.
    fn state(&self) -> (usize, [Sleeper; 2], usize, bool, bool) {
        let wait = self.waiting.wait.as_ref().unwrap();
        let armed = wait.armed.load(Ordering::SeqCst);
        (
            self.queue,
            self.sleepers,
            self.told,
            armed,
            self.is_readable(),
        )
    }
}

/// The state after these steps.
fn after(steps: &[usize]) -> Run {
    let mut run = Run::new();
    steps.iter().for_each(|thread| run.step(*thread));
    run
}

#[test]
fn no_order_of_steps_leaves_a_thread_asleep_beside_an_entry() {
    let mut seen = BTreeSet::new();
    let mut open = VecDeque::from([Vec::new()]);
    let mut ends = 0;
    while let Some(steps) = open.pop_front() {
        let run = after(&steps);
        if !seen.insert(run.state()) {
            continue;
        }
        let next: Vec<usize> = (0..3).filter(|thread| run.can_step(*thread)).collect();
        if next.is_empty() {
            let both = [Sleeper::Done; 2];
            assert_eq!((run.sleepers, run.queue), (both, 0), "after {steps:?}");
            ends += 1;
        }
        for thread in next {
            open.push_back([&steps[..], &[thread]].concat());
        }
    }
    assert!(ends > 0 && seen.len() > 100, "{ends}, {}", seen.len());
}
