//! What the hostile guest does, round by round.

use anyhow::Result;
use fastrand::Rng;
use qnic_abi::attach::{CONFIG_SIZE, CONTROL_QUEUE, EVENT_QUEUE};
use qnic_abi::control::{Opcode, RequestHeader, REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::event::{Event, EVENT_BYTES};
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, ABI_VERSION, PAGE_SIZE};
use zerocopy::{FromBytes, IntoBytes};

use super::arena::{Arena, PAGES};
use super::device::{Device, Rings, ENTRIES};
use super::pci::{Pci, CONFIG_BYTES, HEADER_BYTES};
use super::Done;

/// Pages of the arena: the rings of a queue take one each, requests and responses, event
/// buffers; the others are host areas and data.
const QUEUE_PAGES: usize = 32;
const MESSAGES: usize = 40;
const EVENTS: usize = 41;
const DATA: usize = 42;

/// Offsets of the rings in their page.
const AVAILABLE: usize = 0x400;
const USED: usize = 0x800;

/// Steps between two resets, and rounds between two returns to the driver.
const STEPS: usize = 200;
const REBIND: u64 = 16;

/// VNIs that are used.
const VNIS: u16 = 8;

pub(super) struct Attack {
    pci: Pci,
    device: Device,
    arena: Arena,
    random: Rng,
    rounds: u64,
    /// Available indices of the control and event queues; used index of events.
    available: [u16; 2],
    events_seen: u16,
    done: Done,
}

impl Attack {
    pub(super) fn new(seed: u64) -> Result<Self> {
        let pci = Pci::find()?;
        pci.unbind()?;
        Ok(Attack {
            device: Device::open(&pci)?,
            pci,
            arena: Arena::new()?,
            random: Rng::with_seed(seed),
            rounds: 0,
            available: [0; 2],
            events_seen: 0,
            done: Done::default(),
        })
    }

    /// Starts the device, attacks it, and resets it in the middle.
    pub(super) fn round(&mut self) -> Result<()> {
        self.rounds += 1;
        if self.rounds % REBIND == 0 {
            self.rebind()?;
        }
        let sane = self.random.u8(..) < 224;
        self.start(sane);
        for _ in 0..STEPS {
            match self.random.u8(..) {
                0..=99 => self.request(),
                100..=139 => self.answer_faults(),
                140..=169 => self.storm(),
                170..=209 => self.spoil_sram(),
                210..=229 => self.spoil_rings(),
                230..=239 => self.read_config(),
                240..=249 => self.command(),
                _ => self.move_rings(),
            }
        }
        self.device.reset();
        self.done.resets += 1;
        Ok(())
    }

    /// Leaves the device to its driver.
    pub(super) fn end(self) -> Result<Done> {
        self.device.reset();
        self.pci.bind()?;
        Ok(self.done)
    }

    fn rebind(&mut self) -> Result<()> {
        self.device.reset();
        self.pci.bind()?;
        self.pci.unbind()?;
        self.device = Device::open(&self.pci)?;
        self.done.rebinds += 1;
        Ok(())
    }

    fn rings(&self, queue: u16) -> Rings {
        let page = self.arena.address(usize::from(queue) % QUEUE_PAGES);
        [page, page + AVAILABLE as u64, page + USED as u64]
    }

    /// An address where nothing of this guest's kernel is.
    fn nowhere(&mut self) -> u64 {
        let random = &mut self.random;
        match random.u8(..5) {
            0 => self.arena.address(random.usize(..PAGES)) + random.u64(..PAGE_SIZE as u64),
            1 => u64::MAX - random.u64(..PAGE_SIZE as u64),
            2 => 1 << random.u32(40..63),
            // The hole below 4 GiB.
            3 => 0xf000_0000 + random.u64(..0x100_0000),
            _ => self.arena.address(random.usize(..PAGES)),
        }
    }

    fn start(&mut self, sane: bool) {
        for page in 0..DATA {
            self.arena.write(page, 0, &[0; PAGE_SIZE]);
        }
        (self.available, self.events_seen) = ([0; 2], 0);
        for buffer in 0..ENTRIES {
            let address = self.arena.address(EVENTS) + u64::from(buffer) * EVENT_BYTES as u64;
            self.describe(EVENT_QUEUE, buffer, (address, EVENT_BYTES as u32, 2, 0));
            self.offer(EVENT_QUEUE, buffer);
        }
        let evil: Vec<Rings> = (0..self.device.queues())
            .map(|queue| match sane {
                true => self.rings(queue),
                false => std::array::from_fn(|_| self.nowhere()),
            })
            .collect();
        self.done.starts += 1;
        let mapped = self.device.start(|queue| evil[usize::from(queue)]);
        self.done.mapped += u64::from(mapped);
    }

    fn describe(&mut self, queue: usize, index: u16, what: (u64, u32, u16, u16)) {
        let (address, length, flags, next) = what;
        let words = [
            address,
            u64::from(length) | u64::from(flags) << 32 | u64::from(next) << 48,
        ];
        let at = usize::from(index % ENTRIES) * 16;
        self.arena.write(queue, at, words.as_bytes());
    }

    fn offer(&mut self, queue: usize, head: u16) {
        let available = self.available[queue];
        let at = AVAILABLE + 4 + 2 * usize::from(available % ENTRIES);
        self.arena.write(queue, at, &head.to_le_bytes());
        self.available[queue] = available.wrapping_add(1);
        let index = self.available[queue].to_le_bytes();
        self.arena.write(queue, AVAILABLE + 2, &index);
    }

    /// A number that is right at times.
    fn near(&mut self, right: u64) -> u64 {
        let random = &mut self.random;
        match random.u8(..8) {
            0..=4 => right,
            5 => right ^ 1 << random.u32(..64),
            6 => random.u64(..1024),
            _ => random.u64(..),
        }
    }

    /// A request of a kernel: right at times, a lie at others.
    fn request(&mut self) {
        let opcode = self.random.choice(Opcode::ALL).unwrap_or(Opcode::Query);
        let vni = self.random.u16(..VNIS);
        let mut body = [0u64; REQUEST_BYTES / 8 - 1];
        match opcode {
            Opcode::Hello => {
                body[0] = self.near(ABI_VERSION.into());
                body[1] = self.near(1 << 12);
            }
            Opcode::NewProcess => {
                body[0] = self.near(u64::from(vni) + 100);
                for page in &mut body[1..] {
                    *page = self.arena.address(DATA + self.random.usize(..16));
                }
            }
            _ => {
                for word in &mut body {
                    *word = self.random.u64(..);
                }
                if self.random.bool() {
                    body[0] = u64::from(self.random.u16(..4));
                    body[1] = u64::from(self.random.u16(..4)) << 12;
                }
            }
        }
        self.send(opcode, vni, &body);
    }

    fn send(&mut self, opcode: Opcode, vni: u16, body: &[u64]) {
        let header = RequestHeader {
            opcode: (self.near((opcode as u32).into()) as u32).into(),
            vni: vni.into(),
            reserved: 0.into(),
        };
        let slot = self.random.usize(..8);
        let mut request = header.as_bytes().to_vec();
        request.extend_from_slice(body.as_bytes());
        request.resize(REQUEST_BYTES, 0);
        self.arena.write(MESSAGES, slot * REQUEST_BYTES, &request);
        let messages = self.arena.address(MESSAGES);
        let response = messages + 0x800 + (slot * REPLY_BYTES) as u64 % 0x700;
        let request = messages + (slot * REQUEST_BYTES) as u64;
        let head = 2 * slot as u16;
        self.describe(
            CONTROL_QUEUE,
            head,
            (request, REQUEST_BYTES as u32, 1, head + 1),
        );
        self.describe(
            CONTROL_QUEUE,
            head + 1,
            (response, REPLY_BYTES as u32, 2, 0),
        );
        self.offer(CONTROL_QUEUE, head);
        self.device.ring(CONTROL_QUEUE as u16);
        self.done.requests += 1;
    }

    /// Takes page faults, and says that pages are there which are not.
    fn answer_faults(&mut self) {
        let [low, high] = self.arena.read(EVENT_QUEUE, USED + 2);
        let used = u16::from_le_bytes([low, high]);
        for _ in 0..ENTRIES.min(used.wrapping_sub(self.events_seen)) {
            let at = USED + 4 + 8 * usize::from(self.events_seen % ENTRIES);
            self.events_seen = self.events_seen.wrapping_add(1);
            let head = self.arena.read::<2>(EVENT_QUEUE, at);
            let buffer = usize::from(u16::from_le_bytes(head) % ENTRIES);
            let bytes = self.arena.read::<EVENT_BYTES>(EVENTS, buffer * EVENT_BYTES);
            let words = Event::read_from_bytes(&bytes)
                .map(|event| [event.address.get(), u64::from(event.pages.get())]);
            if let Ok([address, pages]) = words {
                let body = [self.near(address), self.near(pages)];
                let vni = self.random.u16(..VNIS);
                self.send(Opcode::FaultDone, vni, &body);
                self.done.faults_answered += 1;
            }
            self.offer(EVENT_QUEUE, buffer as u16);
        }
    }

    fn storm(&mut self) {
        for _ in 0..self.random.u32(1..200) {
            let queue = self.random.u16(..2 * self.device.queues().max(1));
            self.device.ring(queue);
            self.done.doorbells += 1;
        }
    }

    /// Writes chance over a part of the SRAM, a copy of another part, or all of it.
    fn spoil_sram(&mut self) {
        let size = self.device.sram.len();
        let whole = self.random.u8(..) == 0;
        let length = if whole {
            size
        } else {
            self.random.usize(8..8192) & !7
        };
        let start = if whole {
            0
        } else {
            self.random.usize(..size - length) & !7
        };
        let from = self.random.usize(..size - 8192) & !7;
        let kind = self.random.u8(..3);
        for offset in (0..length).step_by(8) {
            let word = match kind {
                0 => self.random.u64(..),
                1 => self
                    .device
                    .sram
                    .load_u64(from + offset % 8192, Ordering::Relaxed),
                _ => self.random.u64(..) & self.random.u64(..256),
            };
            self.device
                .sram
                .store_u64(start + offset, word, Ordering::Relaxed);
        }
        self.done.sram_bytes += length as u64;
    }

    /// Writes into the rings: descriptors, indices.
    fn spoil_rings(&mut self) {
        let queue = self.random.usize(..2);
        for _ in 0..self.random.u32(1..8) {
            let address = self.nowhere();
            let (length, flags, next) = (
                self.random.u32(..),
                self.random.u16(..8),
                self.random.u16(..20),
            );
            let index = self.random.u16(..ENTRIES);
            let length = if self.random.bool() {
                length
            } else {
                length % 256
            };
            self.describe(queue, index, (address, length, flags, next));
        }
        for _ in 0..self.random.u32(..4) {
            let head = self.random.u16(..20);
            self.offer(queue, head);
        }
        if self.random.u8(..) < 16 {
            self.available[queue] = self.random.u16(..);
            let index = self.available[queue].to_le_bytes();
            self.arena.write(queue, AVAILABLE + 2, &index);
        }
        self.device.ring(queue as u16);
    }

    /// Reads the configuration space at every offset and width; writes what is no header. Puts all
    /// back as it was.
    fn read_config(&mut self) {
        let mut before = [0; CONFIG_BYTES];
        self.pci.read_config(0, &mut before);
        for width in [1, 2, 4] {
            for offset in 0..CONFIG_BYTES - width {
                let mut bytes = [0; 4];
                self.pci.read_config(offset, &mut bytes[..width]);
                self.done.config_accesses += 1;
            }
        }
        for _ in 0..8 {
            let offset = self.random.usize(HEADER_BYTES..CONFIG_BYTES - 4);
            let bytes = self.random.u32(..).to_le_bytes();
            self.pci
                .write_config(offset, &bytes[..1 << self.random.u32(..3)]);
        }
        self.pci.write_config(HEADER_BYTES, &before[HEADER_BYTES..]);
        for offset in 0..CONFIG_SIZE {
            let value = self.random.u8(..);
            self.device.touch_config(offset, value);
        }
    }

    /// Something like a command in a window.
    fn command(&mut self) {
        let size = self.device.sram.len();
        let page = self.random.usize(..size / PAGE_SIZE) * PAGE_SIZE;
        for slot in 0..8 {
            let at = page + 192 * slot + 1024;
            if at + 192 > size {
                break;
            }
            for word in (0..192).step_by(8).rev() {
                let value = self.random.u64(..) & self.random.u64(..);
                let value = if word == 0 {
                    value & !0xffff | 0x0201
                } else {
                    value
                };
                self.device
                    .sram
                    .store_u64(at + word, value, Ordering::Release);
            }
        }
        self.storm();
    }

    fn move_rings(&mut self) {
        let queue = self.random.u16(..self.device.queues().max(1));
        let rings = std::array::from_fn(|_| self.nowhere());
        let size = self.random.u16(..2048);
        self.device.move_rings(queue, rings, size);
        self.device.ring(queue);
    }
}
