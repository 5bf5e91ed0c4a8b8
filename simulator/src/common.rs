//! What the world and all tasks of a simulation share.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::memory::{Observer, Words};
use crate::oracle::Oracle;
use crate::referee::Referee;
use crate::schedule::{lock, Schedule, Signal, TaskId};
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

/// One place for a process.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Its task, and whether a process lives there: [`SeatState`].
    pub(crate) task: AtomicUsize,
    pub(crate) state: AtomicU8,
}

impl Seat {
    /// A place for a process that will come.
    fn new() -> Self {
        Seat {
            task: AtomicUsize::default(),
            state: AtomicU8::new(SeatState::Working as u8),
        }
    }
}

/// What the process at a place does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SeatState {
    /// Nobody lives there.
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
    pub(crate) referee: Mutex<Referee>,
    pub(crate) seats: Vec<Seat>,
    phase: AtomicU8,
    pub(crate) phase_changed: Signal,
}

impl Common {
    pub(crate) fn new(schedule: Arc<Schedule>, settings: Settings) -> Self {
        Common {
            oracle: Mutex::new(Oracle::new(&settings.places[..settings.users])),
            referee: Mutex::new(Referee::new(&settings)),
            seats: settings.places.iter().map(|_| Seat::new()).collect(),
            schedule,
            settings,
            phase: AtomicU8::new(Phase::Work as u8),
            phase_changed: Signal::default(),
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
        self.schedule.trace(format_args!("phase: {phase:?}"));
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.schedule.notify(&self.phase_changed);
    }

    /// The process at a place begins to die.
    pub(crate) fn end(&self, place: usize) {
        match self.settings.is_member(place) {
            true => lock(&self.referee).end(place, false),
            false => lock(&self.oracle).end(place),
        }
    }

    pub(crate) fn set_seat(&self, place: usize, state: SeatState) {
        self.seats[place]
            .state
            .store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn seat(&self, place: usize) -> SeatState {
        match self.seats[place].state.load(Ordering::Relaxed) {
            0 => SeatState::Empty,
            1 => SeatState::Working,
            _ => SeatState::Drained,
        }
    }

    /// The task of a place.
    pub(crate) fn task(&self, place: usize) -> TaskId {
        self.seats[place].task.load(Ordering::Relaxed)
    }
}

impl Observer for Common {
    fn stored(&self, place: usize, offset: usize, value: u64) {
        if !self.settings.is_member(place) {
            lock(&self.oracle).stored(place, offset, value);
        }
    }

    fn changed(&self, place: usize, object: usize, before: &Words, after: &Words) {
        let now = self.schedule.now();
        lock(&self.referee).changed(now, place, object, before, after);
    }
}
