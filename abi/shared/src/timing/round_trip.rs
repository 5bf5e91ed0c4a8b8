//! How long to wait for an acknowledgement: RFC 6298, in nanoseconds.

/// Bounds of the timeout for an acknowledgement, all in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct RetransmitLimits {
    /// Timeout before the round trip is known.
    pub initial: u64,
    /// Shortest timeout: the time that the peer may need to wake up.
    pub floor: u64,
    /// The same for the oldest frame that is not acknowledged. It is one frame in a window, so
    /// it may be sent again in vain; its loss is what users wait for.
    pub floor_oldest: u64,
    /// Longest timeout.
    pub ceiling: u64,
    /// How long the peer may hold an acknowledgement back.
    pub ack_delay: u64,
}

/// The measured round trip to a peer.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundTrip {
    /// Smoothed, and its variation; zero before the first sample.
    smoothed: u64,
    variation: u64,
    /// Times the timeout was doubled since the last progress.
    doublings: u32,
}

impl RoundTrip {
    /// Takes a measurement of a frame that was sent once.
    pub fn sample(&mut self, nanoseconds: u64) {
        if self.smoothed == 0 {
            self.smoothed = nanoseconds.max(1);
            self.variation = nanoseconds / 2;
        } else {
            let distance = self.smoothed.abs_diff(nanoseconds);
            self.variation = self.variation - self.variation / 4 + distance / 4;
            self.smoothed = (self.smoothed - self.smoothed / 8 + nanoseconds / 8).max(1);
        }
        self.doublings = 0;
    }

    /// The smoothed round trip in nanoseconds; 0 before the first measurement.
    pub fn smoothed(&self) -> u64 {
        self.smoothed
    }

    /// How long most round trips take, in nanoseconds.
    pub fn typical(&self) -> u64 {
        self.smoothed.saturating_add(self.variation)
    }

    /// Notes that an acknowledgement did not come in time.
    pub fn back_off(&mut self) {
        self.doublings = (self.doublings + 1).min(16);
    }

    /// Notes that the peer has received a new frame.
    pub fn progress(&mut self) {
        self.doublings = 0;
    }

    /// The timeout for the acknowledgement of the oldest frame, or of a frame behind
    /// others, in nanoseconds.
    pub fn timeout(&self, limits: &RetransmitLimits, oldest: bool) -> u64 {
        let floor = match oldest {
            true => limits.floor_oldest.min(limits.floor),
            false => limits.floor,
        };
        let base = match self.smoothed {
            0 => limits.initial,
            // Steady round trips have no variation, but acknowledgements are delayed.
            smoothed => {
                let margin = self.variation.max(limits.ack_delay).saturating_mul(4);
                smoothed.saturating_add(margin)
            }
        };
        let base = base.max(floor).max(1);
        let ceiling = limits.ceiling.max(floor);
        base.saturating_mul(1 << self.doublings).min(ceiling.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::prelude::v1::*;

    fn limits() -> RetransmitLimits {
        RetransmitLimits {
            initial: 100_000_000,
            floor: 1000,
            ceiling: 1_000_000_000,
            floor_oldest: 1000,
            ack_delay: 100,
        }
    }

    #[test]
    fn the_timeout_follows_the_round_trip_and_doubles() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.timeout(&limits(), false), 100_000_000);
        trip.sample(40_000);
        assert_eq!(trip.timeout(&limits(), false), 120_000);
        trip.back_off();
        trip.back_off();
        assert_eq!(trip.timeout(&limits(), false), 480_000);
        trip.progress();
        assert_eq!(trip.timeout(&limits(), false), 120_000);
        for _ in 0..100 {
            trip.sample(40_000);
        }
        assert!(trip.timeout(&limits(), false) < 42_000, "{trip:?}");
        for _ in 0..40 {
            trip.back_off();
        }
        assert_eq!(trip.timeout(&limits(), false), 1_000_000_000);
    }

    #[test]
    fn the_oldest_frame_waits_for_a_shorter_time() {
        let limits = RetransmitLimits {
            floor: 5_000_000,
            floor_oldest: 500_000,
            ..limits()
        };
        let mut trip = RoundTrip::default();
        trip.sample(40_000);
        assert_eq!(trip.timeout(&limits, true), 500_000);
        assert_eq!(trip.timeout(&limits, false), 5_000_000);
        trip.back_off();
        assert_eq!(trip.timeout(&limits, true), 1_000_000);
        trip.sample(80_000_000);
        assert_eq!(trip.timeout(&limits, true), trip.timeout(&limits, false));
    }

    proptest! {
        #[test]
        fn the_timeout_stays_within_its_bounds(samples in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut trip = RoundTrip::default();
            for sample in samples {
                trip.sample(sample);
                let timeout = trip.timeout(&limits(), false);
                prop_assert!((1000..=1_000_000_000).contains(&timeout));
            }
        }
    }
}
