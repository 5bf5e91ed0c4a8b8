//! An RDMA worker: a process that registers, exports, imports, transfers, waits, ends.
//!
//! It is a task, written as a program is: its calls of the driver block. Commands
//! go into the window through the library's own code ([`qnic::queue`]), and it
//! blocks for progress as the library does: wake request, another look, wait.

pub(crate) mod increments;
pub(crate) mod oracle;

mod stream;
mod transfer;
mod window;

use std::collections::BTreeMap;

use qnic_abi::{uapi, Access, Status, PAGE_SIZE};
use qnic_driver::{CallError, Process};

use crate::common::Common;
use crate::machine::platform::SimPlatform;
use crate::process::{pages, port, Ended, Exported, ProcessContext, Result};
use crate::schedule::{lock, trace, Schedule};
use crate::settings::Faults;
use crate::workloads::rdma::increments::ROOM;
use crate::workloads::rdma::oracle::{ExportState, HALF, SECTION};
use window::Queue;

/// Names of the segments of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// The target, for reading and writing.
    Target,
    /// The same, for reading only.
    ReadOnly,
    /// Sources of writes and room for reads; no process imports it.
    Local,
}

impl Name {
    const ALL: [Name; 3] = [Name::Target, Name::ReadOnly, Name::Local];

    fn number(self, slot: usize) -> u64 {
        1000 + 4 * slot as u64 + self as u64
    }

    fn access(self) -> Access {
        match self {
            Name::ReadOnly => Access::READ,
            Name::Target | Name::Local => Access::all(),
        }
    }
}

/// A segment of another process.
#[derive(Debug, Clone, Copy)]
struct Imported {
    /// Slot of that process.
    target: usize,
    segment: u16,
    key: u64,
    address: u64,
    length: u64,
}

impl ProcessContext {
    /// An RDMA worker from its start to its end.
    pub(crate) fn run_rdma_worker(&self) {
        let (machine, slot) = (&self.machine, self.slot);
        let schedule = &self.common.schedule;
        let ranges = self.ranges();
        let [target, local] = ranges.map(|(address, length)| pages(address, length));
        let space = machine.kernel.new_space(target.chain(local));
        let addresses = ranges.map(|(address, _)| address);
        lock(&self.common.oracle).begin(slot, machine, space, addresses);
        let process = self.live("process", space, |process| self.work(process, ranges));
        // The exit of a process gives back its memory and its file in either order.
        if schedule.chance(500) {
            machine.kernel.end_space(space);
            drop(process);
        } else {
            drop(process);
            machine.kernel.end_space(space);
        }
    }

    /// Target and local segment: address and length.
    fn ranges(&self) -> Ranges {
        let settings = &self.common.settings;
        if let Some(size) = settings.stream {
            return [(0x40_0000, size), (0x80_0000, size)];
        }
        let sections = SECTION * settings.rdma_workers as u64;
        let offset = || self.common.schedule.range(0..PAGE_SIZE as u64);
        [
            (0x40_0000 + offset(), sections + ROOM),
            (0x80_0000 + offset(), 2 * HALF),
        ]
    }

    fn work(&self, process: &Process<SimPlatform>, ranges: Ranges) -> Result<()> {
        let mut worker = RdmaWorker {
            context: self,
            common: &self.common,
            schedule: &self.common.schedule,
            slot: self.slot,
            process,
            queue: Queue::new(&self.machine, process),
            ranges,
            exported: BTreeMap::new(),
            imported: BTreeMap::new(),
        };
        for name in Name::ALL {
            worker.export(name)?;
        }
        match self.common.settings.stream {
            Some(size) if self.slot + 1 < self.common.settings.rdma_workers => {
                worker.stream(size)?;
            }
            Some(_) => {}
            None => worker.mix()?,
        }
        self.rest()?;
        for name in Name::ALL {
            worker.unexport(name)?;
        }
        Ok(())
    }
}

/// Target and local segment: address and length.
type Ranges = [(u64, u64); 2];

/// A registered process.
struct RdmaWorker<'a> {
    context: &'a ProcessContext,
    common: &'a Common,
    schedule: &'a Schedule,
    slot: usize,
    process: &'a Process<SimPlatform>,
    queue: Queue,
    ranges: Ranges,
    exported: BTreeMap<Name, Exported>,
    /// By slot, and whether it is the read-only name.
    imported: BTreeMap<(usize, bool), Imported>,
}

impl RdmaWorker<'_> {
    /// Does what processes do, in any order, until it has done enough.
    fn mix(&mut self) -> Result<()> {
        for _ in self.context.steps() {
            self.act()?;
            self.context.think(300)?;
        }
        self.drain()
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        let faults = self.common.settings.options.faults;
        let revoke = 20 * u64::from(faults.contains(Faults::REVOKE));
        match self.schedule.range(0..1000 + revoke) {
            0..=149 => self.import(),
            150..=599 => self.write(),
            600..=749 => self.read(),
            750..=799 => self.increment(),
            800..=879 => self.flush(),
            880..=959 => self.listen(),
            960..=999 => self.look(),
            _ => self.revoke(),
        }
    }

    fn export(&mut self, name: Name) -> Result<()> {
        let range = self.ranges[usize::from(name == Name::Local)];
        let named = (name.number(self.slot), name.access());
        let exported = self.context.export(self.process, named, range)?;
        self.exported.insert(name, exported);
        if name != Name::Local {
            lock(&self.common.oracle).exported(self.slot, exported.key);
        }
        let (slot, segment) = (self.slot, exported.segment);
        trace!(
            self.schedule,
            "process {slot}: exports {name:?} as segment {segment}"
        );
        Ok(())
    }

    fn unexport(&mut self, name: Name) -> Result<()> {
        let Some(exported) = self.exported.remove(&name) else {
            return Ok(());
        };
        let oracle = &self.common.oracle;
        match name {
            Name::Local => lock(oracle).revoke_local(self.slot),
            _ => lock(oracle).revoke(self.slot, exported.key, ExportState::Revoking),
        }
        self.context.unexport(self.process, exported)?;
        lock(oracle).revoke(self.slot, exported.key, ExportState::Revoked);
        trace!(self.schedule, "process {}: revokes {name:?}", self.slot);
        Ok(())
    }

    fn revoke(&mut self) -> Result<()> {
        let name = Name::ALL[self.schedule.below(3)];
        self.unexport(name)?;
        self.context.think(300)?;
        self.export(name)
    }

    /// Imports a segment of some process, perhaps for reading only.
    fn import(&mut self) -> Result<()> {
        let schedule = self.schedule;
        let target = schedule.below(self.common.settings.rdma_workers);
        let read_only = schedule.chance(250);
        let name = match read_only {
            true => Name::ReadOnly,
            false => Name::Target,
        };
        let wait_ms = match schedule.chance(500) {
            true => 0,
            false => schedule.range(1..40),
        };
        if let Some(imported) = self.import_from(target, name, wait_ms as u32)? {
            self.imported.insert((target, read_only), imported);
        }
        Ok(())
    }

    /// Imports a segment of a process, if it is there.
    fn import_from(&self, target: usize, name: Name, wait_ms: u32) -> Result<Option<Imported>> {
        let mut call = uapi::Import {
            node: (self.common.settings.slots[target] as u16).into(),
            port: port(target).into(),
            name: name.number(target).into(),
            wait_ms: wait_ms.into(),
            ..Default::default()
        };
        let result = self.process.import(&mut call);
        self.context.called("import", result)?;
        let status = Status::try_from(call.status.get()).expect("a known status");
        let (schedule, slot) = (self.schedule, self.slot);
        trace!(
            schedule,
            "process {slot}: imports {name:?} of process {target}: {status:?}"
        );
        match status {
            Status::Ok => {}
            Status::NameNotFound | Status::NoSuchNode | Status::PeerGone => return Ok(None),
            other => panic!("process {slot}: an import fails: {other}"),
        }
        assert_eq!(call.access.get(), name.access().bits(), "wrong access");
        Ok(Some(Imported {
            target,
            segment: call.segment.get(),
            key: call.key.get(),
            address: call.address.get(),
            length: call.length.get(),
        }))
    }

    /// Waits until everything under way is complete.
    fn drain(&mut self) -> Result<()> {
        let issued = self.queue.issued;
        self.block(None, |queue| queue.done() == issued)?;
        let open = lock(&self.common.oracle).open(self.slot);
        assert_eq!(open, 0, "complete, but something is under way");
        Ok(())
    }

    /// Blocks until `ready`, or until so many nanoseconds have passed; returns true if
    /// it is ready. Sometimes it spins instead.
    fn block(&self, limit: Option<u64>, ready: impl Fn(&Queue) -> bool) -> Result<bool> {
        let schedule = self.schedule;
        let deadline = limit.map(|limit| schedule.now() + limit);
        let spins = if schedule.chance(300) { 20 } else { 0 };
        for _ in 0..spins {
            if ready(&self.queue) {
                return Ok(true);
            }
            schedule.sleep(schedule.range(100..3000));
            self.context.check_alive()?;
        }
        loop {
            let generation = self.queue.request_wake();
            if ready(&self.queue) {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(schedule.now()));
            let mut call = uapi::Wait {
                generation: generation.into(),
                timeout_ns: left.map_or(-1, |left| left as i64).into(),
                ..Default::default()
            };
            match self.process.wait(&mut call) {
                Ok(()) => self.context.check_alive()?,
                Err(CallError::TimedOut) => return Ok(ready(&self.queue)),
                Err(CallError::Interrupted | CallError::NoDevice) => return Err(Ended),
                Err(error) => panic!("process {}: wait fails: {error}", self.slot),
            }
        }
    }
}
