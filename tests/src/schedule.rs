//! Which job begins next, while others run.
//!
//! ```text
//!   waiting   lints  doc  build | demo:1  torus  panicked:0  files:1 …      in this order
//!   running   lints (both processors), panicked (none)
//!              ▲ a lane: one job of it at a time, in its order
//! ```
//! The first of the waiting jobs begins that finds its processors and its memory free. One job more than
//! processors runs, as most wait at times. One that mostly waits keeps no processor busy, so it runs beside any
//! other. A verdict does not depend on what runs beside it: this only makes good use of the machine.

use std::thread::available_parallelism;

use qnic_cluster::available_memory;

/// How many jobs more than processors may keep one busy: each waits part of its time.
const MORE: usize = 1;

/// How many jobs that keep no processor busy may run beside those that do.
const WAITING: usize = 2;

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Processors.
    pub processors: usize,
    /// Memory that can be used, in MiB.
    pub mebibytes: u64,
}

impl Room {
    /// What this machine has. Of what it does not tell it has little.
    pub(crate) fn of_this_machine() -> Self {
        let memory = available_memory().map_or(0, |bytes| bytes.0 >> 20);
        Room {
            processors: available_parallelism().map_or(1, usize::from),
            mebibytes: memory,
        }
    }
}

/// What a job needs while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Processors that it keeps busy. More than there are count as all of them.
    pub processors: usize,
    /// Memory, in MiB.
    pub mebibytes: u64,
    /// The jobs of a lane run one after the other, in their order.
    pub lane: Option<&'static str>,
}

/// The place of the job that begins next, if one of `waiting` can begin beside `running`.
/// If nothing runs, one can.
pub(crate) fn next(waiting: &[Load], running: &[Load], room: Room) -> Option<usize> {
    if running.is_empty() {
        return (!waiting.is_empty()).then_some(0);
    }
    let busy: usize = running.iter().map(|load| load.processors).sum();
    let used: u64 = running.iter().map(|load| load.mebibytes).sum();
    let free = (room.processors + MORE).saturating_sub(busy);
    if running.len() >= room.processors + MORE + WAITING {
        return None;
    }
    let is_taken = |lane| running.iter().any(|load| load.lane == lane);
    waiting.iter().enumerate().position(|(place, load)| {
        let first = || waiting[..place].iter().all(|it| it.lane != load.lane);
        load.processors.min(room.processors) <= free
            && used.saturating_add(load.mebibytes) <= room.mebibytes
            && (load.lane.is_none() || (!is_taken(load.lane) && first()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room {
        processors: 2,
        mebibytes: 8000,
    };

    fn load(processors: usize) -> Load {
        Load {
            processors,
            mebibytes: 1000,
            lane: None,
        }
    }

    fn in_lane(processors: usize) -> Load {
        Load {
            lane: Some("cargo"),
            ..load(processors)
        }
    }

    /// Runs all jobs; those that were started last end first. Returns what ran at each step.
    fn run_all(mut waiting: Vec<Load>, room: Room) -> Vec<Vec<Load>> {
        let (mut running, mut steps) = (Vec::new(), Vec::new());
        while !waiting.is_empty() || !running.is_empty() {
            while let Some(place) = next(&waiting, &running, room) {
                running.push(waiting.remove(place));
            }
            steps.push(running.clone());
            running.pop();
        }
        steps
    }

    #[test]
    fn processors_are_filled_in_order() {
        let waiting = [load(1), load(1), load(1)];
        assert_eq!(next(&waiting, &[], ROOM), Some(0));
        assert_eq!(next(&waiting, &[load(1); 2], ROOM), Some(0));
        assert_eq!(next(&waiting, &[load(1); 3], ROOM), None);
        assert_eq!(next(&waiting, &[load(2)], ROOM), Some(0));
        assert_eq!(next(&waiting, &[load(2), load(1)], ROOM), None);
        // What does not fit is passed by.
        assert_eq!(next(&[load(2), load(1)], &[load(1); 2], ROOM), Some(1));
        assert_eq!(next(&[], &[], ROOM), None);
    }

    #[test]
    fn jobs_that_wait_run_beside_any_but_not_without_end() {
        assert_eq!(next(&[load(2), load(0)], &[load(2)], ROOM), Some(1));
        let full = [load(2), load(0), load(0), load(0), load(0)];
        assert_eq!(next(&[load(0)], &full[..4], ROOM), Some(0));
        assert_eq!(next(&[load(0)], &full, ROOM), None);
    }

    #[test]
    fn more_than_the_machine_has_is_all_it_has() {
        let small = Room {
            processors: 1,
            mebibytes: 10,
        };
        assert_eq!(next(&[load(2)], &[], small), Some(0));
        assert_eq!(next(&[load(0)], &[load(2)], small), None, "memory");
        let waiting = vec![load(2), load(0), in_lane(1), load(7)];
        assert_eq!(run_all(waiting, small).len(), 4);
    }

    #[test]
    fn memory_bounds_what_runs_side_by_side() {
        let large = Load {
            mebibytes: 7500,
            ..load(0)
        };
        assert_eq!(next(&[large, load(0)], &[load(1)], ROOM), Some(1));
        assert_eq!(next(&[large], &[], ROOM), Some(0));
    }

    #[test]
    fn a_lane_keeps_its_order() {
        assert_eq!(next(&[in_lane(1)], &[in_lane(1)], ROOM), None);
        assert_eq!(next(&[in_lane(2), in_lane(0)], &[load(1); 2], ROOM), None);
        let jobs = vec![in_lane(2), load(0), in_lane(1), in_lane(1), load(1)];
        let steps = run_all(jobs.clone(), ROOM);
        for running in &steps {
            let of_lane = running.iter().filter(|load| load.lane.is_some());
            assert!(of_lane.count() <= 1, "{running:?}");
            let busy: usize = running.iter().map(|load| load.processors).sum();
            assert!(busy <= ROOM.processors + MORE, "{running:?}");
        }
        assert_eq!(steps.len(), jobs.len(), "each ends once");
    }
}
