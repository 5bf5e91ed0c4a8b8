//! Models of what runs between a process and its NIC without locks: every
//! interleaving of this library's code and the NIC's own, on loom's atomics.
//!
//! The words that both sides touch are loom's; the rest of SRAM and host area is
//! the NIC's alone and plain. A lost command or a lost wake-up is a deadlock,
//! which loom reports.

mod completions;
mod contexts;
mod lanes;
mod notifications;
mod quiet;
mod wakes;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use loom::sync::atomic::{fence, AtomicU64};
use loom::sync::Notify;
use qnic_abi::command::{CommandBody, CommandFlags};
use qnic_abi::control::{self, RequestHeader, REQUEST_BYTES};
use qnic_abi::header::Geometry;
use qnic_abi::host_area::{
    ERRORS, ERROR_RING, HEAD, HOST_PAGES, QUEUE_STATUS, READS_DONE, WRITES_DONE,
};
use qnic_abi::rdma::WriteCommand;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, AWAKE, WAKE_REQUEST};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, SharedMemory, Status, VniId, PAGE_SIZE};
use qnic_nic::env::{Change, ModifyError, Width};
use qnic_nic::{
    Channel, Host, HostMemory, Limits, Nic, NicConfig, OutOfRange, Path, Payload, Progress, Sent,
    Time, Wire,
};
use zerocopy::IntoBytes;

use crate::core::completion;
use crate::core::queue::{Command, Doorbell, WakeRequests};
use crate::error::Operation;

/// Memory of which some words are loom's.
#[derive(Clone)]
struct Words {
    base: usize,
    size: usize,
    shared: Rc<BTreeMap<usize, AtomicU64>>,
    private: Rc<RefCell<BTreeMap<usize, u64>>>,
}

impl Words {
    fn new(size: usize, shared: impl IntoIterator<Item = usize>) -> Self {
        let word = |offset| (offset, AtomicU64::new(0));
        Words {
            base: 0,
            size,
            shared: Rc::new(shared.into_iter().map(word).collect()),
            private: Rc::default(),
        }
    }

    fn part(&self, base: usize, size: usize) -> Self {
        Words {
            base: self.base + base,
            size,
            ..self.clone()
        }
    }
}

impl SharedMemory for Words {
    fn size(&self) -> usize {
        self.size
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.load_u64(offset, order) as u32
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.store_u64(offset, value.into(), order);
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        let offset = self.base + offset;
        match self.shared.get(&offset) {
            Some(word) => word.load(order),
            None => self.private.borrow().get(&offset).copied().unwrap_or(0),
        }
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        let offset = self.base + offset;
        match self.shared.get(&offset) {
            Some(word) => word.store(value, order),
            None => drop(self.private.borrow_mut().insert(offset, value)),
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// It is zero from the start, and started once.
    fn clear(&self) {}
}

/// A node whose memory is host areas and nothing else.
struct Node {
    sram: Words,
    memory: Memory,
}

struct Memory(Words);

impl HostMemory for Memory {
    fn contains(&self, _address: u64, _length: u64) -> bool {
        true
    }

    fn read(&self, _address: u64, _bytes: &mut [u8]) -> Result<(), OutOfRange> {
        Err(OutOfRange)
    }

    fn write(&self, _address: u64, _bytes: &[u8]) -> Result<(), OutOfRange> {
        Err(OutOfRange)
    }

    fn load_u64(&self, address: u64) -> Result<u64, OutOfRange> {
        Ok(self.0.load_u64(address as usize, Ordering::Acquire))
    }

    fn store_u64(&self, address: u64, value: u64) -> Result<(), OutOfRange> {
        self.0.store_u64(address as usize, value, Ordering::Release);
        Ok(())
    }

    fn modify(&self, _: u64, _: Width, _: Change) -> Result<u64, ModifyError> {
        Err(ModifyError::OutOfRange)
    }

    fn copy_from(&self, _: u64, _: &Self, _: u64, _: usize) -> Result<(), OutOfRange> {
        Err(OutOfRange)
    }
}

impl Host for Node {
    type Sram = Words;
    type Memory = Memory;

    fn sram(&self) -> &Words {
        &self.sram
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// No way to anywhere: every command fails as soon as it is read.
struct NoWire;

impl Wire<Memory> for NoWire {
    fn path(&self, _node: NodeId) -> Option<Path> {
        None
    }

    fn send(&mut self, _: &Frame, _: Payload<'_, Memory>, _: Channel) -> Sent {
        Sent::NoRoute
    }
}

/// A NIC with one process, and what the process sees of it.
struct Model {
    nic: Nic,
    node: Node,
    window: Words,
    host_area: Words,
    now: Time,
}

const NOW: Time = Time(1);

impl Model {
    /// The NIC polls the process's queue already: it is about to fall asleep.
    fn new() -> Box<Self> {
        let first = command_offset(0);
        let slot = (first..first + 64).step_by(8);
        let others = [AWAKE, WAKE_REQUEST, command_offset(1)];
        let counters = [HEAD, WRITES_DONE, READS_DONE, ERRORS, QUEUE_STATUS];
        let record = [ERROR_RING, ERROR_RING + 8];
        let area = counters.into_iter().chain(record);
        let mut model = Self::with_words(slot.chain(others), area);
        model.nic.handle_doorbell(0);
        model.poll();
        assert_eq!(model.window.load_u64(AWAKE, Ordering::Relaxed), 1);
        model
    }

    /// The process's queue is idle already.
    fn idle() -> Box<Self> {
        let mut model = Self::new();
        model.now = NOW.after(model.nic.limits().idle_timeout);
        model.poll();
        assert!(model.nic.has_idle_queues());
        model
    }

    /// A NIC with one process, on the heap: stacks of loom's threads are small. These words of its window and host area are loom's.
    fn with_words(
        window_words: impl IntoIterator<Item = usize>,
        area_words: impl IntoIterator<Item = usize>,
    ) -> Box<Self> {
        let config = NicConfig {
            node: NodeId(0),
            frames: 4,
            windows: 1,
            doorbells: 1,
            limits: Limits::default(),
            routes: std::collections::BTreeMap::new(),
            nodes: Vec::new(),
        };
        let geometry = Geometry::new(config.node, 4, 1, 1).unwrap();
        let window = geometry.window_offset(VniId(0));
        let window_words = window_words.into_iter().map(|offset| window + offset);
        let sram = Words::new(geometry.sram_bytes as usize, window_words);
        let area = Words::new(HOST_PAGES * PAGE_SIZE, area_words);
        let mut model = Box::new(Model {
            nic: Nic::new(config).unwrap(),
            window: sram.part(window, qnic_abi::window::WINDOW_BYTES),
            host_area: area.part(0, HOST_PAGES * PAGE_SIZE),
            node: Node {
                sram,
                memory: Memory(area),
            },
            now: NOW,
        });
        model.nic.start(NOW, &model.node, 1);
        model.register();
        model
    }

    fn register(&mut self) {
        let body = control::NewProcess {
            port: 1.into(),
            flags: 0.into(),
            pid: 1.into(),
            host_area: std::array::from_fn(|page| ((page * PAGE_SIZE) as u64).into()),
        };
        self.control(control::Opcode::NewProcess, body.as_bytes());
    }

    /// Makes a request of the driver, which must be granted.
    fn control(&mut self, opcode: control::Opcode, body: &[u8]) {
        let header = RequestHeader {
            opcode: (opcode as u32).into(),
            vni: 0.into(),
            reserved: 0.into(),
        };
        let mut request = [0; REQUEST_BYTES];
        request[..8].copy_from_slice(header.as_bytes());
        request[8..][..body.len()].copy_from_slice(body);
        let reply = self
            .nic
            .handle_control(NOW, &self.node, &mut NoWire, &request, 0);
        assert_eq!(reply.map(|reply| reply[0]), Some(0));
    }

    fn poll(&mut self) {
        while self.nic.poll(self.now, &self.node, &mut NoWire) == Progress::Busy {}
    }

    /// Runs the NIC until it has read `commands` and fallen asleep.
    fn run(mut self: Box<Self>, commands: u64, doorbell: &Notify, wake: &Notify) {
        loop {
            self.poll();
            while self.nic.poll_event().is_some() {
                wake.notify();
            }
            if !self.nic.prepare_sleep(&self.node) {
                continue;
            }
            if self.nic.counters().commands == commands {
                return;
            }
            doorbell.wait();
            self.nic.handle_doorbell(0);
        }
    }
}

/// A command that is malformed if the NIC reads its first word without the others: the
/// first names an inline payload, and another its length.
fn write() -> Command {
    write_with(0)
}

/// The same with a handle: unless that is zero, it has an entry in the completion queue.
fn write_with(handle: u64) -> Command {
    let payload = [0; 8];
    let mut command = WriteCommand::command();
    command.handle = handle.into();
    command.header.flags = CommandFlags::PUBLISH.bits();
    command.header.inline_length = payload.len() as u8;
    command.header.remote_node = 9.into();
    command.length = (payload.len() as u64).into();
    Command::new(&command.descriptor(), &payload)
}

/// The errors that a process finds: command and status.
fn errors(area: &Words) -> Vec<(u64, Status)> {
    let mut errors = Vec::new();
    completion::drain_errors(area, 0, |number, _, status| errors.push((number, status)));
    errors
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// The error of every command of these models.
const FAILED: Status = Status::NoSuchNode;

/// Issues commands one by one.
fn one_by_one(commands: u64) -> impl Fn(&Words, &Words, &Notify) {
    move |window, area, bell| {
        let mut known = Doorbell::default();
        for number in 0..commands {
            if write().publish(window, area, number, &mut known) {
                bell.notify();
            }
        }
    }
}

/// Commands against a NIC that falls asleep. For the first, either the NIC's last look sees
/// it, or the process sees that the doorbell must be rung. For a second one the process
/// leaves the doorbell out only if the NIC will find it on its way to the first.
fn no_command_is_lost(commands: u64) {
    no_command_is_lost_with(Model::new, commands, one_by_one(commands));
}

/// The same with commands as `issue` issues them.
fn no_command_is_lost_with(
    model: fn() -> Box<Model>,
    commands: u64,
    issue: impl Fn(&Words, &Words, &Notify) + Sync + Send + 'static,
) {
    check(move || {
        let model = model();
        let (window, area) = (model.window.clone(), model.host_area.clone());
        let (doorbell, wake) = (Rc::new(Notify::new()), Notify::new());
        let bell = doorbell.clone();
        let nic = loom::thread::spawn(move || model.run(commands, &doorbell, &wake));
        issue(&window, &area, &bell);
        nic.join().unwrap();
        assert_eq!(window.load_u64(command_offset(0), Ordering::Relaxed), 0);
        let all: Vec<_> = (0..commands).map(|number| (number, FAILED)).collect();
        assert_eq!(errors(&area), all, "they were read whole");
    });
}

#[test]
fn no_single_command_is_lost() {
    no_command_is_lost(1);
}

#[test]
fn no_command_behind_a_doorbell_is_lost() {
    no_command_is_lost(2);
}

/// Commands of a batch: one look at the doorbell is for both.
#[test]
fn no_command_of_a_batch_is_lost() {
    no_command_is_lost_with(Model::new, 2, |window, area, bell| {
        for number in 0..2 {
            write().store(window, number);
        }
        if Doorbell::default().must_ring(window, area, 1) {
            bell.notify();
        }
    });
}

/// The NIC looks at the queue only when it finds nothing else to do.
#[test]
fn no_command_of_an_idle_queue_is_lost() {
    no_command_is_lost_with(Model::idle, 1, one_by_one(1));
}

/// The same, and the queue falls asleep though the NIC does not.
#[test]
fn no_command_of_a_queue_that_falls_asleep_alone_is_lost() {
    let tired = || {
        let mut model = Model::idle();
        model.now = NOW.after(model.nic.limits().sleep_timeout);
        model
    };
    no_command_is_lost_with(tired, 2, one_by_one(2));
}

/// A NIC that is about to execute one command.
fn with_command() -> Box<Model> {
    let mut model = Model::new();
    let (window, area) = (&model.window, &model.host_area);
    assert!(!write().publish(window, area, 0, &mut Doorbell::default()));
    model.nic.handle_doorbell(0);
    model
}

/// A process that goes to sleep against a NIC that completes its command: either
/// its last look sees the completion, or the NIC sees the wake request. With the
/// completion comes the error record.
#[test]
fn no_wake_up_is_lost() {
    check(|| {
        let model = with_command();
        let (window, area) = (model.window.clone(), model.host_area.clone());
        let (doorbell, wake) = (Notify::new(), Rc::new(Notify::new()));
        let woken = wake.clone();
        let nic = loom::thread::spawn(move || model.run(1, &doorbell, &wake));
        let requests = WakeRequests::new(&window);
        loop {
            requests.request(&window);
            if completion::done(&area, 0, Operation::Write) == 1 {
                break;
            }
            woken.wait();
        }
        assert_eq!(errors(&area), [(0, FAILED)]);
        nic.join().unwrap();
    });
}

/// A process that looks for errors at any time finds none, or a whole one.
#[test]
fn an_error_that_counts_is_whole() {
    check(|| {
        let model = with_command();
        let area = model.host_area.clone();
        let nic = loom::thread::spawn(move || model.run(1, &Notify::new(), &Notify::new()));
        let found = errors(&area);
        assert!(found.is_empty() || found == [(0, FAILED)]);
        nic.join().unwrap();
    });
}
