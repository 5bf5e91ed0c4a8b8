//! How many frames may be on the wire to a peer: congestion control (U1), by delay, as in
//! Swift (Kumar et al., SIGCOMM 2020) and TIMELY (Mittal et al., SIGCOMM 2015).
//!
//! ```text
//!   round trip − shortest round trip = time in queues of the network
//!
//!      0 ────────── quarter ──────────────────────── queue_delay ───────────────►
//!        the window grows by an                the window      by up to a half, once
//!        eighth, if so for five rounds;        grows by 4      a round: smaller the
//!        doubles, until the first delay        a round         longer the queue
//! ```
//! The window that a peer grants reflects its memory; this window reflects the links between. So a
//! link that is slower than its senders is filled, its queue stays as short as the configured *queue
//! delay*, and senders that meet there get equal shares.
//!
//! Loss is no sign of congestion: these wires lose frames at random. But when most frames
//! are lost, no round trip is left to be measured, and the window shrinks.
//!
//! A sender whose window cannot shrink further has no queue of its own: the round trip that it then
//! measures counts as the shortest. So a route that becomes longer is soon known.

use crate::timing::time::Time;

/// Frames that may always be on the wire.
const SMALLEST: u64 = 4;

/// Frames that may be on the wire before the first measurement.
const FIRST: u64 = 32;

/// A window beyond this limits no sender.
const LARGEST: u64 = 1 << 20;

/// The window grows by this many frames a round.
const STEP: u64 = 4;

/// After this many rounds almost without a queue, it grows faster.
const CALM: u32 = 5;

/// Fixed point: one frame.
const FRAME: u64 = 256;

/// The shortest round trip is that of the last one or two spans of this length, in
/// nanoseconds.
const MEMORY: u64 = 10_000_000_000;

/// The share of lost frames is taken over about this many frames.
const SAMPLE: u64 = 256;

/// Fixed point: all frames are lost.
const ALL: u64 = 1 << 32;

/// The congestion window of the route to one peer.
#[derive(Debug, Clone, Copy)]
pub struct Congestion {
    /// Most frames on the wire, in [`FRAME`]s.
    window: u64,
    /// No queue was measured yet.
    starting: bool,
    /// Shortest round trips of this span of [`MEMORY`] and of the one before.
    shortest: [u64; 2],
    span_ends: Time,
    /// A round ends after a round trip; the longest one seen in it.
    round_ends: Time,
    longest: u64,
    /// Rounds in a row almost without a queue.
    calm: u32,
    /// The window does not shrink before this time.
    hold: Time,
    /// Share of frames that are lost, of [`ALL`].
    loss: u64,
}

/// The contents of an acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledged {
    /// Frames that it is the first to acknowledge.
    pub frames: u32,
    /// The round trip of the latest of them, in nanoseconds; [`u64::MAX`] if it could not be
    /// measured.
    pub trip: u64,
}

impl Default for Acknowledged {
    fn default() -> Self {
        Acknowledged {
            frames: 0,
            trip: u64::MAX,
        }
    }
}

impl Default for Congestion {
    fn default() -> Self {
        Congestion {
            window: FIRST * FRAME,
            starting: true,
            shortest: [u64::MAX; 2],
            span_ends: Time(0),
            round_ends: Time(0),
            longest: 0,
            calm: 0,
            hold: Time(0),
            loss: 0,
        }
    }
}

impl Congestion {
    /// How many frames may be sent while `in_flight` are on the wire.
    #[inline]
    pub fn room(&self, in_flight: u32) -> u32 {
        self.window().saturating_sub(in_flight)
    }

    /// Returns true if there is enough room for waiting senders to continue.
    pub fn is_open(&self, in_flight: u32) -> bool {
        self.room(in_flight) > self.window() / 4
    }

    /// Most frames on the wire.
    fn window(&self) -> u32 {
        (self.window / FRAME) as u32
    }

    /// Takes an acknowledgement. `used`: frames that are still on the wire;
    /// `queue_delay`: how long frames may wait in queues of the network, in nanoseconds.
    pub fn sample(&mut self, now: Time, news: Acknowledged, used: u32, queue_delay: u64) {
        let Acknowledged { frames, trip } = news;
        if frames == 0 {
            return;
        }
        for _ in 0..u64::from(frames).min(4 * SAMPLE) {
            if self.loss < SAMPLE {
                break;
            }
            self.loss -= self.loss / SAMPLE;
        }
        if trip == u64::MAX {
            return;
        }
        self.note_shortest(now, trip);
        let base = self.shortest[0].min(self.shortest[1]);
        let queue = trip - base;
        self.end_round(now, base, queue_delay);
        self.longest = self.longest.max(queue);
        if queue > queue_delay {
            self.shrink(now, trip, queue - queue_delay);
        } else if u64::from(used + frames) * FRAME >= self.window / 2 {
            self.grow(frames, queue, queue_delay);
        }
    }

    /// Notes that a frame is lost. `trip`: the smoothed round trip, in nanoseconds.
    pub fn lost(&mut self, now: Time, trip: u64) {
        self.loss += (ALL - self.loss) / SAMPLE;
        if self.loss > ALL / 2 {
            self.loss /= 2;
            self.shrink(now, trip, trip);
        }
    }

    fn note_shortest(&mut self, now: Time, trip: u64) {
        if now >= self.span_ends {
            self.span_ends = now.after(MEMORY);
            self.shortest = [u64::MAX, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(trip);
    }

    fn end_round(&mut self, now: Time, base: u64, queue_delay: u64) {
        if now < self.round_ends {
            return;
        }
        self.calm = match self.longest <= queue_delay / 4 {
            true => self.calm.saturating_add(1),
            false => 0,
        };
        self.longest = 0;
        self.round_ends = now.after(base);
    }

    /// Frames were received in time.
    fn grow(&mut self, received: u32, queue: u64, queue_delay: u64) {
        self.starting &= queue <= queue_delay / 4;
        let frames = self.window / FRAME;
        let step = match (self.starting, self.calm >= CALM) {
            (true, _) => frames,
            (false, true) => (frames / 8).max(STEP),
            (false, false) => STEP,
        };
        let more = u64::from(received) * step * FRAME / frames;
        self.window = (self.window + more).min(LARGEST * FRAME);
    }

    /// A round trip was too long, by `excess`.
    fn shrink(&mut self, now: Time, trip: u64, excess: u64) {
        self.starting = false;
        self.calm = 0;
        if now < self.hold {
            return;
        }
        self.hold = now.after(trip);
        if self.window <= SMALLEST * FRAME {
            self.shortest = [trip; 2];
            return;
        }
        // Four fifths of the excess, and half of all at most.
        let cut = u128::from(self.window) * u128::from(excess) * 4 / (5 * u128::from(trip.max(1)));
        let cut = (cut as u64).min(self.window / 2);
        self.window = (self.window - cut).max(SMALLEST * FRAME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::prelude::v1::*;

    const MILLISECOND: u64 = 1_000_000;
    const QUEUE_DELAY: u64 = 5 * MILLISECOND;

    fn sample(congestion: &mut Congestion, now: u64, trip: u64) {
        let used = congestion.window();
        let news = Acknowledged { frames: 1, trip };
        congestion.sample(Time(now), news, used, QUEUE_DELAY);
    }

    #[test]
    fn a_route_without_a_queue_is_soon_used_altogether() {
        let mut congestion = Congestion::default();
        for number in 0..10_000 {
            sample(&mut congestion, number * 1000, 40_000);
        }
        assert!(congestion.window() > 10_000, "{congestion:?}");
        let unused = congestion.window();
        let news = Acknowledged {
            frames: 1,
            trip: 40_000,
        };
        congestion.sample(Time(1 << 30), news, 1, QUEUE_DELAY);
        assert_eq!(congestion.window(), unused, "no sender needs more");
    }

    #[test]
    fn a_queue_makes_the_window_smaller_once_a_round() {
        let mut congestion = Congestion::default();
        sample(&mut congestion, 0, MILLISECOND);
        let before = congestion.window();
        sample(&mut congestion, MILLISECOND, 100 * MILLISECOND);
        assert_eq!(congestion.window(), before / 2, "by a half at most");
        sample(&mut congestion, 2 * MILLISECOND, 100 * MILLISECOND);
        assert_eq!(congestion.window(), before / 2);
        for round in 2..40 {
            sample(
                &mut congestion,
                round * 100 * MILLISECOND,
                100 * MILLISECOND,
            );
        }
        assert!(u64::from(congestion.window()) >= SMALLEST);
    }

    #[test]
    fn a_route_that_has_become_longer_is_soon_known() {
        let mut congestion = Congestion::default();
        sample(&mut congestion, 0, MILLISECOND);
        let trip = 80 * MILLISECOND;
        for round in 1..40 {
            sample(&mut congestion, round * trip, trip);
        }
        assert!(congestion.window() > 2 * SMALLEST as u32, "{congestion:?}");
    }

    #[test]
    fn chance_losses_say_nothing_but_a_wire_that_takes_hardly_anything_does() {
        let shrinks = |every: u32| {
            let mut congestion = Congestion::default();
            let before = congestion.window();
            let news = Acknowledged {
                frames: 1,
                trip: 40_000,
            };
            for number in 0..1000 {
                match number % every {
                    0 => congestion.sample(Time(number.into()), news, 1, QUEUE_DELAY),
                    _ => congestion.lost(Time(number.into()), 40_000),
                }
            }
            congestion.window() < before
        };
        assert!(!shrinks(2), "half is lost");
        assert!(shrinks(4), "three quarters are");
    }

    proptest! {
        #[test]
        fn any_round_trips_keep_the_window_within_its_bounds(
            steps in prop::collection::vec((0u64..1 << 36, any::<u64>(), 0u32..100), 0..300),
            queue_delay: u64,
        ) {
            let mut congestion = Congestion::default();
            let mut now = 0;
            for (passed, trip, frames) in steps {
                now += passed;
                match frames {
                    50.. => congestion.lost(Time(now), trip),
                    frames => {
                        let used = congestion.window();
                        let news = Acknowledged { frames, trip };
                        congestion.sample(Time(now), news, used, queue_delay);
                    }
                }
                let window = u64::from(congestion.window());
                prop_assert!((SMALLEST..=LARGEST).contains(&window));
            }
        }
    }
}
