//! The process's window and host area, and its books about them.

use std::sync::Arc;

use qnic::queue::{Command, Doorbell, WakeRequests};
use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::host_area::{
    signal_offset, HEAD, HOST_PAGES, READS_DONE, WAKE_GENERATION, WRITES_DONE,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{COMMAND_ENTRIES, WINDOW_BYTES};
use qnic_abi::{uapi, SharedMemory, PAGE_SIZE};
use qnic_driver::{CallError, Process};
use qnic_nic::testing::Sram;

use super::{Ended, Result, User};
use crate::memory::Memory;
use crate::platform::{Machine, SimPlatform};
use crate::schedule::Event;

/// What a process has mapped.
enum Mapping {
    /// Its window in SRAM.
    Window { sram: Arc<Sram>, offset: usize },
    /// Its host area, read-only.
    HostArea {
        memory: Arc<Memory>,
        frames: [u32; HOST_PAGES],
    },
}

impl SharedMemory for Mapping {
    fn size(&self) -> usize {
        match self {
            Mapping::Window { .. } => WINDOW_BYTES,
            Mapping::HostArea { .. } => HOST_PAGES * PAGE_SIZE,
        }
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        let word = self.load_u64(offset & !7, order);
        (word >> (offset % 8 * 8)) as u32
    }

    fn store_u32(&self, _offset: usize, _value: u32, _order: Ordering) {
        panic!("a process stores 64-bit words");
    }

    fn load_u64(&self, place: usize, order: Ordering) -> u64 {
        match self {
            Mapping::Window { sram, offset } => sram.load_u64(offset + place, order),
            Mapping::HostArea { memory, frames } => {
                let mut bytes = [0; 8];
                memory.load(frames[place / PAGE_SIZE], place % PAGE_SIZE, &mut bytes);
                u64::from_le_bytes(bytes)
            }
        }
    }

    fn store_u64(&self, place: usize, value: u64, order: Ordering) {
        match self {
            Mapping::Window { sram, offset } => sram.store_u64(offset + place, value, order),
            Mapping::HostArea { .. } => panic!("the host area is mapped read-only"),
        }
    }

    fn fence(&self) {
        // One thread: every store is seen at once.
    }
}

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
    pub(super) fn new(machine: &Machine, process: &Process<SimPlatform>) -> Self {
        let window = Mapping::Window {
            sram: machine.sram.clone(),
            offset: process.window_offset(),
        };
        Queue {
            wakes: WakeRequests::new(&window),
            window,
            area: Mapping::HostArea {
                memory: machine.memory.clone(),
                frames: process.host_area().frames,
            },
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
