//! The memory of the home, which everybody uses.
//!
//! ```text
//!   objects, 64 bytes each │ words │ names of the members │ log of the buffer │ lines
//! ```
//! A word is guarded by what its comment says; those without are changed atomically.

use qnic::sync::OBJECT_BYTES;
use qnic::{NodeId, NotificationId, Port, SegmentName};

use super::Options;
use crate::options::notification;

/// Port of the home.
pub(super) const HOME_PORT: Port = Port(30);
/// Segment of the home.
pub(super) const HOME: SegmentName = SegmentName(30);
/// The same before it is ready.
pub(super) const UNREADY: SegmentName = SegmentName(31);
/// Segment of a member: where its reads go.
pub(super) const READ: SegmentName = SegmentName(32);

/// To the home: a member is done.
pub(super) const DONE: NotificationId = notification(1);
/// To a member: all are there.
pub(super) const START: NotificationId = notification(2);
/// To a member: join the line.
pub(super) const TURN: NotificationId = notification(3);

pub(super) const LOCK: u64 = 0;
pub(super) const SEMAPHORE: u64 = OBJECT_BYTES;
pub(super) const MONITOR: u64 = 2 * OBJECT_BYTES;
pub(super) const NOT_FULL: u64 = 3 * OBJECT_BYTES;
pub(super) const NOT_EMPTY: u64 = 4 * OBJECT_BYTES;
/// Of value zero until the line stands.
pub(super) const LINE_SEMAPHORE: u64 = 5 * OBJECT_BYTES;
pub(super) const LINE_QUEUE: u64 = 6 * OBJECT_BYTES;

const WORDS: u64 = 7 * OBJECT_BYTES;
/// Members that have come.
pub(super) const ARRIVED: u64 = WORDS;
/// Who is between wait and signal of the semaphore.
pub(super) const INSIDE: u64 = WORDS + 8;
/// Turns of the lock for which somebody waited in line.
pub(super) const IN_LINE: u64 = WORDS + 16;
/// By the lock: how often it was taken; who had it last; who has it.
pub(super) const TURNS: u64 = WORDS + 24;
/// By the monitor: items put; items taken; then the places, 0: free.
pub(super) const BUFFER: u64 = WORDS + 48;
/// Places of the buffer.
pub(super) const PLACES: usize = 3;
const NAMES: u64 = WORDS + 128;

/// An item of the buffer; never 0.
pub(super) fn item(member: u64, round: u64) -> u64 {
    (member + 1) << 32 | round
}

/// A member, as others name it; never 0.
pub(super) fn name(node: NodeId, port: Port) -> u64 {
    1 << 32 | u64::from(node.0) << 16 | u64::from(port.0)
}

/// The member of that name.
pub(super) fn named(name: u64) -> (NodeId, Port) {
    (NodeId((name >> 16) as u16), Port(name as u16))
}

/// Where those things stand whose place depends on the numbers of members and rounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Members in all.
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

    /// The name of a member.
    pub(super) fn name(self, member: u64) -> u64 {
        NAMES + member * 8
    }

    /// By the monitor: the item that was taken as the one of that number.
    pub(super) fn taken(self, number: u64) -> u64 {
        self.name(self.total) + number * 8
    }

    /// By whose turn it is: how many have left a line, then their numbers.
    pub(super) fn line(self, line: u64) -> u64 {
        self.taken(self.items) + line * (self.total + 1) * 8
    }

    /// Bytes of everything.
    pub(super) fn length(self) -> usize {
        self.line(2) as usize
    }
}
