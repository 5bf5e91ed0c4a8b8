//! What the NIC tells a process, in guest memory: [`HOST_PAGES`] pages for each
//! process, allocated by the driver. The first [`READ_ONLY_PAGES`] are mapped read-only into the
//! process, the others writable: doorbells of contexts and the buffer pool.
//!
//! ```text
//!  page 0  0x000  HEAD          u64  commands read so far
//!          0x018  ERRORS        u64  error records written so far
//!          0x020  QUEUE_STATUS  u64  0, or the Status that stopped the queue
//!          0x080  WAKE_GENERATION u64  written by the driver; all ones once it has lost the NIC
//!          0x0c0  NOTIFICATION_TAIL   u64  entries ever put into the notification queue
//!          0x0c8  NOTIFICATIONS_LOST  u64  one-shot notifications that found it full
//!          0x0d0  COMPLETION_TAIL     u64  entries ever put into the completion queue
//!          0x0d8  COMPLETIONS_WAITING u64  completions for which it has no room now
//!          0x400  results of atomic commands: 192 records of 16 bytes
//!  page 1  0x1000 signal counters: u64 for each counted notification 0…1023
//!  page 2
//!  page 3  0x3000 notification queue: 1,536 entries of u64
//!  … 5
//!  page 6  0x6000 completion queue: 256 entries of 64 bytes
//!  … 9
//!  page 10 0xa000 completion counters of 256 lanes: WRITES_DONE u64, READS_DONE u64 of each
//!  page 11 0xb000 error ring: 1,024 records of 16 bytes
//!  … 14
//!  page 15 0xf000 doorbells of the Send contexts: 32 entries of 64 bytes
//!          0xf800 doorbells of the Receive contexts: 32 entries of 64 bytes
//!  page 16 0x10000 buffer pool: 16 pages of the process's bytes
//!  … 31
//! ```
//!
//! The NIC writes every word of the read-only pages but [`WAKE_GENERATION`], which is the
//! driver's. The NIC stores data and results, then error records, then [`ERRORS`], then the
//! completion counters, each with release; a process loads them with acquire in the
//! opposite order.
//!
//! # Completion
//! Commands are numbered from 0 in the order of their slots. Each write, read and atomic command
//! names a *lane* ([`crate::command::CommandHeader::lane`]), and completes in the order of its lane;
//! lanes do not wait for each other. If a process gives each destination a lane of its own, a slow
//! destination does not hold up commands to others (N12, N15); the NIC attaches no other meaning to
//! lanes. [`writes_done_offset`] = *n* says that the first *n* writes of the lane are complete:
//! every byte is in the destination's memory, or the write was given up and an error record says so;
//! source memory is reusable (N9). [`reads_done_offset`] says the same of reads and atomic commands;
//! if an atomic command has not failed, its result record is written. The NIC publishes the counters
//! of a lane for a command with [`crate::command::CommandFlags::PUBLISH`] and when nothing of the
//! lane is under way, and those of all lanes every [`crate::window::COMPLETION_STEP`] completions of
//! the VNI; so a counter never stays behind.
//!
//! A command with a handle that is not zero also has an entry in the completion queue. The entry
//! comes as soon as the command itself has ended, whatever its lane waits for, and before the
//! counter covers the command; only if the queue is full may it come after the counter.
//!
//! At most [`OPERATIONS`] of these commands are under way at once. The error ring has as many
//! records. So no record is overwritten unread if no more than these are under way between two
//! looks of the process at the ring.
//!
//! # Notifications
//! The numbers below [`SIGNAL_COUNTERS`] (but 0) are counted: each signal adds one to
//! its counter. An armed one ([`crate::window::ARMED`]) is entered in the
//! notification queue too, unless an entry of it is still unread: signals of one
//! number coalesce. All larger numbers are one-shot: each makes an entry of its own.
//!
//! Entry *n* of the queue stands in place *n* modulo [`NOTIFICATION_ENTRIES`] and
//! holds the number. The NIC stores the counter, then the entry, then
//! [`NOTIFICATION_TAIL`], each with release; the process loads the tail with
//! acquire, then the entries, then stores [`crate::window::NOTIFICATION_HEAD`].
//!
//! The queue never overruns: counted ones take at most one entry each, and a
//! one-shot one that finds [`ONE_SHOT_ENTRIES`] or more entries unread is dropped
//! and counted in [`NOTIFICATIONS_LOST`]. Senders of one-shot notifications must
//! agree with the receiver on how many are under way.
//!
//! # Completion queue
//! Each command with a handle of the process has an entry of its own in the completion queue, in the order in
//! which the commands end. Commands of messages ([`crate::message`]) always have an entry; writes, reads and
//! atomic commands have one if the process wants it. Entry *n* stands in place *n* modulo [`COMPLETION_ENTRIES`].
//! When an entry is stored, what it reports is done: data is in memory. The NIC stores the entry, then
//! [`COMPLETION_TAIL`], with release; the process loads the tail with acquire, then the entries, then stores
//! [`crate::window::COMPLETION_HEAD`]. Nothing is dropped when the queue is full: the NIC keeps completions that
//! have no room, counts them in [`COMPLETIONS_WAITING`], and reads no more commands of the process while they are
//! many.
//!
//! A reset of the command queue ([`crate::control::Opcode::ResetQueue`]) leaves this queue as it is.
//! A write, read or atomic command that the reset drops has no completion, before it or behind it.
//! One that had ended before keeps its completion, also if that still waits for room.
//!
//! # Doorbells of contexts, and the pool
//! A doorbell ([`crate::context`], Q8) is a [`CompletionEntry`] with a state. The process stores
//! its state word when it takes the context and when it gives it back. In between the NIC stores
//! the doorbell once: all other words first, then the state word with release, which the process
//! loads with acquire. The NIC reads no doorbell. The pages of the pool (Q7) belong to the process,
//! and to the NIC while a context or a message that is under way names them.
//!
//! # Blocking
//! A process reads [`WAKE_GENERATION`], stores a wake request
//! ([`crate::window`]), looks again, and asks the driver to block until the
//! generation differs from the one it read. The driver adds one at each wake
//! event, before it wakes a thread.

use zerocopy::little_endian::{U16, U32, U64};

use crate::context::{CONTEXTS, POOL_PAGES};
use crate::PAGE_SIZE;

/// Pages in the host area of one process.
pub const HOST_PAGES: usize = READ_ONLY_PAGES + 1 + POOL_PAGES;

/// Pages in front that a process cannot write.
pub const READ_ONLY_PAGES: usize = 15;

/// Pages behind them, which it can.
pub const WRITABLE_PAGES: usize = HOST_PAGES - READ_ONLY_PAGES;

/// Offset of the number of commands that the NIC has read (u64).
pub const HEAD: usize = 0x000;
/// Offset of the number of error records written (u64).
pub const ERRORS: usize = 0x018;
/// Offset of the status of the command queue (u64): zero while it runs, else the
/// [`crate::Status`] code that stopped it.
pub const QUEUE_STATUS: usize = 0x020;
/// Offset of the wake generation (u64), written by the driver.
pub const WAKE_GENERATION: usize = 0x080;
/// The last wake generation: the NIC is gone, or has begun anew. Everything that the process had
/// there is lost, and every call fails.
pub const GONE: u64 = u64::MAX;
/// Offset of the number of entries ever put into the notification queue (u64).
pub const NOTIFICATION_TAIL: usize = 0x0c0;
/// Offset of the number of one-shot notifications that were dropped because the
/// notification queue was full (u64).
pub const NOTIFICATIONS_LOST: usize = 0x0c8;
/// Offset of the number of entries ever put into the completion queue (u64).
pub const COMPLETION_TAIL: usize = 0x0d0;
/// Offset of the number of completions that wait for room in the completion queue (u64).
pub const COMPLETIONS_WAITING: usize = 0x0d8;
/// Offset of the result records of atomic commands (N20).
pub const RESULTS: usize = 0x400;
/// Number of result records. Each command names the one it uses: a process lets no
/// two commands that are not complete use the same.
pub const RESULT_RECORDS: usize = 192;
/// Offset of the signal counters of counted notifications.
pub const SIGNALS: usize = PAGE_SIZE;
/// Number of signal counters; notification 0 is not used, so 1,023 remain (N16).
pub const SIGNAL_COUNTERS: u32 = 1024;

/// Offset of the ring of the notification queue.
pub const NOTIFICATION_RING: usize = 3 * PAGE_SIZE;
/// Entries of the notification queue.
pub const NOTIFICATION_ENTRIES: u64 = 1536;
/// Unread entries from which on one-shot notifications are dropped.
pub const ONE_SHOT_ENTRIES: u64 = NOTIFICATION_ENTRIES - SIGNAL_COUNTERS as u64;

/// Offset of the ring of the completion queue.
pub const COMPLETION_RING: usize = 6 * PAGE_SIZE;
/// Entries of the completion queue.
pub const COMPLETION_ENTRIES: u64 = 256;

/// Offset of the completion counters of the lanes.
pub const COUNTERS: usize = 10 * PAGE_SIZE;
/// Number of lanes: as many as [`crate::command::CommandHeader::lane`] can name.
pub const LANES: usize = 256;
/// Offset of the cumulative number of complete writes of lane 0 (u64).
pub const WRITES_DONE: usize = writes_done_offset(0);
/// Offset of the cumulative number of complete reads of lane 0 (u64).
pub const READS_DONE: usize = reads_done_offset(0);

/// Offset of the ring of error records.
pub const ERROR_RING: usize = COUNTERS + PAGE_SIZE;
/// Records in the error ring; record *n* stands in place *n* modulo this.
pub const ERROR_RECORDS: usize = OPERATIONS as usize;

pub use qnic_limits::OPERATIONS;

/// Offset of the cumulative number of complete writes of a lane (u64).
pub const fn writes_done_offset(lane: u8) -> usize {
    COUNTERS + lane as usize * 16
}

/// Offset of the cumulative number of complete reads of a lane (u64).
pub const fn reads_done_offset(lane: u8) -> usize {
    writes_done_offset(lane) + 8
}

/// Offset of the doorbells of the Send contexts (Q8).
pub const SEND_DOORBELLS: usize = READ_ONLY_PAGES * PAGE_SIZE;
/// Offset of the doorbells of the Receive contexts.
pub const RECEIVE_DOORBELLS: usize = SEND_DOORBELLS + CONTEXTS * size_of::<CompletionEntry>();
/// Offset in a doorbell of the word (u64) with its state, which is stored last. Kind, flags and
/// endpoint stand in its lower half.
pub const DOORBELL_STATE: usize = 48;
/// Offset of the buffer pool (Q7).
pub const POOL: usize = SEND_DOORBELLS + PAGE_SIZE;

/// Offset of the doorbell of a Send context; numbers wrap.
pub const fn send_doorbell_offset(context: usize) -> usize {
    SEND_DOORBELLS + context % CONTEXTS * size_of::<CompletionEntry>()
}

/// Offset of the doorbell of a Receive context; numbers wrap.
pub const fn receive_doorbell_offset(context: usize) -> usize {
    RECEIVE_DOORBELLS + context % CONTEXTS * size_of::<CompletionEntry>()
}

/// Offset of entry `number` of the completion queue; numbers wrap.
pub const fn completion_offset(number: u64) -> usize {
    COMPLETION_RING + (number % COMPLETION_ENTRIES) as usize * size_of::<CompletionEntry>()
}

/// Offset of entry `number` (u64) of the notification queue; numbers wrap.
pub const fn notification_offset(number: u64) -> usize {
    NOTIFICATION_RING + (number % NOTIFICATION_ENTRIES) as usize * 8
}

/// Offset of the signal counter (u64) of a counted notification.
pub const fn signal_offset(notification: u32) -> usize {
    SIGNALS + (notification % SIGNAL_COUNTERS) as usize * 8
}

/// Offset of a result record.
pub const fn result_offset(record: usize) -> usize {
    RESULTS + record % RESULT_RECORDS * size_of::<ResultRecord>()
}

numbered! {
    /// What has ended.
    pub enum CompletionKind: u8 {
        /// A [`crate::message::SendCommand`].
        Send = 1,
        /// A [`crate::message::ReceiveCommand`], or one of its messages.
        Receive = 2,
        /// A [`crate::collective::JoinGroupCommand`]: `immediate` has the name of the group for
        /// other commands, `length` its size.
        Join = 3,
        /// A [`crate::collective::LeaveGroupCommand`].
        Leave = 4,
        /// A [`crate::collective::CollectiveCommand`] or a [`crate::multicast::MulticastCommand`].
        Collective = 5,
        /// A [`crate::message::ProbeCommand`]: describes the message, which is not received.
        Probe = 6,
        /// A [`crate::process_names::NameCommand`]: of a lookup that has found one, `node` and
        /// `port` are those of the process; of a registration that was refused, those of the
        /// process that has the name.
        Name = 7,
        /// A [`crate::datagram::DatagramSendCommand`].
        DatagramSend = 8,
        /// The buffer of a [`crate::datagram::DatagramPostCommand`].
        DatagramReceive = 9,
        /// A write, a read or an atomic command with a handle. Only `handle` and `status` are set; for
        /// an atomic command also `tag`, to the value, and `immediate`, to the detail.
        Transfer = 10,
    }
}

/// In [`CompletionEntry::flags`]: the receive stays posted.
pub const COMPLETION_MORE: u8 = 1;

layouts! {
    /// An entry of the completion queue, or the doorbell of a context. For a Send, `handle`, `status`, `tag`,
    /// `length`, `node` and `port` (the destination) and `endpoint` are set; the rest is zero. For a group or a
    /// collective that has failed, `node` and `port` name the process that is the reason; the port is zero if the
    /// reason is a whole node. Of a collective that has failed with Mismatch, `tag` says what the reason has called
    /// and `immediate` what others have, words of [`crate::collective::Called`]; their labels are the lower and the
    /// upper half of `mark`.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | handle                            |
    ///   8  | tag                               |
    ///  16  | immediate                         |
    ///  24  | length                            |
    ///  32  | offset                            |
    ///  40  | status          | node   | port   |
    ///  48  |kind|flg|endpoint| state           |
    ///  56  | mark            | incarnation     |
    /// ```
    #[bytes(64)]
    pub struct CompletionEntry {
        /// That of the command; of a context its number.
        pub handle: U64,
        /// Tag of the message.
        pub tag: U64,
        /// What its sender has given with it.
        pub immediate: U64,
        /// Bytes of the message as it was sent.
        pub length: U64,
        /// Where the message begins in the memory of the receive. For a receive that ends without a
        /// message: how many bytes its messages have taken; long ones may end after it. For a probe
        /// that claims: the number of the message.
        pub offset: U64,
        /// A [`crate::Status`] code. Unless Ok or Truncated, there is no message.
        pub status: U32,
        /// Node of the other process.
        pub node: U16,
        /// Port of the other process.
        pub port: U16,
        /// [`CompletionKind`].
        pub kind: u8,
        /// 0 or [`COMPLETION_MORE`].
        pub flags: u8,
        /// Endpoint of the receiver.
        pub endpoint: U16,
        /// Of a doorbell: a [`crate::context::DoorbellState`]. Zero in the completion queue.
        pub state: U32,
        /// The mark that its sender has given the message.
        pub mark: U32,
        /// That of the process that has sent the message (the word of its window); zero: it has none.
        pub incarnation: U32,
    }

    /// What an atomic command brought (`atomic::Function`).
    #[bytes(16)]
    pub struct ResultRecord {
        /// The value.
        pub value: U64,
        /// The detail.
        pub detail: U64,
    }

    /// One failed command.
    #[bytes(16)]
    pub struct ErrorRecord {
        /// Number of the command, counted from 0 at registration.
        pub command: U64,
        /// [`crate::Status`] code.
        pub status: U32,
        /// Lane of the command.
        pub lane: U32,
    }
}

const _: () = assert!(RESULTS + RESULT_RECORDS * size_of::<ResultRecord>() <= PAGE_SIZE);
const _: () = assert!(SIGNALS + SIGNAL_COUNTERS as usize * 8 == NOTIFICATION_RING);
const _: () = assert!(NOTIFICATION_RING + NOTIFICATION_ENTRIES as usize * 8 == COMPLETION_RING);
const _: () = assert!(core::mem::offset_of!(CompletionEntry, status) == 40);
const _: () = assert!(completion_offset(COMPLETION_ENTRIES - 1) + 64 == COUNTERS);
const _: () = assert!(LANES * 16 <= PAGE_SIZE);
const _: () =
    assert!(ERROR_RING + ERROR_RECORDS * size_of::<ErrorRecord>() == READ_ONLY_PAGES * PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(CompletionEntry, state) == DOORBELL_STATE + 4);
const _: () = assert!(receive_doorbell_offset(CONTEXTS - 1) + 64 <= POOL);
const _: () = assert!(POOL + POOL_PAGES * PAGE_SIZE == HOST_PAGES * PAGE_SIZE);
