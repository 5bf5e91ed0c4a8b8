//! Memory that a process has mapped: its window, its host area, its own pages.

use std::fmt;
use std::sync::Arc;

use qnic::provider::Memory as Mapped;
use qnic_abi::host_area::{HOST_PAGES, READ_ONLY_PAGES, WRITABLE_PAGES};
use qnic_abi::shared::Ordering;
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::{SharedMemory, PAGE_SIZE};

use crate::machine::platform::Machine;

/// Where it lies.
enum Backing {
    /// In SRAM, from an offset on.
    Window { offset: usize },
    /// In frames that are never taken away, from a page of them on.
    HostArea {
        frames: [u32; HOST_PAGES],
        first: usize,
    },
    /// In pages of an address space; a look at one that is absent brings it in.
    Pages {
        space: u64,
        address: u64,
        length: usize,
    },
}

/// A range of memory as its process reaches it. A process that was killed, or whose
/// machine is gone, stores nothing any more.
pub(crate) struct Mapping {
    machine: Arc<Machine>,
    backing: Backing,
}

impl Mapping {
    fn new(machine: &Arc<Machine>, backing: Backing) -> Self {
        let machine = machine.clone();
        Mapping { machine, backing }
    }

    pub(crate) fn window(machine: &Arc<Machine>, offset: usize) -> Self {
        Self::new(machine, Backing::Window { offset })
    }

    /// The read-only pages of a host area.
    pub(crate) fn host_area(machine: &Arc<Machine>, frames: [u32; HOST_PAGES]) -> Self {
        Self::new(machine, Backing::HostArea { frames, first: 0 })
    }

    /// The writable pages of a host area.
    pub(crate) fn pool(machine: &Arc<Machine>, frames: [u32; HOST_PAGES]) -> Self {
        let first = READ_ONLY_PAGES;
        Self::new(machine, Backing::HostArea { frames, first })
    }

    pub(crate) fn pages(machine: &Arc<Machine>, space: u64, address: u64, length: usize) -> Self {
        let backing = Backing::Pages {
            space,
            address,
            length,
        };
        Self::new(machine, backing)
    }

    fn is_alive(&self) -> bool {
        !self.machine.is_gone() && !self.machine.schedule.is_killed()
    }
}

impl SharedMemory for Mapping {
    fn size(&self) -> usize {
        match self.backing {
            Backing::Window { .. } => WINDOW_BYTES,
            Backing::HostArea { first: 0, .. } => READ_ONLY_PAGES * PAGE_SIZE,
            Backing::HostArea { .. } => WRITABLE_PAGES * PAGE_SIZE,
            Backing::Pages { length, .. } => length,
        }
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        let word = self.load_u64(offset & !7, order);
        (word >> (offset % 8 * 8)) as u32
    }

    fn store_u32(&self, offset: usize, value: u32, _order: Ordering) {
        self.write_bytes(offset, &value.to_le_bytes());
    }

    fn load_u64(&self, at: usize, order: Ordering) -> u64 {
        if let Backing::Window { offset } = self.backing {
            return self.machine.sram.load_u64(offset + at, order);
        }
        let mut bytes = [0; 8];
        self.read_bytes(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        match self.backing {
            Backing::Window { offset } if self.is_alive() => {
                self.machine.sram.store_u64(offset + at, value, order);
            }
            Backing::Window { .. } => {}
            _ => self.write_bytes(at, &value.to_le_bytes()),
        }
    }

    fn fence(&self) {
        // One thread: every store is seen at once.
    }
}

impl Mapped for Mapping {
    fn address(&self) -> u64 {
        match self.backing {
            Backing::Window { .. } | Backing::HostArea { .. } => 0,
            Backing::Pages { address, .. } => address,
        }
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        match &self.backing {
            Backing::Window { .. } => panic!("a window is read in words"),
            Backing::HostArea { frames, first } => {
                let frame = frames[first + offset / PAGE_SIZE];
                self.machine.memory.load(frame, offset % PAGE_SIZE, bytes);
            }
            Backing::Pages { space, address, .. } => {
                let at = address + offset as u64;
                if self.machine.kernel.read(*space, at, bytes).is_err() {
                    // The space is going away, and its process with it.
                    bytes.fill(0);
                }
            }
        }
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        match &self.backing {
            Backing::Window { .. } => panic!("a process stores 64-bit words to its window"),
            Backing::HostArea { first: 0, .. } => panic!("these pages are mapped read-only"),
            Backing::HostArea { frames, first } if self.is_alive() => {
                let frame = frames[first + offset / PAGE_SIZE];
                self.machine.memory.store(frame, offset % PAGE_SIZE, bytes);
            }
            Backing::HostArea { .. } => {}
            Backing::Pages { space, address, .. } if self.is_alive() => {
                let at = address + offset as u64;
                // An error says that the space is going away.
                let _gone = self.machine.kernel.write(*space, at, bytes);
            }
            Backing::Pages { .. } => {}
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.backing {
            Backing::Window { .. } => "window",
            Backing::HostArea { .. } => "host area",
            Backing::Pages { .. } => "pages",
        })
    }
}
