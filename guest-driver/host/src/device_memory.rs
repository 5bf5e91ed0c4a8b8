//! Memory of the arena as the NIC sees it: host areas of processes, and pages for datagrams.

use std::sync::Arc;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_driver::platform::{DeviceMemory, HostArea, NoMemory, Run};
use qnic_shared::region::SharedRegion;

use crate::arena::Arena;
use crate::error::HostError;

/// Pages of the arena, or a part of them. Clones of the region keep them allocated.
#[derive(Debug)]
pub struct HostMemory {
    pub(crate) region: SharedRegion,
    arena: Arc<Arena>,
}

impl HostMemory {
    pub(crate) fn allocate(arena: &Arc<Arena>, length: usize) -> Result<Self, NoMemory> {
        Self::of(arena, arena.allocate(length))
    }

    /// Adjacent blocks, each contiguous for the device.
    pub(crate) fn allocate_blocks(arena: &Arc<Arena>, runs: &[Run]) -> Result<Self, NoMemory> {
        Self::of(arena, arena.allocate_blocks(runs))
    }

    fn of(arena: &Arc<Arena>, region: Result<SharedRegion, HostError>) -> Result<Self, NoMemory> {
        Ok(HostMemory {
            region: region.map_err(|_| NoMemory)?,
            arena: arena.clone(),
        })
    }
}

impl HostArea for HostMemory {
    type Memory = SharedRegion;

    fn addresses(&self) -> [u64; HOST_PAGES] {
        std::array::from_fn(|page| {
            let page = self.region.part(page * PAGE_SIZE, PAGE_SIZE);
            self.arena.physical(&page)
        })
    }

    fn memory(&self) -> &SharedRegion {
        &self.region
    }
}

impl SharedMemory for HostMemory {
    fn size(&self) -> usize {
        self.region.size()
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.region.load_u32(offset, order)
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.region.store_u32(offset, value, order);
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.region.load_u64(offset, order)
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.region.store_u64(offset, value, order);
    }

    fn fence(&self) {
        self.region.fence();
    }
}

impl DeviceMemory for HostMemory {
    fn address(&self) -> u64 {
        self.arena.physical(&self.region)
    }

    fn part(&self, offset: usize, length: usize) -> Self {
        HostMemory {
            region: self.region.part(offset, length),
            arena: self.arena.clone(),
        }
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        self.region.read_bytes(offset, bytes);
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        self.region.write_bytes(offset, bytes);
    }
}
