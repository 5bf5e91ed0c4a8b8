//! A collective worker: a process that forms groups and takes part in collectives (Q14, Q15,
//! N26).
//!
//! ```text
//!   works: founds groups, joins, calls, leaves, revokes ──► serves: goes on with what it is a
//!                                                           member of, until all are done ──► ends
//! ```
//! A worker that founds a group tells the others through the oracle; each of them joins it once, most
//! of the time. What a member calls follows from the group ([`oracle`]). It has
//! several calls of several groups under way, and leaves a group when all its calls are complete,
//! or at any time. It is a task like a message worker, and issues raw commands.

mod oracle;

mod commands;
mod letters;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::{Access, Status, PAGE_SIZE};
use qnic_nic::Limits;

use self::oracle::{CollectiveOracle, Member, MEMORY};
use crate::process::worker::{is_registered, Exported, Next, QueueWorker, Registered, Worker};
use crate::process::{pages, ProcessContext, Result};
use crate::schedule::lock;
use crate::settings::Faults;
use crate::workload::{live, Oracle, Seed, Workload};

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 5_000_000;

/// Groups of which a worker is a member at the same time, if it founds another.
const GROUPS: usize = 4;

/// Collective workers and their oracle.
struct Groups {
    oracle: Mutex<CollectiveOracle>,
}

/// Collective workers in the place of all RDMA workers of a node but one, and of sync workers.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    seed.settings.keep_one_rdma_worker();
    limit(&mut seed.settings.limits, &mut seed.random);
    let oracle = Mutex::new(CollectiveOracle::new(seed.settings, seed.routes));
    Box::new(Groups { oracle })
}

/// Bounds for groups, small ones some of the time.
fn limit(limits: &mut Limits, random: &mut fastrand::Rng) {
    limits.completions = random.u32(1..=32);
    limits.collectives = random.u32(1..=12);
    if random.bool() {
        limits.groups = random.u32(2..=4);
    }
    if random.u8(..) < 32 {
        limits.group_bytes = random.u32(10_000..200_000);
    }
}

impl Workload for Groups {
    fn run(&self, context: &ProcessContext) {
        let (machine, slot) = (&context.machine, context.slot);
        let address = 0x40_0000 + context.common.schedule.range(0..PAGE_SIZE as u64);
        let space = machine.kernel.new_space(pages(address, MEMORY));
        lock(&self.oracle).begin(slot, machine, space, address);
        let process = live(self, context, ("collective worker", space), |process| {
            let mut worker = CollectiveWorker {
                oracle: &self.oracle,
                registered: Registered::new(context, process),
                address,
                exported: None,
                seats: Vec::new(),
                open: BTreeMap::new(),
                sends: BTreeSet::new(),
                receives: BTreeSet::new(),
            };
            worker.export()?;
            worker.live()
        });
        drop(process);
        machine.kernel.end_space(space);
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.oracle
    }
}

/// What a member has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Joining,
    /// In the group of this name.
    In(u64),
}

/// A group that the worker is a member of, or is to be.
#[derive(Debug, Clone, Copy)]
struct Seat {
    member: Member,
    state: State,
    /// Calls that it has issued, and those that have not ended.
    called: u32,
    pending: u32,
    /// Those of them that are multicasts.
    sends: u32,
    /// A call has failed, or may have been refused: the group is over.
    failed: bool,
}

/// A registered process.
struct CollectiveWorker<'a> {
    oracle: &'a Mutex<CollectiveOracle>,
    registered: Registered<'a>,
    /// First address of its segment.
    address: u64,
    exported: Option<Exported>,
    seats: Vec<Seat>,
    /// Commands under way, and the group that each is about.
    open: BTreeMap<u64, Option<Member>>,
    /// Those of them that are multicasts.
    sends: BTreeSet<u64>,
    /// Receives that are posted.
    receives: BTreeSet<u64>,
}

is_registered!(CollectiveWorker);

impl CollectiveWorker<'_> {
    fn export(&mut self) -> Result<()> {
        let range = (self.address, MEMORY);
        self.exported = Some(self.registered.export((1, Access::all()), range)?);
        Ok(())
    }

    fn unexport(&mut self) -> Result<()> {
        let Some(exported) = self.exported.take() else {
            return Ok(());
        };
        lock(self.oracle).revoke(self.slot);
        // Calls that the NIC has not read take no part.
        for seat in &mut self.seats {
            seat.failed |= seat.pending > 0;
        }
        self.trace(format_args!("revokes"));
        self.registered.unexport(exported)
    }

    fn revoke(&mut self) -> Result<()> {
        self.unexport()?;
        self.context.think(500)?;
        self.export()
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        let faults = self.common.settings.options.faults;
        let revoke = 10 * u64::from(faults.contains(Faults::REVOKE));
        match self.schedule.range(0..1000 + revoke) {
            0..=119 => self.found(),
            120..=139 => self.intrude(),
            140..=149 => self.call_wrongly(),
            150..=164 => self.leave_some(),
            165..=399 => self.wait_a_little(),
            400..=549 => self.send_some(),
            550..=999 => self.call_some(),
            _ => self.revoke(),
        }
    }

    /// Plans a group with some of the others, or alone.
    fn found(&mut self) -> Result<()> {
        let (schedule, settings) = (self.schedule, &self.common.settings);
        if self.seats.len() >= GROUPS {
            return Ok(());
        }
        let mut others: Vec<usize> = (settings.rdma_workers..settings.slots.len()).collect();
        others.retain(|other| *other != self.slot);
        let mut members = vec![self.slot];
        let size = 1 + schedule.below(others.len() + 1);
        while members.len() < size {
            let other = others.swap_remove(schedule.below(others.len()));
            let place = schedule.below(members.len() + 1);
            members.insert(place, other);
        }
        let (name, seed) = (schedule.range(0..3), schedule.any());
        self.trace(format_args!("group {name} of {members:?}"));
        lock(self.oracle).found(name, seed, &members);
        Ok(())
    }

    /// Leaves the groups that are over, and those of which all calls are complete.
    fn leave_complete(&mut self) -> Result<()> {
        for seat in self.seats.clone() {
            if self.is_over(&seat) {
                self.leave(seat)?;
            }
        }
        Ok(())
    }

    fn is_over(&self, seat: &Seat) -> bool {
        let more = || lock(self.oracle).script(seat.member, seat.called);
        let joined = seat.state != State::Joining;
        joined && (seat.failed || seat.pending == 0 && more().is_none())
    }
}

impl Worker for CollectiveWorker<'_> {
    fn context(&self) -> &ProcessContext {
        self.context
    }

    fn step(&mut self) -> Result<Next> {
        if self.schedule.chance(900) {
            self.join_next()?;
        }
        self.act()?;
        if self.schedule.chance(700) {
            self.receive_some()?;
        }
        if !self.schedule.chance(400) {
            self.collect()?;
        }
        Ok(Next::GoOn)
    }

    /// Goes on with all groups.
    fn look(&mut self) -> Result<()> {
        self.collect()?;
        self.receive_some()?;
        self.join_next()?;
        for index in 0..self.seats.len() {
            self.call_next(index)?;
        }
        self.leave_complete()?;
        let idle = self.seats.is_empty() && self.open.is_empty();
        self.context.set_idle(idle);
        self.wait(LOOK)
    }

    fn finish(&mut self) -> Result<()> {
        self.unexport()
    }
}

impl<'a> QueueWorker<'a> for CollectiveWorker<'a> {
    const NAME: &'static str = "collective worker";

    fn complete(&mut self, entry: &CompletionEntry) {
        let handle = entry.handle.get();
        lock(self.oracle).release(self.slot, handle);
        if self.receives.remove(&handle) {
            return;
        }
        let is_send = self.sends.remove(&handle);
        let Some(Some(member)) = self.open.remove(&handle) else {
            return;
        };
        let well = entry.status.get() == Status::Ok.code();
        let joins = entry.kind == CompletionKind::Join as u8;
        if joins && !well {
            self.seats.retain(|seat| seat.member != member);
        }
        // A seat that was left is forgotten.
        let mut seats = self.seats.iter_mut();
        if let Some(seat) = seats.find(|seat| seat.member == member) {
            if joins {
                seat.state = State::In(entry.immediate.get());
            } else {
                seat.pending -= 1;
                seat.sends -= u32::from(is_send);
                seat.failed |= !well;
            }
        }
    }
}
