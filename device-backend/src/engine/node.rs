//! What a NIC sees of its guest.

use qnic_nic::env::Host;
use qnic_nic::Time;
use rustix::time::{clock_gettime, ClockId};

use crate::memory::GuestMemory;
use crate::sram::Sram;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) sram: Sram,
    /// Empty as long as no guest runs.
    pub(crate) memory: GuestMemory,
}

impl Host for Node {
    type Sram = Sram;
    type Memory = GuestMemory;

    fn sram(&self) -> &Sram {
        &self.sram
    }

    fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The monotonic clock of the system, which all device processes of a host share.
    fn clock(&self) -> Option<Time> {
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).ok()?;
        let nanoseconds = u64::try_from(time.tv_nsec).ok()?;
        Some(Time(seconds * 1_000_000_000 + nanoseconds))
    }
}
