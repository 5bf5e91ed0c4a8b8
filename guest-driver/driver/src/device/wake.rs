//! Wake generations: how a process waits, and which events wake it.
//!
//! ```text
//!   wake event of the NIC, wake call ──► generation + 1 ──► host area, wait queue
//!   loss of the device ───────► GONE, for good ────────► host area, wait queue
//! ```

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use qnic_abi::host_area::{GONE, WAKE_GENERATION};
use qnic_abi::{SharedMemory, VniId};

use crate::platform::{table, HostArea, Lock, NoMemory, Platform, Waiters};

/// The wake generation of one process.
pub(crate) struct Wake<P: Platform> {
    pub(crate) host_area: P::HostArea,
    pub(crate) waiters: P::Waiters,
    /// Added to with the lock of the table held.
    generation: AtomicU64,
    /// The generation that poll considers seen.
    seen: AtomicU64,
}

impl<P: Platform> Wake<P> {
    pub(crate) fn new(platform: &P) -> Result<Arc<Self>, NoMemory> {
        Ok(Arc::new(Wake {
            host_area: platform.new_host_area()?,
            waiters: platform.new_waiters()?,
            generation: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        }))
    }

    pub(crate) fn generation(&self) -> u64 {
        // Acquire; partner: the release store in `wake`.
        self.generation.load(Ordering::Acquire)
    }

    /// Marks the current generation as seen and returns it.
    pub(crate) fn mark_seen(&self) -> u64 {
        let now = self.generation();
        self.seen.store(now, Ordering::Relaxed);
        now
    }

    /// Returns true if the generation is not the one that was last marked as seen. Atomic.
    pub(crate) fn is_unseen(&self) -> bool {
        // Relaxed: the thread that polls has marked it itself, or by another thread on purpose.
        self.generation() != self.seen.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // The last generation is never reached by counting.
        let generation = self.generation.load(Ordering::Relaxed);
        self.store(generation.saturating_add(1));
    }

    fn store(&self, generation: u64) {
        // Release; partner: the process's acquire load.
        self.host_area
            .memory()
            .store_u64(WAKE_GENERATION, generation, Ordering::Release);
        // Release; partner: the acquire load in `generation`.
        self.generation.store(generation, Ordering::Release);
        self.waiters.wake_all();
    }
}

/// The wake generations of all processes, by VNI.
pub(crate) struct WakeTable<P: Platform>(P::SpinLock<Vec<Option<Arc<Wake<P>>>>>);

impl<P: Platform> WakeTable<P> {
    pub(super) fn new(windows: u32) -> Result<Self, NoMemory> {
        Ok(WakeTable(P::SpinLock::new(table(windows as usize)?)?))
    }

    /// Makes the process on a VNI known, or unknown, to wake events. Returns the previous one,
    /// which must not be dropped in an atomic context.
    pub(crate) fn set(&self, vni: VniId, wake: Option<Arc<Wake<P>>>) -> Option<Arc<Wake<P>>> {
        self.0.with(|wakes| {
            let slot = wakes.get_mut(usize::from(vni.0))?;
            core::mem::replace(slot, wake)
        })
    }

    /// Adds one to the generation of a process and wakes it. A process that has
    /// ended since is no error. Atomic.
    pub(crate) fn wake(&self, vni: VniId) {
        self.0.with(|wakes| {
            if let Some(Some(wake)) = wakes.get(usize::from(vni.0)) {
                wake.wake();
            }
        });
    }

    /// Wakes every process, for the last time: the device is gone.
    pub(super) fn lose(&self) {
        self.0.with(|wakes| {
            for wake in wakes.iter().flatten() {
                wake.store(GONE);
            }
        });
    }

    /// Returns true if no process is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.with(|wakes| wakes.iter().all(Option::is_none))
    }
}
