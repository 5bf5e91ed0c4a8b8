//! One registered process: all that the core holds for its VNI (Q1), and the table in which a
//! protocol keeps a value for each process.

use std::collections::VecDeque;

use qnic_abi::command::CommandHeader;
use qnic_abi::header::Counts;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, Changes};
use qnic_abi::{Port, SharedMemory, Status, VniId};
use qnic_shared::timing::Countdown;

use super::awake::Attention;
use super::fault::FaultTable;
use super::host_area::HostArea;
use super::lanes::Lanes;
use super::operation::{OperationTable, OPERATION_SLOTS, SEND_SLOTS};
use super::sampling::{Unpublished, Watched};
use super::segment::SegmentTable;
use crate::env::{Host, HostMemory, Time};
use crate::frame::StoredFrame;

/// Place of the lane in the first word of a command.
const LANE_SHIFT: usize = 8 * std::mem::offset_of!(CommandHeader, lane);

/// The NIC's side of a command queue.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    /// Offset of the window in SRAM.
    pub(crate) window: usize,
    /// What the process has of it.
    pub(crate) counts: Counts,
    /// Offset of the next slot in SRAM.
    pub(crate) slot: usize,
    /// Commands read.
    pub(crate) head: u64,
    /// Why it stands still.
    pub(crate) failed: Option<Status>,
    /// How often it is looked at.
    pub(crate) attention: Attention,
    /// The process sees that.
    pub(crate) awake: bool,
    /// A command may be waiting for an operation to end.
    pub(crate) stalled: bool,
    /// A message may be there that a receive in the queue would take.
    pub(crate) has_messages: bool,
    /// When it last had a command, or a reason to expect one.
    pub(crate) last_work: Time,
    /// When it last had a command, and how long after the one before; 0 if data has arrived since.
    pub(crate) last_command: Time,
    pub(crate) gap: u64,
    /// Data has arrived since.
    pub(crate) unanswered: bool,
    /// The queue that was the next one that was idle and had a command.
    pub(crate) next_found: Option<VniId>,
    /// Chooses the commands that are sampled.
    pub(crate) countdown: Countdown,
}

impl CommandQueue {
    /// A queue in the window at this offset, from its first slot on.
    pub(crate) fn new(window: usize, counts: Counts) -> Self {
        CommandQueue {
            window,
            counts,
            slot: window + command_offset(0),
            head: 0,
            failed: None,
            attention: Attention::Asleep,
            awake: false,
            stalled: false,
            has_messages: false,
            last_work: Time::default(),
            last_command: Time::default(),
            gap: 0,
            unanswered: false,
            next_found: None,
            countdown: Countdown::new(),
        }
    }

    /// Goes on to the next slot.
    pub(crate) fn advance(&mut self, now: Time) {
        self.head += 1;
        self.slot = self.window + command_offset(self.counts.place(self.head));
        self.last_work = now;
        self.gap = now.0.saturating_sub(self.last_command.0);
        self.last_command = now;
        self.unanswered = false;
        self.stalled = false;
    }

    /// Returns true if no command is likely soon, as there was none for `timeout`, or where they are
    /// further apart, for an eighth of it.
    #[inline]
    pub(super) fn is_idle(&self, now: Time, timeout: u64) -> bool {
        let patience = match self.gap > timeout {
            true => timeout / 8,
            false => timeout,
        };
        self.last_work.after(patience) <= now
    }

    /// Commands that stand in it and were not read: at most as many as it has entries.
    pub(super) fn posted<H: Host>(&self, host: &H) -> u64 {
        let numbers = self.head..self.head + u64::from(self.counts.command_entries);
        // Relaxed: nothing is read behind the first word.
        let first = |number| {
            let slot = self.window + command_offset(self.counts.place(number));
            host.sram().load_u64(slot, Ordering::Relaxed)
        };
        numbers.take_while(|number| first(*number) != 0).count() as u64
    }
}

/// A registered process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) port: Port,
    /// What its node's kernel calls it, for people.
    pub(crate) pid: u32,
    /// It may export physical memory (N25).
    pub(crate) physical: bool,
    pub(crate) host_area: HostArea,
    pub(crate) segments: SegmentTable,
    pub(crate) queue: CommandQueue,
    pub(crate) operations: OperationTable,
    pub(crate) lanes: Lanes,
    /// Frames of peers whose answers need a turn.
    pub(crate) responses: VecDeque<StoredFrame>,
    /// The next turn belongs to [`Process::responses`].
    pub(crate) response_turn: bool,
    pub(crate) faults: FaultTable,
    /// Waits for its turn in the scheduler.
    pub(crate) scheduled: bool,
    /// Has completions to write back.
    pub(crate) dirty: bool,
    /// Write the completion counters back however few.
    pub(crate) write_back: bool,
    /// What has changed in the host area since the process was last offered a wake.
    pub(crate) changes: Changes,
    /// A notification has arrived since then.
    pub(crate) signalled: bool,
    /// The last wake requests that were acted upon: of waits for anything, and of waits
    /// for a notification.
    pub(crate) wakes_seen: [u64; 2],
    /// A wake event waits for the driver.
    pub(crate) wake_queued: bool,
    /// A sampled operation that is complete, and not published.
    pub(crate) unpublished: Option<Unpublished>,
    /// A sampled command that begins no operation, and has not ended.
    pub(crate) watched: Option<Watched>,
    /// Payload bytes sent from its memory, and delivered into it.
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

impl Process {
    /// A process without segments and commands.
    pub(crate) fn new(port: Port, (window, counts): (usize, Counts), host_area: HostArea) -> Self {
        Process {
            port,
            pid: 0,
            physical: false,
            host_area,
            segments: SegmentTable::default(),
            queue: CommandQueue::new(window, counts),
            operations: OperationTable::new(),
            lanes: Lanes::default(),
            responses: VecDeque::new(),
            response_turn: false,
            faults: FaultTable::default(),
            scheduled: false,
            dirty: false,
            write_back: false,
            changes: Changes::empty(),
            signalled: false,
            wakes_seen: [0; 2],
            wake_queued: false,
            unpublished: None,
            watched: None,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Notes what has changed in the host area, if something was stored there.
    #[inline]
    pub(crate) fn note(&mut self, changes: Changes, stored: bool) {
        if stored {
            self.changes |= changes;
        }
    }

    /// Publishes how many commands were read.
    pub(super) fn publish_head<M: HostMemory>(&mut self, memory: &M) {
        let stored = self.host_area.publish_head(memory, self.queue.head);
        self.note(Changes::HEAD, stored);
    }

    /// Starts the command queue again, without operations. Returns how many were dropped.
    pub(crate) fn restart_queue<M: HostMemory>(&mut self, memory: &M, window: usize) -> u32 {
        let dropped = self.operations.count();
        self.operations = OperationTable::new();
        self.queue = CommandQueue::new(window, self.queue.counts);
        self.lanes = Lanes::default();
        self.write_back = false;
        self.unpublished = None;
        self.watched = None;
        self.host_area.restart(memory);
        dropped
    }

    /// Returns true if the command with this first word can be read.
    #[inline]
    pub(crate) fn has_room(
        &self,
        first: u64,
        (operations, sends): (u32, u32),
        completions: u32,
    ) -> bool {
        let lane = (first >> LANE_SHIFT) as u8;
        self.queue.failed.is_none()
            && !self.has_completion_backlog(completions)
            && self.operations.counted() < operations.clamp(1, OPERATION_SLOTS as u32)
            && self.operations.sends() < sends.clamp(1, SEND_SLOTS as u32)
            && self.lanes.has_room(lane)
    }

    /// Returns true if it leaves so many completions unread that nothing more is begun for it.
    #[inline]
    pub(crate) fn has_completion_backlog(&self, limit: u32) -> bool {
        self.host_area.completions.waiting() >= limit.max(1) as usize
    }

    /// Requests of peers that were received and not answered.
    pub(crate) fn requests_held(&self) -> usize {
        self.responses.len() + self.faults.requests()
    }

    /// Returns true if it can use a turn of the scheduler.
    pub(crate) fn wants_turn(&self) -> bool {
        self.operations.any_ready() || !self.responses.is_empty()
    }
}

/// A value for each process that has needed one, by VNI. There are as many VNIs as
/// windows ([`crate::NicConfig`]), so it is bounded.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(Vec<Option<T>>);

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess(Vec::new())
    }
}

impl<T: Default> PerProcess<T> {
    /// The value of a process, if it has one.
    #[inline]
    pub(crate) fn get(&mut self, vni: VniId) -> Option<&mut T> {
        self.0.get_mut(usize::from(vni.0))?.as_mut()
    }

    /// The same, to look at.
    pub(crate) fn look(&self, vni: VniId) -> Option<&T> {
        self.0.get(usize::from(vni.0))?.as_ref()
    }

    /// The value of a process that has one from now on.
    #[inline]
    pub(crate) fn get_or_insert(&mut self, vni: VniId) -> &mut T {
        let index = usize::from(vni.0);
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_default()
    }

    /// The values of all processes.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// The processes that have values.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (VniId, &mut T)> {
        let values = (0..).zip(&mut self.0);
        values.filter_map(|(vni, value)| Some((VniId(vni), value.as_mut()?)))
    }

    /// Takes the value of a process out.
    pub(crate) fn take(&mut self, vni: VniId) -> Option<T> {
        self.0.get_mut(usize::from(vni.0))?.take()
    }
}
