//! The common configuration of a virtio function, from reset to DRIVER_OK (virtio 1.2, 3.1.1 and
//! 4.1.4.3).
//!
//! ```text
//!   reset ─► ACKNOWLEDGE ─► DRIVER ─► features ─► FEATURES_OK ─► queues ─► DRIVER_OK
//!   status = 0, until it reads 0      Common::begin              set_queue  go
//! ```
//!
//! # Invariants
//! - A queue is enabled once, after its size and addresses.
//! - All accesses have the width of their register.

use std::time::{Duration, Instant};

use qnic_host::Virtqueue;

use crate::capabilities::Place;
use crate::error::VfioError;

/// Access to the registers of a function.
pub(crate) trait Registers: Send + Sync {
    /// Reads a register of 1, 2 or 4 bytes.
    fn read(&self, bar: u32, offset: u64, bytes: &mut [u8]);
    /// Writes one.
    fn write(&self, bar: u32, offset: u64, bytes: &[u8]);
}

/// Registers of the common configuration, by their offsets.
mod offset {
    pub(super) const DEVICE_FEATURE_SELECT: u64 = 0;
    pub(super) const DEVICE_FEATURE: u64 = 4;
    pub(super) const DRIVER_FEATURE_SELECT: u64 = 8;
    pub(super) const DRIVER_FEATURE: u64 = 12;
    pub(super) const CONFIG_VECTOR: u64 = 16;
    pub(super) const QUEUES: u64 = 18;
    pub(super) const STATUS: u64 = 20;
    pub(super) const QUEUE_SELECT: u64 = 22;
    pub(super) const QUEUE_SIZE: u64 = 24;
    pub(super) const QUEUE_VECTOR: u64 = 26;
    pub(super) const QUEUE_ENABLE: u64 = 28;
    pub(super) const QUEUE_NOTIFY: u64 = 30;
    /// Descriptors, available and used ring: 64 bits each.
    pub(super) const QUEUE_ADDRESSES: u64 = 32;
    pub(super) const END: u64 = 56;
}

/// Bits of the status.
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;

/// Features: virtio 1.x, which the device has, and fences as for real devices, if it offers them.
const VERSION_1: u64 = 1 << 32;
const ORDER_PLATFORM: u64 = 1 << 36;

/// No interrupt, and the one that there is.
const NO_VECTOR: u16 = 0xffff;
const VECTOR: u16 = 0;

/// How long a reset may take.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// The common configuration of a function.
pub(crate) struct Common<'a> {
    registers: &'a dyn Registers,
    place: Place,
}

impl<'a> Common<'a> {
    /// The configuration at `place`.
    ///
    /// # Errors
    /// [`VfioError::Missing`] if there is no room for it.
    pub(crate) fn at(registers: &'a dyn Registers, place: Place) -> Result<Self, VfioError> {
        match place.length >= offset::END {
            true => Ok(Common { registers, place }),
            false => Err(VfioError::Missing("whole common configuration")),
        }
    }

    /// Resets the device, which is done when this returns.
    ///
    /// # Errors
    /// [`VfioError::Device`]
    pub(crate) fn reset(&self) -> Result<(), VfioError> {
        self.set_status(0);
        let begin = Instant::now();
        while self.read_u8(offset::STATUS) != 0 {
            if begin.elapsed() > RESET_TIMEOUT {
                return Err(VfioError::Device("does not end its reset"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Resets the device and agrees on its features.
    ///
    /// # Errors
    /// [`VfioError::Device`]
    pub(crate) fn begin(&self) -> Result<(), VfioError> {
        self.reset()?;
        self.set_status(ACKNOWLEDGE);
        self.set_status(ACKNOWLEDGE | DRIVER);
        let half = |select: u32| {
            self.write(offset::DEVICE_FEATURE_SELECT, &select.to_le_bytes());
            u64::from(self.read_u32(offset::DEVICE_FEATURE))
        };
        let offered = half(0) | half(1) << 32;
        if offered & VERSION_1 == 0 {
            return Err(VfioError::Device("is none of virtio 1.x"));
        }
        let accepted = offered & (VERSION_1 | ORDER_PLATFORM);
        for (select, half) in [(0_u32, accepted as u32), (1, (accepted >> 32) as u32)] {
            self.write(offset::DRIVER_FEATURE_SELECT, &select.to_le_bytes());
            self.write(offset::DRIVER_FEATURE, &half.to_le_bytes());
        }
        let agreed = ACKNOWLEDGE | DRIVER | FEATURES_OK;
        self.set_status(agreed);
        match self.read_u8(offset::STATUS) & FEATURES_OK {
            0 => Err(VfioError::Device("refuses its own features")),
            _ => Ok(()),
        }
    }

    /// Number of virtqueues.
    pub(crate) fn queues(&self) -> u16 {
        self.read_u16(offset::QUEUES)
    }

    /// Most descriptors of a queue; zero if there is no such queue.
    pub(crate) fn queue_size_max(&self, queue: u16) -> u16 {
        self.select(queue);
        self.read_u16(offset::QUEUE_SIZE)
    }

    /// Enables a queue, and returns which notification register is its own.
    ///
    /// # Errors
    /// [`VfioError::Device`]
    pub(crate) fn set_queue(&self, queue: u16, of: &Virtqueue) -> Result<u16, VfioError> {
        if of.size > self.queue_size_max(queue) {
            return Err(VfioError::Device(
                "has too few descriptors, or too few queues",
            ));
        }
        self.write(offset::QUEUE_SIZE, &of.size.to_le_bytes());
        let vector = if of.interrupts { VECTOR } else { NO_VECTOR };
        self.write(offset::QUEUE_VECTOR, &vector.to_le_bytes());
        if self.read_u16(offset::QUEUE_VECTOR) != vector {
            return Err(VfioError::Device("has no interrupt for its queues"));
        }
        for (index, address) in (0..).zip(of.addresses) {
            let low = offset::QUEUE_ADDRESSES + index * 8;
            self.write(low, &(address as u32).to_le_bytes());
            self.write(low + 4, &((address >> 32) as u32).to_le_bytes());
        }
        self.write(offset::QUEUE_ENABLE, &1_u16.to_le_bytes());
        Ok(self.read_u16(offset::QUEUE_NOTIFY))
    }

    /// Lets the device begin.
    pub(crate) fn go(&self) {
        self.write(offset::CONFIG_VECTOR, &NO_VECTOR.to_le_bytes());
        self.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    }

    fn select(&self, queue: u16) {
        self.write(offset::QUEUE_SELECT, &queue.to_le_bytes());
    }

    fn set_status(&self, status: u8) {
        self.write(offset::STATUS, &[status]);
    }

    fn write(&self, register: u64, bytes: &[u8]) {
        let offset = self.place.offset + register;
        self.registers.write(self.place.bar, offset, bytes);
    }

    fn read<const BYTES: usize>(&self, register: u64) -> [u8; BYTES] {
        let (mut bytes, offset) = ([0xff; BYTES], self.place.offset + register);
        self.registers.read(self.place.bar, offset, &mut bytes);
        bytes
    }

    fn read_u8(&self, register: u64) -> u8 {
        u8::from_le_bytes(self.read(register))
    }

    fn read_u16(&self, register: u64) -> u16 {
        u16::from_le_bytes(self.read(register))
    }

    fn read_u32(&self, register: u64) -> u32 {
        u32::from_le_bytes(self.read(register))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    const PLACE: Place = Place {
        bar: 2,
        offset: 0x100,
        length: 0x1000,
    };

    /// A device with registers of its own for each of two queues.
    #[derive(Default)]
    struct Fake(Mutex<State>);

    #[derive(Default)]
    struct State {
        offered: u64,
        accepted: u64,
        selected: [u32; 3],
        status: u8,
        statuses: Vec<u8>,
        /// Reads of the status until a reset has ended.
        busy: u32,
        refuses: bool,
        queues: Vec<[u8; 64]>,
    }

    impl Fake {
        fn offering(features: u64) -> Self {
            let fake = Fake::default();
            fake.lock().offered = features;
            fake.lock().queues = vec![[0; 64]; 2];
            for (index, queue) in fake.lock().queues.iter_mut().enumerate() {
                queue[24..26].copy_from_slice(&64_u16.to_le_bytes());
                queue[30] = index as u8 + 3;
            }
            fake
        }

        fn lock(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap()
        }

        fn common(&self) -> Common<'_> {
            Common::at(self, PLACE).unwrap()
        }
    }

    impl Registers for Fake {
        fn read(&self, bar: u32, offset: u64, bytes: &mut [u8]) {
            let (mut state, register) = (self.lock(), offset - PLACE.offset);
            assert_eq!(bar, PLACE.bar);
            let [device, _, queue] = state.selected;
            let value = match register {
                offset::DEVICE_FEATURE => state.offered >> (32 * device),
                offset::QUEUES => 2,
                offset::STATUS if state.busy > 0 => {
                    state.busy -= 1;
                    u64::from(DRIVER_OK)
                }
                offset::STATUS => state.status.into(),
                _ => {
                    let none = [0; 64];
                    let queue = state.queues.get(queue as usize).unwrap_or(&none);
                    let at = register as usize;
                    let register = queue[at..at + bytes.len()].try_into();
                    u16::from_le_bytes(register.unwrap()).into()
                }
            };
            let length = bytes.len();
            bytes.copy_from_slice(&value.to_le_bytes()[..length]);
        }

        fn write(&self, bar: u32, offset: u64, bytes: &[u8]) {
            let (mut state, register) = (self.lock(), offset - PLACE.offset);
            assert_eq!(bar, PLACE.bar);
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            let word = u32::from_le_bytes(word);
            match register {
                offset::DEVICE_FEATURE_SELECT => state.selected[0] = word,
                offset::DRIVER_FEATURE_SELECT => state.selected[1] = word,
                offset::QUEUE_SELECT => state.selected[2] = word,
                offset::DRIVER_FEATURE => {
                    let half = u64::from(word) << (32 * state.selected[1]);
                    state.accepted |= half;
                }
                offset::STATUS => {
                    let refused = if state.refuses { FEATURES_OK } else { 0 };
                    state.status = bytes[0] & !refused;
                    state.statuses.push(bytes[0]);
                }
                offset::CONFIG_VECTOR => assert_eq!(bytes, NO_VECTOR.to_le_bytes()),
                _ => {
                    let (queue, at) = (state.selected[2] as usize, register as usize);
                    state.queues[queue][at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
    }

    #[test]
    fn the_device_is_brought_up_in_the_order_of_the_specification() {
        let offered = VERSION_1 | ORDER_PLATFORM | 1 | 1 << 33;
        let fake = Fake::offering(offered);
        fake.lock().busy = 3;
        fake.common().begin().unwrap();
        let queue = Virtqueue {
            size: 32,
            addresses: [0x1_0000_1000, 0x2000, 0x3000],
            interrupts: true,
        };
        assert_eq!(fake.common().set_queue(1, &queue).unwrap(), 4);
        fake.common().go();
        let state = fake.lock();
        // What is not known is not accepted, nor is what translates addresses.
        assert_eq!(state.accepted, VERSION_1 | ORDER_PLATFORM);
        assert_eq!(state.statuses, [0, 1, 3, 11, 15]);
        assert_eq!(state.queues[1][24..30], [32, 0, 0, 0, 1, 0]);
        assert_eq!(state.queues[1][32..40], 0x1_0000_1000_u64.to_le_bytes());
        assert_eq!(state.queues[1][48..56], 0x3000_u64.to_le_bytes());
        assert_eq!(state.queues[0][28..30], [0, 0]);
    }

    #[test]
    fn a_device_that_does_not_fit_is_refused() {
        let says = |fake: &Fake| fake.common().begin().unwrap_err().to_string();
        assert!(says(&Fake::offering(ORDER_PLATFORM)).contains("virtio 1.x"));
        let fake = Fake::offering(VERSION_1);
        fake.lock().refuses = true;
        assert!(says(&fake).contains("features"));
        let fake = Fake::offering(VERSION_1);
        let mut queue = Virtqueue {
            size: 128,
            addresses: [0; 3],
            interrupts: false,
        };
        assert!(fake.common().set_queue(0, &queue).is_err());
        queue.size = 64;
        assert!(fake.common().set_queue(2, &queue).is_err());
        fake.common().set_queue(0, &queue).unwrap();
        assert_eq!(fake.lock().queues[0][26..28], NO_VECTOR.to_le_bytes());
        let short = Place {
            length: 55,
            ..PLACE
        };
        assert!(Common::at(&fake, short).is_err());
    }
}
