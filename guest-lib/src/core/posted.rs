//! How long it takes from the post of a transfer until the program sees that it is complete.
//!
//! ```text
//!   issue ── every 61st ──► posted, at this time ──► wait_complete of it, or of one behind it
//!                                                       └──► histogram
//! ```
//! Only the library knows when a program has posted: the NIC sees a command when it fetches it,
//! and the clocks of a guest are not those of the device process. So the NIC times what is behind
//! the fetch, and this module all of it, for a program that waits. One transfer is timed at
//! a time; one without a wait gives its place to the next that is chosen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use qnic_shared::timing::Histogram;

use super::tracker::Mark;
use super::{lock, Core};
use crate::error::Operation;

/// How long transfers took.
#[derive(Debug)]
pub(crate) struct Posted {
    /// A transfer is being timed.
    timed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<(Mark, Instant)>,
    times: Histogram,
}

impl Posted {
    pub(crate) fn new() -> Self {
        Posted {
            timed: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }
}

impl Core {
    /// The transfer up to this mark is timed from `posted` on.
    #[cold]
    pub(super) fn time_transfer(&self, mark: Mark, posted: Instant) {
        lock(&self.posted.state).last = Some((mark, posted));
        // Relaxed: a hint; what it is about is behind the lock.
        self.posted.timed.store(true, Ordering::Relaxed);
    }

    /// The program sees that all up to this mark is complete.
    pub(super) fn note_seen(&self, mark: Mark) {
        // Relaxed: as above. A thread that misses a transfer just posted does not wait for it.
        if self.posted.timed.load(Ordering::Relaxed) {
            self.end_timed(mark);
        }
    }

    /// The program sees that all of these kinds is complete that was issued before.
    pub(super) fn note_flushed(&self, kinds: &[Operation]) {
        // Relaxed: as above.
        if self.posted.timed.load(Ordering::Relaxed) {
            let timed = lock(&self.posted.state).last.map(|(mark, _)| mark);
            // Without that lock: to look may take the tracker's, within which a post takes this one.
            let is_over = |mark: &Mark| {
                let of_kind = kinds.iter().any(|it| it.kind() == mark.operation.kind());
                of_kind && self.is_complete(*mark).unwrap_or(false)
            };
            if let Some(mark) = timed.filter(is_over) {
                self.end_timed(mark);
            }
        }
    }

    #[cold]
    fn end_timed(&self, seen: Mark) {
        let mut state = lock(&self.posted.state);
        let covers = |(mark, _): &mut (Mark, Instant)| {
            mark.operation.kind() == seen.operation.kind()
                && mark.lane == seen.lane
                && mark.generation == seen.generation
                && mark.ordinal <= seen.ordinal
        };
        let Some((_, posted)) = state.last.take_if(covers) else {
            return;
        };
        self.posted.timed.store(false, Ordering::Relaxed);
        let time = self.now().saturating_duration_since(posted).as_nanos();
        state.times.record(time.try_into().unwrap_or(u64::MAX));
    }

    /// The times that were taken.
    pub(crate) fn times_to_seen(&self) -> Histogram {
        lock(&self.posted.state).times.clone()
    }
}
