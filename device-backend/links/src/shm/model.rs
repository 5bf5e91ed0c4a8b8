//! The ring in every interleaving of its two sides, on loom's atomics: no record is
//! lost, torn or overwritten, and no wake-up is lost (a deadlock, which loom reports).

use loom::sync::atomic::{fence, AtomicU64};
use loom::sync::{Arc, Notify};
use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use std::collections::BTreeMap;

use super::ring::{Consumer, Producer, RECORDS};

/// Room for two records of a word each.
const CAPACITY: usize = 32;

/// A ring: the words that are used are loom's.
#[derive(Clone)]
struct Words(Arc<BTreeMap<usize, AtomicU64>>);

impl Words {
    fn new() -> Self {
        let indices = [0, 128, 256];
        let records = (RECORDS..RECORDS + CAPACITY).step_by(8);
        let words = indices.into_iter().chain(records);
        Words(Arc::new(words.map(|at| (at, AtomicU64::new(0))).collect()))
    }
}

impl SharedMemory for Words {
    fn size(&self) -> usize {
        RECORDS + CAPACITY
    }

    fn load_u32(&self, _: usize, _: Ordering) -> u32 {
        unreachable!("all words have 8 bytes")
    }

    fn store_u32(&self, _: usize, _: u32, _: Ordering) {
        unreachable!("all words have 8 bytes")
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.0[&offset].load(order)
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.0[&offset].store(value, order);
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

/// Takes records 1, 2, … until there were `count`, and sleeps between.
fn consume(mut consumer: Consumer<Words>, count: u8, bell: &Notify) {
    let mut expected = 1;
    loop {
        while let Some(record) = consumer.pop().unwrap() {
            assert_eq!(record, [expected; 8]);
            expected += 1;
        }
        if expected > count {
            return;
        }
        if consumer.prepare_sleep().unwrap() {
            bell.wait();
        }
        consumer.wake();
    }
}

/// A consumer that falls asleep against a producer that writes: either its last look
/// finds the record, or the producer finds it asleep.
#[test]
fn no_wake_up_and_no_record_is_lost() {
    check(|| {
        let words = Words::new();
        let mut producer = Producer::new(words.clone());
        let bell = Arc::new(Notify::new());
        let ring = bell.clone();
        let reader = loom::thread::spawn(move || consume(Consumer::new(words), 2, &bell));
        for number in 1..=2 {
            assert_eq!(producer.push(&[number; 8]), Ok(true));
            if producer.flush() {
                ring.notify();
            }
        }
        reader.join().unwrap();
    });
}

/// A third record goes where the first was: only when that was read.
#[test]
fn what_is_being_read_is_not_overwritten() {
    check(|| {
        let words = Words::new();
        let mut producer = Producer::new(words.clone());
        for number in 1..=2 {
            assert_eq!(producer.push(&[number; 8]), Ok(true));
        }
        assert!(!producer.flush());
        let mut consumer = Consumer::new(words);
        let reader = loom::thread::spawn(move || {
            let mut expected = 1;
            for _ in 0..3 {
                if let Some(record) = consumer.pop().unwrap() {
                    assert_eq!(record, [expected; 8]);
                    expected += 1;
                }
            }
            assert!(expected > 2, "two were there from the start");
        });
        if producer.push(&[3; 8]).unwrap() {
            let _ = producer.flush();
        }
        reader.join().unwrap();
    });
}
