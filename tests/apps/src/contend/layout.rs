//! The memory of the owner, which all workers use.
//!
//! ```text
//!   objects, 64 bytes each │ words │ names of the workers │ log of the buffer │ FIFO logs
//! ```
//! The comment of a word says what guards it; a word without a guard is changed atomically.

use qnic::sync::OBJECT_BYTES;
use qnic::{NodeId, NotificationId, Port, SegmentName};

use super::Options;
use qnic_apps::demo::options::notification;

pub(super) const OWNER_PORT: Port = Port(30);
/// Segment of the owner.
pub(super) const OWNER: SegmentName = SegmentName(30);
/// The same before it is ready.
pub(super) const UNREADY: SegmentName = SegmentName(31);
/// Segment of a worker: the destination of its reads.
pub(super) const READ: SegmentName = SegmentName(32);

/// To the owner: a worker is done.
pub(super) const DONE: NotificationId = notification(1);
/// To a worker: all are there.
pub(super) const START: NotificationId = notification(2);
/// To a worker: join the FIFO queue.
pub(super) const TURN: NotificationId = notification(3);

pub(super) const LOCK: u64 = 0;

/// Where in a lock the word stands that says whether it is free (docs/synchronization.md).
pub(super) const LOCK_TURNS: u64 = 16;
pub(super) const SEMAPHORE: u64 = OBJECT_BYTES;
pub(super) const MONITOR: u64 = 2 * OBJECT_BYTES;
pub(super) const NOT_FULL: u64 = 3 * OBJECT_BYTES;
pub(super) const NOT_EMPTY: u64 = 4 * OBJECT_BYTES;
/// Of value zero until all workers have joined.
pub(super) const FIFO_SEMAPHORE: u64 = 5 * OBJECT_BYTES;
pub(super) const FIFO_QUEUE: u64 = 6 * OBJECT_BYTES;

const WORDS: u64 = 7 * OBJECT_BYTES;
/// Workers that have come.
pub(super) const ARRIVED: u64 = WORDS;
/// Workers between wait and signal of the semaphore.
pub(super) const INSIDE: u64 = WORDS + 8;
/// Turns of the lock for which a worker had to wait.
pub(super) const WAITED: u64 = WORDS + 16;
/// By the lock: how often it was taken; its last holder; its holder.
pub(super) const TURNS: u64 = WORDS + 24;
/// By the monitor: items put; items taken; then the slots, 0: free.
pub(super) const BUFFER: u64 = WORDS + 48;
/// Slots of the buffer.
pub(super) const SLOTS: usize = 3;
const NAMES: u64 = WORDS + 128;

/// An item of the buffer; never 0.
pub(super) fn item(worker: u64, round: u64) -> u64 {
    (worker + 1) << 32 | round
}

/// A worker, as others name it; never 0.
pub(super) fn name(node: NodeId, port: Port) -> u64 {
    1 << 32 | u64::from(node.0) << 16 | u64::from(port.0)
}

/// The worker of that name.
pub(super) fn named(name: u64) -> (NodeId, Port) {
    (NodeId((name >> 16) as u16), Port(name as u16))
}

/// Offsets of what depends on the numbers of workers and rounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Workers in all.
    pub(super) total: u64,
    items: u64,
}

impl Layout {
    pub(super) fn new(options: &Options) -> Self {
        Layout {
            total: options.total,
            items: options.total * options.rounds,
        }
    }

    /// The name of a worker.
    pub(super) fn name(self, worker: u64) -> u64 {
        NAMES + worker * 8
    }

    /// By the monitor: the item that was taken as the one of that number.
    pub(super) fn taken(self, number: u64) -> u64 {
        self.name(self.total) + number * 8
    }

    /// By the worker whose turn it is: how many have left a FIFO queue, then their numbers.
    pub(super) fn fifo(self, fifo: u64) -> u64 {
        self.taken(self.items) + fifo * (self.total + 1) * 8
    }

    /// Bytes of everything.
    pub(super) fn length(self) -> usize {
        self.fifo(2) as usize
    }
}
