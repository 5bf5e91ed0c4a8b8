//! A process's window of NIC memory (Q1): mapped into that process and into no
//! other.
//!
//! ```text
//!          ┌──────────────────────────────────────────────┐
//!  0x0000  │ AWAKE                u64  NIC writes         │ control page
//!  0x0080  │ WAKE_REQUEST         u64  process writes     │
//!  0x0088  │ SIGNAL_WAKE_REQUEST  u64  process writes     │
//!  0x0090  │ NOTIFICATION_HEAD    u64  process writes     │
//!  0x0098  │ COMPLETION_HEAD      u64  process writes     │
//!  0x00a0  │ INCARNATION          u64  process writes     │
//!  0x0100  │ ARMED     16 × u64   process writes          │
//!          ├──────────────────────────────────────────────┤
//!  0x1000  │ command 0  (192 bytes)                       │ command queue,
//!          │ command 1                                    │ 64 entries
//!          │ …                                            │
//!          ├──────────────────────────────────────────────┤
//!  0x4000  │ Send contexts     32 × 192 bytes             │ contexts with their
//!  0x5800  │ Receive contexts  32 × 192 bytes             │ regions
//!  0x7000  └──────────────────────────────────────────────┘
//! ```
//!
//! # Issuing commands
//! The process fills the body of the next slot, then stores the slot's first
//! word ([`crate::command`]) with release. The NIC loads that word with acquire;
//! a non-zero word is a new command. It copies the slot out and zeroes the word
//! (Q2); it never reads a tail. The process reuses a slot once
//! [`crate::host_area::HEAD`] has passed it.
//!
//! # Doorbell
//! After its stores the process executes a full fence and loads [`AWAKE`]. Unless that is [`POLLED`], it rings
//! its doorbell. The NIC stores another value to [`AWAKE`], executes a full fence and looks at the queue once more
//! before it stops polling it: so either the NIC sees the command or the process sees the value.
//!
//! A Receive needs no doorbell if the word is [`NOTHING_WAITS`]: no message has come that a receive could take, and
//! the NIC looks at the queue when one does. The process rings for it some time later all the same: the NIC notices the
//! silence or the end of a sender for receives that it has read.
//!
//! Before that fence the NIC publishes its head
//! ([`crate::host_area::HEAD`]). A process that sees that value and a head that has
//! not passed the command for which it rang last need not ring again: the NIC has
//! yet to come for that command, and finds the later ones behind it.
//!
//! # Interrupts
//! A process that is about to block stores a value to [`WAKE_REQUEST`] that
//! differs from the last one it stored, executes a full fence, and looks at its
//! host area once more. The NIC updates the host area, executes a full fence and
//! loads [`WAKE_REQUEST`]: if it differs from the value it last acted upon, it
//! remembers the value and raises a wake event for the VNI. Each word has one
//! writer, so neither side can undo what the other did.
//!
//! The upper 16 bits of the value name [`Changes`] that the process does not wait for: an update that brings
//! nothing else is not acted upon. So a thread that waits for a slow destination sleeps on while another
//! thread has thousands of completions of a fast one.
//!
//! [`SIGNAL_WAKE_REQUEST`] is the same for threads that wait for what other processes do, like a solicited
//! event of InfiniBand: completions of the process's own commands do not wake them. Notifications do, and in
//! the driver's window datagrams that arrive, buffers that come back without one, and packets that
//! could not be sent.
//!
//! # Notification queue
//! A signal of a counted notification enters the notification queue ([`crate::host_area`], N16) if
//! its bit in [`ARMED`] is set and the queue holds no entry of it that is unread, that is, at
//! [`NOTIFICATION_HEAD`] or behind it. A thread that arms stores the bit, executes a full fence and
//! looks at the signal counter; a thread that takes entries stores the head with release, executes
//! a full fence and then looks at the counters of what it has taken. The NIC stores the counter,
//! executes a full fence and loads both words: either it enters the signal, or the process sees it
//! in the counter.

//!
//! # Completion queue
//! The process stores [`COMPLETION_HEAD`] with release when it has read entries
//! ([`crate::host_area`]), executes a full fence and loads
//! [`crate::host_area::COMPLETIONS_WAITING`]: if that is not zero, it rings its doorbell. It may leave out all
//! three steps while it has read fewer entries since the last time than the queue holds: then the queue has room.
//! The NIC stores that word, executes a full fence and looks at the head once more before it lets completions
//! wait: either the NIC sees the new head or the process sees that something waits.
//!
//! # Incarnation
//! The next process on a port must not have messages that were for the one before it. So a process may store a
//! number there, in the lower half of [`INCARNATION`], that others on its port do not have; it tells it to its peers
//! by what it has for that, and they name it in their messages (the label of a Send). The NIC loads the word when
//! such a message arrives and when the process sends one: it needs no ordering, as a peer knows the number only from
//! the process itself.

use bitflags::bitflags;

use crate::command::COMMAND_BYTES;
use crate::context::{CONTEXTS, CONTEXT_BYTES};
use crate::host_area::SIGNAL_COUNTERS;
use crate::PAGE_SIZE;
use qnic_limits::Counts;

/// Offset of the *awake* word (u64, written by the NIC): [`POLLED`] while the NIC polls this command queue, zero or
/// [`NOTHING_WAITS`] while it does not.
pub const AWAKE: usize = 0x000;

/// Value of [`AWAKE`]: the NIC polls the queue.
pub const POLLED: u64 = 1;

/// Value of [`AWAKE`]: the NIC does not poll the queue, and no message waits for a receive of the process.
pub const NOTHING_WAITS: u64 = 2;

/// Offset of the *wake request* word (u64, written by the process).
pub const WAKE_REQUEST: usize = 0x080;

/// Offset of the *signal wake request* word (u64, written by the process): as
/// [`WAKE_REQUEST`], for notifications and datagrams that arrive only.
pub const SIGNAL_WAKE_REQUEST: usize = 0x088;

bitflags! {
    /// What an update of a host area brings, and what a wake request is for. What is neither the head nor the
    /// counters of a lane has all bits: a process waits for it in any case.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Changes: u16 {
        /// The number of commands that the NIC has read.
        const HEAD = 1 << LANE_CLASSES;
    }
}

/// Completion counters of lanes have so many bits of [`Changes`].
const LANE_CLASSES: u8 = 15;

/// Bits of a wake request behind its number.
const NUMBER_BITS: u32 = 48;

impl Changes {
    /// Anything.
    pub const ANYTHING: Self = Self::from_bits_retain(u16::MAX);

    /// The counters of a lane, and of those that share its bit.
    pub const fn of_lane(lane: u8) -> Self {
        Self::from_bits_retain(1 << (lane % LANE_CLASSES))
    }

    /// The wake request of that number for these, and for what has all bits.
    pub const fn request(self, number: u64) -> u64 {
        let left_out = !self.bits() as u64;
        left_out << NUMBER_BITS | Self::number(number)
    }

    /// The number of a request.
    pub const fn number(request: u64) -> u64 {
        request << (u64::BITS - NUMBER_BITS) >> (u64::BITS - NUMBER_BITS)
    }

    /// Returns true if a request is for one of these.
    pub const fn answer(self, request: u64) -> bool {
        let left_out = (request >> NUMBER_BITS) as u16;
        self.bits() & !left_out != 0
    }
}

/// Offset of the number of entries that the process has taken out of the
/// notification queue since it registered (u64, written by the process).
pub const NOTIFICATION_HEAD: usize = 0x090;

/// Offset of the number of entries that the process has taken out of the completion queue since
/// it registered (u64, written by the process).
pub const COMPLETION_HEAD: usize = 0x098;

/// Offset of the incarnation of the process (u64, written by the process): zero while it has none.
pub const INCARNATION: usize = 0x0a0;

/// Offset of the bitmap of armed notifications (16 words of u64, written by the
/// process): bit *n* modulo 64 of word *n* / 64 for counted notification *n*.
pub const ARMED: usize = 0x100;

/// Offset of the command queue.
pub const COMMAND_QUEUE: usize = PAGE_SIZE;

/// Entries that the command queue has room for: the largest N of Q2 ([`Counts`], N12).
pub const COMMAND_ENTRIES: usize = 64;

/// The NIC publishes its head every so many commands read (Q2).
pub const HEAD_STEP: u64 = 8;

/// The NIC publishes completion counters at least every so many completions of a process (N12).
pub const COMPLETION_STEP: u64 = 32;

/// Offset of the Send contexts ([`crate::context`]).
pub const SEND_CONTEXTS: usize = 4 * PAGE_SIZE;

/// Offset of the Receive contexts.
pub const RECEIVE_CONTEXTS: usize = SEND_CONTEXTS + CONTEXTS * CONTEXT_BYTES;

/// Size of a window in bytes; a multiple of the page size.
pub const WINDOW_BYTES: usize = 7 * PAGE_SIZE;

const _: () = assert!(COMMAND_QUEUE + COMMAND_ENTRIES * COMMAND_BYTES == SEND_CONTEXTS);
const _: () = assert!(RECEIVE_CONTEXTS + CONTEXTS * CONTEXT_BYTES == WINDOW_BYTES);
const _: () = assert!(Counts::MOST.command_entries as usize == COMMAND_ENTRIES);
const _: () = assert!(2 * CONTEXTS <= COMMAND_ENTRIES, "N ≥ 2M (Q2)");
const _: () = assert!(ARMED + SIGNAL_COUNTERS as usize / 8 <= COMMAND_QUEUE);

/// Offset of the word of [`ARMED`] that holds the bit of a counted notification,
/// and the bit.
pub const fn armed_bit(notification: u32) -> (usize, u64) {
    let number = notification % SIGNAL_COUNTERS;
    (ARMED + (number / 64) as usize * 8, 1 << (number % 64))
}

/// Offset within the window of a Send context; its region follows it. Numbers wrap.
pub const fn send_context_offset(context: usize) -> usize {
    SEND_CONTEXTS + context % CONTEXTS * CONTEXT_BYTES
}

/// Offset within the window of a Receive context; its region follows it. Numbers wrap.
pub const fn receive_context_offset(context: usize) -> usize {
    RECEIVE_CONTEXTS + context % CONTEXTS * CONTEXT_BYTES
}

/// Offset within the window of entry `index` of the command queue ([`Counts::place`]); indices
/// beyond all that there is room for wrap.
pub const fn command_offset(index: u64) -> usize {
    COMMAND_QUEUE + (index % COMMAND_ENTRIES as u64) as usize * COMMAND_BYTES
}
