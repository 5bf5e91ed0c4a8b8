//! What a simulation was like, in numbers.

use std::collections::BTreeMap;

/// What a simulation was like, or several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Virtual time that has passed, in nanoseconds.
    pub time: u64,
    /// Events that happened.
    pub events: u64,
    /// Frames that were sent.
    pub frames: u64,
    /// Frames that were dropped because they were corrupted.
    pub corrupted: u64,
    /// Frames that waited for pages at nodes that are up at the end.
    pub bounced: u64,
    /// Faults that were injected.
    pub injected_faults: u64,
    /// What the workloads have counted, by name.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Report {
    /// What workloads have counted by that name.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Adds those of another simulation.
    pub fn add(&mut self, other: &Report) {
        self.time += other.time;
        self.events += other.events;
        self.frames += other.frames;
        self.corrupted += other.corrupted;
        self.bounced += other.bounced;
        self.injected_faults += other.injected_faults;
        for (name, count) in &other.counts {
            *self.counts.entry(name).or_default() += count;
        }
    }
}
