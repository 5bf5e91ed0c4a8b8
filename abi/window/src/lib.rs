//! The process's side of the window: commands, doorbell and wake request.
//!
//! The library is built on it, and so is the driver, which is a process of its own NIC for
//! datagrams ([`qnic_abi::datagram`]). Written against [`SharedMemory`]: loom runs it on its
//! atomics against the NIC's side, and the simulator runs it on simulated memory. Programs use
//! the library.
#![no_std]
#![forbid(unsafe_code)]

use core::sync::atomic::AtomicU64;

use qnic_abi::command::{Descriptor, COMMAND_BYTES, DESCRIPTOR_BYTES, INLINE_CAPACITY};
use qnic_abi::host_area::HEAD;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, AWAKE, SIGNAL_WAKE_REQUEST, WAKE_REQUEST};
use qnic_abi::SharedMemory;
use zerocopy::IntoBytes;

/// A command as the queue holds it.
#[derive(Debug)]
pub struct Command {
    words: [u64; COMMAND_BYTES / 8],
    used: usize,
}

impl Command {
    /// A command with its inline payload, at most [`INLINE_CAPACITY`] bytes.
    pub fn new(descriptor: &Descriptor, payload: &[u8]) -> Self {
        debug_assert!(payload.len() <= INLINE_CAPACITY);
        let mut words = [0u64; COMMAND_BYTES / 8];
        let bytes = words.as_mut_bytes();
        bytes[..DESCRIPTOR_BYTES].copy_from_slice(descriptor.as_bytes());
        bytes[DESCRIPTOR_BYTES..][..payload.len()].copy_from_slice(payload);
        let words = words.map(u64::from_le);
        let used = (DESCRIPTOR_BYTES + payload.len()).div_ceil(8);
        Command { words, used }
    }

    /// Puts the command into the slot of `number`, which must be free. Returns true if
    /// the doorbell must be rung. `area` is the host area.
    pub fn publish<W: SharedMemory + ?Sized, A: SharedMemory + ?Sized>(
        &self,
        window: &W,
        area: &A,
        number: u64,
        doorbell: &mut Doorbell,
    ) -> bool {
        self.store(window, number);
        doorbell.must_ring(window, area, number)
    }

    /// Puts the command into the slot of `number`, which must be free. The NIC reads it as soon
    /// as it polls; [`Doorbell::must_ring`] says whether it does.
    pub fn store<M: SharedMemory + ?Sized>(&self, window: &M, number: u64) {
        let slot = command_offset(number);
        window.write_words(slot + 8, &self.words[1..self.used]);
        // Partner: the NIC's acquire load of the first word.
        window.store_u64(slot, self.words[0], Ordering::Release);
    }
}

/// Remembers for which command the doorbell was rung last. Until the NIC has read that
/// command it is on its way to the queue, and finds the later commands too.
#[derive(Debug, Default)]
pub struct Doorbell {
    rung_for: Option<u64>,
}

impl Doorbell {
    /// Returns true if the doorbell must be rung after the commands up to `number` were stored,
    /// all of them by the caller.
    pub fn must_ring<W: SharedMemory + ?Sized, A: SharedMemory + ?Sized>(
        &mut self,
        window: &W,
        area: &A,
        number: u64,
    ) -> bool {
        // Partner: the NIC's fence between its stores to AWAKE and HEAD and its
        // last look at the queue. Either the NIC sees the first words of the commands, or this
        // load sees AWAKE = 0, and with it the head of that moment.
        window.fence();
        if window.load_u64(AWAKE, Ordering::Relaxed) != 0 {
            return false;
        }
        // Relaxed: ordered behind the fence above, whose partner stands behind
        // the NIC's store of the head. A NIC that has read the earlier command and has
        // fallen asleep without seeing the new one has published a later head.
        let head = area.load_u64(HEAD, Ordering::Relaxed);
        if head > number || self.rung_for.is_some_and(|rung_for| head <= rung_for) {
            return false;
        }
        self.rung_for = Some(number);
        true
    }
}

/// Source of wake requests of one process; each value is stored once.
#[derive(Debug)]
pub struct WakeRequests {
    /// Offset of the word in the window.
    word: usize,
    last: AtomicU64,
}

impl WakeRequests {
    /// Requests of threads that wait for anything. Continues after the value that an
    /// earlier process left in the window.
    pub fn new<M: SharedMemory + ?Sized>(window: &M) -> Self {
        Self::at(WAKE_REQUEST, window)
    }

    /// Requests of threads that wait for a notification only.
    pub fn for_signals<M: SharedMemory + ?Sized>(window: &M) -> Self {
        Self::at(SIGNAL_WAKE_REQUEST, window)
    }

    fn at<M: SharedMemory + ?Sized>(word: usize, window: &M) -> Self {
        WakeRequests {
            word,
            last: AtomicU64::new(window.load_u64(word, Ordering::Relaxed)),
        }
    }

    /// Asks the NIC for a wake event at its next update of the host area, or at the
    /// next notification. The caller looks at the host area once more before it
    /// blocks.
    ///
    /// Several threads may ask at once: the value that is stored last differs from
    /// every value that the NIC has acted upon before.
    pub fn request<M: SharedMemory + ?Sized>(&self, window: &M) {
        // Relaxed: only the value matters, it is unique whatever the order.
        let value = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        window.store_u64(self.word, value, Ordering::Relaxed);
        // Partner: the NIC's fence between its update of the host area and its
        // load of the word. Either the NIC sees the request, or the caller's next look
        // sees the update.
        window.fence();
    }

    /// The value that was stored last.
    pub fn last(&self) -> u64 {
        // Relaxed: a number to compare with; nothing is read because of it.
        self.last.load(Ordering::Relaxed)
    }

    /// Takes back what was asked for since the NIC has acted upon `seen`: it sends no event until
    /// the next request. If it has acted upon a later one meanwhile, that event comes, and one
    /// more.
    pub fn cancel<M: SharedMemory + ?Sized>(&self, window: &M, seen: u64) {
        // Relaxed: nothing is published. A NIC that still sees the request sends an event too many; the
        // next request has a fence behind it.
        window.store_u64(self.word, seen, Ordering::Relaxed);
    }
}
