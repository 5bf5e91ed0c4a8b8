//! What the hostile guest does, round by round: a start, steps, a reset in the middle of all.
//!
//! In the first half of its steps it knows what it does, lies at times, and so gets far; in the
//! second half it spoils everything. A start is right mostly; at times rings are not aligned, and
//! rarely they are nowhere, so that QEMU starts nothing at all. Before the first round chance has no part
//! ([`in_order`]).

mod flood;
mod in_order;
mod verbs;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;
use qnic_abi::attach::{CONFIG_SIZE, CONTROL_QUEUE, EVENT_QUEUE, FIRST_DOORBELL};
use qnic_abi::client::{enter_page, export, registration, CommandQueue};
use qnic_abi::context::CONTEXTS;
use qnic_abi::control::{FaultDone, Hello, Opcode, RequestHeader, REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::event::{Event, Kind, EVENT_BYTES};
use qnic_abi::header::Geometry;
use qnic_abi::host_area::{
    completion_offset, receive_doorbell_offset, send_doorbell_offset, CompletionEntry,
    CompletionKind, COMPLETION_ENTRIES, HOST_PAGES,
};
use qnic_abi::page_table::Tag;
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, Status, VniId, ABI_VERSION, PAGE_SIZE};
use zerocopy::{FromBytes, IntoBytes};

use self::verbs::RING_PAGES;
use super::arena::{Arena, PAGES};
use super::commands::{port, Commands, KEY, SEGMENT, VNIS};
use super::device::{Device, Rings, ENTRIES};
use super::pci::{Pci, CONFIG_BYTES, HEADER_BYTES};
use super::Done;

/// Pages of the arena: the rings of a queue take one each, requests and responses, event
/// buffers, the host area, and data.
const QUEUE_PAGES: usize = 32;
const MESSAGES: usize = 40;
const EVENTS: usize = 41;
const HOST_AREA: usize = 42;
const DATA: usize = HOST_AREA + HOST_PAGES;
/// Rings of verbs are the last ones.
const RINGS: usize = PAGES - RING_PAGES;
const _: () = assert!(DATA < RINGS, "pages for data");

/// Requests that stand in their page at a time.
const SLOTS: usize = 8;

/// Offsets of the rings in their page.
const AVAILABLE: usize = 0x400;
const USED: usize = 0x800;

/// The device may write so much behind an address.
const MARGIN: u64 = 1024;

/// Steps between two resets, and rounds between two returns to the driver.
const STEPS: usize = 200;
const REBIND: u64 = 16;

/// Longest wait for QEMU to map the SRAM, which may not come at all, before a reset: QEMU does
/// not survive one in the middle.
const MAPPING: Duration = Duration::from_secs(5);

/// How a start is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Right,
    Misaligned,
    Nowhere,
}

pub(super) struct Attack {
    pci: Pci,
    device: Device,
    arena: Arena,
    random: Rng,
    rounds: u64,
    /// Layout of the SRAM, once it is there.
    geometry: Option<Geometry>,
    /// Commands posted to each VNI.
    posted: [u64; VNIS as usize],
    /// Requests made since the start.
    requests: usize,
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
            geometry: None,
            posted: [0; VNIS as usize],
            requests: 0,
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
        let kind = match self.random.u8(..48) {
            0 => Start::Nowhere,
            1..=6 => Start::Misaligned,
            _ => Start::Right,
        };
        self.start(kind);
        let limit = Instant::now() + MAPPING;
        let mut steps = 0;
        while steps < STEPS || (self.geometry.is_none() && Instant::now() < limit) {
            self.look_for_sram()?;
            if steps < STEPS / 2 {
                self.clever_step();
            } else {
                self.wild_step();
            }
            steps += 1;
        }
        self.count_ends();
        if self.random.u8(..4) == 0 {
            self.pci.switch_off();
            self.done.switched_off += 1;
        }
        self.device.reset();
        self.pci.switch_on();
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

    fn clever_step(&mut self) {
        match self.random.u8(..) {
            0..=19 => self.join(),
            20..=29 => self.make_pair(),
            30..=49 => self.post_work(),
            50..=99 => self.post(),
            100..=199 => self.answer_faults(),
            200..=229 => self.request(),
            230..=249 => self.storm(),
            _ => self.move_sram(),
        }
    }

    fn wild_step(&mut self) {
        match self.random.u8(..) {
            0..=59 => self.request(),
            60..=99 => self.answer_faults(),
            100..=129 => self.storm(),
            130..=189 => self.spoil_sram(),
            190..=214 => self.spoil_rings(),
            215..=219 => self.read_config(),
            220..=239 => self.post(),
            240..=249 => self.post_work(),
            _ => self.move_rings(),
        }
    }

    fn look_for_sram(&mut self) -> Result<()> {
        if self.geometry.is_none() && self.device.is_mapped() {
            let geometry = self.device.geometry().context("the header of the SRAM")?;
            self.geometry = Some(geometry);
            self.done.mapped += 1;
            self.device.ring(CONTROL_QUEUE as u16);
            self.device.ring(EVENT_QUEUE as u16);
        }
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
            0 => {
                self.arena.address(random.usize(..PAGES)) + random.u64(..PAGE_SIZE as u64 - MARGIN)
            }
            1 => u64::MAX - random.u64(..PAGE_SIZE as u64),
            2 => 1 << random.u32(40..63),
            // The hole below 4 GiB.
            3 => 0xf000_0000 + random.u64(..0x100_0000),
            _ => self.arena.address(random.usize(..PAGES)),
        }
    }

    fn start(&mut self, kind: Start) {
        for page in (0..DATA).chain(RINGS..PAGES) {
            self.arena.write(page, 0, &[0; PAGE_SIZE]);
        }
        (self.available, self.events_seen) = ([0; 2], 0);
        (self.geometry, self.posted, self.requests) = (None, [0; VNIS as usize], 0);
        for buffer in 0..ENTRIES {
            let address = self.arena.address(EVENTS) + u64::from(buffer) * EVENT_BYTES as u64;
            self.describe(EVENT_QUEUE, buffer, (address, EVENT_BYTES as u32, 2, 0));
            self.offer(EVENT_QUEUE, buffer);
        }
        let mut rings: Vec<Rings> = (0..self.device.queues())
            .map(|queue| self.rings(queue))
            .collect();
        for ring in rings.iter_mut().flatten() {
            match kind {
                Start::Misaligned if self.random.bool() => *ring += self.random.u64(..16),
                Start::Nowhere if self.random.u8(..8) == 0 => *ring = self.nowhere(),
                _ => {}
            }
        }
        self.done.starts += 1;
        self.device.start(|queue| rings[usize::from(queue)]);
    }

    /// Does what a kernel does for a new process that exports memory.
    fn join(&mut self) {
        let vni = self.random.u16(..VNIS);
        for (opcode, body) in self.joins(vni) {
            self.send(opcode, vni, &body);
        }
    }

    /// The requests for such a process.
    fn joins(&self, vni: u16) -> [(Opcode, Vec<u8>); 3] {
        let hello = Hello {
            abi_version: ABI_VERSION.into(),
            reserved: 0.into(),
            frames: self.geometry.map_or(0, |geometry| geometry.frames).into(),
        };
        let process = registration(port(vni), |page| self.arena.address(HOST_AREA + page));
        let export = export(77, SEGMENT, KEY);
        [
            (Opcode::Hello, hello.as_bytes().to_vec()),
            (Opcode::NewProcess, process.as_bytes().to_vec()),
            (Opcode::Export, export.as_bytes().to_vec()),
        ]
    }

    /// Posts commands that are right, or were right but for some bits.
    fn post(&mut self) {
        let Some(geometry) = self.geometry else {
            return;
        };
        let vni = self.random.u16(..VNIS);
        let window = geometry.window_offset(VniId(vni));
        let mut queue = CommandQueue::at(window, self.posted[usize::from(vni)]);
        for _ in 0..self.random.u32(1..8) {
            let mut commands = Commands {
                random: &mut self.random,
                node: geometry.node,
            };
            let (entry, context) = commands.any();
            let mut entry = entry.words().to_vec();
            self.spoil(&mut entry, 16);
            if let Some((at, mut words)) = context {
                self.spoil(&mut words, 4);
                self.device.sram.write_words(window + at, &words);
                self.done.contexts += 1;
            }
            queue.post_words(&self.device.sram, &entry);
            self.done.commands += 1;
        }
        self.posted[usize::from(vni)] = queue.tail();
        self.device.ring(self.doorbell(vni));
    }

    /// The queue that is the doorbell of a process.
    fn doorbell(&self, vni: u16) -> u16 {
        let doorbells = u32::from(self.device.queues()).saturating_sub(FIRST_DOORBELL as u32);
        let doorbell = u32::from(vni) % doorbells.max(1);
        FIRST_DOORBELL as u16 + doorbell as u16
    }

    /// Turns a bit, once in so many times.
    fn spoil(&mut self, words: &mut [u64], once_in: u32) {
        if self.random.u32(..once_in) == 0 {
            let word = self.random.usize(..words.len());
            words[word] ^= 1 << self.random.u32(..64);
        }
    }

    /// Counts the completions and doorbells that say that a message was sent or received well. The processes share the pages where they
    /// stand, so these are some of them.
    fn count_ends(&mut self) {
        let completions = (0..COMPLETION_ENTRIES).map(completion_offset);
        let doorbells = (0..CONTEXTS).map(send_doorbell_offset);
        let doorbells = doorbells.chain((0..CONTEXTS).map(receive_doorbell_offset));
        let completed = completions.filter(|at| self.is_end(*at)).count();
        let done = doorbells.filter(|at| self.is_end(*at)).count();
        self.done.completions += completed as u64;
        self.done.contexts_done += done as u64;
        self.count_completions();
    }

    fn is_end(&self, at: usize) -> bool {
        let page = HOST_AREA + at / PAGE_SIZE;
        let bytes: [u8; size_of::<CompletionEntry>()] = self.arena.read(page, at % PAGE_SIZE);
        let entry: CompletionEntry = zerocopy::transmute!(bytes);
        let messages = [CompletionKind::Send, CompletionKind::Receive].map(|kind| kind as u8);
        messages.contains(&entry.kind) && entry.status.get() == Status::Ok.code()
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

    /// A request of a kernel that lies.
    fn request(&mut self) {
        let opcode = self.random.choice(Opcode::ALL).unwrap_or(Opcode::Query);
        let vni = self.random.u16(..VNIS);
        let mut body = [0; (REQUEST_BYTES - size_of::<RequestHeader>()) / 8];
        for word in &mut body {
            *word = self.random.u64(..);
        }
        if self.random.bool() {
            body[0] = u64::from(self.random.u16(..4));
            body[1] = u64::from(self.random.u16(..4)) << 12;
        }
        self.send(opcode, vni, body.as_bytes());
    }

    fn send(&mut self, opcode: Opcode, vni: u16, body: &[u8]) {
        let wrong = self.requests % 5 == 4;
        let number = if wrong {
            self.near((opcode as u32).into()) as u32
        } else {
            opcode as u32
        };
        self.send_numbered(number, vni, body);
    }

    /// Sends a request. Returns where in the page of messages the reply will be.
    fn send_numbered(&mut self, opcode: u32, vni: u16, body: &[u8]) -> usize {
        let header = RequestHeader {
            opcode: opcode.into(),
            vni: vni.into(),
            reserved: 0.into(),
        };
        let slot = self.requests % SLOTS;
        self.requests += 1;
        let mut request = header.as_bytes().to_vec();
        request.extend_from_slice(body);
        request.resize(REQUEST_BYTES, 0);
        self.arena.write(MESSAGES, slot * REQUEST_BYTES, &request);
        let messages = self.arena.address(MESSAGES);
        let reply = 0x800 + slot * REPLY_BYTES % 0x700;
        let request = messages + (slot * REQUEST_BYTES) as u64;
        let head = 2 * slot as u16;
        let first = (request, REQUEST_BYTES as u32, 1, head + 1);
        self.describe(CONTROL_QUEUE, head, first);
        self.describe(
            CONTROL_QUEUE,
            head + 1,
            (messages + reply as u64, REPLY_BYTES as u32, 2, 0),
        );
        self.offer(CONTROL_QUEUE, head);
        self.device.ring(CONTROL_QUEUE as u16);
        self.done.requests += 1;
        reply
    }

    /// Takes events. Answers page faults: with a page, with a lie, twice, or not at all.
    fn answer_faults(&mut self) {
        let [low, high] = self.arena.read(EVENT_QUEUE, USED + 2);
        let used = u16::from_le_bytes([low, high]);
        for _ in 0..ENTRIES.min(used.wrapping_sub(self.events_seen)) {
            let at = USED + 4 + 8 * usize::from(self.events_seen % ENTRIES);
            self.events_seen = self.events_seen.wrapping_add(1);
            let head = self.arena.read::<2>(EVENT_QUEUE, at);
            let buffer = usize::from(u16::from_le_bytes(head) % ENTRIES);
            let bytes = self.arena.read::<EVENT_BYTES>(EVENTS, buffer * EVENT_BYTES);
            if let Ok(event) = Event::read_from_bytes(&bytes) {
                if event.kind.get() == Kind::PageFault as u32 {
                    self.answer(&event);
                }
            }
            self.offer(EVENT_QUEUE, buffer as u16);
        }
        self.device.ring(EVENT_QUEUE as u16);
    }

    fn answer(&mut self, fault: &Event) {
        let vni = fault.vni.get();
        if let Some(geometry) = self.geometry.filter(|_| self.random.bool()) {
            let page = DATA + self.random.usize(..RINGS - DATA);
            let frame = (self.arena.address(page) / PAGE_SIZE as u64) as u32;
            let tag = Tag::new(VniId(vni), fault.address.get());
            if u64::from(frame) < geometry.frames {
                enter_page(&self.device.sram, &geometry, (tag, KEY), frame);
            }
        }
        for _ in 0..self.random.u8(..3) {
            let done = FaultDone {
                fault: self.near(fault.fault.get()).into(),
                status: u32::from(self.random.u8(..) / 200).into(),
                reserved: 0.into(),
            };
            self.send(Opcode::FaultDone, vni, done.as_bytes());
            self.done.faults_answered += 1;
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
        if self.geometry.is_none() {
            return;
        }
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
            let behind = self.random.usize(..PAGE_SIZE);
            for offset in [offset, behind] {
                let value = self.random.u32(..);
                self.device.touch_config(offset, value);
                self.done.config_accesses += 6;
            }
        }
    }

    /// Moves the SRAM to another place and back: QEMU sends the memory table each time.
    fn move_sram(&mut self) {
        if self.geometry.is_some() {
            let place = 1 << self.random.u32(33..38);
            self.pci.move_bar(self.device.sram_bar, place);
            self.done.moves += 1;
        }
    }

    fn move_rings(&mut self) {
        let queue = self.random.u16(..self.device.queues().max(1));
        let rings = std::array::from_fn(|_| self.nowhere());
        let size = self.random.u16(..2048);
        self.device.move_rings(queue, rings, size);
        self.device.ring(queue);
    }
}
