//! A window of the driver itself: of a VNI whose process it is.

use core::sync::atomic::Ordering;

use qnic_abi::header::Geometry;
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::{SharedMemory, VniId};

/// The window, as memory that begins at offset 0.
pub(crate) struct Window<'a, M> {
    sram: &'a M,
    start: usize,
}

impl<'a, M> Window<'a, M> {
    pub(crate) fn new(sram: &'a M, geometry: &Geometry, vni: VniId) -> Self {
        let start = geometry.window_offset(vni);
        Window { sram, start }
    }
}

impl<M: SharedMemory> SharedMemory for Window<'_, M> {
    fn size(&self) -> usize {
        WINDOW_BYTES
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.sram.load_u32(self.start + offset, order)
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.sram.store_u32(self.start + offset, value, order);
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.sram.load_u64(self.start + offset, order)
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.sram.store_u64(self.start + offset, value, order);
    }

    fn fence(&self) {
        self.sram.fence();
    }
}
