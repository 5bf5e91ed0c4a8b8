//! What a NIC sees of its guest.

use qnic_nic::env::Host;

use crate::memory::GuestMemory;
use crate::sram::Sram;

/// What a NIC sees of its guest.
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) sram: Sram,
    pub(super) memory: GuestMemory,
}

impl Node {
    /// A node that no guest runs on yet.
    pub(crate) fn new(sram: Sram) -> Self {
        Node {
            sram,
            memory: GuestMemory::default(),
        }
    }
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
