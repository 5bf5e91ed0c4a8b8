//! One registered process: all that the NIC holds for its VNI (Q1).

use std::collections::VecDeque;

use qnic_abi::window::{command_offset, COMPLETION_STEP};
use qnic_abi::{Port, Status};

use crate::env::{HostMemory, Time};
use crate::fault::FaultTable;
use crate::host_area::HostArea;
use crate::operation::{OperationTable, OPERATION_SLOTS};
use crate::order::{Order, Streams};
use crate::read::ReplyJob;
use crate::segment::SegmentTable;

/// The NIC's side of a command queue.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    /// Offset of the window in SRAM.
    pub(crate) window: usize,
    /// Offset of the next slot in SRAM.
    pub(crate) slot: usize,
    /// Commands read.
    pub(crate) head: u64,
    /// Why it stands still.
    pub(crate) failed: Option<Status>,
    /// It is in the hot set.
    pub(crate) hot: bool,
    /// The process was told so.
    pub(crate) awake: bool,
    /// A command may be waiting for an operation to end.
    pub(crate) stalled: bool,
    /// When it last had a command, or a reason to expect one.
    pub(crate) last_work: Time,
}

impl CommandQueue {
    /// A queue in the window at this offset, from its first slot on.
    pub(crate) fn new(window: usize) -> Self {
        CommandQueue {
            window,
            slot: window + command_offset(0),
            head: 0,
            failed: None,
            hot: false,
            awake: false,
            stalled: false,
            last_work: Time::default(),
        }
    }

    /// Goes on to the next slot.
    pub(crate) fn advance(&mut self, now: Time) {
        self.head += 1;
        self.slot = self.window + command_offset(self.head);
        self.last_work = now;
        self.stalled = false;
    }
}

/// Completion of one kind of command, in the order of issue (N12).
#[derive(Debug, Default)]
pub(crate) struct Completion {
    order: Order,
    /// Bit *i*: the process asked to be told when command `done + i` is complete.
    wanted: u64,
}

impl Completion {
    /// Says whether another command can start.
    pub(crate) fn has_room(&self) -> bool {
        self.order.has_room()
    }

    /// Starts a command; `publish` asks to publish the counter once it and all
    /// earlier ones are complete. There must be room.
    pub(crate) fn start(&mut self, publish: bool) -> u64 {
        let number = self.order.start();
        self.wanted |= u64::from(publish) << (number - self.order.ended());
        number
    }

    /// Completes a command. Says whether the counter must be published now.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        let before = self.done();
        self.order.end(number);
        let run = (self.done() - before) as u32;
        let passed = 1u64.checked_shl(run).map_or(u64::MAX, |bit| bit - 1);
        let due = self.wanted & passed != 0;
        self.wanted = self.wanted.checked_shr(run).unwrap_or(0);
        due
    }

    /// Commands complete, up to the first that is not.
    pub(crate) fn done(&self) -> u64 {
        self.order.ended()
    }
}

/// A registered process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) port: Port,
    /// It may export physical memory (N25).
    pub(crate) physical: bool,
    pub(crate) host_area: HostArea,
    pub(crate) segments: SegmentTable,
    pub(crate) queue: CommandQueue,
    pub(crate) operations: OperationTable,
    pub(crate) writes: Completion,
    pub(crate) reads: Completion,
    pub(crate) streams: Streams,
    /// What peers want to read from it.
    pub(crate) replies: VecDeque<ReplyJob>,
    /// The next turn belongs to [`Process::replies`].
    pub(crate) reply_turn: bool,
    pub(crate) faults: FaultTable,
    /// Waits for its turn in the scheduler.
    pub(crate) scheduled: bool,
    /// Has something to publish.
    pub(crate) touched: bool,
    /// Publish the completion counters however few.
    pub(crate) publish: bool,
    /// The host area has changed since the process was last offered a wake.
    pub(crate) changed: bool,
    /// A notification has arrived since then.
    pub(crate) signalled: bool,
    /// The last wake requests that were acted upon: of those who wait for anything,
    /// and of those who wait for a notification.
    pub(crate) wakes_seen: [u64; 2],
    /// A wake event waits for the driver.
    pub(crate) wake_queued: bool,
}

impl Process {
    /// A process without segments and commands.
    pub(crate) fn new(port: Port, window: usize, host_area: HostArea) -> Self {
        Process {
            port,
            physical: false,
            host_area,
            segments: SegmentTable::default(),
            queue: CommandQueue::new(window),
            operations: OperationTable::new(),
            writes: Completion::default(),
            reads: Completion::default(),
            streams: Streams::default(),
            replies: VecDeque::new(),
            reply_turn: false,
            faults: FaultTable::default(),
            scheduled: false,
            touched: false,
            publish: false,
            changed: false,
            signalled: false,
            wakes_seen: [0; 2],
            wake_queued: false,
        }
    }

    /// Says whether another command can be read.
    pub(crate) fn has_room(&self, operations: u32) -> bool {
        self.queue.failed.is_none()
            && self.operations.count() < operations.clamp(1, OPERATION_SLOTS as u32)
            && self.writes.has_room()
            && self.reads.has_room()
    }

    /// Publishes completions if the process asked for it, if many have come
    /// together, or if nothing else runs that could publish them later.
    pub(crate) fn publish_completions<M: HostMemory>(&mut self, memory: &M) {
        let (writes, reads) = (self.writes.done(), self.reads.done());
        let due = std::mem::take(&mut self.publish)
            || self.operations.count() == 0
            || self.host_area.unpublished_completions(writes, reads) >= COMPLETION_STEP;
        if due {
            self.changed |= self.host_area.publish_completions(memory, writes, reads);
        }
    }

    /// Requests of peers to read, or to change atomically, that were taken and not
    /// answered.
    pub(crate) fn replies_held(&self) -> usize {
        self.replies.len() + self.faults.replies()
    }

    /// Says whether it can use a turn of the scheduler.
    pub(crate) fn wants_turn(&self) -> bool {
        self.operations.any_ready() || !self.replies.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_due_when_it_passes_a_command_that_asked() {
        let mut completion = Completion::default();
        for publish in [false, false, true, false] {
            completion.start(publish);
        }
        assert!(!completion.end(2), "earlier ones are not complete");
        assert!(!completion.end(0));
        assert_eq!(completion.done(), 1);
        assert!(completion.end(1));
        assert_eq!(completion.done(), 3);
        assert!(!completion.end(3));
        for number in 4..68 {
            assert_eq!(completion.start(number == 67), number);
        }
        assert!(!completion.has_room());
        for number in (4..68).rev() {
            assert_eq!(completion.end(number), number == 4);
        }
        assert_eq!(completion.done(), 68);
    }
}
