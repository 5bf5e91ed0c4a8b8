//! Latencies of requests.

/// Classes of a [`Histogram`].
pub const LATENCY_CLASSES: usize = 26;

/// Requests by latency: class 0 counts those below a microsecond, class `n`
/// those from 2ⁿ⁻¹ to below 2ⁿ microseconds, the last class all longer ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    counts: [u64; LATENCY_CLASSES],
}

impl Histogram {
    /// Counts a request that took so many nanoseconds.
    pub(super) fn add(&mut self, nanoseconds: u64) {
        let class = 64 - (nanoseconds / 1000).leading_zeros() as usize;
        self.counts[class.min(LATENCY_CLASSES - 1)] += 1;
    }

    /// The classes.
    pub fn counts(&self) -> &[u64; LATENCY_CLASSES] {
        &self.counts
    }

    /// A time that this share of requests, in thousandths, did not exceed, in microseconds: the upper
    /// end of a class. Zero if nothing was counted.
    pub fn quantile_us(&self, permille: u64) -> u64 {
        let all: u64 = self.counts.iter().sum();
        let mut below = 0;
        for (class, count) in self.counts.iter().enumerate() {
            below += count;
            if all > 0 && below * 1000 >= all * permille {
                return 1 << class;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_powers_of_two() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(500), 0);
        for nanoseconds in [0, 999, 1000, 1999, 2000, 3999, 4000, u64::MAX] {
            histogram.add(nanoseconds);
        }
        assert_eq!(histogram.counts()[..4], [2, 2, 2, 1]);
        assert_eq!(histogram.counts()[LATENCY_CLASSES - 1], 1);
        assert_eq!(histogram.quantile_us(250), 1);
        assert_eq!(histogram.quantile_us(500), 2);
        assert_eq!(histogram.quantile_us(750), 4);
    }
}
