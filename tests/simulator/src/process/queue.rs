//! The command queue and the completion queue of a process that uses both.

use std::sync::Arc;

use qnic::queue::{Command, Doorbell, Ring, WakeRequests};
use qnic_abi::host_area::{
    completion_offset, CompletionEntry, COMPLETIONS_WAITING, COMPLETION_TAIL, HEAD, WAKE_GENERATION,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{Changes, COMMAND_ENTRIES, COMPLETION_HEAD};
use qnic_abi::SharedMemory;
use qnic_driver::Process;

use crate::machine::mapping::Mapping;
use crate::machine::platform::{Machine, SimPlatform};

/// Receives that may stand unread without a doorbell.
const QUIET: u64 = 8;

/// Both queues as their process sees them.
pub(crate) struct Queue {
    window: Mapping,
    area: Mapping,
    doorbell: Doorbell,
    wakes: WakeRequests,
    /// Number of the next command.
    pub(crate) next: u64,
    /// Completions that were read.
    read: u64,
    /// A doorbell was left out that is to be rung before the process sleeps.
    is_quiet: bool,
}

impl Queue {
    pub(crate) fn new(machine: &Arc<Machine>, process: &Process<SimPlatform>) -> Self {
        let window = Mapping::window(machine, process.window_offset());
        Queue {
            wakes: WakeRequests::new(&window),
            window,
            area: Mapping::host_area(machine, process.host_area().frames),
            doorbell: Doorbell::default(),
            next: 0,
            read: 0,
            is_quiet: false,
        }
    }

    /// A word of the host area.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        self.area.load_u64(offset, Ordering::Acquire)
    }

    /// Asks to be woken for these, and returns the generation to wait for the end of.
    pub(crate) fn request_wake(&self, changes: Changes) -> u64 {
        let generation = self.word(WAKE_GENERATION);
        self.wakes.request_for(&self.window, changes);
        generation
    }

    /// The driver has reset the command queue; completions are counted on.
    pub(crate) fn restart(&mut self) {
        self.doorbell = Doorbell::default();
        self.next = 0;
        self.is_quiet = false;
    }

    /// Returns true if another command fits.
    pub(crate) fn has_room(&self) -> bool {
        self.next - self.word(HEAD) < COMMAND_ENTRIES as u64
    }

    /// Puts a command into the queue; returns true if the doorbell must be rung.
    pub(crate) fn put(&mut self, command: &Command) -> bool {
        let number = self.next;
        self.next += 1;
        let rings = command.publish(&self.window, &self.area, number, &mut self.doorbell);
        self.is_quiet &= !rings;
        rings
    }

    /// The same of a receive, whose doorbell may be left out until a message comes or the process sleeps.
    pub(crate) fn put_quietly(&mut self, command: &Command) -> bool {
        let number = self.next;
        self.next += 1;
        command.store(&self.window, number);
        let ring = self.doorbell.due(&self.window, &self.area, (number, QUIET));
        self.is_quiet = ring == Ring::Later || self.is_quiet && ring == Ring::Never;
        ring == Ring::Now
    }

    /// The process is going to sleep. Returns true if the doorbell must be rung that was left out.
    pub(crate) fn end_quiet(&mut self) -> bool {
        let last = self.next.wrapping_sub(1);
        let was_quiet = std::mem::take(&mut self.is_quiet);
        was_quiet && self.doorbell.must_ring(&self.window, &self.area, last)
    }

    /// Returns true if a completion has come.
    pub(crate) fn has_completions(&self) -> bool {
        self.unread() > 0
    }

    /// How many completions have come and are not read.
    pub(crate) fn unread(&self) -> u64 {
        self.word(COMPLETION_TAIL) - self.read
    }

    /// Reads the completions that have come. Returns true with them if the doorbell must be rung,
    /// as more wait for room.
    pub(crate) fn completions(&mut self) -> (Vec<CompletionEntry>, bool) {
        let tail = self.word(COMPLETION_TAIL);
        let entry = |number| -> CompletionEntry {
            let offset = completion_offset(number);
            let words: [u64; 8] = std::array::from_fn(|word| self.word(offset + word * 8).to_le());
            zerocopy::transmute!(words)
        };
        let entries = (self.read..tail).map(entry).collect();
        self.read = tail;
        // Release: the entries are read before the NIC overwrites them.
        self.window
            .store_u64(COMPLETION_HEAD, tail, Ordering::Release);
        // Pairs with the NIC's fence between its store of the word below and its look at the head.
        self.window.fence();
        (entries, self.word(COMPLETIONS_WAITING) > 0)
    }
}
