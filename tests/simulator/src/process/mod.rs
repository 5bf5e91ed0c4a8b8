//! The processes of a node: one after the other lives in each slot.

pub(crate) mod queue;
pub(crate) mod watched;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use qnic::queue::Command;
use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::export::ExportOptions;
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::{uapi, Access, Status, PAGE_SHIFT};
use qnic_driver::{CallError, Process};

use crate::common::{Common, Phase, SlotState};
use crate::expected_bytes::Range;
use crate::machine::platform::{Machine, SimPlatform};
use crate::process::queue::Queue;
use crate::schedule::{lock, trace, Event};
use crate::settings::Others;

/// Port of the process in a slot.
pub(crate) fn port(slot: usize) -> u16 {
    50 + slot as u16
}

/// Numbers of the pages of a range, which must not be empty.
pub(crate) fn pages(address: u64, length: u64) -> std::ops::RangeInclusive<u64> {
    address >> PAGE_SHIFT..=(address + length - 1) >> PAGE_SHIFT
}

/// The process has to end, or its device is gone.
#[derive(Debug)]
pub(crate) struct Ended;

pub(crate) type Result<T> = std::result::Result<T, Ended>;

/// A segment that is exported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exported {
    pub(crate) segment: u16,
    pub(crate) key: u64,
}

/// What a process stands on: its slot, and one incarnation of its node.
#[derive(Clone)]
pub(crate) struct ProcessContext {
    pub(crate) common: Arc<Common>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) slot: usize,
}

impl ProcessContext {
    /// Lets one process after the other live in the slot: the body of a task.
    pub(crate) fn run(&self) {
        let schedule = &self.common.schedule;
        lock(&self.common.slots)[self.slot].task = schedule.task();
        loop {
            self.set_state(SlotState::Working);
            match self.common.settings.others_in(self.slot) {
                None => self.run_rdma_worker(),
                Some(Others::Sync) => self.run_sync_worker(),
                Some(Others::Messages) => self.run_message_worker(),
                Some(Others::Groups) => self.run_collective_worker(),
                Some(Others::Names) => self.run_name_worker(),
                Some(Others::Datagrams) => self.run_datagram_worker(),
                Some(Others::Memory) => self.run_memory_worker(),
                Some(Others::Streams) => self.run_stream_worker(),
            }
            self.set_state(SlotState::Empty);
            schedule.revive();
            if self.machine.is_gone() || self.common.phase() == Phase::Exit {
                return;
            }
            schedule.sleep(schedule.range(10_000..2_000_000));
        }
    }

    /// Says what the process does.
    pub(crate) fn set_state(&self, state: SlotState) {
        lock(&self.common.slots)[self.slot].state = state;
    }

    /// Says whether the process has anything under way.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.set_state(match idle {
            true => SlotState::Drained,
            false => SlotState::Working,
        });
    }

    /// A process with that address space: registers, and does what it is for. What is left of it
    /// at its end has to be dropped.
    pub(crate) fn live(
        &self,
        what: &str,
        space: u64,
        work: impl FnOnce(&Process<SimPlatform>) -> Result<()>,
    ) -> Option<Process<SimPlatform>> {
        let (slot, schedule) = (self.slot, &self.common.schedule);
        let process = self.register(space);
        let ending = match &process {
            Some(process) => {
                let vni = process.vni();
                trace!(schedule, "{what} {slot}: registered, {vni}");
                self.common.registered(slot, process.host_area().frames);
                work(process)
            }
            None => Err(Ended),
        };
        self.common.end(slot);
        let cleanly = ending.is_ok();
        trace!(schedule, "{what} {slot}: ends, cleanly: {cleanly}");
        process
    }

    /// Registers a process with that address space; `None`: it has to end.
    pub(crate) fn register(&self, space: u64) -> Option<Process<SimPlatform>> {
        let (machine, slot) = (&self.machine, self.slot);
        let driver = lock(&machine.driver).clone()?;
        while self.is_alive() {
            machine.registering.store(slot, Ordering::Relaxed);
            let mut call = uapi::Register {
                port: port(slot).into(),
                ..Default::default()
            };
            match driver.register(space, slot as u32, &mut call) {
                Ok(Some(process)) => {
                    machine.memory.set_vni(space, Some(process.vni()));
                    return Some(process);
                }
                // Its predecessor is not gone yet, or its host area is not.
                Ok(None) | Err(CallError::NoMemory) => self.common.schedule.sleep(100_000),
                Err(CallError::NoDevice) => return None,
                Err(error) => panic!("process {slot}: registration fails: {error}"),
            }
        }
        None
    }

    /// Rings the doorbell of a process; the NIC hears it a little later.
    pub(crate) fn ring_doorbell(&self, process: &Process<SimPlatform>) {
        let doorbell = u32::from(process.doorbell_queue()) - FIRST_DOORBELL as u32;
        let event = Event::Doorbell(self.machine.incarnation, doorbell);
        self.common.schedule.after(50..3000, event);
    }

    /// Returns true while the process has no signal that ends it, and its machine runs.
    pub(crate) fn is_alive(&self) -> bool {
        !self.common.schedule.is_killed() && !self.machine.is_gone()
    }

    /// Returns an error if the process has to end.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.is_alive().then_some(()).ok_or(Ended)
    }

    /// Does nothing for so long.
    pub(crate) fn sleep(&self, nanoseconds: u64) -> Result<()> {
        self.common.schedule.sleep(nanoseconds);
        self.check_alive()
    }

    /// As many steps as the process takes, until all have to stop.
    pub(crate) fn steps(&self) -> impl Iterator<Item = u64> + '_ {
        let steps = 0..u64::from(self.common.settings.options.operations);
        steps.take_while(|_| self.common.phase() == Phase::Work)
    }

    /// Does nothing for some time; in so many of a thousand times for a short one.
    pub(crate) fn think(&self, at_once: u32) -> Result<()> {
        let schedule = &self.common.schedule;
        let time = schedule.range(0..self.common.settings.think);
        let share = if schedule.chance(at_once) { 100 } else { 1 };
        self.sleep(time / share)
    }

    /// Puts a command into the queue of a process.
    pub(crate) fn put(&self, process: &Process<SimPlatform>, queue: &mut Queue, command: &Command) {
        if queue.put(command) {
            self.ring_doorbell(process);
        }
    }

    /// Reads the completions that have come.
    pub(crate) fn completions(
        &self,
        process: &Process<SimPlatform>,
        queue: &mut Queue,
    ) -> Vec<CompletionEntry> {
        let (entries, rings) = queue.completions();
        if rings {
            self.ring_doorbell(process);
        }
        entries
    }

    /// Waits until a completion has come or something else that says so, or for so many
    /// nanoseconds.
    pub(crate) fn wait(
        &self,
        process: &Process<SimPlatform>,
        queue: &Queue,
        limit: u64,
        ready: impl FnOnce() -> bool,
    ) -> Result<()> {
        let generation = queue.request_wake();
        match queue.has_completions() || ready() {
            true => Ok(()),
            false => self.block(process, generation, limit),
        }
    }

    /// What a call of the driver gave.
    pub(crate) fn called(
        &self,
        what: &str,
        result: std::result::Result<(), CallError>,
    ) -> Result<()> {
        match result {
            Ok(()) => self.check_alive(),
            Err(CallError::NoDevice | CallError::Interrupted) => Err(Ended),
            // The exit of the process has begun.
            Err(CallError::NotRegistered) if self.common.schedule.is_killed() => Err(Ended),
            Err(error) => panic!("process {}: {what} fails: {error}", self.slot),
        }
    }

    /// Exports memory for such access.
    pub(crate) fn export(
        &self,
        process: &Process<SimPlatform>,
        (name, access): (u64, Access),
        (address, length): Range,
    ) -> Result<Exported> {
        let mut call = uapi::Export {
            access: access.bits().into(),
            name: name.into(),
            address: address.into(),
            length: length.into(),
            options: ExportOptions::open(),
            ..Default::default()
        };
        let result = process.export(&mut call);
        self.called("export", result)?;
        assert_eq!(call.status.get(), Status::Ok.code(), "an export is refused");
        Ok(Exported {
            segment: call.segment.get(),
            key: call.key.get(),
        })
    }

    /// Revokes a segment.
    pub(crate) fn unexport(
        &self,
        process: &Process<SimPlatform>,
        exported: Exported,
    ) -> Result<()> {
        let mut call = uapi::Unexport {
            segment: exported.segment.into(),
            ..Default::default()
        };
        let result = process.unexport(&mut call);
        self.called("unexport", result)?;
        assert_eq!(call.status.get(), Status::Ok.code(), "it is refused");
        Ok(())
    }

    /// Blocks until the wake-up of a generation, or for so many nanoseconds.
    fn block(&self, process: &Process<SimPlatform>, generation: u64, limit: u64) -> Result<()> {
        let mut call = uapi::Wait {
            generation: generation.into(),
            timeout_ns: (limit as i64).into(),
            ..Default::default()
        };
        match process.wait(&mut call) {
            Ok(()) | Err(CallError::TimedOut) => self.check_alive(),
            result => self.called("wait", result),
        }
    }

    /// Starts nothing any more, and waits for the end of all.
    pub(crate) fn rest(&self) -> Result<()> {
        self.set_state(SlotState::Drained);
        while self.common.phase() != Phase::Exit {
            let changed = &self.common.phase_changed;
            self.common.schedule.wait(Some(changed), None);
            self.check_alive()?;
        }
        Ok(())
    }
}
