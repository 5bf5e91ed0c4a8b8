//! What the driver counts: the table of [`qnic_abi::counters::CounterSource::Driver`].

use core::sync::atomic::{AtomicU64, Ordering};

use qnic_abi::counters::Count;

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

impl Count for Counter {
    fn value(&self) -> u64 {
        self.get()
    }

    fn add(&mut self, number: u64) {
        *self.0.get_mut() += number;
    }
}

qnic_abi::counters! {
    /// Counters since the driver was started.
    #[derive(Debug, Default)]
    pub(crate) struct Counters: Counter {
        Gauge _ "Pages entered in the page table now." = pages_mapped;
        Counter _ "Pages entered." = pages_inserted;
        Counter _ "Pages taken out because the kernel asked (N5)." = pages_invalidated;
        Counter _ "Pages taken out because their row was full." = pages_evicted;
        Counter _ "Page faults served for the NIC (N13)." = faults_served;
        Counter _ "Page faults that could not be served." = faults_failed;
        Counter _ "Unmaps that found the page locked by the NIC and waited (N6)." = lock_conflicts;
        Counter _ "Wake events received." = wakes;
    }
}
