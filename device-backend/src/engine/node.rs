//! What a NIC sees of its guest.

use qnic_nic::env::Host;

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
}
