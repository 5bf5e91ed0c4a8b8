//! The registers of the device: a start as a driver makes it, and a reset.

use anyhow::Result;
use qnic_abi::header::{Geometry, SramHeader, MAGIC, SRAM_MAGIC};
use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use qnic_host::SharedRegion;
use zerocopy::FromBytes;

use super::pci::{Part, Pci, Place};

/// Offsets in the common registers.
const FEATURE_SELECT: usize = 0x08;
const FEATURES: usize = 0x0c;
const QUEUES: usize = 0x12;
const STATUS: usize = 0x14;
const QUEUE_SELECT: usize = 0x16;
const QUEUE_SIZE: usize = 0x18;
const QUEUE_ENABLE: usize = 0x1c;
const QUEUE_RINGS: usize = 0x20;

/// Bits of the status.
const ACKNOWLEDGED: u8 = 1 | 2;
const FEATURES_OK: u8 = 8;
const DRIVER_OK: u8 = 4;

/// VERSION_1 and ORDER_PLATFORM, in the upper word.
const UPPER_FEATURES: u32 = 1 | 1 << 4;

/// Entries of each queue.
pub(super) const ENTRIES: u16 = 16;

pub(super) struct Device {
    registers: SharedRegion,
    common: Place,
    notify: Place,
    device: Place,
    pub(super) sram: SharedRegion,
    pub(super) sram_bar: usize,
    queues: u16,
}

/// Where the rings of a queue are: descriptors, available, used.
pub(super) type Rings = [u64; 3];

impl Device {
    /// Maps the registers and the SRAM.
    pub(super) fn open(pci: &Pci) -> Result<Self> {
        let common = pci.place(Part::Common)?;
        let registers = pci.map(common.bar)?;
        let sram_bar = pci.place(Part::Memory)?.bar;
        let mut device = Device {
            registers,
            common,
            notify: pci.place(Part::Notify)?,
            device: pci.place(Part::Device)?,
            sram: pci.map(sram_bar)?,
            sram_bar,
            queues: 0,
        };
        device.queues = device.load16(QUEUES).min(64);
        Ok(device)
    }

    fn load16(&self, register: usize) -> u16 {
        let at = self.common.offset + register;
        self.registers.load_u16(at, Ordering::Relaxed)
    }

    fn store8(&self, register: usize, value: u8) {
        self.registers
            .write_bytes(self.common.offset + register, &[value]);
    }

    fn store16(&self, register: usize, value: u16) {
        let at = self.common.offset + register;
        self.registers.store_u16(at, value, Ordering::Release);
    }

    fn store32(&self, register: usize, value: u32) {
        let at = self.common.offset + register;
        self.registers.store_u32(at, value, Ordering::Release);
    }

    pub(super) fn queues(&self) -> u16 {
        self.queues
    }

    pub(super) fn reset(&self) {
        self.store8(STATUS, 0);
    }

    /// Starts the device with these rings. The SRAM comes later, if at all.
    pub(super) fn start(&self, rings: impl Fn(u16) -> Rings) {
        self.reset();
        self.store8(STATUS, ACKNOWLEDGED);
        for (select, features) in [(0, 0), (1, UPPER_FEATURES)] {
            self.store32(FEATURE_SELECT, select);
            self.store32(FEATURES, features);
        }
        self.store8(STATUS, ACKNOWLEDGED | FEATURES_OK);
        for queue in 0..self.queues {
            self.store16(QUEUE_SELECT, queue);
            self.store16(QUEUE_SIZE, ENTRIES);
            for (ring, address) in rings(queue).into_iter().enumerate() {
                let register = QUEUE_RINGS + 8 * ring;
                self.store32(register, address as u32);
                self.store32(register + 4, (address >> 32) as u32);
            }
            self.store16(QUEUE_ENABLE, 1);
        }
        self.store8(STATUS, ACKNOWLEDGED | FEATURES_OK | DRIVER_OK);
    }

    /// Whether the SRAM is there, with all that the NIC writes into it first.
    pub(super) fn is_mapped(&self) -> bool {
        self.sram.load_u64(MAGIC, Ordering::Acquire) == SRAM_MAGIC
    }

    pub(super) fn geometry(&self) -> Option<Geometry> {
        let mut bytes = [0; size_of::<SramHeader>()];
        self.sram.read_bytes(0, &mut bytes);
        let header = SramHeader::read_from_bytes(&bytes).ok()?;
        Geometry::from_header(&header, self.sram.len() as u64).ok()
    }

    /// Rings the doorbell of a queue.
    pub(super) fn ring(&self, queue: u16) {
        let at = self.notify.offset + usize::from(queue) * self.notify.step;
        if at + 2 <= self.registers.len() {
            self.registers.store_u16(at, queue, Ordering::Release);
        }
    }

    /// Stores into the device's configuration space, and loads from it, also behind its end.
    pub(super) fn touch_config(&self, offset: usize, value: u32) {
        let at = self.device.offset + offset % self.device.length.max(1);
        self.registers.write_bytes(at, &[value as u8]);
        self.registers.read_bytes(at, &mut [0]);
        self.registers
            .store_u16(at & !1, value as u16, Ordering::Relaxed);
        self.registers.load_u16(at & !1, Ordering::Relaxed);
        self.registers.store_u32(at & !3, value, Ordering::Relaxed);
        self.registers.load_u32(at & !3, Ordering::Relaxed);
    }

    /// Moves the rings of a queue that runs, or changes its size.
    pub(super) fn move_rings(&self, queue: u16, rings: Rings, size: u16) {
        self.store16(QUEUE_SELECT, queue);
        self.store16(QUEUE_SIZE, size);
        for (ring, address) in rings.into_iter().enumerate() {
            self.store32(QUEUE_RINGS + 8 * ring, address as u32);
            self.store32(QUEUE_RINGS + 8 * ring + 4, (address >> 32) as u32);
        }
    }
}
