//! Pages and blocks that the driver allocates for the device. Addresses are never reused, so that an access
//! of the device to freed memory is found.

use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::vec::Vec;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_nic::testing::Sram;

use crate::paged::paged;
use crate::platform::{DeviceMemory, HostArea, MAX_BLOCK_PAGES};

/// The distance between pages or blocks: more than a block has.
const MOST_BYTES: u64 = 2 * (MAX_BLOCK_PAGES * PAGE_SIZE) as u64;

/// A page, or a block.
struct Page {
    address: u64,
    bytes: Sram,
}

/// A handle on a page, or on a part of it.
#[derive(Clone)]
pub(crate) struct FakeMemory {
    page: Arc<Page>,
    offset: usize,
    length: usize,
}

/// All pages of a node, by address.
#[derive(Clone, Default)]
pub(crate) struct Pages(Arc<Mutex<BTreeMap<u64, Weak<Page>>>>);

impl Pages {
    pub(crate) fn allocate(&self) -> FakeMemory {
        self.allocate_block(1)
    }

    /// Adjacent pages.
    pub(crate) fn allocate_block(&self, count: usize) -> FakeMemory {
        let mut pages = self.0.lock().unwrap();
        let last = pages.last_key_value().map_or(0, |(address, _)| *address);
        // Blocks are not adjacent, so that an access behind a block is found.
        let address = last + MOST_BYTES;
        let length = count * PAGE_SIZE;
        let bytes = Sram::new(length);
        let page = Arc::new(Page { address, bytes });
        pages.insert(address, Arc::downgrade(&page));
        FakeMemory {
            page,
            offset: 0,
            length,
        }
    }

    /// The page or block at an address, as the device finds it, and the offset there.
    pub(crate) fn at(&self, address: u64) -> (FakeMemory, usize) {
        let pages = self.0.lock().unwrap();
        let last = pages.range(..=address).next_back();
        let page = last.and_then(|(_, page)| page.upgrade());
        let page = page.unwrap_or_else(|| panic!("the device accesses {address:#x}: no page"));
        let offset = (address - page.address) as usize;
        let length = page.bytes.size();
        assert!(offset < length, "the device accesses {address:#x}: no page");
        let memory = FakeMemory {
            page,
            offset: 0,
            length,
        };
        (memory, offset)
    }

    /// Pages and blocks that are allocated now.
    pub(crate) fn count(&self) -> usize {
        let pages = self.0.lock().unwrap();
        pages
            .values()
            .filter(|page| page.strong_count() > 0)
            .count()
    }
}

impl FakeMemory {
    fn at(&self, offset: usize, length: usize) -> usize {
        assert!(offset <= self.length && length <= self.length - offset);
        self.offset + offset
    }
}

impl SharedMemory for FakeMemory {
    fn size(&self) -> usize {
        self.length
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.page.bytes.load_u32(self.at(offset, 4), order)
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.page.bytes.store_u32(self.at(offset, 4), value, order);
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.page.bytes.load_u64(self.at(offset, 8), order)
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.page.bytes.store_u64(self.at(offset, 8), value, order);
    }

    fn fence(&self) {
        self.page.bytes.fence();
    }
}

impl DeviceMemory for FakeMemory {
    fn address(&self) -> u64 {
        self.page.address + self.offset as u64
    }

    fn part(&self, offset: usize, length: usize) -> Self {
        FakeMemory {
            page: self.page.clone(),
            offset: self.at(offset, length),
            length,
        }
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        let start = self.at(offset, bytes.len());
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = start + index;
            let word = self.page.bytes.load_u64(at / 8 * 8, Ordering::Relaxed);
            *byte = word.to_le_bytes()[at % 8];
        }
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        let start = self.at(offset, bytes.len());
        for (index, byte) in bytes.iter().enumerate() {
            let at = start + index;
            let word = self.page.bytes.load_u64(at / 8 * 8, Ordering::Relaxed);
            let mut word = word.to_le_bytes();
            word[at % 8] = *byte;
            let word = u64::from_le_bytes(word);
            self.page
                .bytes
                .store_u64(at / 8 * 8, word, Ordering::Relaxed);
        }
    }
}

/// The host area of a process.
pub(crate) struct Area(Vec<FakeMemory>);

impl Area {
    pub(crate) fn new(pages: &Pages) -> Self {
        Area((0..HOST_PAGES).map(|_| pages.allocate()).collect())
    }

    fn bytes(&self) -> usize {
        HOST_PAGES * PAGE_SIZE
    }

    fn at(&self, offset: usize) -> (&FakeMemory, usize) {
        (&self.0[offset / PAGE_SIZE], offset % PAGE_SIZE)
    }
}

impl HostArea for Area {
    type Memory = Self;

    fn memory(&self) -> &Self {
        self
    }

    fn addresses(&self) -> [u64; HOST_PAGES] {
        core::array::from_fn(|page| self.0[page].address())
    }
}

paged!([] Area);
