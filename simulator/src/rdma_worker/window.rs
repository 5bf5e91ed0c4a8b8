//! The command queue of a process: it writes commands into its window, and reads its
//! host area.

use std::sync::Arc;

use qnic::queue::{Command, Doorbell, WakeRequests};
use qnic_abi::host_area::{signal_offset, HEAD, READS_DONE, WAKE_GENERATION, WRITES_DONE};
use qnic_abi::shared::Ordering;
use qnic_abi::window::COMMAND_ENTRIES;
use qnic_abi::SharedMemory;
use qnic_driver::Process;

use crate::mapping::Mapping;
use crate::platform::{Machine, SimPlatform};

/// The command queue as its process sees it.
pub(super) struct Queue {
    window: Mapping,
    area: Mapping,
    doorbell: Doorbell,
    wakes: WakeRequests,
    /// Number of the next command.
    pub(super) next: u64,
    /// Writes and reads issued.
    pub(super) issued: (u64, u64),
}

impl Queue {
    pub(super) fn new(machine: &Arc<Machine>, process: &Process<SimPlatform>) -> Self {
        let window = Mapping::window(machine, process.window_offset());
        Queue {
            wakes: WakeRequests::new(&window),
            window,
            area: Mapping::host_area(machine, process.host_area().frames),
            doorbell: Doorbell::default(),
            next: 0,
            issued: (0, 0),
        }
    }

    fn word(&self, offset: usize) -> u64 {
        self.area.load_u64(offset, Ordering::Acquire)
    }

    /// Asks to be woken, and returns the generation to wait for the end of.
    pub(super) fn request_wake(&self) -> u64 {
        let generation = self.word(WAKE_GENERATION);
        self.wakes.request(&self.window);
        generation
    }

    /// Writes and reads that are complete.
    pub(super) fn done(&self) -> (u64, u64) {
        (self.word(WRITES_DONE), self.word(READS_DONE))
    }

    /// Notifications that have arrived.
    pub(super) fn signals(&self, notification: u32) -> u64 {
        self.word(signal_offset(notification))
    }

    /// Returns true if another command fits.
    pub(super) fn has_room(&self) -> bool {
        let (writes, reads) = self.done();
        let limit = COMMAND_ENTRIES as u64;
        self.next - self.word(HEAD) < limit && self.next - (writes + reads) < limit
    }

    /// Puts a command into the queue; returns true if the doorbell must be rung.
    pub(super) fn put(&mut self, command: &Command, is_write: bool) -> bool {
        let number = self.next;
        self.next += 1;
        let (writes, reads) = &mut self.issued;
        *(if is_write { writes } else { reads }) += 1;
        command.publish(&self.window, &self.area, number, &mut self.doorbell)
    }
}
