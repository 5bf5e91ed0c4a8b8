//! What a workload is: what the processes in some slots do, and what must hold of it.
//!
//! ```text
//!   world, node, memory ──events──► Workloads ──by slot──► Workload ──► its workers (tasks)
//!                                                             │              │ tell before each
//!                                                             │              ▼ command
//!                                                             └──────────► its oracle
//! ```
//! A simulation has two: RDMA workers in the first slots, and in the others the one that its seed
//! chooses from the list in [`crate::workloads`]. A workload consists of workers and an oracle:
//!
//! - A *worker* is a task that lives as one process after the other. It draws all that it does
//!   from the schedule, and tells the oracle of each command at the moment of its issue.
//! - The *oracle* learns of each store of a NIC into the host area of such a process at the moment
//!   of that store, looks at all memory that the store speaks of, and panics where a promise is
//!   broken. It draws nothing, so another check changes no trace.
//!
//! Most questions have an answer already, for a workload that they do not concern.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use qnic_abi::host_area::HOST_PAGES;
use qnic_driver::Process;

use crate::common::{Common, Phase, SlotState};
use crate::machine::memory::{Observer, Words};
use crate::machine::platform::SimPlatform;
use crate::process::watched::UnavailablePage;
use crate::process::{Ended, ProcessContext, Result};
use crate::routes::Routes;
use crate::schedule::{lock, trace, Schedule};
use crate::settings::Settings;

/// One kind of worker, with its oracle, in one simulation.
pub(crate) trait Workload: Send + Sync {
    /// One process in a slot, from its start to its end.
    fn run(&self, context: &ProcessContext);

    fn oracle(&self) -> &Mutex<dyn Oracle>;
}

/// What a workload is made of.
pub(crate) struct Seed<'a> {
    pub(crate) number: u64,
    /// It says here what slots, frames and bounds it has.
    pub(crate) settings: &'a mut Settings,
    /// Its own random numbers: another workload draws others, and changes none of these.
    pub(crate) random: fastrand::Rng,
    pub(crate) routes: &'a Routes,
}

/// What must hold of the processes of a workload.
pub(crate) trait Oracle: Send {
    /// The process in a slot is registered, with a host area in these frames.
    fn registered(&mut self, _slot: usize, _frames: [u32; HOST_PAGES]) {}

    /// The process in a slot is killed: others may notice before it begins to die.
    fn killed(&mut self, _slot: usize) {}

    /// The process in a slot begins to die.
    fn end(&mut self, slot: usize, now: u64);

    /// A NIC has stored a word of the host area of the process in a slot.
    fn stored(&mut self, _slot: usize, _offset: usize, _value: u64, _now: u64) {}

    /// A NIC has changed an object of the process in a slot.
    fn changed(&mut self, _slot: usize, _object: usize, _before: &Words, _after: &Words) {}

    /// The route between two nodes is disturbed, or was until now.
    fn disturb_route(&mut self, _a: usize, _b: usize) {}

    /// Something that waits for a process on a node, without sending to it, since a point in time or
    /// before.
    fn waits_for(&self, _node: usize, _since: u64) -> Option<String> {
        None
    }

    /// The processes have pages that may be unavailable to their NICs.
    fn has_pages(&self) -> bool {
        false
    }

    /// Makes a page of the process in a slot unavailable to its NIC; `None` if that is dead.
    fn make_unavailable(&mut self, _slot: usize, _: &Schedule) -> Option<UnavailablePage> {
        None
    }

    /// The page can be brought in again.
    fn make_available(&mut self, _page: UnavailablePage, _now: u64) {}

    /// How much of a budget a NIC needs for what processes have; `None`: nothing that is known.
    fn budget(&self, _node: usize, _name: &str) -> Option<u64> {
        None
    }

    /// The rows that a NIC's table of names must have.
    fn names(&self) -> BTreeSet<Vec<String>> {
        BTreeSet::new()
    }

    /// How many malformed commands the workers of a node have issued.
    fn malformed(&self, _node: usize) -> u64 {
        0
    }

    /// Nothing breaks any more: returns true if nothing is under way that has to end.
    fn is_settled(&self) -> bool {
        true
    }

    /// Slots of processes that wait for what is lost, as documented.
    fn starving(&self) -> Vec<usize> {
        Vec::new()
    }

    /// What has been under way for the longest time, for messages.
    fn oldest(&self) -> Option<String> {
        None
    }

    /// Nothing is under way any more: looks at all memory. Panics if anything is wrong.
    fn audit(&self) {}

    /// What it has counted, by name.
    fn counts(&self) -> Vec<(&'static str, u64)>;
}

/// The workloads of one simulation.
pub(crate) struct Workloads {
    pub(crate) common: Arc<Common>,
    /// That of the RDMA workers, and that of the others, if there are others.
    all: Vec<Box<dyn Workload>>,
    routes: Routes,
}

impl Workloads {
    /// That of the RDMA workers, and that of the others, if there are others; they share the routes.
    pub(crate) fn new(common: Arc<Common>, all: Vec<Box<dyn Workload>>, routes: Routes) -> Self {
        Workloads {
            common,
            all,
            routes,
        }
    }

    fn of(&self, slot: usize) -> &dyn Workload {
        &*self.all[usize::from(!self.common.settings.is_rdma(slot))]
    }

    /// The oracle of a slot.
    pub(crate) fn oracle(&self, slot: usize) -> MutexGuard<'_, dyn Oracle + 'static> {
        lock(self.of(slot).oracle())
    }

    /// All oracles.
    pub(crate) fn oracles(&self) -> impl Iterator<Item = MutexGuard<'_, dyn Oracle + 'static>> {
        self.all.iter().map(|workload| lock(workload.oracle()))
    }

    /// Lets one process after the other live in a slot: the body of a task.
    pub(crate) fn run(&self, context: &ProcessContext) {
        let (slot, schedule) = (context.slot, &self.common.schedule);
        lock(&self.common.slots)[slot].task = schedule.task();
        loop {
            context.set_state(SlotState::Working);
            self.of(slot).run(context);
            context.set_state(SlotState::Empty);
            schedule.revive();
            if context.machine.is_gone() || self.common.phase() == Phase::Exit {
                return;
            }
            schedule.sleep(schedule.range(10_000..2_000_000));
        }
    }

    /// A node goes down, or has come back: its routes are disturbed until a point in time.
    pub(crate) fn disturb_node(&self, node: usize, until: u64) {
        let nodes: BTreeSet<usize> = self.common.settings.slots.iter().copied().collect();
        for other in nodes.into_iter().filter(|other| *other != node) {
            self.disturb_route(node, other, until);
        }
    }

    /// The route between two nodes is cut, or was: it is disturbed until a point in time.
    pub(crate) fn disturb_route(&self, a: usize, b: usize, until: u64) {
        self.oracles()
            .for_each(|mut oracle| oracle.disturb_route(a, b));
        self.routes.disturb(a, b, until);
    }

    /// Makes a page of some process unavailable to its NIC.
    pub(crate) fn make_unavailable(&self) -> Option<UnavailablePage> {
        let settings = &self.common.settings;
        let slots = match self.oracles().all(|oracle| oracle.has_pages()) {
            true => settings.slots.len(),
            false => settings.rdma_workers,
        };
        let slot = self.common.schedule.below(slots);
        self.oracle(slot)
            .make_unavailable(slot, &self.common.schedule)
    }
}

impl Observer for Workloads {
    fn stored(&self, slot: usize, offset: usize, value: u64) {
        let now = self.common.schedule.now();
        self.oracle(slot).stored(slot, offset, value, now);
    }

    fn changed(&self, slot: usize, object: usize, before: &Words, after: &Words) {
        self.oracle(slot).changed(slot, object, before, after);
    }
}

/// A process with that address space: registers, and does what it is for. Returns what is left of
/// it at its end, which has to be dropped.
pub(crate) fn live(
    workload: &dyn Workload,
    context: &ProcessContext,
    (what, space): (&str, u64),
    work: impl FnOnce(&Process<SimPlatform>) -> Result<()>,
) -> Option<Process<SimPlatform>> {
    let (slot, schedule) = (context.slot, &context.common.schedule);
    let process = context.register(space);
    let ending = match &process {
        Some(process) => {
            let vni = process.vni();
            trace!(schedule, "{what} {slot}: registered, {vni}");
            lock(workload.oracle()).registered(slot, process.host_area().frames);
            work(process)
        }
        None => Err(Ended),
    };
    ends(workload, context, what, ending.is_ok());
    process
}

/// The process of a context begins to die.
pub(crate) fn ends(workload: &dyn Workload, context: &ProcessContext, what: &str, cleanly: bool) {
    let (slot, schedule) = (context.slot, &context.common.schedule);
    lock(workload.oracle()).end(slot, schedule.now());
    trace!(schedule, "{what} {slot}: ends, cleanly: {cleanly}");
}
