//! Memory that a driver allocates for its NIC: host areas of processes, and pages for datagrams.

use std::sync::Arc;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, PAGE_SHIFT, PAGE_SIZE};
use qnic_driver::platform::{DeviceMemory, HostArea};

use crate::machine::memory::Memory;

/// Frames of the driver; dropping them frees them, unless they are those of others.
pub(crate) struct Frames {
    memory: Arc<Memory>,
    frames: Vec<u32>,
    /// The frames are these, one behind the other.
    others: Vec<SimMemory>,
}

impl Frames {
    pub(crate) fn new(memory: &Arc<Memory>, frames: Vec<u32>) -> Self {
        Frames {
            memory: memory.clone(),
            frames,
            others: Vec::new(),
        }
    }

    fn load(&self, mut offset: usize, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let within = offset % PAGE_SIZE;
            let (page, rest) = bytes.split_at_mut(bytes.len().min(PAGE_SIZE - within));
            self.memory
                .load(self.frames[offset / PAGE_SIZE], within, page);
            (offset, bytes) = (offset + page.len(), rest);
        }
    }

    fn store(&self, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let within = offset % PAGE_SIZE;
            let (page, rest) = bytes.split_at(bytes.len().min(PAGE_SIZE - within));
            self.memory
                .store(self.frames[offset / PAGE_SIZE], within, page);
            (offset, bytes) = (offset + page.len(), rest);
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if self.others.is_empty() {
            for frame in &self.frames {
                self.memory.release(*frame);
            }
        }
    }
}

/// Host area of one process.
pub(crate) struct SimHostArea {
    pub(crate) frames: [u32; HOST_PAGES],
    memory: SimMemory,
}

impl SimHostArea {
    pub(crate) fn new(memory: &Arc<Memory>, frames: [u32; HOST_PAGES]) -> Self {
        let memory = SimMemory::new(Frames::new(memory, frames.to_vec()));
        SimHostArea { frames, memory }
    }
}

impl HostArea for SimHostArea {
    type Memory = SimMemory;

    fn addresses(&self) -> [u64; HOST_PAGES] {
        self.frames.map(|frame| u64::from(frame) << PAGE_SHIFT)
    }

    fn memory(&self) -> &SimMemory {
        &self.memory
    }
}

/// A handle on frames, or on a part of them.
pub(crate) struct SimMemory {
    frames: Arc<Frames>,
    offset: usize,
    length: usize,
}

impl SimMemory {
    pub(crate) fn new(frames: Frames) -> Self {
        SimMemory {
            length: frames.frames.len() * PAGE_SIZE,
            frames: Arc::new(frames),
            offset: 0,
        }
    }

    /// Pages one behind the other, as a process has mapped them; one page at least.
    pub(crate) fn joined(pages: Vec<SimMemory>) -> Self {
        let first = pages.first().expect("a page");
        let memory = first.frames.memory.clone();
        let frame = |page: &SimMemory| page.frames.frames[page.offset / PAGE_SIZE];
        SimMemory::new(Frames {
            memory,
            frames: pages.iter().map(frame).collect(),
            others: pages,
        })
    }

    fn at(&self, offset: usize, length: usize) -> usize {
        assert!(offset <= self.length && length <= self.length - offset);
        self.offset + offset
    }
}

impl SharedMemory for SimMemory {
    fn size(&self) -> usize {
        self.length
    }

    fn load_u32(&self, offset: usize, _: Ordering) -> u32 {
        let mut bytes = [0; 4];
        self.read_bytes(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn store_u32(&self, offset: usize, value: u32, _: Ordering) {
        self.write_bytes(offset, &value.to_le_bytes());
    }

    fn load_u64(&self, offset: usize, _: Ordering) -> u64 {
        let mut bytes = [0; 8];
        self.read_bytes(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store_u64(&self, offset: usize, value: u64, _: Ordering) {
        self.write_bytes(offset, &value.to_le_bytes());
    }

    /// One thread runs at a time.
    fn fence(&self) {}
}

impl DeviceMemory for SimMemory {
    fn address(&self) -> u64 {
        let frame = self.frames.frames[self.offset / PAGE_SIZE];
        (u64::from(frame) << PAGE_SHIFT) + (self.offset % PAGE_SIZE) as u64
    }

    fn part(&self, offset: usize, length: usize) -> Self {
        SimMemory {
            frames: self.frames.clone(),
            offset: self.at(offset, length),
            length,
        }
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        self.frames.load(self.at(offset, bytes.len()), bytes);
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        self.frames.store(self.at(offset, bytes.len()), bytes);
    }
}
