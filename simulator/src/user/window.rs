//! The process's window and host area, and its books about them.

use std::sync::Arc;

use qnic::queue::{Command, Doorbell, WakeRequests};
use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::host_area::{signal_offset, HEAD, READS_DONE, WAKE_GENERATION, WRITES_DONE};
use qnic_abi::shared::Ordering;
use qnic_abi::window::COMMAND_ENTRIES;
use qnic_abi::{uapi, SharedMemory};
use qnic_driver::{CallError, Process};

use super::{Ended, Result, User};
use crate::mapping::Mapping;
use crate::platform::{Machine, SimPlatform};
use crate::schedule::Event;

/// The command queue as its process sees it.
pub(super) struct Queue {
    window: Mapping,
    area: Mapping,
    doorbell: Doorbell,
    wakes: WakeRequests,
    /// Number of the next command.
    next: u64,
    /// Writes and reads issued.
    issued: (u64, u64),
}

impl Queue {
    pub(super) fn new(machine: &Arc<Machine>, process: &Process<SimPlatform>) -> Self {
        let window = Mapping::window(machine, process.window_offset());
        Queue {
            wakes: WakeRequests::new(&window),
            window,
            area: Mapping::host_area(machine, process.host_area().frames),
            doorbell: Doorbell::default(),
            next: 0,
            issued: (0, 0),
        }
    }

    fn word(&self, offset: usize) -> u64 {
        self.area.load_u64(offset, Ordering::Acquire)
    }

    /// Writes and reads that are complete.
    pub(super) fn done(&self) -> (u64, u64) {
        (self.word(WRITES_DONE), self.word(READS_DONE))
    }

    /// Writes and reads that were issued.
    pub(super) fn issued(&self) -> (u64, u64) {
        self.issued
    }

    /// Notifications that have arrived.
    pub(super) fn signals(&self, notification: u32) -> u64 {
        self.word(signal_offset(notification))
    }

    /// Says whether another command fits.
    pub(super) fn has_room(&self) -> bool {
        let (writes, reads) = self.done();
        let limit = COMMAND_ENTRIES as u64;
        self.next - self.word(HEAD) < limit && self.next - (writes + reads) < limit
    }

    /// Number of the next command.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Puts a command into the queue; says whether the doorbell must be rung.
    pub(super) fn put(&mut self, command: &Command, is_write: bool) -> bool {
        let number = self.next;
        self.next += 1;
        let (writes, reads) = &mut self.issued;
        *(if is_write { writes } else { reads }) += 1;
        command.publish(&self.window, &self.area, number, &mut self.doorbell)
    }
}

impl User<'_> {
    /// Rings the doorbell; the NIC hears it a little later.
    pub(super) fn ring(&self) {
        let doorbell = u32::from(self.process.doorbell_queue()) - FIRST_DOORBELL as u32;
        let event = Event::Doorbell(self.machine.life, doorbell);
        self.common.schedule.after(50..3000, event);
    }

    /// Blocks until `ready`, or until so many nanoseconds have passed; says whether
    /// it is ready. Sometimes it spins instead.
    pub(super) fn block(&self, limit: Option<u64>, ready: impl Fn(&Queue) -> bool) -> Result<bool> {
        let schedule = &self.common.schedule;
        let deadline = limit.map(|limit| schedule.now() + limit);
        let spins = if schedule.chance(300) { 20 } else { 0 };
        for _ in 0..spins {
            if ready(&self.queue) {
                return Ok(true);
            }
            schedule.sleep(schedule.range(100..3000));
            self.go_on()?;
        }
        loop {
            let generation = self.queue.word(WAKE_GENERATION);
            self.queue.wakes.request(&self.queue.window);
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
                Ok(()) => self.go_on()?,
                Err(CallError::TimedOut) => return Ok(ready(&self.queue)),
                Err(CallError::Interrupted | CallError::NoDevice) => return Err(Ended),
                Err(error) => panic!("process {}: wait fails: {error}", self.place),
            }
        }
    }
}
