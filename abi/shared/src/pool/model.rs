//! Both sides in every interleaving, on loom's atomics: no frame is read before it is filled or
//! filled while it is read, no kick and no wake-up is lost (loom reports the deadlock).

use std::boxed::Box;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec::Vec;

use loom::cell::Cell;
use loom::sync::atomic::{fence, AtomicU32, AtomicU64};
use loom::sync::Notify;
use qnic_abi::pool::{events, Pool, Queue, Shape, BUSY, NEED_FRAMES, WANT_WAKE};
use qnic_abi::shared::Ordering;
use qnic_abi::{NodeId, SharedMemory};

use crate::pool::{DriverSide, OutputFrame, Packet, ProcessSide};

/// The range. Control words and slots are loom's atomics; the first byte of each frame is loom's
/// cell, which reports two accesses at once.
#[derive(Clone)]
struct Range {
    words: Rc<BTreeMap<usize, AtomicU32>>,
    slots: Rc<BTreeMap<usize, AtomicU64>>,
    frames: Rc<BTreeMap<usize, Cell<u64>>>,
}

impl Range {
    fn new(shape: Shape) -> Self {
        // Heads and tails are for people: the code never reads them.
        let words = [BUSY, NEED_FRAMES, WANT_WAKE].map(|word| (word, AtomicU32::new(0)));
        let mut slots = BTreeMap::new();
        for queue in Queue::ALL {
            let pool = match queue {
                Queue::OutputFull | Queue::OutputEmpty => Pool::Output,
                Queue::InputFull | Queue::InputEmpty => Pool::Input,
            };
            for slot in 0..shape.frames(pool) {
                slots.insert(shape.queue(queue) + slot * 8, AtomicU64::new(0));
            }
        }
        let frame = |pool, index| (shape.frame(pool, index), Cell::new(0));
        let inputs = (0..shape.frames(Pool::Input)).map(|index| frame(Pool::Input, index));
        let outputs = (0..shape.frames(Pool::Output)).map(|index| frame(Pool::Output, index));
        Range {
            words: Rc::new(words.into_iter().collect()),
            slots: Rc::new(slots),
            frames: Rc::new(inputs.chain(outputs).collect()),
        }
    }
}

impl SharedMemory for Range {
    fn size(&self) -> usize {
        usize::MAX
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.words[&offset].load(order)
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        if let Some(word) = self.words.get(&offset) {
            word.store(value, order);
        }
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        match self.slots.get(&offset) {
            Some(slot) => slot.load(order),
            None => self.frames[&offset].get(),
        }
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        match self.slots.get(&offset) {
            Some(slot) => slot.store(value, order),
            None => self.frames[&offset].set(value),
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Two sides, and the primitives by which they wake each other.
struct Pair {
    shape: Shape,
    range: Range,
    kick: Rc<Notify>,
    wake: Rc<Notify>,
}

impl Pair {
    fn new(inputs: usize, outputs: usize) -> (Self, DriverSide) {
        let shape = Shape::new(256, inputs, outputs).unwrap();
        let range = Range::new(shape);
        let driver = DriverSide::new(shape, &range);
        let pair = Pair {
            shape,
            range,
            kick: Rc::new(Notify::new()),
            wake: Rc::new(Notify::new()),
        };
        (pair, driver)
    }

    fn other(&self) -> Self {
        Pair {
            shape: self.shape,
            range: self.range.clone(),
            kick: self.kick.clone(),
            wake: self.wake.clone(),
        }
    }

    fn content(&self, pool: Pool, index: usize) -> u64 {
        let offset = self.shape.frame(pool, index);
        self.range.load_u64(offset, Ordering::Relaxed)
    }

    fn fill(&self, pool: Pool, index: usize, value: u64) {
        let offset = self.shape.frame(pool, index);
        self.range.store_u64(offset, value, Ordering::Relaxed);
    }

    /// The process waits until an event that it wants is there.
    fn block(&self, process: &ProcessSide, wanted: u32) {
        if process.want(&self.range, wanted) == 0 {
            self.wake.wait();
        }
        process.awake(&self.range);
    }

    /// The process sends these numbers, each in a frame of its own.
    fn send(&self, numbers: core::ops::RangeInclusive<u64>) {
        let mut process = ProcessSide::new(self.shape);
        for number in numbers {
            let frame = loop {
                match process.take_output(&self.range) {
                    Some(frame) => break frame.unwrap(),
                    None => self.block(&process, events::OUTPUT),
                }
            };
            self.fill(Pool::Output, frame.index(), number);
            process.send(&self.range, packet(frame)).unwrap();
            if process.must_kick(&self.range) {
                self.kick.notify();
            }
        }
    }

    /// The driver sends so many frames, and gives them back from time to time, the latest first.
    fn drain(&self, driver: &mut DriverSide, count: u64, together: usize) {
        let mut expected = 1;
        let mut taken: Vec<OutputFrame> = Vec::new();
        while expected <= count {
            driver.work(&self.range);
            while let Some(packet) = driver.next_output(&self.range) {
                let frame = packet.unwrap().frame;
                assert_eq!(self.content(Pool::Output, frame.index()), expected);
                expected += 1;
                taken.push(frame);
                if taken.len() == together || expected > count {
                    while let Some(frame) = taken.pop() {
                        driver.output_done(&self.range, frame).unwrap();
                    }
                    if driver.must_wake(&self.range, events::OUTPUT) {
                        self.wake.notify();
                    }
                }
            }
            if expected <= count && driver.rest(&self.range, false) {
                self.kick.wait();
            }
        }
    }
}

fn packet<K>(frame: crate::pool::Frame<K>) -> Packet<K> {
    Packet {
        frame,
        length: 8,
        node: NodeId(1),
        port: 2,
    }
}

/// One frame goes back and forth: the process waits for it, and the driver rests in between.
#[test]
fn a_frame_that_is_sent_again_is_whole_and_no_side_sleeps_for_ever() {
    check(|| {
        let (pair, mut driver) = Pair::new(1, 1);
        let process = pair.other();
        let thread = loom::thread::spawn(move || process.send(1..=2));
        pair.drain(&mut driver, 2, 1);
        thread.join().unwrap();
    });
}

/// Slots are used anew, with frames that come back in another order.
#[test]
fn frames_that_come_back_in_another_order_find_empty_slots() {
    check(|| {
        let (pair, mut driver) = Pair::new(1, 2);
        let process = pair.other();
        let thread = loom::thread::spawn(move || process.send(1..=3));
        pair.drain(&mut driver, 3, 2);
        thread.join().unwrap();
    });
}

/// A driver without input frames rests until one is given back; a process without packets blocks.
#[test]
fn a_packet_is_whole_and_a_starving_driver_is_kicked() {
    check(|| {
        let (pair, mut driver) = Pair::new(1, 1);
        let process = pair.other();
        let mut free: Vec<_> = driver.all_inputs().collect();
        let thread = loom::thread::spawn(move || {
            let mut side = ProcessSide::new(process.shape);
            let mut expected = 1;
            while expected <= 2 {
                let Some(packet) = side.receive(&process.range) else {
                    process.block(&side, events::INPUT);
                    continue;
                };
                let frame = packet.unwrap().frame;
                assert_eq!(process.content(Pool::Input, frame.index()), expected);
                expected += 1;
                side.give_back(&process.range, frame).unwrap();
                if side.must_kick(&process.range) {
                    process.kick.notify();
                }
            }
        });
        for number in 1..=2 {
            driver.work(&pair.range);
            let frame = loop {
                if let Some(frame) = free.pop() {
                    break frame;
                }
                match driver.next_input(&pair.range) {
                    Some(frame) => break frame.unwrap(),
                    None if driver.rest(&pair.range, true) => pair.kick.wait(),
                    None => {}
                }
            };
            pair.fill(Pool::Input, frame.index(), number);
            driver.deliver(&pair.range, packet(frame)).unwrap();
            if driver.must_wake(&pair.range, events::INPUT) {
                pair.wake.notify();
            }
        }
        thread.join().unwrap();
    });
}

/// The condition of a wait in the driver agrees with the process's view: when the process has
/// taken all packets no event is reported, and a new packet is seen.
#[test]
fn the_driver_sees_what_the_process_has_left() {
    check(|| {
        let (pair, mut driver) = Pair::new(1, 1);
        let other = pair.other();
        let thread: loom::thread::JoinHandle<Box<ProcessSide>> = loom::thread::spawn(move || {
            let mut process = Box::new(ProcessSide::new(other.shape));
            let frame = process.take_output(&other.range).unwrap().unwrap();
            process.send(&other.range, packet(frame)).unwrap();
            process
        });
        if let Some(taken) = driver.next_output(&pair.range) {
            assert_eq!(driver.ready(&pair.range), 0, "the process has the frame");
            driver
                .output_done(&pair.range, taken.unwrap().frame)
                .unwrap();
            assert_eq!(driver.ready(&pair.range), events::OUTPUT);
        }
        thread.join().unwrap();
    });
}
