//! What the world and all tasks of a simulation share.

use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use qnic_abi::host_area;

use crate::checker::Checker;
use crate::memory::{Observer, Words};
use crate::oracle::Oracle;
use crate::schedule::{lock, trace, Schedule, Signal, TaskId};
use crate::settings::Settings;

/// What happens now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Processes work, things break.
    Work,
    /// Nothing breaks any more; processes wait for what they have under way.
    Drain,
    /// Processes end.
    Exit,
}

/// One slot for a process.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The task that runs its processes, and its [`SlotState`].
    pub(crate) task: AtomicUsize,
    pub(crate) state: AtomicU8,
}

impl Slot {
    /// A slot for a process that will come.
    fn new() -> Self {
        Slot {
            task: AtomicUsize::default(),
            state: AtomicU8::new(SlotState::Working as u8),
        }
    }
}

/// What the process in a slot does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotState {
    /// No process lives there.
    Empty,
    /// It works.
    Working,
    /// It has nothing under way, and starts nothing any more.
    Drained,
}

/// Shared by the world and all tasks.
pub(crate) struct Common {
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) settings: Settings,
    pub(crate) oracle: Mutex<Oracle>,
    pub(crate) checker: Mutex<Checker>,
    pub(crate) slots: Vec<Slot>,
    phase: AtomicU8,
    pub(crate) phase_changed: Signal,
    /// How long the stream of writes took, in nanoseconds.
    pub(crate) stream_time: AtomicU64,
}

impl Common {
    pub(crate) fn new(schedule: Arc<Schedule>, settings: Settings) -> Self {
        Common {
            oracle: Mutex::new(Oracle::new(&settings.slots[..settings.rdma_workers])),
            checker: Mutex::new(Checker::new(&settings)),
            slots: settings.slots.iter().map(|_| Slot::new()).collect(),
            schedule,
            settings,
            phase: AtomicU8::new(Phase::Work as u8),
            phase_changed: Signal::default(),
            stream_time: AtomicU64::new(0),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Work,
            1 => Phase::Drain,
            _ => Phase::Exit,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        trace!(self.schedule, "phase: {phase:?}");
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.schedule.notify(&self.phase_changed);
    }

    /// The process in a slot begins to die.
    pub(crate) fn end(&self, slot: usize) {
        match self.settings.is_sync_worker(slot) {
            true => lock(&self.checker).end(slot, false),
            false => lock(&self.oracle).end(slot),
        }
    }

    pub(crate) fn set_slot_state(&self, slot: usize, state: SlotState) {
        self.slots[slot].state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn slot_state(&self, slot: usize) -> SlotState {
        match self.slots[slot].state.load(Ordering::Relaxed) {
            0 => SlotState::Empty,
            1 => SlotState::Working,
            _ => SlotState::Drained,
        }
    }

    /// The task of a slot.
    pub(crate) fn task(&self, slot: usize) -> TaskId {
        self.slots[slot].task.load(Ordering::Relaxed)
    }
}

impl Observer for Common {
    fn stored(&self, slot: usize, offset: usize, value: u64) {
        if self.settings.stream.is_some() {
            let failed = offset == host_area::ERRORS && value != 0;
            assert!(!failed, "a write of the stream fails");
        } else if !self.settings.is_sync_worker(slot) {
            lock(&self.oracle).stored(slot, offset, value);
        }
    }

    fn changed(&self, slot: usize, object: usize, before: &Words, after: &Words) {
        let now = self.schedule.now();
        lock(&self.checker).changed(now, slot, object, before, after);
    }
}
