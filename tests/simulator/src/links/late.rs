//! Frames that arrive once more, much later: single ones, and all that one direction takes while it
//! also has a slow route.
//!
//! ```text
//!   route flaps ──► for a while each frame ──┬──► emulator, as always
//!                                            └──► copy ── the same lateness for all ──► arrives
//! ```
//! So all frames of a message arrive once more, in their order, behind messages that were sent after
//! it: an old write of remote memory comes behind a newer one (H9). Single frames do not show that
//! where a page comes in several.

use std::ops::Range;
use std::sync::Arc;

use crate::schedule::{Event, Schedule};

/// So many frames in a thousand arrive once more, much later.
const LATE: u32 = 2;

/// How long a direction has no slow route, in nanoseconds.
const STEADY: Range<u64> = 0..300_000_000;

/// How long it has one then at most, in nanoseconds.
const SLOW: Range<u64> = 10_000..30_000_000;

/// How many frames that takes at most.
const TAKEN: Range<u64> = 1..33;

/// How long after they were sent, in nanoseconds: either end may have died and come
/// back meanwhile.
const LATENESS: Range<u64> = 50_000..30_000_000;

/// The slow route that one direction has next, or now.
#[derive(Debug, Default, Clone, Copy)]
struct SlowRoute {
    /// From when on, and until when at the latest.
    times: (u64, u64),
    /// So many more frames it takes.
    frames: u64,
    /// By how much they are late.
    lateness: u64,
}

impl SlowRoute {
    fn after(now: u64, schedule: &Schedule) -> Self {
        let begin = now + schedule.delay(STEADY);
        SlowRoute {
            times: (begin, begin + schedule.delay(SLOW)),
            frames: schedule.range(TAKEN),
            lateness: schedule.delay(LATENESS),
        }
    }

    /// Takes a frame, if it is there.
    fn takes(&mut self, now: u64) -> bool {
        let takes = now >= self.times.0 && !self.is_over(now);
        self.frames -= u64::from(takes);
        takes
    }

    fn is_over(&self, now: u64) -> bool {
        now >= self.times.1 || self.frames == 0
    }
}

/// The copies of all wires.
pub(crate) struct LateCopies {
    schedule: Arc<Schedule>,
    happen: bool,
    /// By direction.
    slow_routes: Vec<SlowRoute>,
    images: Vec<Vec<u8>>,
}

impl LateCopies {
    /// Those of so many directions.
    pub(crate) fn new(schedule: Arc<Schedule>, happen: bool, directions: usize) -> Self {
        LateCopies {
            schedule,
            happen,
            slow_routes: vec![SlowRoute::default(); directions],
            images: Vec::new(),
        }
    }

    /// No frame that is sent from now on arrives late.
    pub(crate) fn stop(&mut self) {
        self.happen = false;
    }

    /// By how much the frame that a direction takes now is late, if it arrives once more.
    pub(crate) fn lateness(&mut self, direction: usize) -> Option<u64> {
        if !self.happen {
            return None;
        }
        let (schedule, now) = (&self.schedule, self.schedule.now());
        let route = &mut self.slow_routes[direction];
        if route.is_over(now) {
            *route = SlowRoute::after(now, schedule);
        }
        if route.takes(now) {
            return Some(route.lateness);
        }
        schedule.chance(LATE).then(|| schedule.delay(LATENESS))
    }

    /// A frame arrives once more, so much later.
    pub(crate) fn keep(&mut self, image: Vec<u8>, lateness: u64) {
        let number = self.images.len();
        self.images.push(image);
        let time = self.schedule.now().saturating_add(lateness);
        self.schedule.at(time, Event::Late(number));
    }

    /// Takes the copy of that number.
    pub(crate) fn take(&mut self, number: usize) -> Option<Vec<u8>> {
        self.images.get_mut(number).map(std::mem::take)
    }
}
