//! Two sides against an oracle, and a driver against a process that writes nonsense.

use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use qnic_abi::pool::{events, Pool, Queue, Shape, Slot, BUSY, NEED_FRAMES, WANT_WAKE};
use qnic_abi::shared::Ordering;
use qnic_abi::{NodeId, SharedMemory};

use crate::pool::{DriverSide, Frame, Input, Malformed, Output, Packet, ProcessSide};

/// The control part of a range.
struct Range(RefCell<Vec<u8>>);

impl Range {
    fn new(shape: Shape) -> Self {
        Range(RefCell::new(vec![0; shape.first_frame()]))
    }

    fn slot(&self, offset: usize) -> u64 {
        self.load_u64(offset, Ordering::Relaxed)
    }
}

impl SharedMemory for Range {
    fn size(&self) -> usize {
        self.0.borrow().len()
    }
    fn load_u32(&self, offset: usize, _: Ordering) -> u32 {
        let bytes = self.0.borrow()[offset..offset + 4].try_into();
        u32::from_le_bytes(bytes.unwrap())
    }
    fn store_u32(&self, offset: usize, value: u32, _: Ordering) {
        self.0.borrow_mut()[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn load_u64(&self, offset: usize, _: Ordering) -> u64 {
        let bytes = self.0.borrow()[offset..offset + 8].try_into();
        u64::from_le_bytes(bytes.unwrap())
    }
    fn store_u64(&self, offset: usize, value: u64, _: Ordering) {
        self.0.borrow_mut()[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    fn fence(&self) {}
}

fn shape() -> Shape {
    Shape::new(512, 3, 5).unwrap()
}

/// A range, and both sides of it.
fn sides() -> (Range, DriverSide, ProcessSide) {
    let range = Range::new(shape());
    let driver = DriverSide::new(shape(), &range);
    (range, driver, ProcessSide::new(shape()))
}

fn packet<K>(frame: Frame<K>, number: u16) -> Packet<K> {
    Packet {
        frame,
        length: usize::from(number % 513),
        node: NodeId(number),
        port: number.wrapping_mul(3),
    }
}

#[test]
fn a_frame_goes_round() {
    let (range, mut driver, mut process) = sides();
    assert_eq!(driver.ready(&range), events::OUTPUT);
    let frame = process.take_output(&range).unwrap().unwrap();
    process.send(&range, packet(frame, 7)).unwrap();
    assert!(process.must_kick(&range), "the driver rests");
    assert!(!process.must_kick(&range), "once");
    driver.work(&range);
    let sent = driver.next_output(&range).unwrap().unwrap();
    assert_eq!((sent.length, sent.node, sent.port), (7, NodeId(7), 21));
    assert!(driver.next_output(&range).is_none());
    driver.output_done(&range, sent.frame).unwrap();

    let frame = process.take_output(&range).unwrap().unwrap();
    process.send(&range, packet(frame, 8)).unwrap();
    assert!(!process.must_kick(&range), "the driver is busy");
    assert!(!driver.rest(&range, false), "and looks again");
    assert_eq!(range.load_u32(BUSY, Ordering::Relaxed), 1, "it goes on");
}

#[test]
fn only_a_starving_driver_is_kicked_for_frames_that_come_back() {
    let (range, mut driver, mut process) = sides();
    let inputs: Vec<_> = driver.all_inputs().collect();
    for (number, frame) in (0..).zip(inputs) {
        driver.deliver(&range, packet(frame, number)).unwrap();
    }
    assert_eq!(process.want(&range, events::INPUT), events::INPUT);
    assert!(driver.must_wake(&range, events::INPUT) && !driver.must_wake(&range, events::OUTPUT));
    process.awake(&range);
    assert!(!driver.must_wake(&range, events::INPUT));
    for (need, number) in [(false, 0), (true, 1)] {
        while driver.next_input(&range).is_some() {}
        assert!(driver.rest(&range, need));
        let received = process.receive(&range).unwrap().unwrap();
        assert_eq!(received.node, NodeId(number));
        process.give_back(&range, received.frame).unwrap();
        assert_eq!(process.must_kick(&range), need);
    }
    assert!(driver.rest(&range, false), "it needs none");
    assert!(!driver.rest(&range, true), "it needs those that are there");
    assert_eq!(range.load_u32(NEED_FRAMES, Ordering::Relaxed), 1);
    assert_eq!(range.load_u32(WANT_WAKE, Ordering::Relaxed), 0);
}

#[test]
fn slots_that_point_anywhere_cost_only_the_slot() {
    let (range, mut driver, mut process) = sides();
    let frame = process.take_output(&range).unwrap().unwrap();
    let good = Slot {
        index: frame.index,
        length: 512,
        ..Slot::default()
    };
    let bad = [
        Slot { index: 5, ..good },
        Slot {
            index: u16::MAX - 1,
            ..good
        },
        Slot {
            length: 513,
            ..good
        },
    ];
    let full = shape().queue(Queue::OutputFull);
    range.store_u64(full, bad[0].encode(), Ordering::Relaxed);
    range.store_u64(full + 8, bad[1].encode(), Ordering::Relaxed);
    range.store_u64(full + 16, bad[2].encode(), Ordering::Relaxed);
    range.store_u64(full + 24, 0xffff_0000, Ordering::Relaxed);
    range.store_u64(full + 32, good.encode(), Ordering::Relaxed);
    for _ in 0..4 {
        assert_eq!(driver.next_output(&range), Some(Err(Malformed)));
    }
    let sent = driver.next_output(&range).unwrap().unwrap();
    assert_eq!(sent.frame.index(), frame.index());
    range.store_u64(full, good.encode(), Ordering::Relaxed);
    let again = driver.next_output(&range);
    assert_eq!(again, Some(Err(Malformed)), "the driver has it");
    assert!(driver.next_output(&range).is_none());
    assert!((0..5).all(|slot| range.slot(full + slot * 8) == 0));
}

#[test]
fn a_process_that_takes_nothing_gets_nothing() {
    let (range, mut driver, _) = sides();
    range.store_u64(shape().queue(Queue::InputFull), 1, Ordering::Relaxed);
    let frame = driver.all_inputs().next().unwrap();
    let refused = driver.deliver(&range, packet(frame, 1)).unwrap_err();
    assert_eq!(refused.0.frame.index(), 0, "it is still the driver's");
}

#[derive(Debug, Clone)]
enum Step {
    Send,
    Serve(usize),
    Deliver,
    Receive,
    GiveBack(usize),
    TakeBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Send),
        (0usize..5).prop_map(Step::Serve),
        Just(Step::Deliver),
        Just(Step::Receive),
        (0usize..5).prop_map(Step::GiveBack),
        Just(Step::TakeBack),
    ];
    prop::collection::vec(step, 0..200)
}

/// The frames of two honest sides, and those under way between them.
#[derive(Default)]
struct Oracle {
    sent: VecDeque<(u16, u16)>,
    arrived: VecDeque<(u16, u16)>,
    at_nic: Vec<Frame<Output>>,
    posted: Vec<Frame<Input>>,
    reading: Vec<Frame<Input>>,
}

proptest! {
    #[test]
    fn frames_arrive_once_and_in_order(steps in steps()) {
        let range = Range::new(shape());
        let mut driver = DriverSide::new(shape(), &range);
        let mut process = ProcessSide::new(shape());
        let mut oracle = Oracle { posted: driver.all_inputs().collect(), ..Oracle::default() };
        for (number, step) in (0u16..).zip(steps) {
            match step {
                Step::Send => match process.take_output(&range) {
                    Some(frame) => {
                        let frame = frame.unwrap();
                        oracle.sent.push_back((frame.index, number));
                        process.send(&range, packet(frame, number)).unwrap();
                    }
                    None => prop_assert_eq!(oracle.sent.len() + oracle.at_nic.len(), 5),
                },
                Step::Serve(which) => {
                    let next = driver.next_output(&range).map(Result::unwrap);
                    let found = next.as_ref().map(|packet| (packet.frame.index, packet.node.0));
                    prop_assert_eq!(found, oracle.sent.pop_front());
                    oracle.at_nic.extend(next.map(|packet| packet.frame));
                    if which < oracle.at_nic.len() {
                        driver.output_done(&range, oracle.at_nic.remove(which)).unwrap();
                    }
                }
                Step::Deliver => if let Some(frame) = oracle.posted.pop() {
                    oracle.arrived.push_back((frame.index, number));
                    driver.deliver(&range, packet(frame, number)).unwrap();
                },
                Step::Receive => {
                    let next = process.receive(&range).map(Result::unwrap);
                    let found = next.as_ref().map(|packet| (packet.frame.index, packet.node.0));
                    prop_assert_eq!(found, oracle.arrived.pop_front());
                    oracle.reading.extend(next.map(|packet| packet.frame));
                }
                Step::GiveBack(which) => if which < oracle.reading.len() {
                    process.give_back(&range, oracle.reading.remove(which)).unwrap();
                },
                Step::TakeBack => oracle.posted.extend(driver.next_input(&range).map(Result::unwrap)),
            }
            prop_assert_eq!(driver.ready(&range), process.ready(&range));
        }
    }

    /// Whatever the process writes, the driver never has a frame twice, and its loops end.
    #[test]
    fn a_driver_survives_any_process(
        scribbles in prop::collection::vec((0usize..32, any::<u64>(), 0u8..8, any::<bool>()), 0..300),
    ) {
        let range = Range::new(shape());
        let mut driver = DriverSide::new(shape(), &range);
        let mut outputs = BTreeMap::new();
        let mut inputs: BTreeSet<_> = (0..shape().frames(Pool::Input)).collect();
        for (position, word, index, plausible) in scribbles {
            let word = match plausible {
                true => u64::from(index) | (word & 0x1ff) << 16,
                false => word,
            };
            let queues = shape().queue(Queue::OutputFull);
            let offset = if position < 12 { position * 8 } else { queues + (position - 12) * 16 };
            range.store_u64(offset.min(range.size() - 8) / 8 * 8, word, Ordering::Relaxed);
            for _ in 0..8 {
                if let Some(Ok(packet)) = driver.next_output(&range) {
                    prop_assert!(packet.length <= 512);
                    let index = packet.frame.index();
                    prop_assert!(outputs.insert(index, packet.frame).is_none());
                    prop_assert!(index < 5);
                }
                if let Some(Ok(frame)) = driver.next_input(&range) {
                    prop_assert!(frame.index() < 3 && inputs.insert(frame.index()));
                    inputs.remove(&frame.index());
                    if let Err(refused) = driver.deliver(&range, packet(frame, 1)) {
                        inputs.insert(refused.0.frame.index());
                    }
                }
            }
            if let Some((index, frame)) = outputs.pop_first() {
                if let Err(refused) = driver.output_done(&range, frame) {
                    outputs.insert(index, refused.0);
                }
            }
            let _ = (driver.ready(&range), driver.rest(&range, true), driver.must_wake(&range, 3));
        }
    }
}
