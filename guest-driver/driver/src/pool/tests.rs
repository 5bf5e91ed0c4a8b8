use std::collections::BTreeMap;
use std::string::String;
use std::sync::Mutex;
use std::vec::Vec;

use super::shared::{LATER_NS, ROW_NS, SENDING_NS};
use super::*;
use crate::platform::{DeviceMemory, Platform};
use crate::testing::{counted, run, DatagramNic, Fake};
use qnic_abi::counters::CounterSource;
use qnic_abi::pool::{Pool, Queue};
use qnic_abi::shared::Ordering;
use qnic_abi::{NodeId, SharedMemory};
use qnic_shared::pool::{Packet, ProcessSide};

const SHAPE: (usize, u16, u16) = (2048, 8, 4);

/// The process: its side of the queues, on the range that it has mapped.
struct Process {
    pools: Pools<Fake>,
    side: ProcessSide,
    shape: Shape,
    port: u16,
}

struct World {
    fake: Fake,
    driver: Arc<Driver<Fake>>,
    /// `None` until the driver waits for it.
    nic: Arc<Mutex<Option<DatagramNic>>>,
}

fn call(port: u16, (frame_bytes, inputs, outputs): (usize, u16, u16)) -> OpenPools {
    OpenPools {
        port: port.into(),
        frame_bytes: (frame_bytes as u32).into(),
        inputs: inputs.into(),
        outputs: outputs.into(),
        ..OpenPools::default()
    }
}

impl World {
    fn new() -> Self {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let nic: Arc<Mutex<Option<DatagramNic>>> = Arc::default();
        let (platform, other, its_driver) = (fake.clone(), nic.clone(), driver.clone());
        fake.on_yield(move |_| {
            let mut nic = other.lock().unwrap();
            let nic = nic.get_or_insert_with(|| DatagramNic::new(&platform));
            run(&its_driver, nic, |packet| std::vec![packet]);
        });
        World { fake, driver, nic }
    }

    fn open(&mut self) -> Process {
        self.open_with(SHAPE)
    }

    fn open_with(&mut self, shape: (usize, u16, u16)) -> Process {
        let mut call = call(0, shape);
        let (bytes, inputs, outputs) = shape;
        let pools = self.driver.open_pools(&mut call).unwrap().unwrap();
        let shape = Shape::new(bytes, inputs.into(), outputs.into()).unwrap();
        assert_eq!(call.bytes.get(), shape.bytes() as u64);
        Process {
            pools,
            side: ProcessSide::new(shape),
            shape,
            port: call.port.get(),
        }
    }

    /// Runs until all is quiet, and every row has ended.
    fn run(&self) {
        for _ in 0..3 {
            self.with_nic(|nic| run(&self.driver, nic, |packet| std::vec![packet]));
            self.fake.pass(LATER_NS);
        }
    }

    fn with_nic<R>(&self, f: impl FnOnce(&mut DatagramNic) -> R) -> R {
        f(self.nic.lock().unwrap().as_mut().unwrap())
    }

    fn datagram_counters(&self) -> BTreeMap<String, u64> {
        counted(&self.driver, CounterSource::Datagrams)
    }
}

impl Process {
    fn frame(&self, pool: Pool, index: usize) -> crate::testing::FakeMemory {
        let bytes = self.shape.frame_bytes();
        self.pools.shared.range.frame(pool, index, bytes).unwrap()
    }

    /// Sends bytes to a port of this node; returns false if there is no frame.
    fn send(&mut self, to: u16, bytes: &[u8]) -> bool {
        self.send_to(NodeId(7), to, bytes)
    }

    /// The same, to a port of any node.
    fn send_to(&mut self, node: NodeId, to: u16, bytes: &[u8]) -> bool {
        let Some(frame) = self.side.take_output(&self.pools.shared.range) else {
            return false;
        };
        let frame = frame.unwrap();
        self.frame(Pool::Output, frame.index())
            .write_bytes(0, bytes);
        let packet = Packet {
            frame,
            length: bytes.len(),
            node,
            port: to,
        };
        self.side.send(&self.pools.shared.range, packet).unwrap();
        self.kick_if_needed();
        true
    }

    /// The next packet: the port of its sender, and its bytes.
    fn receive(&mut self) -> Option<(u16, Vec<u8>)> {
        let packet = self.side.receive(&self.pools.shared.range)?.unwrap();
        let mut bytes = std::vec![0; packet.length];
        self.frame(Pool::Input, packet.frame.index())
            .read_bytes(0, &mut bytes);
        let range = &self.pools.shared.range;
        self.side.give_back(range, packet.frame).unwrap();
        self.kick_if_needed();
        Some((packet.port, bytes))
    }

    fn kick_if_needed(&mut self) {
        if self.side.must_kick(&self.pools.shared.range) {
            self.pools.kick(&mut PoolKick::default()).unwrap();
        }
    }

    fn want(&self, wanted: u32) -> u32 {
        self.side.want(&self.pools.shared.range, wanted)
    }

    /// Waits so many nanoseconds for events; returns those that are there.
    fn wait(&self, wanted: u32, timeout_ns: i64) -> Result<u32, CallError> {
        let mut call = PoolWait {
            events: wanted.into(),
            timeout_ns: timeout_ns.into(),
            ..PoolWait::default()
        };
        self.pools.wait(&mut call).map(|()| call.events.get())
    }

    fn info(&self) -> PoolInfo {
        let mut call = PoolInfo::default();
        self.pools.info(&mut call).unwrap();
        call
    }
}

#[test]
fn packets_go_from_pool_to_pool_and_no_frame_is_lost() {
    let mut world = World::new();
    let (mut a, mut b) = (world.open(), world.open());
    assert_ne!(a.port, b.port);
    for round in 0..200u32 {
        let bytes: Vec<u8> = (0..2048)
            .map(|index| (index as u32 ^ round) as u8)
            .collect();
        let length = 1 + round as usize * 10 % 2048;
        assert!(a.send(b.port, &bytes[..length]), "round {round}");
        world.run();
        assert_eq!(b.receive(), Some((a.port, bytes[..length].to_vec())));
        assert_eq!(b.receive(), None);
    }
    assert_eq!(a.info().frames_sent.get(), 200);
    assert_eq!(b.info().frames_received.get(), 200);
    assert_eq!(a.info().frames_refused.get() + b.info().starved.get(), 0);
    assert_eq!(world.datagram_counters()["bytes_copied"], 0);
}

/// When the process ends, the NIC has taken no frame yet, and the process has kicked once.
#[test]
fn what_a_process_has_handed_over_is_sent_though_it_ends() {
    let mut world = World::new();
    let (mut a, mut b) = (world.open_with((2048, 8, 8)), world.open());
    let from = a.port;
    for number in 0..8 {
        assert!(a.send(b.port, &[number]));
    }
    assert_eq!(a.info().frames_sent.get(), 0);
    drop(a);
    world.run();
    for number in 0..8 {
        assert_eq!(b.receive(), Some((from, [number].to_vec())));
    }
    assert_eq!(b.receive(), None);
}

/// The NIC takes packets again only after closing has given up: it then sends those that it had.
#[test]
fn closing_waits_for_no_nic_that_stands_still() {
    const FRAMES: u16 = 128;
    let mut world = World::new();
    let mut a = world.open_with((2048, 8, FRAMES));
    let mut b = world.open_with((2048, 2 * FRAMES, 4));
    for _ in 0..FRAMES {
        assert!(a.send(b.port, b"x"));
    }
    let goes_on = world.fake.now_ns() + LINGER_NS * 3 / 2;
    let (other, its_driver) = (world.nic.clone(), world.driver.clone());
    world.fake.on_yield(move |now| {
        if now >= goes_on {
            let mut nic = other.lock().unwrap();
            run(&its_driver, nic.as_mut().unwrap(), |packet| {
                std::vec![packet]
            });
        }
    });
    drop(a);
    world.run();
    let arrived = core::iter::from_fn(|| b.receive()).count();
    assert!((1..FRAMES.into()).contains(&arrived), "{arrived}");
}

/// A packet that is sent once the port is known finds a frame.
#[test]
fn the_nic_has_the_frames_when_the_pools_are_open() {
    let mut world = World::new();
    let _process = world.open();
    assert_eq!(world.with_nic(|nic| nic.posted()), SHAPE.1.into());
}

#[test]
fn the_process_has_no_window() {
    let mut world = World::new();
    let before = world.fake.nic().processes.len();
    let _a = world.open();
    let _b = world.open();
    // The driver is one; the processes are none.
    assert_eq!(world.fake.nic().processes.len(), before + 1);
}

#[test]
fn a_busy_driver_is_not_kicked() {
    let mut world = World::new();
    let (mut a, mut b) = (world.open(), world.open());
    for _ in 0..4 {
        assert!(a.send(b.port, &[1; 100]));
    }
    assert!(!a.send(b.port, &[1; 100]), "all frames are under way");
    assert_eq!(a.info().kicks.get(), 2, "the second one makes it a burst");
    world.run();
    for _ in 0..4 {
        assert!(b.receive().is_some());
    }
    assert!(a.send(b.port, &[2; 100]));
    assert_eq!(a.info().kicks.get(), 3, "it has rested");
}

/// The NIC sends each frame before the process has the next one. The driver comes back after some
/// time, not for each frame (S4).
#[test]
fn a_process_in_a_row_kicks_twice_though_the_nic_is_fast() {
    const FRAMES: u8 = 64;
    let mut world = World::new();
    let mut a = world.open_with((2048, 8, FRAMES.into()));
    let mut b = world.open_with((2048, 2 * u16::from(FRAMES), 4));
    for number in 0..FRAMES {
        assert!(a.send(b.port, &[number]));
        world.with_nic(DatagramNic::read_commands);
        world.fake.pass(LATER_NS / 8);
        if world.fake.take_scheduled() {
            world.driver.serve_datagrams();
        }
    }
    assert_eq!(a.info().kicks.get(), 2);
    world.run();
    for number in 0..FRAMES {
        assert_eq!(b.receive(), Some((a.port, [number].to_vec())));
    }
    // The row has ended.
    world.fake.pass(ROW_NS);
    assert!(a.send(b.port, &[1]));
    assert_eq!(a.info().kicks.get(), 3);
}

/// Frames of a process in a row are sent when it waits, not later.
#[test]
fn a_wait_ends_a_row() {
    let mut world = World::new();
    let (mut a, b) = (world.open_with((2048, 8, 8)), world.open());
    for number in 0..8 {
        assert!(a.send(b.port, &[number]));
    }
    assert_eq!(a.info().kicks.get(), 2);
    let sent = |world: &World| world.datagram_counters()["packets_sent"];
    assert_eq!(sent(&world), 2);
    assert_eq!(a.wait(events::INPUT, 1), Err(CallError::TimedOut));
    assert_eq!(sent(&world), 8);
    // Kicks with waits in between make no row.
    world.run();
    for kicks in 3..10 {
        assert!(a.send(b.port, &[5]));
        assert_eq!(a.info().kicks.get(), kicks);
        assert_eq!(a.wait(events::INPUT, 1), Err(CallError::TimedOut));
        world.with_nic(DatagramNic::read_commands);
        world.driver.serve_datagrams();
    }
}

/// Frames to a node that does not answer delay no frames to other nodes: the driver stops after a while,
/// and is kicked.
#[test]
fn frames_that_hang_hold_up_no_others() {
    let mut world = World::new();
    let (mut a, mut b) = (world.open_with((2048, 8, 16)), world.open());
    let dead = NodeId(9);
    world.with_nic(|nic| nic.dead.push(dead.0));
    for number in 0..4 {
        for _ in 0..3 {
            assert!(a.send_to(dead, 5, &[1; 10]));
        }
        world.fake.pass(SENDING_NS);
        world.run();
        assert!(a.send(b.port, &[number]));
        world.fake.pass(SENDING_NS);
        world.run();
        assert_eq!(b.receive(), Some((a.port, std::vec![number])), "{number}");
    }
    assert_eq!(a.info().frames_sent.get(), 4);
}

#[test]
fn a_receiver_that_reads_nothing_loses_packets_and_goes_on_later() {
    let mut world = World::new();
    let (mut a, mut b) = (world.open(), world.open());
    for _ in 0..5 {
        for _ in 0..4 {
            assert!(a.send(b.port, &[3; 10]));
        }
        world.run();
    }
    assert_eq!(b.info().frames_received.get(), 8);
    assert_eq!(b.info().starved.get(), 1);
    for _ in 0..8 {
        assert!(b.receive().is_some());
    }
    assert_eq!(b.receive(), None);
    world.run();
    assert!(a.send(b.port, &[4; 10]));
    world.run();
    assert_eq!(b.receive(), Some((a.port, std::vec![4; 10])));
}

#[test]
fn frames_that_cannot_be_sent_come_back() {
    let mut world = World::new();
    let mut a = world.open();
    for _ in 0..20 {
        assert!(a.send(0, &[1]), "port 0 is none");
        world.run();
    }
    assert_eq!(a.info().frames_refused.get(), 20);
    world.with_nic(|nic| nic.send_status = Status::NoSuchNode);
    assert!(a.send(5, &[1]));
    world.run();
    assert_eq!(a.info().frames_refused.get(), 21);
}

/// Nonsense in the range harms only its own process.
#[test]
fn nonsense_in_slots_is_counted_and_harms_no_other() {
    let mut world = World::new();
    let (a, mut b) = (world.open(), world.open());
    let queues = [Queue::OutputFull, Queue::InputEmpty];
    let mut kinds = 0u64;
    for seed in 0..2000u64 {
        let word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let queue = a.shape.queue(queues[seed as usize % 2]);
        let slot = queue + (seed as usize / 2 % 4) * 8;
        let range = &a.pools.shared.range;
        range.store_u64(slot, word, Ordering::Relaxed);
        for word in [0, 4, 8, 12, 64, 72, 76, 80, 84] {
            range.store_u32(word, seed as u32, Ordering::Relaxed);
        }
        a.pools.kick(&mut PoolKick::default()).unwrap();
        world.run();
        kinds = a.info().malformed_slots.get();
    }
    assert!(kinds > 100, "{kinds}");
    assert!(b.send(b.port, &[5; 7]));
    world.run();
    assert_eq!(b.receive(), Some((b.port, std::vec![5; 7])));
    drop(a);
    drop(b);
    let left = qnic_abi::host_area::HOST_PAGES;
    assert_eq!(world.fake.pages.count(), left, "all pages are free again");
}

#[test]
fn waits_end_with_an_event_a_timeout_or_the_device() {
    let mut world = World::new();
    let (mut a, b) = (world.open(), world.open());
    assert_eq!(b.wait(events::INPUT, 1_000_000), Err(CallError::TimedOut));
    assert_eq!(b.wait(events::OUTPUT, -1), Ok(events::OUTPUT));
    assert_eq!(b.wait(0, -1), Err(CallError::Invalid));
    assert_eq!(b.wait(4, -1), Err(CallError::Invalid));
    assert!(!b.pools.is_readable());
    assert_eq!(b.want(events::INPUT), 0);
    assert!(a.send(b.port, &[1]));
    world.run();
    assert!(b.pools.is_readable());
    assert_eq!(b.wait(events::INPUT, -1), Ok(events::INPUT));
    assert_eq!(b.info().wakes.get(), 1);
    // The same for a frame that was sent.
    assert_eq!(a.wait(events::INPUT, 1_000_000), Err(CallError::TimedOut));
    assert_ne!(a.want(events::OUTPUT), 0);
    assert!(a.send(b.port, &[2]));
    world.run();
    assert_eq!(a.info().wakes.get(), 1);
    world.driver.begin_removal();
    world.driver.detach();
    assert!(b.pools.is_readable() && a.pools.is_readable());
    assert_eq!(a.wait(events::INPUT, -1), Err(CallError::NoDevice));
    assert_eq!(
        a.pools.kick(&mut PoolKick::default()),
        Err(CallError::NoDevice)
    );
}

/// A process that polls for frames to fill, and has some, waits for no frame to be sent: the NIC
/// raises no event for that.
#[test]
fn poll_asks_for_sent_frames_only_if_the_process_will_sleep() {
    let mut world = World::new();
    let (mut a, b) = (world.open(), world.open());
    let is_woken_for_a_sent_frame = |world: &World, a: &Process| {
        let readable = a.pools.is_readable();
        world.with_nic(|nic| {
            nic.read_commands();
            nic.wire.clear();
            nic.offer_wake(&world.driver);
        });
        (readable, world.fake.take_scheduled())
    };
    world.run();
    assert_ne!(a.want(events::OUTPUT), 0);
    assert!(a.send(b.port, &[1]));
    assert_eq!(is_woken_for_a_sent_frame(&world, &a), (true, false));
    world.run();
    a.side.awake(&a.pools.shared.range);
    while a.send(b.port, &[2]) {}
    assert_eq!(a.want(events::OUTPUT), 0);
    assert_eq!(is_woken_for_a_sent_frame(&world, &a), (false, true));
}

/// A frame of several pages is one packet where the route carries it, else fragments (S1).
#[test]
fn frames_of_several_pages_are_one_packet() {
    let mut world = World::new();
    let shape = (20_000, 12, 3);
    let (mut a, mut b) = (world.open_with(shape), world.open_with(shape));
    let packets = |world: &World| world.datagram_counters()["packets_sent"];
    for (most, fragments) in [(32_768, 1), (4096, 5)] {
        world.with_nic(|nic| nic.max_payload = most);
        for length in [20_000, 16_385, 20_000, 20_000] {
            let bytes: Vec<u8> = (0..length).map(|index| (index / 7) as u8).collect();
            let before = packets(&world);
            assert!(a.send(b.port, &bytes));
            world.run();
            assert_eq!(b.receive(), Some((a.port, bytes)));
            let refused = packets(&world) - before - fragments;
            assert!(refused == 0 || most < 32_768);
        }
    }
    let info = [a.info(), b.info()];
    assert_eq!(info.map(|info| info.frames_received.get()), [0, 8]);
    assert_eq!(info[0].frames_refused.get(), 0);
    // The process has each page of the range mapped at its offset.
    for pool in [Pool::Input, Pool::Output] {
        let frame = a.frame(pool, 2);
        let page = (a.shape.frame(pool, 2) + 3 * qnic_abi::PAGE_SIZE) / qnic_abi::PAGE_SIZE;
        let page = a.pools.page(page).unwrap();
        assert_eq!(page.address(), frame.address() + 3 * 4096);
    }
    assert!(a
        .pools
        .page(a.pools.bytes() / qnic_abi::PAGE_SIZE)
        .is_none());
}

/// A wait without a timeout handles the NIC's completions before any event comes.
#[test]
fn a_wait_without_time_looks_at_the_nic() {
    let mut world = World::new();
    let (mut a, mut b) = (world.open(), world.open());
    let look = |process: &Process| process.wait(events::INPUT, 0);
    for round in 0..100u8 {
        assert_eq!(look(&b), Err(CallError::TimedOut));
        world.fake.pass(ROW_NS);
        assert!(a.send(b.port, &[round]));
        world.with_nic(|nic| {
            while nic.read_commands() {
                while let Some(packet) = nic.wire.pop_front() {
                    nic.deliver(&packet);
                }
            }
        });
        assert_eq!(look(&b), Ok(events::INPUT));
        assert_eq!(b.receive(), Some((a.port, std::vec![round])));
    }
    // A process that does not poll is woken by events again.
    assert_eq!(b.want(events::INPUT), 0);
    assert!(a.send(b.port, &[5]));
    world.run();
    assert!(b.pools.is_readable());
    assert_eq!(b.receive(), Some((a.port, std::vec![5])));
}

/// All pools of a NIC together leave receive buffers to modules of the kernel; what a process had is
/// there for the next one.
#[test]
fn pools_leave_receive_buffers_to_the_kernel() {
    let world = World::new();
    let others = Frames::take(&world.driver, MOST_FRAMES as u16 - SHAPE.1).unwrap();
    for _ in 0..3 {
        let mut fits = call(0, SHAPE);
        let opened = world.driver.open_pools(&mut fits).unwrap();
        assert!(opened.is_some());
        let mut one_more = call(0, (256, 1, 1));
        assert!(world.driver.open_pools(&mut one_more).unwrap().is_none());
        assert_eq!(one_more.status.get(), Status::Exhausted.code());
    }
    drop(others);
}

#[test]
fn pools_have_limits() {
    let world = World::new();
    let status = |call: &mut OpenPools| {
        assert!(world.driver.open_pools(call).unwrap().is_none());
        Status::try_from(call.status.get()).unwrap()
    };
    for shape in [
        (255, 1, 1),
        (32_769, 1, 1),
        (32_768, 257, 1),
        (256, 0, 1),
        (256, 1, 1025),
    ] {
        assert_eq!(status(&mut call(0, shape)), Status::BadLength);
    }
    assert_eq!(status(&mut call(1023, SHAPE)), Status::AccessDenied);
    let mut on_2000 = call(2000, SHAPE);
    let opened = world.driver.open_pools(&mut on_2000).unwrap();
    assert_eq!(status(&mut call(2000, SHAPE)), Status::PortInUse);
    core::mem::forget(opened);
}
