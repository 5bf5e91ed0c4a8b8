//! Faults that are injected from outside, so that programs meet what is rare.

use std::fmt;

/// Faults of a queue pair of verbs that have not happened yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuePairFaults {
    /// So many messages of its peer find no receive, although one may be posted.
    pub not_ready: u32,
    /// So many writes, reads and atomic operations of its peer are denied.
    pub denied: u32,
    /// It fails at once.
    pub fails: bool,
}

impl fmt::Display for QueuePairFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [("rnr", self.not_ready), ("deny", self.denied)];
        let mut counts = counts.into_iter().filter(|(_, count)| *count > 0);
        match counts.next() {
            None => f.write_str("-"),
            Some((name, count)) => {
                write!(f, "{name} {count}")?;
                counts.try_for_each(|(name, count)| write!(f, ", {name} {count}"))
            }
        }
    }
}
