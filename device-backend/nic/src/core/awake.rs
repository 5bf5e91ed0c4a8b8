//! Which command queues the NIC looks at, and how often: cost grows with the number of active
//! queues, not with the number of queues (P9).
//!
//! ```text
//!            doorbell, arrival            no command for idle_timeout
//!   asleep ─────────────────────► active ─────────────────────────────► idle
//!     ▲                             ▲                                   │  │
//!     │                             └── a look finds a command, arrival ┘  │
//!     └────────────────────────────────────────────────────────────────────┘
//!         no command for sleep_timeout, or the NIC sleeps
//! ```
//!
//! | a queue that is | is looked at | `AWAKE` |
//! |---|---|---|
//! | active | in every poll | 1, stored before the first look |
//! | idle | some of them, in turn, when a poll finds nothing else; all every [`LOOK_INTERVAL`] | 1 |
//! | asleep | after a doorbell, data, a notification or a message that arrives, or the end of a process | 0, or 2 if no message waits |
//!
//! A look in vain delays other queues. So a queue is active only as long as a command is likely:
//! for `idle_timeout`, or for an eighth of it if its last two commands were further apart. Data that
//! arrives makes a queue active, unless the process did not answer the data before. The first idle
//! queue to be looked at is the one that followed the current queue the last time: processes that
//! take turns in an order are found by one look, and ring no doorbell while the engine polls.
//!
//! A queue falls asleep by the protocol of [`qnic_abi::window`]: `AWAKE` = 0 or 2, full fence, one more
//! look. Receives may stand in a queue that sleeps with 2: a message that no other receive takes makes it active. The NIC does not sleep before all of its queues do.

use qnic_abi::shared::Ordering;
use qnic_abi::window::{AWAKE, NOTHING_WAITS};
use qnic_abi::{SharedMemory, VniId};

use super::{Core, Pending};
use crate::env::{Host, Time};

/// Longest time between two looks at idle queues, in nanoseconds, however busy the NIC is. It is
/// what a doorbell may wait for.
const LOOK_INTERVAL: u64 = 20_000;

/// Most idle queues of a NIC, so that one process with many cannot make a look long; those beyond fall
/// asleep at once.
const IDLE_QUEUES: usize = 256;

/// Idle queues that are looked at when a poll has found nothing: so few that a command of an active
/// queue does not wait for them.
const LOOKS: usize = 8;

/// How often a command queue is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attention {
    /// After a doorbell, or an arrival.
    Asleep,
    /// Sometimes; its place among the idle queues.
    Idle(usize),
    /// In every poll.
    Active,
}

/// What a look at an idle queue needs.
#[derive(Debug, Clone, Copy)]
struct IdleQueue {
    vni: VniId,
    /// Offset of its next slot in SRAM.
    slot: usize,
    last_work: Time,
}

/// The queues that are looked at.
#[derive(Debug, Default)]
pub(super) struct AwakeQueues {
    active: Vec<VniId>,
    idle: Vec<IdleQueue>,
    /// When all idle queues were looked at.
    last_look: Time,
    /// Place of the next idle queue to look at.
    next_place: usize,
    /// The queue that was idle and has had a command last, and the one that came next the last time.
    last_found: Option<VniId>,
    expected: Option<VniId>,
}

impl Core {
    /// Notes that a doorbell was rung.
    pub(crate) fn ring(&mut self, doorbell: u32) {
        if doorbell < self.doorbells {
            self.rung |= 1 << (doorbell % 64);
        }
    }

    /// Activates the queue of a VNI, or keeps it active.
    pub(crate) fn activate(&mut self, vni: VniId, now: Option<Time>) {
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        let queue = &mut process.queue;
        if let Some(now) = now {
            queue.last_work = now;
        }
        let before = queue.attention;
        if before == Attention::Active || queue.failed.is_some() {
            return;
        }
        queue.attention = Attention::Active;
        if let Attention::Idle(place) = before {
            self.take_idle(place);
        }
        self.awake.active.push(vni);
    }

    /// Data has arrived for the process of a VNI: it is likely to answer, unless it did not answer the
    /// last time.
    #[inline]
    pub(crate) fn arrived(&mut self, vni: VniId, now: Time) {
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        let queue = &mut process.queue;
        match queue.attention {
            Attention::Active if queue.unanswered => {}
            Attention::Idle(place) if queue.unanswered => {
                queue.last_work = now;
                self.awake.idle[place].last_work = now;
            }
            _ => {
                queue.unanswered = true;
                queue.gap = 0;
                self.activate(vni, Some(now));
            }
        }
    }

    /// A message has come that no receive takes: one may be in the queue.
    pub(crate) fn message_waits(&mut self, vni: VniId, now: Time) {
        if let Some(process) = self.process_mut(vni) {
            process.queue.has_messages = true;
            self.activate(vni, Some(now));
        }
    }

    /// A process has ended, perhaps one that receives name which stand unread in queues that sleep.
    pub(crate) fn read_receives(&mut self) {
        let all = (0..).map(VniId).zip(&self.processes);
        let queues = all.filter_map(|(vni, process)| Some((vni, &process.as_deref()?.queue)));
        let sleeping =
            queues.filter(|(_, queue)| queue.attention == Attention::Asleep && !queue.has_messages);
        let sleeping: Vec<VniId> = sleeping.map(|(vni, _)| vni).collect();
        for vni in sleeping {
            self.activate(vni, None);
        }
    }

    /// No message waits for a receive of the process of a VNI.
    pub(crate) fn no_message_waits(&mut self, vni: VniId) {
        if let Some(process) = self.process_mut(vni) {
            process.queue.has_messages = false;
        }
    }

    /// Activates the queues of doorbells that were rung.
    #[inline]
    pub(crate) fn activate_rung(&mut self, now: Time) {
        let mut rung = std::mem::take(&mut self.rung);
        let doorbells = self.doorbells.max(1) as usize;
        while rung != 0 {
            let bit = rung.trailing_zeros() as usize;
            rung &= rung - 1;
            for doorbell in (bit..doorbells).step_by(64) {
                for vni in (doorbell..self.processes.len()).step_by(doorbells) {
                    self.activate(VniId(vni as u16), Some(now));
                }
            }
        }
    }

    /// The active queue of that index. What a command starts may activate another one,
    /// behind those that there are.
    #[inline]
    pub(crate) fn active_queue(&self, index: usize) -> Option<VniId> {
        self.awake.active.get(index).copied()
    }

    /// Returns true if the queue of a VNI had no command for so long that it is idle.
    #[inline]
    pub(crate) fn is_idle(&self, now: Time, vni: VniId) -> bool {
        let timeout = self.limits.idle_timeout;
        let process = self.process(vni);
        process.is_some_and(|process| process.queue.is_idle(now, timeout))
    }

    /// Active queues that had no command for long enough are idle from now on. What they have
    /// completed is written back. Returns true if one of those that are too many had a command after
    /// all.
    pub(crate) fn rest_queues<H: Host>(&mut self, now: Time, host: &H) -> bool {
        let mut surplus = Vec::new();
        let mut index = 0;
        while let Some(vni) = self.active_queue(index) {
            if !self.is_idle(now, vni) {
                index += 1;
                continue;
            }
            self.awake.active.remove(index);
            let place = self.awake.idle.len();
            if place >= IDLE_QUEUES {
                surplus.push(vni);
                continue;
            }
            let Some(process) = self.process_mut(vni) else {
                continue;
            };
            process.queue.attention = Attention::Idle(place);
            process.write_back = true;
            process.publish_head(host.memory());
            let queue = IdleQueue {
                vni,
                slot: process.queue.slot,
                last_work: process.queue.last_work,
            };
            self.mark_dirty(vni);
            self.awake.idle.push(queue);
        }
        !surplus.is_empty() && self.fall_asleep(host, surplus)
    }

    /// Takes the idle queue of that place out of their list.
    fn take_idle(&mut self, place: usize) {
        self.awake.idle.swap_remove(place);
        let moved = self.awake.idle.get(place).map(|queue| queue.vni);
        if let Some(process) = moved.and_then(|vni| self.process_mut(vni)) {
            process.queue.attention = Attention::Idle(place);
        }
    }

    /// Returns true if there are idle queues, which the engine has to look at.
    pub(crate) fn has_idle_queues(&self) -> bool {
        !self.awake.idle.is_empty()
    }

    /// Returns true if it is time for a look at idle queues, even if the NIC has work.
    #[inline]
    pub(crate) fn is_look_due(&self, now: Time) -> bool {
        self.has_idle_queues() && self.awake.last_look.after(LOOK_INTERVAL) <= now
    }

    /// Looks at all idle queues: [`Core::look_at_some_idle`].
    #[cold]
    pub(crate) fn look_at_idle<H: Host>(&mut self, now: Time, host: &H) -> bool {
        self.awake.last_look = now;
        self.look_at_idle_queues(now, host, self.awake.idle.len())
    }

    /// Looks at idle queues, some of them at a time, in turn, the likely one first: those with a command
    /// are active from now on, and those that had none for long enough fall asleep. Returns true if one
    /// of them has a command.
    #[inline]
    pub(crate) fn look_at_some_idle<H: Host>(&mut self, now: Time, host: &H) -> bool {
        if self.awake.idle.is_empty() {
            return false;
        }
        let most = LOOKS.min(self.awake.idle.len());
        self.look_at_expected(now, host) || self.look_at_idle_queues(now, host, most)
    }

    fn look_at_expected<H: Host>(&mut self, now: Time, host: &H) -> bool {
        let Some(vni) = self.awake.expected else {
            return false;
        };
        let attention = self.process(vni).map(|process| process.queue.attention);
        let idle = matches!(attention, Some(Attention::Idle(_)));
        let found = idle && self.has_command(host, vni);
        if found {
            self.found(vni, now);
        }
        found
    }

    /// An idle queue has a command.
    fn found(&mut self, vni: VniId, now: Time) {
        let last = self.awake.last_found.replace(vni);
        if let Some(process) = last.and_then(|last| self.process_mut(last)) {
            process.queue.next_found = Some(vni);
        }
        let expected = self.process(vni).and_then(|it| it.queue.next_found);
        self.awake.expected = expected;
        self.activate(vni, Some(now));
    }

    fn look_at_idle_queues<H: Host>(&mut self, now: Time, host: &H, most: usize) -> bool {
        let (sram, timeout) = (host.sram(), self.limits.sleep_timeout);
        let (mut found, mut tired) = (false, false);
        for _ in 0..most {
            if self.awake.next_place >= self.awake.idle.len() {
                self.awake.next_place = 0;
            }
            let Some(queue) = self.awake.idle.get(self.awake.next_place).copied() else {
                break;
            };
            // Relaxed: the reader of the command loads this word again.
            let first = sram.load_u64(queue.slot, Ordering::Relaxed);
            if first != 0 && self.has_room(queue.vni, first) {
                // Another one has its place then.
                self.found(queue.vni, now);
                found = true;
            } else {
                tired |= queue.last_work.after(timeout) <= now;
                self.awake.next_place += 1;
            }
        }
        if tired {
            let idle = self.awake.idle.iter();
            let tired = idle.filter(|queue| queue.last_work.after(timeout) <= now);
            let tired: Vec<_> = tired.map(|queue| queue.vni).collect();
            for vni in &tired {
                self.forget_awake(*vni);
            }
            found |= self.fall_asleep(host, tired);
        }
        found
    }

    /// Queues that were taken from the lists fall asleep. Returns true if one of them had a command
    /// after all: it is active then.
    fn fall_asleep<H: Host>(&mut self, host: &H, queues: Vec<VniId>) -> bool {
        let sram = host.sram();
        for vni in &queues {
            if let Some(process) = self.process_mut(*vni) {
                process.queue.attention = Attention::Asleep;
                process.queue.awake = false;
                process.write_back = true;
                let asleep = match process.queue.has_messages {
                    true => 0,
                    false => NOTHING_WAITS,
                };
                sram.store_u64(process.queue.window + AWAKE, asleep, Ordering::Relaxed);
                process.publish_head(host.memory());
                self.mark_dirty(*vni);
            }
        }
        // Pairs with the process's fence between its command and its load of
        // AWAKE: one of the two sees the other's store.
        sram.fence();
        let mut found = false;
        for vni in queues {
            if self.has_command(host, vni) {
                self.activate(vni, None);
                found = true;
            }
        }
        found
    }

    fn has_command<H: Host>(&mut self, host: &H, vni: VniId) -> bool {
        let process = self.process(vni);
        let slot = process.map(|process| process.queue.slot);
        let first = slot.map_or(0, |slot| host.sram().load_u64(slot, Ordering::Relaxed));
        first != 0 && self.has_room(vni, first)
    }

    /// Returns true if there is an operation to spare for the next command of a queue, which begins
    /// with this word. If there is none, the end of an operation activates the queue.
    fn has_room(&mut self, vni: VniId, first: u64) -> bool {
        let running = (self.limits.operations, self.limits.sends);
        let completions = self.limits.completions;
        self.process_mut(vni).is_some_and(|process| {
            process.queue.stalled = !process.has_room(first, running, completions);
            !process.queue.stalled
        })
    }

    /// Returns true if there are active queues, or something is left to do.
    pub(crate) fn wants_poll(&self) -> bool {
        let polls = !self.awake.active.is_empty() || self.rung != 0;
        polls || self.has_turns() || self.has_due() || !self.dirty.is_empty()
    }

    /// All queues fall asleep; looks once more, and writes completions back. Returns
    /// false if there is work, or an event for the driver, after all.
    pub(crate) fn prepare_sleep<H: Host>(&mut self, host: &H) -> bool {
        if self.rung != 0 || self.has_turns() || self.has_due() {
            return false;
        }
        let mut awake = std::mem::take(&mut self.awake.active);
        awake.extend(self.awake.idle.drain(..).map(|queue| queue.vni));
        if !awake.is_empty() && self.fall_asleep(host, awake) {
            return false;
        }
        let events = self.events.is_empty();
        self.write_back_completions(host);
        events == self.events.is_empty()
    }

    /// Forgets that the queue of a VNI is awake.
    pub(super) fn forget_awake(&mut self, vni: VniId) {
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        match std::mem::replace(&mut process.queue.attention, Attention::Asleep) {
            Attention::Asleep => {}
            Attention::Idle(place) => self.take_idle(place),
            Attention::Active => self.awake.active.retain(|other| *other != vni),
        }
    }

    /// Forgets the queue of a process that starts again.
    pub(crate) fn forget_queue(&mut self, vni: VniId) {
        self.forget_awake(vni);
        self.events
            .retain(|event| !matches!(event, Pending::QueueFailed(failed, _) if *failed == vni));
    }
}
