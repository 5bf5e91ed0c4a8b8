//! A sync worker: a process that takes part in synchronization (N21, N22, N24) with the
//! library as it is: [`qnic::sync`] on an [`Endpoint`] whose provider is the simulation
//! (the module `platform`).
//!
//! ```text
//!   owner: lock │ wait queue │ semaphore │ monitor │ condition │ … │ words that they protect
//! ```
//! Each worker owns one object of each kind, and uses those of all. It reports what it
//! is about to do and what it got to the [`checker`], which sees the NICs'
//! changes of the objects on its own.

mod checker;

mod monitor;
mod platform;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use platform::{Platform, HEAP_BYTES};
use qnic::sync::{Lock, LockGuard, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Access, Endpoint, Error, Nic, NodeId, Port, RemoteSegment, SegmentName};
use qnic_abi::PAGE_SIZE;

use self::checker::{Checker, Kind, OBJECTS};
use crate::common::{Common, Phase};
use crate::process::worker::{Next, Worker};
use crate::process::{pages, Ended, ProcessContext, Result};
use crate::schedule::{lock, trace, Schedule};
use crate::settings::port;
use crate::workload::{Oracle, Seed, Workload};

/// Name of the segment with a worker's objects.
const NAME: SegmentName = SegmentName(0x6f6d);

/// Offset of a semaphore's value in its object.
const VALUE: usize = 24;

/// Offset of the word that the lock protects.
const PROTECTED: u64 = 8 * OBJECT_BYTES;

/// Offset of the items that the monitor protects.
const ITEMS: u64 = 9 * OBJECT_BYTES;

/// Offset of a word for each slot, which only the worker in that slot exchanges.
const EXCHANGED: u64 = 10 * OBJECT_BYTES;

fn offset(kind: Kind) -> u64 {
    kind as u64 * OBJECT_BYTES
}

/// Sync workers and their checker.
struct Sync {
    checker: Mutex<Checker>,
    /// Workers that were woken go on late, sometimes.
    late: bool,
}

/// A sync worker on each node but one.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    Box::new(Sync {
        checker: Mutex::new(Checker::new(seed.settings)),
        late: seed.number % 4 == 1,
    })
}

impl Workload for Sync {
    fn run(&self, context: &ProcessContext) {
        let (kernel, slot) = (&context.machine.kernel, context.slot);
        let schedule = &context.common.schedule;
        // Another address than that of the process before: an old import shows.
        let heap = (0x400 + schedule.range(0..1 << 20)) * PAGE_SIZE as u64;
        let space = kernel.new_space(pages(heap, HEAP_BYTES));
        let cleanly = context.synchronize(self, space, heap).is_ok();
        lock(&self.checker).ended(slot, cleanly);
        trace!(schedule, "sync worker {slot}: ends, cleanly: {cleanly}");
        kernel.end_space(space);
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.checker
    }
}

impl ProcessContext {
    /// The result of a call that can fail only if the process has to end.
    fn expect<T>(&self, result: qnic::Result<T>) -> Result<T> {
        match result {
            Ok(result) => Ok(result),
            Err(_) if !self.is_alive() => Err(Ended),
            Err(error) => panic!("sync worker {}: {error}", self.slot),
        }
    }

    fn synchronize(&self, workload: &Sync, space: u64, heap: u64) -> Result<()> {
        let checker = &workload.checker;
        let (common, slot) = (&self.common, self.slot);
        let platform = Arc::new(Platform::new(self, (space, heap), workload.late));
        let nic = Nic::with_provider(platform.clone(), "a simulation");
        let endpoint = self.expect(nic.register(Port(port(slot))))?;
        let objects = self.expect(endpoint.allocate(PAGE_SIZE))?;
        let units = common.schedule.range(1..4) as u32;
        let value = offset(Kind::Semaphore) as usize + VALUE;
        self.expect(objects.store_u32(value, units))?;
        let area = (space, objects.address());
        self.machine.memory.watch(slot, area, OBJECTS);
        lock(checker).begin(slot, &self.machine, area, units);
        let access = Access::READ | Access::WRITE;
        let _segment = self.expect(endpoint.export(NAME, &objects, access))?;
        let participant = self.expect(Participant::new(&endpoint))?;
        lock(checker).joined(slot, platform.drawn() as u16);
        let mut worker = SyncWorker {
            checker,
            process: self,
            common,
            schedule: &common.schedule,
            slot,
            participant: &participant,
            endpoint: &endpoint,
            imported: BTreeMap::new(),
        };
        worker.live()
    }
}

/// A process that has joined as a participant.
struct SyncWorker<'a> {
    checker: &'a Mutex<Checker>,
    process: &'a ProcessContext,
    common: &'a Common,
    schedule: &'a Schedule,
    slot: usize,
    participant: &'a Participant,
    endpoint: &'a Endpoint,
    /// Objects that it has imported, by the slot of their owner.
    imported: BTreeMap<usize, RemoteSegment>,
}

impl Worker for SyncWorker<'_> {
    fn context(&self) -> &ProcessContext {
        self.process
    }

    fn steps(&self) -> u32 {
        self.common.settings.options.operations / 4
    }

    fn step(&mut self) -> Result<Next> {
        self.act()?;
        Ok(Next::GoOn)
    }

    fn pause(&mut self) -> Result<()> {
        let time = self.schedule.range(0..self.common.settings.think);
        // Sometimes at once.
        let share = [1, 10, 100][self.schedule.below(3)];
        self.process.sleep(time / share)
    }
}

impl SyncWorker<'_> {
    fn checker(&self) -> MutexGuard<'_, Checker> {
        lock(self.checker)
    }

    /// Does one operation at one object.
    fn act(&mut self) -> Result<()> {
        let (slot, settings) = (self.slot, &self.common.settings);
        let workers = settings.others().len();
        // Most meet at one.
        let choice = match self.schedule.chance(600) {
            true => 0,
            false => self.schedule.below(workers),
        };
        let owner = settings.rdma_workers + choice;
        let Some(segment) = self.import(owner)? else {
            return Ok(());
        };
        let worked = match self.schedule.below(10) {
            _ if self.schedule.chance(20) => self.exchange(&segment),
            0..=2 => self.lock(owner, &segment),
            3..=5 => self.semaphore(owner, &segment),
            6..=7 => self.queue(owner, &segment),
            _ => self.monitor(owner, &segment),
        };
        self.process.check_alive()?;
        let Err(error) = worked else {
            return Ok(());
        };
        let trace = format!("sync worker {slot}: {error}");
        trace!(self.schedule, "{trace}");
        self.checker().failed(slot);
        assert!(error.is_peer_gone(), "{trace}");
        let may_fail = self.checker().may_fail(slot, owner);
        assert!(may_fail, "{trace}, but the owner {owner} is there");
        self.imported.remove(&owner);
        Ok(())
    }

    /// The objects of an owner, if it is there.
    fn import(&mut self, owner: usize) -> Result<Option<RemoteSegment>> {
        if let Some(segment) = self.imported.get(&owner) {
            return Ok(Some(segment.clone()));
        }
        let (node, port) = (self.common.settings.slots[owner] as u16, port(owner));
        let wait = Duration::from_millis(self.schedule.range(0..20));
        match self.endpoint.import(NodeId(node), Port(port), NAME, wait) {
            Ok(segment) => {
                self.process.check_alive()?;
                let slot = self.slot;
                self.checker().imported(slot, owner, segment.address());
                self.imported.insert(owner, segment.clone());
                Ok(Some(segment))
            }
            Err(error) if error.is_peer_gone() => Ok(None),
            Err(error) => self.process.expect(Err(error)),
        }
    }

    /// The result of an operation; `None` if the object is broken, and perhaps recovered.
    fn unless_broken<T>(
        &self,
        owner: usize,
        result: qnic::Result<T>,
        recover: impl FnOnce() -> qnic::Result<bool>,
    ) -> qnic::Result<Option<T>> {
        let error = match result {
            Ok(result) => return Ok(Some(result)),
            Err(error @ Error::Broken { .. }) => error,
            Err(error) => return Err(error),
        };
        let (slot, schedule) = (self.slot, self.schedule);
        assert!(
            self.checker().may_break(slot, owner),
            "sync worker {slot}: {error}, but no process has died"
        );
        self.checker().failed(slot);
        trace!(schedule, "sync worker {slot}: {error}");
        if schedule.chance(700) {
            match recover() {
                Ok(done) => trace!(schedule, "sync worker {slot}: recovers it: {done}"),
                Err(error @ Error::Held { .. }) => trace!(schedule, "{error}"),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn enters(&self, owner: usize, kind: Kind) {
        let now = self.schedule.now();
        self.checker().enters(now, self.slot, owner, kind);
    }

    fn lock(&self, owner: usize, segment: &RemoteSegment) -> qnic::Result<()> {
        let lock = Lock::new(self.participant, segment, offset(Kind::Lock))?;
        self.enters(owner, Kind::Lock);
        let guard = match self.schedule.chance(150) {
            true => {
                self.checker().tries(self.slot);
                lock.try_acquire()
            }
            false if self.schedule.chance(150) => self.acquire_in_time(&lock),
            false => lock.acquire().map(Some),
        };
        let Some(guard) = self.unless_broken(owner, guard, || lock.recover())? else {
            return Ok(());
        };
        if let Some(guard) = guard {
            self.checker().holds(self.slot);
            let released = self.change_protected(segment, guard)?;
            let released = self.unless_broken(owner, released, || lock.recover())?;
            if released.is_none() {
                return Ok(());
            }
        }
        self.checker().leaves(self.slot);
        Ok(())
    }

    /// Waits for a lock for some time, then for good, or gives up: that breaks the lock under
    /// its holder.
    fn acquire_in_time<'l>(&self, lock: &'l Lock) -> qnic::Result<Option<LockGuard<'l>>> {
        let mut waiting = lock.waiting();
        // Mostly shorter than the lock is held.
        let longest = [20_000, 2_000_000][self.schedule.below(2)];
        let limit = Duration::from_nanos(self.schedule.range(0..longest));
        match waiting.wait(Some(limit)) {
            Err(Error::TimedOut) if self.schedule.chance(300) => {
                self.checker().gives_up(self.slot);
                Ok(None)
            }
            Err(Error::TimedOut) => waiting.wait(None).map(Some),
            waited => waited.map(Some),
        }
    }

    /// Changes what the lock protects, then releases it.
    fn change_protected(
        &self,
        segment: &RemoteSegment,
        guard: LockGuard<'_>,
    ) -> qnic::Result<qnic::Result<()>> {
        let (slot, schedule) = (self.slot, self.schedule);
        let word = self.endpoint.atomic::<u64>(segment, PROTECTED)?;
        let value = word.load().wait().inspect_err(|_| self.releases(None))?;
        self.checker().reads(slot, value);
        let longest = match schedule.chance(40) {
            true => 400_000_000,
            false => 20_000,
        };
        schedule.sleep(schedule.range(0..longest));
        let bytes = (value + 1).to_le_bytes();
        let written = self.endpoint.write(segment, PROTECTED, &bytes).post();
        self.releases(written.is_ok().then_some(value + 1));
        drop(written?);
        Ok(guard.release())
    }

    /// Reports that the worker is about to release a lock or to leave a monitor, and what it
    /// has written, if that is known.
    fn releases(&self, value: Option<u64>) {
        if self.process.is_alive() {
            self.checker().releases(self.slot, value);
        }
    }

    /// Exchanges the own word of an owner: it is then there.
    fn exchange(&self, segment: &RemoteSegment) -> qnic::Result<()> {
        let (slot, value) = (self.slot, self.schedule.range(0..u64::MAX));
        let word = self
            .endpoint
            .atomic::<u64>(segment, EXCHANGED + 8 * slot as u64)?;
        word.swap(value).wait()?;
        let found = word.load().wait()?;
        assert_eq!(found, value, "sync worker {slot}: what was exchanged");
        Ok(())
    }

    fn semaphore(&self, owner: usize, segment: &RemoteSegment) -> qnic::Result<()> {
        let (slot, schedule) = (self.slot, self.schedule);
        let semaphore = Semaphore::new(self.participant, segment, offset(Kind::Semaphore))?;
        self.enters(owner, Kind::Semaphore);
        let taken = match schedule.chance(150) {
            true => semaphore.try_wait(),
            false => semaphore.wait().map(|_| true),
        };
        let recover = || {
            let value = self.checker().units_left(owner);
            semaphore.recover(value)
        };
        let Some(taken) = self.unless_broken(owner, taken, recover)? else {
            return Ok(());
        };
        if taken {
            self.checker().takes(slot);
            schedule.sleep(schedule.range(0..50_000));
            if self.process.is_alive() {
                self.checker().gives(slot);
            }
            semaphore.signal()?;
        }
        self.checker().leaves(slot);
        Ok(())
    }

    fn signal(&self, owner: usize, queue: &WaitQueue) -> qnic::Result<()> {
        if queue.remove()? {
            self.checker().signalled(self.slot, owner, Kind::Queue);
        }
        Ok(())
    }

    fn queue(&self, owner: usize, segment: &RemoteSegment) -> qnic::Result<()> {
        let queue = WaitQueue::new(self.participant, segment, offset(Kind::Queue))?;
        let schedule = self.schedule;
        if schedule.chance(500) {
            return self.signal(owner, &queue);
        }
        self.enters(owner, Kind::Queue);
        let inserted = queue.insert();
        let inserted = self.unless_broken(owner, inserted, || queue.recover())?;
        let Some(mut waiting) = inserted else {
            return Ok(());
        };
        loop {
            let limit = Duration::from_nanos(schedule.range(0..5_000_000));
            let waited = waiting.wait(Some(limit));
            if matches!(waited, Err(Error::TimedOut)) {
                if schedule.chance(30) {
                    self.checker().gives_up(self.slot);
                    drop(waiting);
                    self.checker().leaves(self.slot);
                    return Ok(());
                }
                // At the end some process has to signal.
                if self.common.phase() != Phase::Work || schedule.chance(200) {
                    self.signal(owner, &queue)?;
                }
                continue;
            }
            let woken = self.unless_broken(owner, waited, || queue.recover())?;
            if woken.is_some() {
                self.checker().woken(self.slot, Kind::Queue);
                self.checker().leaves(self.slot);
            }
            return Ok(());
        }
    }
}
