//! A histogram of times, of fixed size and without floating point.

/// Times up to 2^`LOWEST` nanoseconds are in one bucket.
const LOWEST: u32 = 6;

/// Times of more than 2^`HIGHEST` nanoseconds, 4.3 s, are in one bucket.
const HIGHEST: u32 = 32;

/// Buckets between two powers of two are 2^`PARTS`.
const PARTS: u32 = 2;

/// Number of buckets.
pub const BUCKETS: usize = 2 + ((HIGHEST - LOWEST) << PARTS) as usize;

/// Numbers of times by their length: four buckets to a power of two, so a bound is at most a
/// quarter above the time.
///
/// ```text
///   bucket   0        1          2          3           4            …      105
///   times    to 64    to 80      to 96      to 112      to 128 ns           more than 4.3 s
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    sum: u64,
    buckets: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            sum: 0,
            buckets: [0; BUCKETS],
        }
    }
}

impl Histogram {
    /// Counts a time in nanoseconds.
    pub fn record(&mut self, nanoseconds: u64) {
        self.sum = self.sum.saturating_add(nanoseconds);
        self.buckets[bucket_of(nanoseconds)] += 1;
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of all times in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Each bucket that has any times: the longest time that belongs to it in nanoseconds, `None` in
    /// the last one, and their number.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let buckets = self.buckets.iter().enumerate();
        let used = buckets.filter(|(_, count)| **count > 0);
        used.map(|(bucket, count)| (bound(bucket), *count))
    }
}

/// The bucket of a time in nanoseconds.
fn bucket_of(nanoseconds: u64) -> usize {
    // Bounds belong to the bucket below them.
    let time = nanoseconds.saturating_sub(1);
    let Some(power) = time.checked_ilog2().filter(|power| *power >= LOWEST) else {
        return 0;
    };
    let part = time >> (power - PARTS) & ((1 << PARTS) - 1);
    let bucket = 1 + (((power - LOWEST) << PARTS) as usize) + part as usize;
    bucket.min(BUCKETS - 1)
}

/// The longest time in nanoseconds that belongs to a bucket.
fn bound(bucket: usize) -> Option<u64> {
    let Some(index) = bucket.checked_sub(1) else {
        return Some(1 << LOWEST);
    };
    let parts = 1 << PARTS;
    let (power, part) = (
        LOWEST + index as u32 / parts,
        index as u64 % u64::from(parts),
    );
    (power < HIGHEST).then(|| (u64::from(parts) + part + 1) << (power - PARTS))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_grow_by_a_quarter_at_most_and_belong_to_their_buckets() {
        assert_eq!((bound(0), bound(BUCKETS - 1)), (Some(64), None));
        let bounds: Vec<_> = (0..BUCKETS).map_while(bound).collect();
        assert_eq!(bounds.len(), BUCKETS - 1);
        assert_eq!(bounds.last(), Some(&(1 << HIGHEST)));
        for (bucket, pair) in bounds.windows(2).enumerate() {
            assert!(pair[0] < pair[1] && pair[1] <= pair[0] + pair[0] / 4);
            assert_eq!(bucket_of(pair[0]), bucket);
            assert_eq!(bucket_of(pair[0] + 1), bucket + 1);
        }
        assert_eq!(bucket_of((1 << HIGHEST) + 1), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn every_time_lies_within_its_bucket(time: u64, shift in 0u32..64) {
            let time = time >> shift;
            let bucket = bucket_of(time);
            prop_assert!(bound(bucket).is_none_or(|bound| time <= bound));
            let below = bucket.checked_sub(1).and_then(bound);
            prop_assert!(below.is_none_or(|below| time > below));
        }
    }
}
