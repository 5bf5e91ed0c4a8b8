//! A limit for log lines that a guest or a front end can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most lines in one [`PERIOD`].
const BURST: u32 = 24;
const PERIOD: Duration = Duration::from_secs(10);

/// Counts the lines about one NIC.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<Count>);

#[derive(Debug)]
struct Count {
    period_start: Instant,
    lines: u32,
}

impl Default for Count {
    fn default() -> Self {
        Count {
            period_start: Instant::now(),
            lines: 0,
        }
    }
}

impl Throttle {
    /// Returns true if one more line may be written now. Before the first one of a new
    /// period, logs how many were left out in the last one.
    pub(crate) fn allows(&self) -> bool {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if count.period_start.elapsed() >= PERIOD {
            let left_out = count.lines.saturating_sub(BURST);
            if left_out > 0 {
                tracing::warn!(left_out, "log lines were left out, there were too many");
            }
            *count = Count::default();
        }
        count.lines = count.lines.saturating_add(1);
        count.lines <= BURST
    }
}

/// Writes a log line about a NIC that a guest or a front end caused, unless there were
/// too many: `throttled!(nic, warn, field = value, "message")`, where `nic` has a `name`
/// and a `throttle`.
macro_rules! throttled {
    ($nic:expr, $level:ident, $($arguments:tt)*) => {
        if $nic.throttle.allows() {
            tracing::$level!(nic = $nic.name, $($arguments)*);
        }
    };
}
pub(crate) use throttled;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_no_more() {
        let throttle = Throttle::default();
        let passed = (0..1000).filter(|_| throttle.allows()).count();
        assert_eq!(passed, BURST as usize);
    }
}
