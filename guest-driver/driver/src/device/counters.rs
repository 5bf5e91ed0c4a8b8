//! What the driver counts, for [`qnic_abi::uapi::Info`].

use core::sync::atomic::{AtomicU64, Ordering};

/// A counter, or a gauge. Relaxed: it orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters since the driver was started; the names are those of the fields of
/// [`qnic_abi::uapi::Info`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) pages_mapped: Counter,
    pub(crate) pages_inserted: Counter,
    pub(crate) pages_invalidated: Counter,
    pub(crate) pages_evicted: Counter,
    pub(crate) faults_served: Counter,
    pub(crate) faults_failed: Counter,
    pub(crate) lock_conflicts: Counter,
    pub(crate) wakes: Counter,
}
