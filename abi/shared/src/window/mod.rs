//! The process's side of the window: commands, doorbell and wake request.
//!
//! The library is built on it, and so is the driver, which is a process of its own NIC for
//! datagrams ([`qnic_abi::datagram`]). Written against [`SharedMemory`]: loom runs it on its
//! atomics against the NIC's side, and the simulator runs it on simulated memory. Programs use
//! the library.

mod wakes;

use qnic_abi::command::{Descriptor, COMMAND_BYTES, DESCRIPTOR_BYTES, INLINE_CAPACITY};
use qnic_abi::host_area::HEAD;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, AWAKE, NOTHING_WAITS, POLLED};
use qnic_abi::SharedMemory;
use zerocopy::IntoBytes;

pub use wakes::{Awaited, Sleepers, SwitchedWakes, WakeRequests};

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

/// When the doorbell is to be rung for commands that were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// The NIC finds them by itself.
    Never,
    /// At once.
    Now,
    /// Some time later: the NIC finds them as soon as a message comes.
    Later,
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
        self.due(window, area, (number, 0)) == Ring::Now
    }

    /// When the doorbell must be rung after the commands up to `number` were stored. Up to `most` receives that the
    /// NIC has not read, and nothing else, may wait for a message.
    pub fn due<W: SharedMemory + ?Sized, A: SharedMemory + ?Sized>(
        &mut self,
        window: &W,
        area: &A,
        (number, most): (u64, u64),
    ) -> Ring {
        // Partner: the NIC's fence between its stores to AWAKE and HEAD and its
        // last look at the queue. Either the NIC sees the first words of the commands, or this
        // load sees another value than POLLED, and with it the head of that moment.
        window.fence();
        let awake = window.load_u64(AWAKE, Ordering::Relaxed);
        if awake == POLLED {
            return Ring::Never;
        }
        // Relaxed: ordered behind the fence above, whose partner stands behind
        // the NIC's store of the head. A NIC that has read the earlier command and has
        // fallen asleep without seeing the new one has published a later head.
        let head = area.load_u64(HEAD, Ordering::Relaxed);
        if head > number || self.rung_for.is_some_and(|rung_for| head <= rung_for) {
            return Ring::Never;
        }
        if awake == NOTHING_WAITS && number.wrapping_sub(head) < most {
            return Ring::Later;
        }
        self.rung_for = Some(number);
        Ring::Now
    }
}
