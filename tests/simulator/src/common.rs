//! What the world and all tasks of a simulation share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::schedule::{lock, trace, Schedule, Signal, TaskId};
use crate::settings::Settings;

/// What happens now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Processes work, things break.
    Work,
    /// Nothing breaks any more; processes wait for what they have under way.
    Drain,
    /// Processes end.
    Exit,
}

/// One slot for a process: the task that runs its processes, and what they do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) task: TaskId,
    pub(crate) state: SlotState,
    /// Its worker is to see that everything works again before processes end.
    pub(crate) verifies: bool,
}

/// What the process in a slot does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub(crate) slots: Mutex<Vec<Slot>>,
    phase: Mutex<Phase>,
    /// See [`Common::let_wait`].
    waits: AtomicBool,
    pub(crate) phase_changed: Signal,
}

impl Common {
    pub(crate) fn new(schedule: Arc<Schedule>, settings: Settings) -> Self {
        let coming = |slot: usize| Slot {
            task: 0,
            state: SlotState::Working,
            verifies: settings.engine && !settings.is_rdma(slot),
        };
        Common {
            slots: Mutex::new((0..settings.slots.len()).map(coming).collect()),
            schedule,
            settings,
            phase: Mutex::new(Phase::Work),
            waits: AtomicBool::new(false),
            phase_changed: Signal::default(),
        }
    }

    /// From now on processes that can wait for another one without sending to it do so.
    pub(crate) fn let_wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Returns true if processes are to wait for others.
    pub(crate) fn lets_wait(&self) -> bool {
        // Relaxed: the simulation is one thread at a time.
        self.waits.load(Ordering::Relaxed)
    }

    pub(crate) fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        trace!(self.schedule, "phase: {phase:?}");
        *lock(&self.phase) = phase;
        self.schedule.notify(&self.phase_changed);
    }
}
