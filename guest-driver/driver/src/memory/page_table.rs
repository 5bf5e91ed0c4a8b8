//! The shadow page table in the SRAM of this NIC: insertion, and unmapping that
//! waits for the NIC (N5 to N7).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use qnic_abi::page_table::{PageAccess, Tag};

use super::shadow::{Inserted, Removed, Table, Unmapped};
use crate::device::Device;
use crate::platform::{Level, Lock, NoMemory, Platform};

/// An unmap that waits longer than this yields the processor between its polls, in
/// nanoseconds.
const UNLOCK_SPIN_NS: u64 = 100_000;

/// Polls of a lock word between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 64;

/// A resident page: its frame, and the access that the NIC may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// Number of the frame.
    pub frame: u32,
    /// What the address space permits right now, without any further fault.
    pub access: PageAccess,
}

/// The shadow page table of one NIC.
pub(crate) struct PageTable<P: Platform> {
    pub(crate) device: Arc<Device<P>>,
    table: P::SpinLock<Table>,
    /// The system's log says that there is a page which the table does not cover. Relaxed: it
    /// orders nothing.
    told: AtomicBool,
}

impl<P: Platform> PageTable<P> {
    pub(crate) fn new(device: Arc<Device<P>>) -> Result<Arc<Self>, NoMemory> {
        let table = Table::new(device.geometry, device.platform.random());
        Ok(Arc::new(PageTable {
            table: P::SpinLock::new(table)?,
            told: AtomicBool::new(false),
            device,
        }))
    }

    /// Waits for accesses to the table that are in progress, after [`Device::detach`].
    pub(crate) fn wait_for_accesses(&self) {
        self.table.with(|_| ());
    }

    /// Returns true if the table has a place for this frame; says so in the system's log, once, if not.
    pub(crate) fn covers(&self, frame: u32) -> bool {
        let frames = self.device.geometry.frames;
        let covers = u64::from(frame) < frames;
        if !covers && !self.told.swap(true, Ordering::Relaxed) {
            self.device.platform.log(
                Level::Warning,
                format_args!(
                    "frame {frame} is beyond the {frames} that the NIC's page table covers, and memory there \
                     cannot be exported: set memory_max in the cluster file to add memory to a guest that runs"
                ),
            );
        }
        covers
    }

    /// Inserts a page (N5). Pages of shared memory have one frame, with a mapping for each (N2). If
    /// all are taken, one changes hands only if this page is `needed` now.
    pub(crate) fn insert(&self, tag: Tag, resident: Resident, key: u64, needed: bool) -> Inserted {
        let Resident { frame, access } = resident;
        self.table.with(|table| {
            if !self.device.is_attached() {
                return Inserted::OutOfRange;
            }
            let sram = self.device.platform.sram();
            if !needed && table.is_taken(sram, tag, frame) {
                return Inserted::Busy { replaced: None };
            }
            let inserted = table.insert(sram, tag, frame, (key, access));
            let counters = &self.device.counters;
            let gone = match inserted {
                Inserted::Done { evicted, replaced } => {
                    counters.pages_inserted.add(1);
                    counters.pages_mapped.add(1);
                    counters.pages_evicted.add(evicted.is_some().into());
                    [evicted, replaced]
                }
                Inserted::Busy { replaced } => [None, replaced],
                Inserted::Already | Inserted::OutOfRange => [None; 2],
            };
            gone.into_iter().flatten().for_each(|page| self.left(page));
            inserted
        })
    }

    /// Unmaps a page unless the NIC holds it. Neither sleeps nor spins.
    pub(crate) fn try_unmap(&self, tag: Tag, frame: u32) -> Unmapped {
        self.unmap_with(|table, sram| table.try_unmap(sram, tag, frame))
    }

    /// Unmaps a page, and waits until the NIC has unlocked it. May sleep. Never
    /// returns `Locked`: a NIC that does not unlock the page is stopped.
    pub(crate) fn unmap(&self, tag: Tag, frame: u32) -> Unmapped {
        let outcome = self.unmap_with(|table, sram| table.begin_unmap(sram, tag, frame));
        if outcome != Unmapped::Locked {
            return outcome;
        }
        let Device {
            platform, counters, ..
        } = &*self.device;
        counters.lock_conflicts.add(1);
        let start = platform.now_ns();
        // A NIC holds a page for one copy, and its thread may stand still in that.
        let longest = u64::from(self.device.response_ms()) * 1_000_000;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                let outcome = self.unmap_with(|table, sram| table.finish_unmap(sram, frame));
                if outcome != Unmapped::Locked {
                    return outcome;
                }
                core::hint::spin_loop();
            }
            let waited = platform.now_ns().saturating_sub(start);
            if waited > longest {
                self.device
                    .declare_broken(format_args!("it holds page frame {frame:#x} for ever"));
            } else if waited > UNLOCK_SPIN_NS {
                platform.yield_processor();
            }
        }
    }

    /// A number that changes with each use of a page by the NIC (N7); `None` if it is not mapped.
    pub(crate) fn uses(&self, tag: Tag, frame: u32) -> Option<u8> {
        self.table.with(|table| match self.device.is_attached() {
            true => table.uses(self.device.platform.sram(), tag, frame),
            false => None,
        })
    }

    /// Runs an unmap step on the table while the SRAM is there.
    fn unmap_with(&self, step: impl FnOnce(&mut Table, &P::Sram) -> Unmapped) -> Unmapped {
        self.table.with(|table| {
            if !self.device.is_attached() {
                return Unmapped::Absent;
            }
            let outcome = step(table, self.device.platform.sram());
            if let Unmapped::Done(removed) = outcome {
                self.left(removed);
            }
            outcome
        })
    }

    /// Reports pages of a frame that have left the table. The table's lock is held, so its frame has not
    /// been freed yet.
    fn left(&self, removed: Removed) {
        let counters = &self.device.counters;
        counters.pages_mapped.subtract(removed.mappings.into());
        if removed.dirty {
            self.device.platform.mark_dirty(removed.frame);
        }
    }
}
