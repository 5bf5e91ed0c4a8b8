//! The command queue of a process that transfers: which of its commands are complete.

use std::sync::Arc;

use qnic::queue::Command;
use qnic_abi::host_area::{signal_offset, READS_DONE, WRITES_DONE};
use qnic_abi::window::COMMAND_ENTRIES;
use qnic_driver::Process;

use crate::machine::platform::{Machine, SimPlatform};
use crate::process::queue;

/// The command queue as its process sees it.
pub(super) struct Queue {
    queue: queue::Queue,
    /// Writes and reads issued.
    pub(super) issued: (u64, u64),
}

impl Queue {
    pub(super) fn new(machine: &Arc<Machine>, process: &Process<SimPlatform>) -> Self {
        Queue {
            queue: queue::Queue::new(machine, process),
            issued: (0, 0),
        }
    }

    /// Number of the next command.
    pub(super) fn next(&self) -> u64 {
        self.queue.next
    }

    /// Asks to be woken, and returns the generation to wait for the end of.
    pub(super) fn request_wake(&self) -> u64 {
        self.queue.request_wake()
    }

    /// Writes and reads that are complete.
    pub(super) fn done(&self) -> (u64, u64) {
        (self.queue.word(WRITES_DONE), self.queue.word(READS_DONE))
    }

    /// Notifications that have arrived.
    pub(super) fn signals(&self, notification: u32) -> u64 {
        self.queue.word(signal_offset(notification))
    }

    /// Returns true if another command fits.
    pub(super) fn has_room(&self) -> bool {
        let (writes, reads) = self.done();
        self.queue.has_room() && self.next() - (writes + reads) < COMMAND_ENTRIES as u64
    }

    /// Puts a command into the queue; returns true if the doorbell must be rung.
    pub(super) fn put(&mut self, command: &Command, is_write: bool) -> bool {
        let (writes, reads) = &mut self.issued;
        *(if is_write { writes } else { reads }) += 1;
        self.queue.put(command)
    }
}
