//! The host area, through whatever reads a word of it.

use alloc::vec::Vec;

use crate::host_area::{
    reads_done_offset, result_offset, signal_offset, writes_done_offset, ERRORS, ERROR_RECORDS,
    ERROR_RING, HEAD,
};
use crate::Status;

/// A host area whose words are read by `F`, which takes an offset.
#[derive(Debug, Clone, Copy)]
pub struct HostArea<F>(pub F);

impl<F: Fn(usize) -> u64> HostArea<F> {
    /// Commands that the NIC has read.
    pub fn head(&self) -> u64 {
        self.0(HEAD)
    }

    /// Writes and reads of lane 0 that are complete.
    pub fn done(&self) -> (u64, u64) {
        self.done_of(0)
    }

    /// Writes and reads of a lane that are complete.
    pub fn done_of(&self, lane: u8) -> (u64, u64) {
        let writes = self.0(writes_done_offset(lane));
        (writes, self.0(reads_done_offset(lane)))
    }

    /// What an atomic command brought: value and detail.
    pub fn result(&self, record: u16) -> (u64, u64) {
        let offset = result_offset(usize::from(record));
        (self.0(offset), self.0(offset + 8))
    }

    /// Signals of a counted notification.
    pub fn signals(&self, notification: u32) -> u64 {
        self.0(signal_offset(notification))
    }

    /// The last error records, at most as many as the ring holds: command and status.
    ///
    /// # Panics
    /// If one has an unknown status.
    pub fn errors(&self) -> Vec<(u64, Status)> {
        let count = self.0(ERRORS);
        let first = count.saturating_sub(ERROR_RECORDS as u64);
        let record = |number: u64| {
            let offset = ERROR_RING + number as usize % ERROR_RECORDS * 16;
            let status = Status::try_from(self.0(offset + 8) as u32).expect("a known status");
            (self.0(offset), status)
        };
        (first..count).map(record).collect()
    }
}
