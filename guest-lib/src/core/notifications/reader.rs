//! The process's side of the notification queue in shared memory: armed bits and head
//! in the window, entries in the host area (`qnic_abi::window`, "Notification queue").
//!
//! Written against [`SharedMemory`], so that loom runs it against the NIC's side.

use qnic_abi::host_area::{
    notification_offset, NOTIFICATIONS_LOST, NOTIFICATION_TAIL, SIGNAL_COUNTERS,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{armed_bit, ARMED, NOTIFICATION_HEAD};
use qnic_abi::SharedMemory;

/// Which notifications the process has armed, and how far it has read.
#[derive(Debug, Default)]
pub(crate) struct RingReader {
    head: u64,
    armed: [u64; SIGNAL_COUNTERS as usize / 64],
}

impl RingReader {
    /// Lets signals of a counted notification enter the queue, or no longer. A caller
    /// that arms looks at the notification's counter afterwards: signals that came
    /// before may have no entry.
    pub(crate) fn arm<M: SharedMemory + ?Sized>(&mut self, window: &M, number: u32, on: bool) {
        let (offset, bit) = armed_bit(number);
        let word = &mut self.armed[(offset - ARMED) / 8];
        *word = if on { *word | bit } else { *word & !bit };
        window.store_u64(offset, *word, Ordering::Relaxed);
        // Partner: the NIC's fence between its store of the counter and its load of
        // the bit. Either the NIC sees the bit, or the caller's look sees the signal.
        window.fence();
    }

    /// Takes the oldest entry. If it is a counted notification, the caller looks at the
    /// counter afterwards: later signals may have coalesced with this entry.
    pub(crate) fn take<M: SharedMemory + ?Sized>(&mut self, window: &M, area: &M) -> Option<u32> {
        // Acquire: the entry stands before the tail, and data and counter before
        // the entry (partner: the NIC's release stores).
        if area.load_u64(NOTIFICATION_TAIL, Ordering::Acquire) == self.head {
            return None;
        }
        let entry = area.load_u64(notification_offset(self.head), Ordering::Relaxed);
        self.head += 1;
        // Release: the entry is read before the NIC may use its slot again
        // (partner: the NIC's acquire load).
        window.store_u64(NOTIFICATION_HEAD, self.head, Ordering::Release);
        // Partner: the NIC's fence between its store of the counter and its load of
        // the head. Either the NIC makes a new entry, or the caller's look sees the
        // signal that coalesced.
        window.fence();
        Some(entry as u32)
    }

    /// How many one-shot notifications the NIC has dropped.
    pub(crate) fn lost<M: SharedMemory + ?Sized>(area: &M) -> u64 {
        area.load_u64(NOTIFICATIONS_LOST, Ordering::Acquire)
    }
}
