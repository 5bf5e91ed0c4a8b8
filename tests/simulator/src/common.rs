//! What the world and all tasks of a simulation share.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use qnic_abi::host_area::{self, HOST_PAGES};

use crate::machine::memory::Words;
use crate::process::watched::UnavailablePage;
use crate::schedule::{lock, trace, Schedule, Signal, TaskId};
use crate::settings::{Others, Settings};
use crate::workloads::datagrams::oracle::DatagramOracle;
use crate::workloads::groups::oracle::CollectiveOracle;
use crate::workloads::memory::Serving;
use crate::workloads::messages::oracle::MessageOracle;
use crate::workloads::names::oracle::NameOracle;
use crate::workloads::rdma::oracle::Oracle;
use crate::workloads::streams::oracle::StreamOracle;
use crate::workloads::sync::checker::Checker;

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
    pub(crate) oracle: Mutex<Oracle>,
    pub(crate) checker: Mutex<Checker>,
    pub(crate) messages: Mutex<MessageOracle>,
    pub(crate) groups: Mutex<CollectiveOracle>,
    pub(crate) names: Mutex<NameOracle>,
    pub(crate) datagrams: Mutex<DatagramOracle>,
    pub(crate) volumes: Mutex<Serving>,
    pub(crate) streams: Mutex<StreamOracle>,
    pub(crate) slots: Mutex<Vec<Slot>>,
    phase: Mutex<Phase>,
    pub(crate) phase_changed: Signal,
    /// How long the streams of writes took, in nanoseconds.
    pub(crate) stream_times: Mutex<Vec<u64>>,
}

impl Common {
    pub(crate) fn new(schedule: Arc<Schedule>, settings: Settings) -> Self {
        let coming = |slot: usize| Slot {
            task: 0,
            state: SlotState::Working,
            verifies: settings.others_in(slot).is_some_and(Others::use_engine),
        };
        Common {
            oracle: Mutex::new(Oracle::new(&settings.slots[..settings.rdma_workers])),
            checker: Mutex::new(Checker::new(&settings)),
            messages: Mutex::new(MessageOracle::new(&settings)),
            groups: Mutex::new(CollectiveOracle::new(&settings)),
            names: Mutex::new(NameOracle::new(&settings)),
            datagrams: Mutex::new(DatagramOracle::new(&settings)),
            volumes: Mutex::default(),
            streams: Mutex::new(StreamOracle::new(&settings)),
            slots: Mutex::new((0..settings.slots.len()).map(coming).collect()),
            schedule,
            settings,
            phase: Mutex::new(Phase::Work),
            phase_changed: Signal::default(),
            stream_times: Mutex::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        trace!(self.schedule, "phase: {phase:?}");
        *lock(&self.phase) = phase;
        self.schedule.notify(&self.phase_changed);
    }

    /// The process in a slot is registered, with a host area in these frames.
    pub(crate) fn registered(&self, slot: usize, frames: [u32; HOST_PAGES]) {
        match self.settings.others_in(slot) {
            None => lock(&self.oracle).registered(slot, frames),
            Some(Others::Sync | Others::Memory | Others::Streams) => {}
            Some(Others::Messages) => lock(&self.messages).registered(slot, frames),
            Some(Others::Groups) => lock(&self.groups).registered(slot, frames),
            Some(Others::Names) => lock(&self.names).registered(slot, frames),
            Some(Others::Datagrams) => lock(&self.datagrams).registered(slot, frames),
        }
    }

    /// The process in a slot begins to die.
    pub(crate) fn end(&self, slot: usize) {
        match self.settings.others_in(slot) {
            None => lock(&self.oracle).end(slot),
            Some(Others::Sync) => lock(&self.checker).end(slot, false),
            Some(Others::Messages) => lock(&self.messages).end(slot, self.schedule.now()),
            Some(Others::Groups) => lock(&self.groups).end(slot),
            Some(Others::Names) => lock(&self.names).end(slot, self.schedule.now()),
            Some(Others::Datagrams) => lock(&self.datagrams).end(slot, self.schedule.now()),
            Some(Others::Memory) => lock(&self.volumes).end(slot),
            Some(Others::Streams) => lock(&self.streams).end(slot, self.schedule.now()),
        }
    }

    /// A node goes down, or has come back: its routes are disturbed until a point in time.
    pub(crate) fn disturb_node(&self, node: usize, until: u64) {
        let nodes: BTreeSet<usize> = self.settings.slots.iter().copied().collect();
        for other in nodes.into_iter().filter(|other| *other != node) {
            self.disturb_route(node, other, until);
        }
    }

    /// The route between two nodes is cut, or was: it is disturbed until a point in time.
    pub(crate) fn disturb_route(&self, a: usize, b: usize, until: u64) {
        lock(&self.oracle).disturb_route(a, b, until);
        lock(&self.messages).disturb_route(a, b, until);
        lock(&self.groups).disturb_route(a, b, until);
        lock(&self.names).disturb_route(a, b, until);
        lock(&self.datagrams).disturb_route(a, b, until);
        lock(&self.streams).disturb_route(a, b, until);
    }

    /// Makes a page of some process unavailable to its NIC.
    pub(crate) fn make_unavailable(&self) -> Option<UnavailablePage> {
        let settings = &self.settings;
        let without = [
            Others::Sync,
            Others::Names,
            Others::Datagrams,
            Others::Memory,
            Others::Streams,
        ];
        let without = without.map(|others| settings.slots_of(others).len());
        let slots = settings.slots.len() - without.iter().sum::<usize>();
        let slot = self.schedule.below(slots);
        match settings.others_in(slot) {
            Some(Others::Groups) => lock(&self.groups).make_unavailable(slot, &self.schedule),
            Some(_) => lock(&self.messages).make_unavailable(slot, &self.schedule),
            None => lock(&self.oracle).make_unavailable(slot, &self.schedule),
        }
    }

    /// The page can be brought in again.
    pub(crate) fn make_available(&self, page: UnavailablePage) {
        let now = self.schedule.now();
        match self.settings.others_in(page.slot) {
            Some(Others::Groups) => lock(&self.groups).make_available(page, now),
            Some(_) => lock(&self.messages).make_available(page, now),
            None => lock(&self.oracle).make_available(page, now),
        }
    }

    /// A NIC has stored a word of the host area of the process in a slot.
    pub(crate) fn stored(&self, slot: usize, offset: usize, value: u64) {
        if self.settings.stream.is_some() {
            let failed = offset == host_area::ERRORS && value != 0;
            assert!(!failed, "a write of the stream fails");
            return;
        }
        let now = self.schedule.now();
        match self.settings.others_in(slot) {
            None => lock(&self.oracle).stored(slot, offset, value),
            Some(Others::Sync | Others::Memory | Others::Streams) => {}
            Some(Others::Messages) => lock(&self.messages).stored(slot, offset, value, now),
            Some(Others::Groups) => lock(&self.groups).stored(slot, offset, value, now),
            Some(Others::Names) => lock(&self.names).stored(slot, offset, value, now),
            Some(Others::Datagrams) => lock(&self.datagrams).stored(slot, offset, value, now),
        }
    }

    /// A NIC has changed an object of the process in a slot.
    pub(crate) fn changed(&self, slot: usize, object: usize, before: &Words, after: &Words) {
        lock(&self.checker).changed(slot, object, before, after);
    }
}
