//! The processes of a node: one after the other lives in each slot.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::{uapi, PAGE_SHIFT};
use qnic_driver::{CallError, Process};

use crate::common::{Common, Phase, SlotState};
use crate::platform::{Machine, SimPlatform};
use crate::schedule::{lock, Event};

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
            let settings = &self.common.settings;
            if settings.is_sync_worker(self.slot) {
                self.run_sync_worker();
            } else if settings.is_message_worker(self.slot) {
                self.run_message_worker();
            } else {
                self.run_rdma_worker();
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
                Ok(None) => self.common.schedule.sleep(100_000),
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
