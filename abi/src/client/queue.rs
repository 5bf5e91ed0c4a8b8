//! The command queue in a window.

use crate::shared::Ordering;
use crate::window::{command_offset, AWAKE, COMMAND_ENTRIES, POLLED, WAKE_REQUEST};
use crate::SharedMemory;

use crate::client::Command;

/// The process's side of a command queue.
#[derive(Debug, Clone)]
pub struct CommandQueue {
    /// Offset of the window in the memory that the calls are given.
    window: usize,
    tail: u64,
    wake_request: u64,
}

impl CommandQueue {
    /// The queue of a window that begins at this offset; nothing was posted.
    pub fn new<S: SharedMemory>(sram: &S, window: usize) -> Self {
        CommandQueue {
            window,
            tail: 0,
            wake_request: sram.load_u64(window + WAKE_REQUEST, Ordering::Relaxed),
        }
    }

    /// The queue of a window that begins at this offset; so many commands were posted.
    pub fn at(window: usize, tail: u64) -> Self {
        CommandQueue {
            window,
            tail,
            wake_request: 0,
        }
    }

    /// Offset of the window.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Commands posted.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns true if there is no free entry, as the NIC has read so many commands.
    pub fn is_full(&self, head: u64) -> bool {
        self.tail - head >= COMMAND_ENTRIES as u64
    }

    /// Posts a command into the next entry, free or not. Returns its number, and true if
    /// the doorbell has to be rung.
    pub fn post<S: SharedMemory>(
        &mut self,
        sram: &S,
        command: &Command,
        payload: &[u8],
    ) -> (u64, bool) {
        self.post_words(sram, command.entry(payload).words())
    }

    /// Posts any words, the first one last, with release.
    pub fn post_words<S: SharedMemory>(&mut self, sram: &S, words: &[u64]) -> (u64, bool) {
        let number = self.tail;
        let slot = self.window + command_offset(number);
        sram.write_words(slot + 8, &words[1..]);
        // Pairs with the NIC's acquire load of the word.
        sram.store_u64(slot, words[0], Ordering::Release);
        self.tail += 1;
        (number, self.must_ring(sram))
    }

    /// Returns true if the NIC does not poll the queue.
    pub fn must_ring<S: SharedMemory>(&self, sram: &S) -> bool {
        // Pairs with the NIC's fence between its store to AWAKE and its last look.
        sram.fence();
        sram.load_u64(self.window + AWAKE, Ordering::Relaxed) != POLLED
    }

    /// Frees all entries, as a driver does before it registers a process or resets its
    /// queue; numbers begin at 0 again.
    pub fn clear<S: SharedMemory>(&mut self, sram: &S) {
        for entry in 0..COMMAND_ENTRIES as u64 {
            sram.store_u64(self.window + command_offset(entry), 0, Ordering::Relaxed);
        }
        self.tail = 0;
    }

    /// Asks to be woken at the next change of the host area.
    pub fn request_wake<S: SharedMemory>(&mut self, sram: &S) {
        self.wake_request += 1;
        let word = self.window + WAKE_REQUEST;
        sram.store_u64(word, self.wake_request, Ordering::Release);
        // Pairs with the NIC's fence between its update and its look at the request.
        sram.fence();
    }
}
