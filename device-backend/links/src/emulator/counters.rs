//! What a link emulator counts.

use serde::Serialize;

/// What a link has done, in frames unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LinkCounters {
    /// Offered.
    pub offered: u64,
    /// Bytes offered.
    pub offered_bytes: u64,
    /// Arrived, copies included.
    pub released: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped by a partition.
    pub cut: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Delayed so that later frames overtake them.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
}

impl LinkCounters {
    /// Adds what another emulator of the same link has done.
    pub(crate) fn add(&mut self, other: &LinkCounters) {
        let LinkCounters {
            offered,
            offered_bytes,
            released,
            lost,
            cut,
            overflowed,
            duplicated,
            reordered,
            corrupted,
        } = other;
        self.offered += offered;
        self.offered_bytes += offered_bytes;
        self.released += released;
        self.lost += lost;
        self.cut += cut;
        self.overflowed += overflowed;
        self.duplicated += duplicated;
        self.reordered += reordered;
        self.corrupted += corrupted;
    }
}
