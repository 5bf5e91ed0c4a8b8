//! A member: a process that takes part in synchronization (N21, N22, N24) with the
//! library as it is: [`qnic::sync`] on an [`Endpoint`] whose provider is the simulation
//! (the module `platform`).
//!
//! ```text
//!   home: lock │ wait queue │ semaphore │ … │ word that the lock protects
//! ```
//! Each member is home to one object of each kind, and uses those of all. What it is
//! about to do and what it got it tells the [`crate::referee`], which sees the NIC's
//! changes of the homes on its own.

mod platform;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use platform::{Platform, HEAP_BYTES};
use qnic::sync::{Lock, LockGuard, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Access, Endpoint, Error, Nic, NodeId, Port, RemoteSegment, SegmentName};
use qnic_abi::PAGE_SIZE;

use crate::common::{Phase, SeatState};
use crate::referee::{Kind, OBJECTS};
use crate::schedule::lock;
use crate::user::{pages, port, Place};

/// Name of the segment with a member's objects.
const HOME: SegmentName = SegmentName(0x6f6d);

/// Offset of a semaphore's value in its object.
const VALUE: usize = 24;

/// Offset of the word that the lock protects.
const PROTECTED: u64 = 8 * OBJECT_BYTES;

/// The process has to end.
struct Ended;

type Result<T> = std::result::Result<T, Ended>;

fn offset(kind: Kind) -> u64 {
    kind as u64 * OBJECT_BYTES
}

impl Place {
    /// The life of a member.
    pub(crate) fn synchronize(&self) {
        let (kernel, place) = (&self.machine.kernel, self.place);
        // Another address than that of the process before: an old import shows.
        let heap = (0x400 + self.common.schedule.range(0..1 << 20)) * PAGE_SIZE as u64;
        let space = kernel.new_space(pages(heap, HEAP_BYTES));
        let in_peace = self.join(space, heap).is_ok();
        lock(&self.common.referee).end(place, in_peace);
        self.common
            .schedule
            .trace(format_args!("member {place}: ends, in peace: {in_peace}"));
        kernel.end_space(space);
    }

    /// Says whether its process goes on.
    pub(crate) fn lives(&self) -> bool {
        !self.common.schedule.is_killed() && !self.machine.is_gone()
    }

    /// The result of a call that can fail only if the process has to end.
    fn sure<T>(&self, result: qnic::Result<T>) -> Result<T> {
        match result {
            Ok(result) => Ok(result),
            Err(_) if !self.lives() => Err(Ended),
            Err(error) => panic!("member {}: {error}", self.place),
        }
    }

    fn join(&self, space: u64, heap: u64) -> Result<()> {
        let (common, place) = (&self.common, self.place);
        let platform = Arc::new(Platform::new(self, (space, heap)));
        let nic = Nic::with_provider(platform.clone(), "a simulation");
        let endpoint = self.sure(nic.register(Port(port(place))))?;
        let home = self.sure(endpoint.allocate(PAGE_SIZE))?;
        let units = common.schedule.range(1..4) as u32;
        let value = offset(Kind::Semaphore) as usize + VALUE;
        self.sure(home.store_u32(value, units))?;
        let memory = &self.machine.memory;
        memory.watch(place, space, home.address(), OBJECTS);
        lock(&common.referee).begin(place, &self.machine, (space, home.address()), units);
        let access = Access::READ | Access::WRITE;
        let _segment = self.sure(endpoint.export(HOME, &home, access))?;
        let participant = self.sure(Participant::new(&endpoint))?;
        lock(&common.referee).named(place, platform.drawn() as u16);
        let mut member = Member {
            place: self,
            participant: &participant,
            endpoint: &endpoint,
            homes: BTreeMap::new(),
        };
        for _ in 0..common.settings.options.operations / 4 {
            if common.phase() != Phase::Work {
                break;
            }
            member.act()?;
            member.think()?;
        }
        common.set_seat(place, SeatState::Drained);
        while common.phase() != Phase::Exit {
            common.schedule.wait(Some(&common.phase_changed), None);
            member.go_on()?;
        }
        Ok(())
    }
}

/// A member that has joined.
struct Member<'a> {
    place: &'a Place,
    participant: &'a Participant,
    endpoint: &'a Endpoint,
    /// What it has imported, by place.
    homes: BTreeMap<usize, RemoteSegment>,
}

/// Tells the referee.
macro_rules! tell {
    ($member:expr, $call:ident $(, $argument:expr)*) => {{
        let place = $member.place;
        let now = place.common.schedule.now();
        lock(&place.common.referee).$call(now, place.place $(, $argument)*)
    }};
}

impl Member<'_> {
    fn go_on(&self) -> Result<()> {
        match self.place.lives() {
            true => Ok(()),
            false => Err(Ended),
        }
    }

    fn think(&self) -> Result<()> {
        let (schedule, settings) = (&self.place.common.schedule, &self.place.common.settings);
        let time = schedule.range(0..settings.think);
        // Sometimes at once.
        schedule.sleep(time / [1, 10, 100][schedule.below(3)]);
        self.go_on()
    }

    /// Takes one turn at one object.
    fn act(&mut self) -> Result<()> {
        let schedule = &self.place.common.schedule;
        let settings = &self.place.common.settings;
        let members = settings.places.len() - settings.users;
        // Most meet at one.
        let choice = match schedule.chance(600) {
            true => 0,
            false => schedule.below(members),
        };
        let home = settings.users + choice;
        let Some(segment) = self.reach(home)? else {
            return Ok(());
        };
        let worked = match schedule.below(10) {
            0..=3 => self.lock(home, &segment),
            4..=6 => self.semaphore(home, &segment),
            _ => self.queue(home, &segment),
        };
        let Err(error) = worked else {
            return self.go_on();
        };
        self.go_on()?;
        schedule.trace(format_args!("member {}: {error}", self.place.place));
        tell!(self, failed);
        if error.is_peer_gone() {
            assert!(
                lock(&self.place.common.referee).may_fail(self.place.place, home),
                "member {}: {error}, but its home {home} is there",
                self.place.place
            );
            self.homes.remove(&home);
            return Ok(());
        }
        panic!("member {}: {error}", self.place.place);
    }

    /// The segment of a home, if it is there.
    fn reach(&mut self, home: usize) -> Result<Option<RemoteSegment>> {
        if let Some(segment) = self.homes.get(&home) {
            return Ok(Some(segment.clone()));
        }
        let common = &self.place.common;
        let (node, port) = (common.settings.places[home] as u16, port(home));
        let wait = Duration::from_millis(common.schedule.range(0..20));
        let imported = self.endpoint.import(NodeId(node), Port(port), HOME, wait);
        match imported {
            Ok(segment) => {
                self.go_on()?;
                tell!(self, met, home, segment.address());
                self.homes.insert(home, segment.clone());
                Ok(Some(segment))
            }
            Err(error) if error.is_peer_gone() => Ok(None),
            Err(error) => self.place.sure(Err(error)),
        }
    }

    /// What an object says that is broken: perhaps it is recovered.
    fn broken<T>(
        &self,
        home: usize,
        result: qnic::Result<T>,
        recover: impl FnOnce() -> qnic::Result<bool>,
    ) -> qnic::Result<Option<T>> {
        let error = match result {
            Ok(result) => return Ok(Some(result)),
            Err(error @ Error::Broken { .. }) => error,
            Err(error) => return Err(error),
        };
        let place = self.place.place;
        assert!(
            lock(&self.place.common.referee).may_break(home),
            "member {place}: {error}, but nobody has died"
        );
        tell!(self, failed);
        let schedule = &self.place.common.schedule;
        schedule.trace(format_args!("member {place}: {error}"));
        if schedule.chance(700) {
            match recover() {
                Ok(done) => schedule.trace(format_args!("member {place}: recovers it: {done}")),
                Err(error @ Error::Held { .. }) => schedule.trace(format_args!("{error}")),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn lock(&self, home: usize, segment: &RemoteSegment) -> qnic::Result<()> {
        let lock = Lock::new(self.participant, segment, offset(Kind::Lock))?;
        tell!(self, enters, home, Kind::Lock);
        let guard = match self.place.common.schedule.chance(150) {
            true => lock.try_acquire(),
            false => lock.acquire().map(Some),
        };
        let Some(guard) = self.broken(home, guard, || lock.recover())? else {
            return Ok(());
        };
        let Some(guard) = guard else {
            tell!(self, leaves);
            return Ok(());
        };
        tell!(self, holds);
        let released = self.hold(segment, guard)?;
        if self.broken(home, released, || lock.recover())?.is_some() {
            tell!(self, leaves);
        }
        Ok(())
    }

    /// Changes what the lock protects, then releases it.
    fn hold(
        &self,
        segment: &RemoteSegment,
        guard: LockGuard<'_>,
    ) -> qnic::Result<qnic::Result<()>> {
        let word = self.endpoint.atomic_u64(segment, PROTECTED)?;
        let value = match word.load() {
            Ok(value) => value,
            Err(error) => {
                tell!(self, releases, None);
                return Err(error);
            }
        };
        tell!(self, reads, value);
        let schedule = &self.place.common.schedule;
        let longest = if schedule.chance(40) {
            400_000_000
        } else {
            20_000
        };
        schedule.sleep(schedule.range(0..longest));
        let bytes = (value + 1).to_le_bytes();
        drop(self.endpoint.write(segment, PROTECTED, &bytes)?);
        if self.place.lives() {
            tell!(self, releases, Some(value + 1));
        }
        Ok(guard.release())
    }

    fn semaphore(&self, home: usize, segment: &RemoteSegment) -> qnic::Result<()> {
        let semaphore = Semaphore::new(self.participant, segment, offset(Kind::Semaphore))?;
        tell!(self, enters, home, Kind::Semaphore);
        let taken = match self.place.common.schedule.chance(150) {
            true => semaphore.try_wait(),
            false => semaphore.wait().map(|()| true),
        };
        let recover = || {
            let value = lock(&self.place.common.referee).units_left(home);
            semaphore.recover(value)
        };
        match self.broken(home, taken, recover)? {
            None => return Ok(()),
            Some(false) => {
                tell!(self, leaves);
                return Ok(());
            }
            Some(true) => tell!(self, takes),
        }
        let schedule = &self.place.common.schedule;
        schedule.sleep(schedule.range(0..50_000));
        if self.place.lives() {
            tell!(self, gives);
        }
        semaphore.signal()?;
        tell!(self, leaves);
        Ok(())
    }

    fn signal(&self, home: usize, queue: &WaitQueue) -> qnic::Result<()> {
        if queue.remove()? {
            tell!(self, signalled, home);
        }
        Ok(())
    }

    fn queue(&self, home: usize, segment: &RemoteSegment) -> qnic::Result<()> {
        let queue = WaitQueue::new(self.participant, segment, offset(Kind::Queue))?;
        let common = &self.place.common;
        if common.schedule.chance(500) {
            return self.signal(home, &queue);
        }
        tell!(self, enters, home, Kind::Queue);
        let place = queue.insert();
        let Some(mut waiting) = self.broken(home, place, || queue.recover())? else {
            return Ok(());
        };
        loop {
            let patience = Duration::from_nanos(common.schedule.range(0..5_000_000));
            match waiting.wait(Some(patience)) {
                // At the end somebody has to signal.
                Err(Error::TimedOut) => {
                    if common.phase() != Phase::Work || common.schedule.chance(200) {
                        self.signal(home, &queue)?;
                    }
                }
                waited => {
                    let recover = || queue.recover();
                    if self.broken(home, waited, recover)?.is_some() {
                        tell!(self, woken);
                        tell!(self, leaves);
                    }
                    return Ok(());
                }
            }
        }
    }
}
