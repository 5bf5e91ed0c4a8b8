//! A user: a process that registers, exports, imports, transfers, waits, ends.
//!
//! It is a task, written as a program is: its calls of the driver block. Commands
//! go into the window through the library's own code ([`qnic::queue`]), and it
//! blocks for progress as the library does: wake request, another look, wait.

mod transfer;
mod window;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use qnic_abi::{uapi, Access, Status, PAGE_SHIFT, PAGE_SIZE};
use qnic_driver::{CallError, Process};

use crate::common::{Common, Phase, SeatState};
use crate::counting::ROOM;
use crate::oracle::{ExportState, HALF, LANE};
use crate::platform::{Machine, SimPlatform};
use crate::schedule::lock;
use window::Queue;

/// Port of the process at a place.
pub(crate) fn port(place: usize) -> u16 {
    50 + place as u16
}

/// Names of the segments of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// The target, for reading and writing.
    Target,
    /// The same, for reading only.
    ReadOnly,
    /// Sources of writes and room for reads; nobody imports it.
    Local,
}

impl Name {
    const ALL: [Name; 3] = [Name::Target, Name::ReadOnly, Name::Local];

    fn number(self, place: usize) -> u64 {
        1000 + 4 * place as u64 + self as u64
    }

    fn access(self) -> Access {
        match self {
            Name::ReadOnly => Access::READ,
            Name::Target | Name::Local => Access::all(),
        }
    }
}

/// A segment that the process exports.
#[derive(Debug, Clone, Copy)]
struct Exported {
    segment: u16,
    key: u64,
}

/// A segment of another process.
#[derive(Debug, Clone, Copy)]
struct Imported {
    segment: u16,
    key: u64,
    address: u64,
    length: u64,
}

/// The process is to end, or its device is gone.
#[derive(Debug)]
struct Ended;

type Result<T> = std::result::Result<T, Ended>;

/// The place for a process on one life of its node.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) common: Arc<Common>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) place: usize,
}

impl Place {
    /// Lets one process after the other live there: the body of a task.
    pub(crate) fn occupy(&self) {
        let schedule = &self.common.schedule;
        let seat = &self.common.seats[self.place];
        seat.task.store(schedule.task(), Ordering::Relaxed);
        loop {
            self.common.set_seat(self.place, SeatState::Working);
            match self.common.settings.is_member(self.place) {
                true => self.synchronize(),
                false => self.live(),
            }
            self.common.set_seat(self.place, SeatState::Empty);
            schedule.revive();
            if self.machine.is_gone() || self.common.phase() == Phase::Exit {
                return;
            }
            schedule.sleep(schedule.range(10_000..2_000_000));
        }
    }

    fn live(&self) {
        let (machine, place) = (&self.machine, self.place);
        let schedule = &self.common.schedule;
        let count = self.common.settings.users as u64;
        let target = 0x40_0000 + schedule.range(0..PAGE_SIZE as u64);
        let local = 0x80_0000 + schedule.range(0..PAGE_SIZE as u64);
        let pages = pages(target, LANE * count + ROOM).chain(pages(local, 2 * HALF));
        let space = machine.kernel.new_space(pages);
        lock(&self.common.oracle).begin(place, machine, space, (target, local));
        let process = self.register(space);
        let ending = match &process {
            Some(process) => {
                schedule.trace(format_args!(
                    "process {place}: registered, {}",
                    process.vni()
                ));
                let frames = process.host_area().frames;
                lock(&self.common.oracle).registered(place, frames);
                self.work(process, target, local)
            }
            None => Err(Ended),
        };
        lock(&self.common.oracle).end(place);
        schedule.trace(format_args!(
            "process {place}: ends, in peace: {}",
            ending.is_ok()
        ));
        // The exit of a process gives back its memory and its file in either order.
        if schedule.chance(500) {
            machine.kernel.end_space(space);
            drop(process);
        } else {
            drop(process);
            machine.kernel.end_space(space);
        }
    }

    /// Registers a process with that address space; `None`: it has to end.
    pub(crate) fn register(&self, space: u64) -> Option<Process<SimPlatform>> {
        let (machine, place) = (&self.machine, self.place);
        let schedule = &self.common.schedule;
        let driver = lock(&machine.driver).clone()?;
        loop {
            if schedule.is_killed() || machine.is_gone() {
                return None;
            }
            machine.registering.store(place, Ordering::Relaxed);
            let mut call = uapi::Register {
                port: port(place).into(),
                ..Default::default()
            };
            match driver.register(space, place as u32, &mut call) {
                Ok(Some(process)) => {
                    machine.memory.set_vni(space, Some(process.vni()));
                    return Some(process);
                }
                Ok(None) => schedule.sleep(100_000),
                Err(CallError::NoDevice) => return None,
                Err(error) => panic!("process {place}: registration fails: {error}"),
            }
        }
    }

    fn work(&self, process: &Process<SimPlatform>, target: u64, local: u64) -> Result<()> {
        let mut user = User {
            common: self.common.clone(),
            machine: self.machine.clone(),
            place: self.place,
            process,
            queue: Queue::new(&self.machine, process),
            ranges: [
                (target, LANE * self.common.settings.users as u64 + ROOM),
                (local, 2 * HALF),
            ],
            exported: BTreeMap::new(),
            imported: BTreeMap::new(),
        };
        for name in Name::ALL {
            user.export(name)?;
        }
        for _ in 0..self.common.settings.options.operations {
            if self.common.phase() != Phase::Work {
                break;
            }
            user.act()?;
            user.think()?;
        }
        user.drain()?;
        self.common.set_seat(self.place, SeatState::Drained);
        user.rest()?;
        for name in Name::ALL {
            user.unexport(name)?;
        }
        Ok(())
    }
}

pub(crate) fn pages(address: u64, length: u64) -> std::ops::RangeInclusive<u64> {
    address >> PAGE_SHIFT..=(address + length - 1) >> PAGE_SHIFT
}

/// A registered process.
struct User<'a> {
    common: Arc<Common>,
    machine: Arc<Machine>,
    place: usize,
    process: &'a Process<SimPlatform>,
    queue: Queue,
    /// Target and local segment: address and length.
    ranges: [(u64, u64); 2],
    exported: BTreeMap<Name, Exported>,
    /// By place, and whether it is the read-only name.
    imported: BTreeMap<(usize, bool), Imported>,
}

impl User<'_> {
    /// Fails if the process must end.
    fn go_on(&self) -> Result<()> {
        match self.common.schedule.is_killed() || self.machine.is_gone() {
            true => Err(Ended),
            false => Ok(()),
        }
    }

    /// What a call of the driver gave.
    fn call(&self, what: &str, result: std::result::Result<(), CallError>) -> Result<()> {
        match result {
            Ok(()) => self.go_on(),
            Err(CallError::NoDevice | CallError::Interrupted) => Err(Ended),
            // The exit of the process has begun.
            Err(CallError::NotRegistered) if self.common.schedule.is_killed() => Err(Ended),
            Err(error) => panic!("process {}: {what} fails: {error}", self.place),
        }
    }

    fn think(&self) -> Result<()> {
        let schedule = &self.common.schedule;
        let longest = self.common.settings.think;
        // Sometimes at once.
        let time = schedule.range(0..longest);
        schedule.sleep(if schedule.chance(300) {
            time / 100
        } else {
            time
        });
        self.go_on()
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        let schedule = self.common.schedule.clone();
        let revoke = if self.common.settings.options.faults.revoke {
            20
        } else {
            0
        };
        let choice = schedule.range(0..1000 + revoke);
        match choice {
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
        let (address, length) = self.ranges[usize::from(name == Name::Local)];
        let mut call = uapi::Export {
            access: name.access().bits().into(),
            name: name.number(self.place).into(),
            address: address.into(),
            length: length.into(),
            ..Default::default()
        };
        let result = self.process.export(&mut call);
        self.call("export", result)?;
        assert_eq!(call.status.get(), Status::Ok.code(), "an export is refused");
        let exported = Exported {
            segment: call.segment.get(),
            key: call.key.get(),
        };
        self.exported.insert(name, exported);
        if name != Name::Local {
            lock(&self.common.oracle).exported(self.place, exported.key);
        }
        self.common.schedule.trace(format_args!(
            "process {}: exports {name:?} as segment {}",
            self.place, exported.segment
        ));
        Ok(())
    }

    fn unexport(&mut self, name: Name) -> Result<()> {
        let Some(exported) = self.exported.remove(&name) else {
            return Ok(());
        };
        let oracle = &self.common.oracle;
        match name {
            Name::Local => lock(oracle).revoke_local(self.place),
            _ => lock(oracle).revoke(self.place, exported.key, ExportState::Revoking),
        }
        let mut call = uapi::Unexport {
            segment: exported.segment.into(),
            ..Default::default()
        };
        let result = self.process.unexport(&mut call);
        self.call("unexport", result)?;
        assert_eq!(
            call.status.get(),
            Status::Ok.code(),
            "an unexport is refused"
        );
        lock(oracle).revoke(self.place, exported.key, ExportState::Revoked);
        self.common
            .schedule
            .trace(format_args!("process {}: revokes {name:?}", self.place));
        Ok(())
    }

    fn revoke(&mut self) -> Result<()> {
        let name = Name::ALL[self.common.schedule.below(3)];
        self.unexport(name)?;
        self.think()?;
        self.export(name)
    }

    fn import(&mut self) -> Result<()> {
        let schedule = self.common.schedule.clone();
        let target = schedule.below(self.common.settings.users);
        let read_only = schedule.chance(250);
        let name = if read_only {
            Name::ReadOnly
        } else {
            Name::Target
        };
        let wait_ms = if schedule.chance(500) {
            0
        } else {
            schedule.range(1..40)
        };
        let mut call = uapi::Import {
            node: (self.common.settings.places[target] as u16).into(),
            port: port(target).into(),
            name: name.number(target).into(),
            wait_ms: (wait_ms as u32).into(),
            ..Default::default()
        };
        let result = self.process.import(&mut call);
        self.call("import", result)?;
        let status = Status::try_from(call.status.get()).expect("a known status");
        schedule.trace(format_args!(
            "process {}: imports {name:?} of process {target}: {status:?}",
            self.place
        ));
        match status {
            Status::Ok => {}
            Status::NameNotFound | Status::NoSuchNode | Status::PeerGone => return Ok(()),
            other => panic!("process {}: an import fails: {other}", self.place),
        }
        assert_eq!(call.access.get(), name.access().bits(), "wrong access");
        let imported = Imported {
            segment: call.segment.get(),
            key: call.key.get(),
            address: call.address.get(),
            length: call.length.get(),
        };
        self.imported.insert((target, read_only), imported);
        Ok(())
    }

    /// Waits until everything under way is complete.
    fn drain(&mut self) -> Result<()> {
        let issued = self.queue.issued();
        self.block(None, |queue| queue.done() == issued)?;
        let open = lock(&self.common.oracle).open(self.place);
        assert_eq!(open, 0, "complete, but something is under way");
        Ok(())
    }

    /// Does nothing until the end.
    fn rest(&self) -> Result<()> {
        while self.common.phase() != Phase::Exit {
            self.common
                .schedule
                .wait(Some(&self.common.phase_changed), None);
            self.go_on()?;
        }
        Ok(())
    }
}
