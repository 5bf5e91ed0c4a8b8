//! A collective worker: a process that forms groups and takes part in collectives (Q14, Q15,
//! N26).
//!
//! ```text
//!   works: founds groups, joins, calls, leaves, revokes ──► serves: goes on with what it is a
//!                                                           member of, until all are done ──► ends
//! ```
//! Whoever founds a group tells the others through the oracle; each of them joins it once, most
//! of the time. What a member calls follows from the group ([`crate::workloads::groups::oracle`]). It has
//! several calls of several groups under way, and leaves a group when all its calls are complete,
//! or at any time. It is a task like a message worker, and issues raw commands.

pub(crate) mod oracle;

mod commands;

use std::collections::BTreeMap;

use qnic_abi::host_area::CompletionKind;
use qnic_abi::{Access, Status, PAGE_SIZE};
use qnic_driver::Process;

use crate::common::{Common, Phase};
use crate::machine::platform::SimPlatform;
use crate::process::queue::Queue;
use crate::process::{pages, Exported, ProcessContext, Result};
use crate::schedule::{lock, trace, Schedule};
use crate::settings::Faults;
use crate::workloads::groups::oracle::{Member, MEMORY};

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 5_000_000;

/// Groups of which a worker is a member at the same time, if it founds another.
const GROUPS: usize = 4;

impl ProcessContext {
    /// A collective worker from its start to its end.
    pub(crate) fn run_collective_worker(&self) {
        let (machine, slot) = (&self.machine, self.slot);
        let schedule = &self.common.schedule;
        let address = 0x40_0000 + schedule.range(0..PAGE_SIZE as u64);
        let space = machine.kernel.new_space(pages(address, MEMORY));
        lock(&self.common.groups).begin(slot, machine, space, address);
        let process = self.live("collective worker", space, |process| {
            self.take_part(process, address)
        });
        drop(process);
        machine.kernel.end_space(space);
    }

    fn take_part(&self, process: &Process<SimPlatform>, address: u64) -> Result<()> {
        let mut worker = CollectiveWorker {
            context: self,
            common: &self.common,
            schedule: &self.common.schedule,
            slot: self.slot,
            process,
            queue: Queue::new(&self.machine, process),
            address,
            exported: None,
            seats: Vec::new(),
            open: BTreeMap::new(),
        };
        worker.export()?;
        worker.work()?;
        worker.serve()?;
        worker.unexport()
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
    /// A call has failed, or may have been refused: the group is over.
    failed: bool,
}

/// A registered process.
struct CollectiveWorker<'a> {
    context: &'a ProcessContext,
    common: &'a Common,
    schedule: &'a Schedule,
    slot: usize,
    process: &'a Process<SimPlatform>,
    queue: Queue,
    /// First address of its segment.
    address: u64,
    exported: Option<Exported>,
    seats: Vec<Seat>,
    /// Commands under way, and the group that each is about.
    open: BTreeMap<u64, Option<Member>>,
}

impl CollectiveWorker<'_> {
    fn export(&mut self) -> Result<()> {
        let range = (self.address, MEMORY);
        self.exported = Some(
            self.context
                .export(self.process, (1, Access::all()), range)?,
        );
        Ok(())
    }

    fn unexport(&mut self) -> Result<()> {
        let Some(exported) = self.exported.take() else {
            return Ok(());
        };
        lock(&self.common.groups).revoke(self.slot);
        // Calls that the NIC has not read take no part.
        for seat in &mut self.seats {
            seat.failed |= seat.pending > 0;
        }
        trace!(self.schedule, "collective worker {}: revokes", self.slot);
        self.context.unexport(self.process, exported)
    }

    fn revoke(&mut self) -> Result<()> {
        self.unexport()?;
        self.context.think(500)?;
        self.export()
    }

    /// Does what processes do, in any order, until it has done enough.
    fn work(&mut self) -> Result<()> {
        for _ in self.context.steps() {
            if self.schedule.chance(900) {
                self.join_next()?;
            }
            self.act()?;
            if !self.schedule.chance(400) {
                self.collect()?;
            }
            self.context.think(500)?;
        }
        Ok(())
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        let faults = self.common.settings.options.faults;
        let revoke = 10 * u64::from(faults.contains(Faults::REVOKE));
        match self.schedule.range(0..1000 + revoke) {
            0..=119 => self.found(),
            120..=139 => self.intrude(),
            140..=169 => self.call_wrongly(),
            170..=184 => self.leave_some(),
            185..=399 => {
                let limit = self.schedule.range(1000..1_000_000);
                self.wait(limit)
            }
            400..=999 => self.call_some(),
            _ => self.revoke(),
        }
    }

    /// Goes on with all groups until everybody is done.
    fn serve(&mut self) -> Result<()> {
        while self.common.phase() != Phase::Exit {
            self.collect()?;
            self.join_next()?;
            for index in 0..self.seats.len() {
                self.call_next(index)?;
            }
            self.leave_complete()?;
            let idle = self.seats.is_empty() && self.open.is_empty();
            self.context.set_idle(idle);
            self.wait(LOOK)?;
        }
        Ok(())
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
        trace!(
            schedule,
            "collective worker {}: group {name} of {members:?}",
            self.slot
        );
        lock(&self.common.groups).found(name, seed, &members);
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
        let more = || lock(&self.common.groups).script(seat.member, seat.called);
        let joined = seat.state != State::Joining;
        joined && (seat.failed || seat.pending == 0 && more().is_none())
    }

    /// Reads the completions that have come.
    fn collect(&mut self) -> Result<()> {
        for entry in self.context.completions(self.process, &mut self.queue) {
            let handle = entry.handle.get();
            lock(&self.common.groups).release(self.slot, handle);
            let Some(Some(member)) = self.open.remove(&handle) else {
                continue;
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
                    seat.failed |= !well;
                }
            }
        }
        self.context.check_alive()
    }

    /// Reads completions, or waits for some so many nanoseconds.
    fn wait(&mut self, limit: u64) -> Result<()> {
        self.context
            .wait(self.process, &self.queue, limit, || false)?;
        self.collect()
    }
}
