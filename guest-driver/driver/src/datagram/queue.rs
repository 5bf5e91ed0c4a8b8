//! The driver's own window and host area: commands go out, completions come in.
//!
//! ```text
//!   put ──► command queue ──► NIC ──► completion queue ──► take
//!      flush: doorbell                     arm: wake request
//! ```
//! The driver is the process here, and follows the rules of [`qnic_abi::window`]. No value that it
//! reads can make it panic.

use core::sync::atomic::Ordering;

use qnic_abi::command::Descriptor;
use qnic_abi::header::Counts;
use qnic_abi::host_area::{
    completion_offset, CompletionEntry, COMPLETIONS_WAITING, COMPLETION_ENTRIES, COMPLETION_TAIL,
    HEAD, QUEUE_STATUS,
};
use qnic_abi::window::COMPLETION_HEAD;
use qnic_abi::SharedMemory;
use qnic_shared::window::{Awaited, Command, Doorbell, SwitchedWakes};

/// The driver's state of both queues.
pub(super) struct Queues {
    counts: Counts,
    /// Number of the next command.
    next: u64,
    /// Commands in front of it for which the doorbell was considered.
    flushed: u64,
    doorbell: Doorbell,
    wakes: SwitchedWakes,
    /// Completions that were taken.
    taken: u64,
    /// How many of these were reported to the NIC.
    told: u64,
}

impl Queues {
    pub(super) fn new<W: SharedMemory>(window: &W, counts: Counts) -> Self {
        Queues {
            counts,
            next: 0,
            flushed: 0,
            doorbell: Doorbell::default(),
            wakes: SwitchedWakes::new(window),
            taken: 0,
            told: 0,
        }
    }

    /// Returns true if another command fits.
    pub(super) fn has_room<A: SharedMemory>(&self, area: &A) -> bool {
        // Acquire: the slot is written only after the NIC has zeroed it (partner: the NIC's
        // release store of the head).
        let head = area.load_u64(HEAD, Ordering::Acquire);
        self.next.saturating_sub(head) < u64::from(self.counts.command_entries)
    }

    /// How many commands were put.
    pub(super) fn put_count(&self) -> u64 {
        self.next
    }

    /// Returns true if the NIC has read the first `count` commands.
    pub(super) fn has_read<A: SharedMemory>(&self, area: &A, count: u64) -> bool {
        // Acquire: later accesses come after the NIC's read (partner: its release store of the
        // head).
        area.load_u64(HEAD, Ordering::Acquire) >= count
    }

    /// Puts a command into the queue, which must have room.
    pub(super) fn put<W: SharedMemory>(&mut self, window: &W, command: &Descriptor, inline: &[u8]) {
        Command::new(command, inline).store(window, self.counts.place(self.next));
        self.next += 1;
    }

    /// Returns true if the doorbell must be rung for the commands since the last call.
    pub(super) fn flush<W: SharedMemory, A: SharedMemory>(&mut self, window: &W, area: &A) -> bool {
        if self.flushed == self.next {
            return false;
        }
        self.flushed = self.next;
        self.doorbell.must_ring(window, area, self.next - 1)
    }

    /// Takes the next completion.
    pub(super) fn take<A: SharedMemory>(&mut self, area: &A) -> Option<CompletionEntry> {
        if !self.has_completion(area) {
            return None;
        }
        let mut words = [0; size_of::<CompletionEntry>() / 8];
        area.read_words(completion_offset(self.taken), &mut words);
        self.taken += 1;
        Some(zerocopy::transmute!(words.map(u64::to_le)))
    }

    /// Reports the number of taken completions to the NIC, unless the queue has room anyway. Returns
    /// true if the doorbell must be rung, because more completions wait for room.
    pub(super) fn acknowledge<W: SharedMemory, A: SharedMemory>(
        &mut self,
        window: &W,
        area: &A,
    ) -> bool {
        let waiting = area.load_u64(COMPLETIONS_WAITING, Ordering::Relaxed) > 0;
        if self.told == self.taken || (self.taken - self.told < COMPLETION_ENTRIES / 2 && !waiting)
        {
            return false;
        }
        self.told = self.taken;
        // Release: the entries are read before the NIC overwrites them.
        window.store_u64(COMPLETION_HEAD, self.taken, Ordering::Release);
        // Partner: the NIC's fence between its store of the word below and its look at the head.
        window.fence();
        area.load_u64(COMPLETIONS_WAITING, Ordering::Relaxed) > 0
    }

    /// Asks for a wake event. Returns true if there are completions already.
    pub(super) fn arm<W: SharedMemory, A: SharedMemory>(
        &mut self,
        window: &W,
        area: &A,
        awaited: Awaited,
    ) -> bool {
        self.wakes.arm(window, awaited);
        self.has_completion(area)
    }

    /// Takes the request for a wake event back; one may still be under way.
    pub(super) fn disarm<W: SharedMemory>(&self, window: &W) {
        self.wakes.disarm(window);
    }

    /// Notes that a wake event has come.
    pub(super) fn woken(&mut self) {
        self.wakes.woken();
    }

    /// Returns true if there is a completion.
    pub(super) fn has_completion<A: SharedMemory>(&self, area: &A) -> bool {
        // Acquire: the entry stands before the tail (partner: the NIC's release store).
        area.load_u64(COMPLETION_TAIL, Ordering::Acquire) > self.taken
    }

    /// Returns true if the NIC has stopped the command queue: a bug of the driver.
    pub(super) fn has_failed<A: SharedMemory>(&self, area: &A) -> bool {
        area.load_u64(QUEUE_STATUS, Ordering::Acquire) != 0
    }
}
