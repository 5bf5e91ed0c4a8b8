//! An RDMA worker: a process that registers, exports, imports, transfers, waits, ends.
//!
//! It is a task, written as a program is: its calls of the driver block. Commands
//! go into the window through the library's own code ([`qnic::queue`]), and it
//! blocks for progress as the library does: wake request, another look, wait.

mod increments;
mod oracle;
pub(crate) mod stream;
mod transfer;

use std::collections::BTreeMap;
use std::sync::Mutex;

use qnic_abi::host_area::{
    reads_done_offset, signal_offset, writes_done_offset, COMPLETION_ENTRIES,
};
use qnic_abi::window::{Changes, COMMAND_ENTRIES};
use qnic_abi::{uapi, Access, Status, PAGE_SIZE};
use qnic_driver::Process;

use self::increments::ROOM;
use self::oracle::{ExportState, RdmaOracle, HALF, SECTION};
use self::stream::Stream;
use crate::machine::platform::SimPlatform;
use crate::process::worker::{is_registered, Exported, Next, Registered, Worker};
use crate::process::{pages, ProcessContext, Result};
use crate::routes::Routes;
use crate::schedule::{lock, trace};
use crate::settings::{port, Faults, Settings};
use crate::workload::{live, Oracle, Workload};

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

/// RDMA workers and their oracle.
pub(crate) struct Rdma {
    oracle: Mutex<RdmaOracle>,
    /// They write streams, and do nothing else.
    stream: Option<Stream>,
}

impl Rdma {
    /// Those in the first slots of a simulation.
    pub(crate) fn new(settings: &Settings, routes: &Routes, stream: Option<Stream>) -> Self {
        Rdma {
            oracle: Mutex::new(RdmaOracle::new(settings, routes, stream.is_some())),
            stream,
        }
    }

    /// Target and local segment.
    fn ranges(&self, context: &ProcessContext) -> Ranges {
        if let Some(stream) = &self.stream {
            return [(0x40_0000, stream.size), (0x80_0000, stream.size)];
        }
        let sections = SECTION * context.common.settings.rdma_workers as u64;
        let offset = || context.common.schedule.range(0..PAGE_SIZE as u64);
        [
            (0x40_0000 + offset(), sections + ROOM),
            (0x80_0000 + offset(), 2 * HALF),
        ]
    }
}

impl Workload for Rdma {
    fn run(&self, context: &ProcessContext) {
        let (machine, slot) = (&context.machine, context.slot);
        let ranges = self.ranges(context);
        let [target, local] = ranges.map(|(address, length)| pages(address, length));
        let space = machine.kernel.new_space(target.chain(local));
        let addresses = ranges.map(|(address, _)| address);
        lock(&self.oracle).begin(slot, machine, space, addresses);
        let process = live(self, context, ("process", space), |process| {
            RdmaWorker::new(self, context, process, ranges).work()
        });
        // The exit of a process gives back its memory and its file in either order.
        if context.common.schedule.chance(500) {
            machine.kernel.end_space(space);
            drop(process);
        } else {
            drop(process);
            machine.kernel.end_space(space);
        }
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.oracle
    }
}

/// Target and local segment: address and length.
type Ranges = [(u64, u64); 2];

/// A registered process.
struct RdmaWorker<'a> {
    oracle: &'a Mutex<RdmaOracle>,
    stream: Option<&'a Stream>,
    registered: Registered<'a>,
    /// Writes and reads issued, by lane: each target has its own.
    issued: BTreeMap<u8, (u64, u64)>,
    ranges: Ranges,
    exported: BTreeMap<Name, Exported>,
    /// By slot, and whether it is the read-only name.
    imported: BTreeMap<(usize, bool), Imported>,
}

is_registered!(RdmaWorker);

impl<'a> RdmaWorker<'a> {
    fn new(
        workload: &'a Rdma,
        context: &'a ProcessContext,
        process: &'a Process<SimPlatform>,
        ranges: Ranges,
    ) -> Self {
        RdmaWorker {
            oracle: &workload.oracle,
            stream: workload.stream.as_ref(),
            registered: Registered::new(context, process),
            issued: BTreeMap::new(),
            ranges,
            exported: BTreeMap::new(),
            imported: BTreeMap::new(),
        }
    }

    fn work(&mut self) -> Result<()> {
        Name::ALL
            .into_iter()
            .try_for_each(|name| self.export(name))?;
        match self.stream {
            Some(stream) => {
                self.write_stream(stream)?;
                self.context.rest()?;
                self.finish()
            }
            None => self.live(),
        }
    }

    /// Writes and reads of a lane that are complete.
    fn done(&self, lane: u8) -> (u64, u64) {
        let writes = self.queue.word(writes_done_offset(lane));
        (writes, self.queue.word(reads_done_offset(lane)))
    }

    /// Writes and reads of all lanes that are not complete.
    fn under_way(&self) -> u64 {
        self.issued.keys().map(|lane| self.open(*lane)).sum()
    }

    /// Writes and reads of a lane that are not complete.
    fn open(&self, lane: u8) -> u64 {
        let (issued, done) = (self.issued[&lane], self.done(lane));
        issued.0 + issued.1 - done.0 - done.1
    }

    /// Notifications that have arrived.
    fn signals(&self, notification: u32) -> u64 {
        self.queue.word(signal_offset(notification))
    }

    /// Returns true if another command fits.
    fn has_room(&self) -> bool {
        self.queue.has_room() && self.under_way() < 2 * COMMAND_ENTRIES as u64
    }

    /// The oracle has seen what they say when they were stored.
    fn read_completions(&mut self) {
        let (_, rings) = self.queue.completions();
        if rings {
            self.context.ring_doorbell(self.process);
        }
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        // It leaves some unread, but never so many that its queue stands still.
        if self.queue.unread() > COMPLETION_ENTRIES / 8 {
            self.read_completions();
        }
        let faults = self.common.settings.options.faults;
        let revoke = 20 * u64::from(faults.contains(Faults::REVOKE));
        match self.schedule.range(0..1000 + revoke) {
            0..=149 => self.import(),
            150..=599 => self.write(),
            600..=749 => self.read(),
            750..=799 => self.increment(),
            800..=879 => self.flush(),
            880..=959 => self.listen(),
            960..=999 => self.look_around(),
            _ => self.revoke(),
        }
    }

    fn export(&mut self, name: Name) -> Result<()> {
        let range = self.ranges[usize::from(name == Name::Local)];
        let named = (name.number(self.slot), name.access());
        let exported = self.registered.export(named, range)?;
        self.exported.insert(name, exported);
        if name != Name::Local {
            lock(self.oracle).exported(self.slot, exported.key);
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
        let oracle = self.oracle;
        match name {
            Name::Local => lock(oracle).revoke_local(self.slot),
            _ => lock(oracle).revoke(self.slot, exported.key, ExportState::Revoking),
        }
        self.registered.unexport(exported)?;
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

    /// Waits until everything under way is complete, a lane after the other: others do not wake it.
    fn drain(&mut self) -> Result<()> {
        for lane in self.issued.keys() {
            let changes = Changes::of_lane(*lane);
            self.block_for(changes, None, |worker| worker.open(*lane) == 0)?;
        }
        let open = lock(self.oracle).open(self.slot);
        assert_eq!(open, 0, "complete, but something is under way");
        Ok(())
    }

    /// Blocks until `ready`, or until so many nanoseconds have passed; returns true if
    /// it is ready.
    fn block_until(&self, limit: Option<u64>, ready: impl Fn(&Self) -> bool) -> Result<bool> {
        self.block_for(Changes::ANYTHING, limit, ready)
    }

    /// The same, and is woken by these changes only. Sometimes it spins instead.
    fn block_for(
        &self,
        changes: Changes,
        limit: Option<u64>,
        ready: impl Fn(&Self) -> bool,
    ) -> Result<bool> {
        let schedule = self.schedule;
        let deadline = limit.map(|limit| schedule.now() + limit);
        let spins = if schedule.chance(300) { 20 } else { 0 };
        for _ in 0..spins {
            if ready(self) {
                return Ok(true);
            }
            schedule.sleep(schedule.range(100..3000));
            self.context.check_alive()?;
        }
        loop {
            let generation = self.queue.request_wake(changes);
            if ready(self) {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(schedule.now()));
            if !self.registered.block(generation, left)? {
                return Ok(ready(self));
            }
        }
    }
}

impl Worker for RdmaWorker<'_> {
    fn context(&self) -> &ProcessContext {
        self.context
    }

    fn step(&mut self) -> Result<Next> {
        self.act()?;
        Ok(Next::GoOn)
    }

    fn pause(&mut self) -> Result<()> {
        self.context.think(300)
    }

    fn begin_to_serve(&mut self) -> Result<()> {
        self.drain()
    }

    fn finish(&mut self) -> Result<()> {
        Name::ALL
            .into_iter()
            .try_for_each(|name| self.unexport(name))
    }
}
