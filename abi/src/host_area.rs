//! What the NIC tells a process, in guest memory: [`HOST_PAGES`] pages for each
//! process, allocated by the driver, mapped read-only into the process.
//!
//! ```text
//!  page 0  0x000  HEAD          u64  commands read so far
//!          0x008  WRITES_DONE   u64  writes complete, cumulative
//!          0x010  READS_DONE    u64  reads complete, cumulative
//!          0x018  ERRORS        u64  error records written so far
//!          0x020  QUEUE_STATUS  u64  0, or the Status that stopped the queue
//!          0x080  WAKE_GENERATION u64  written by the driver
//!          0x400  error ring: 64 records of 16 bytes
//!          0x800  results of atomic commands: 64 records of 16 bytes
//!  page 1  0x1000 signal counters: u64 for each counted notification 0…1023
//!  page 2
//! ```
//!
//! The NIC writes every word but [`WAKE_GENERATION`], which is the driver's. The
//! NIC stores data and results, then error records, then [`ERRORS`], then the
//! completion counters, each with release; a process loads them with acquire in the
//! opposite order.
//!
//! # Completion
//! Commands are numbered from 0 in the order of their slots. `WRITES_DONE` = *n*
//! says that the first *n* writes of this VNI are complete: every byte is in the
//! destination's memory, or the write was given up and an error record says so;
//! source memory is reusable (N9). `READS_DONE` says it of reads and atomic
//! commands: the result record of one that did not fail is written. The NIC
//! publishes them every [`crate::window::COMPLETION_STEP`] completions, for a
//! command with [`crate::command::CommandFlags::PUBLISH`], and whenever the VNI
//! has nothing left to do; so a counter never stays behind.
//!
//! # Blocking
//! A process reads [`WAKE_GENERATION`], stores a wake request
//! ([`crate::window`]), looks again, and asks the driver to block until the
//! generation differs from the one it read. The driver adds one at each wake
//! event, before it wakes anybody.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::PAGE_SIZE;

/// Pages in the host area of one process.
pub const HOST_PAGES: usize = 3;

/// Offset of the number of commands that the NIC has read (u64).
pub const HEAD: usize = 0x000;
/// Offset of the cumulative number of complete writes (u64).
pub const WRITES_DONE: usize = 0x008;
/// Offset of the cumulative number of complete reads (u64).
pub const READS_DONE: usize = 0x010;
/// Offset of the number of error records written (u64).
pub const ERRORS: usize = 0x018;
/// Offset of the status of the command queue (u64): zero while it runs, else the
/// [`crate::Status`] code that stopped it.
pub const QUEUE_STATUS: usize = 0x020;
/// Offset of the wake generation (u64), written by the driver.
pub const WAKE_GENERATION: usize = 0x080;
/// Offset of the ring of error records.
pub const ERROR_RING: usize = 0x400;
/// Records in the error ring; record *n* stands in place *n* modulo this.
pub const ERROR_RECORDS: usize = 64;
/// Offset of the result records of atomic commands (N20).
pub const RESULTS: usize = 0x800;
/// Number of result records. Each command names the one it uses: a process lets no
/// two commands that are not complete use the same.
pub const RESULT_RECORDS: usize = 64;
/// Offset of the signal counters of counted notifications.
pub const SIGNALS: usize = PAGE_SIZE;
/// Number of signal counters; notification 0 is not used, so 1,023 remain (N16).
pub const SIGNAL_COUNTERS: u32 = 1024;

/// Offset of the signal counter (u64) of a counted notification.
pub const fn signal_offset(notification: u32) -> usize {
    SIGNALS + (notification % SIGNAL_COUNTERS) as usize * 8
}

/// Offset of a result record.
pub const fn result_offset(record: usize) -> usize {
    RESULTS + record % RESULT_RECORDS * size_of::<ResultRecord>()
}

/// What an atomic command brought ([`crate::atomic::Function`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ResultRecord {
    /// The value.
    pub value: U64,
    /// The detail.
    pub detail: U64,
}

/// One failed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ErrorRecord {
    /// Number of the command, counted from 0 at registration.
    pub command: U64,
    /// [`crate::Status`] code.
    pub status: U32,
    /// Zero.
    pub reserved: U32,
}

const _: () = assert!(size_of::<ErrorRecord>() == 16);
const _: () = assert!(size_of::<ResultRecord>() == 16);
const _: () = assert!(ERROR_RING + ERROR_RECORDS * size_of::<ErrorRecord>() <= RESULTS);
const _: () = assert!(RESULTS + RESULT_RECORDS * size_of::<ResultRecord>() <= PAGE_SIZE);
const _: () = assert!(SIGNALS + SIGNAL_COUNTERS as usize * 8 == HOST_PAGES * PAGE_SIZE);
