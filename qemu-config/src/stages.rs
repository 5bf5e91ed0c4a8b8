//! Stages as a device process reports them: `"write queued": {"sum": …, "buckets": [[64, 3], …]}`.

use serde::Deserialize;
use serde_json::Value;

/// A histogram of times, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Times {
    /// Sum of all times.
    pub sum: u64,
    /// The longest time of each bucket, in ascending order, and the number of times; the last one may have no
    /// end.
    pub buckets: Vec<(Option<u64>, u64)>,
}

impl Times {
    /// Reads the report of one stage.
    pub fn parse(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        let counts = self.buckets.iter().map(|(_, count)| *count);
        counts.fold(0, u64::saturating_add)
    }

    /// A time that so many of 1,000 times do not exceed, at most a quarter too long; `None` if
    /// there are no times, or that one has no bound.
    pub fn quantile(&self, of_thousand: u64) -> Option<u64> {
        let rank = (u128::from(self.count()) * u128::from(of_thousand)).div_ceil(1000);
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen >= rank.max(1)
        });
        bucket?.0
    }

    /// The times that came after `before`; all of them if some of those are gone, as after a
    /// reset.
    #[must_use]
    pub fn since(&self, before: &Times) -> Times {
        let count_of = |times: &Times, bound: Option<u64>| {
            let bucket = times.buckets.iter().find(|(other, _)| *other == bound);
            bucket.map_or(0, |(_, count)| *count)
        };
        let restarted = self.sum < before.sum
            || before
                .buckets
                .iter()
                .any(|(bound, count)| count_of(self, *bound) < *count);
        if restarted {
            return self.clone();
        }
        let later = self
            .buckets
            .iter()
            .map(|(bound, count)| (*bound, count - count_of(before, *bound)));
        Times {
            sum: self.sum - before.sum,
            buckets: later.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// A time in nanoseconds for people: three digits at most, rounded up.
pub fn duration(nanoseconds: u64) -> String {
    let units = [
        ("ns", 1u64),
        ("µs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ];
    for (unit, size) in units {
        let tenths = (u128::from(nanoseconds) * 10).div_ceil(u128::from(size));
        if size == 1 && nanoseconds < 1_000 {
            return format!("{nanoseconds} {unit}");
        }
        if size > 1 && tenths < 100 {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        let whole = nanoseconds.div_ceil(size);
        if size > 1 && whole < 1_000 || unit == "s" {
            return format!("{whole} {unit}");
        }
    }
    String::new()
}

/// A quantile for people.
pub fn quantile(times: &Times, of_thousand: u64) -> String {
    match times.quantile(of_thousand) {
        Some(time) => duration(time),
        None if times.count() == 0 => "-".to_owned(),
        None => "more than 4 s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(buckets: &[(Option<u64>, u64)]) -> Times {
        Times {
            sum: buckets
                .iter()
                .map(|(bound, count)| bound.unwrap_or(1 << 33) * count)
                .sum(),
            buckets: buckets.to_vec(),
        }
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let some = times(&[(Some(64), 98), (Some(80), 1), (None, 1)]);
        assert_eq!(some.count(), 100);
        let found = [0, 500, 980, 981, 990, 1000].map(|part| some.quantile(part));
        assert_eq!(
            found,
            [Some(64), Some(64), Some(64), Some(80), Some(80), None]
        );
        assert_eq!(quantile(&some, 1000), "more than 4 s");
        assert_eq!(Times::default().quantile(500), None);
        assert_eq!(quantile(&Times::default(), 500), "-");
        let huge = times(&[(Some(64), u64::MAX / 64), (Some(80), 0)]);
        assert_eq!(huge.quantile(999), Some(64));
    }

    #[test]
    fn what_has_come_since_is_what_is_left() {
        let before = times(&[(Some(64), 5), (Some(112), 1)]);
        let after = times(&[(Some(64), 7), (Some(80), 2), (Some(112), 1)]);
        assert_eq!(after.since(&before), times(&[(Some(64), 2), (Some(80), 2)]));
        assert_eq!(before.since(&before), Times::default());
        assert_eq!(before.since(&after), before, "the counters began anew");
        assert_eq!(after.since(&Times::default()), after);
    }

    #[test]
    fn a_report_is_read() {
        let report = serde_json::json!({"sum": 9, "buckets": [[64, 3], [null, 1]]});
        let read = Times::parse(&report).unwrap();
        assert_eq!(read.buckets, [(Some(64), 3), (None, 1)]);
        assert_eq!(Times::parse(&serde_json::json!({"used": 1})), None);
    }

    #[test]
    fn durations_have_three_digits_at_most() {
        for (time, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.0 µs"),
            (1_024, "1.1 µs"),
            (9_901, "10 µs"),
            (114_688, "115 µs"),
            (999_001, "1.0 ms"),
            (4_294_967_296, "4.3 s"),
            (60_000_000_000, "60 s"),
        ] {
            assert_eq!(duration(time), text, "{time}");
        }
    }
}
