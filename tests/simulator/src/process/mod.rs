//! The processes of a node: one after the other lives in each slot.

pub(crate) mod queue;
pub(crate) mod watched;
pub(crate) mod worker;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::{uapi, PAGE_SHIFT};
use qnic_driver::{CallError, Process};

use crate::common::{Common, Phase, SlotState};
use crate::machine::platform::{Machine, SimPlatform};
use crate::schedule::{lock, Event};
use crate::settings::port;

/// Numbers of the pages of a range, which must not be empty.
pub(crate) fn pages(address: u64, length: u64) -> std::ops::RangeInclusive<u64> {
    address >> PAGE_SHIFT..=(address + length - 1) >> PAGE_SHIFT
}

/// The process has to end, or its device is gone.
#[derive(Debug)]
pub(crate) struct Ended;

pub(crate) type Result<T> = std::result::Result<T, Ended>;

/// What a process stands on: its slot, and one incarnation of its node.
#[derive(Clone)]
pub(crate) struct ProcessContext {
    pub(crate) common: Arc<Common>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) slot: usize,
}

impl ProcessContext {
    /// Says what the process does.
    pub(crate) fn set_state(&self, state: SlotState) {
        lock(&self.common.slots)[self.slot].state = state;
    }

    /// The worker has seen that everything works again.
    pub(crate) fn set_verified(&self) {
        lock(&self.common.slots)[self.slot].verifies = false;
    }

    /// Says whether the process has anything under way.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.set_state(match idle {
            true => SlotState::Drained,
            false => SlotState::Working,
        });
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

    /// Does nothing for some time; in so many of a thousand times for a short one.
    pub(crate) fn think(&self, at_once: u32) -> Result<()> {
        let schedule = &self.common.schedule;
        let time = schedule.range(0..self.common.settings.think);
        let share = if schedule.chance(at_once) { 100 } else { 1 };
        self.sleep(time / share)
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
