//! The ring in every interleaving of its two sides, on loom's atomics: no record is
//! lost, torn or overwritten, and no wake-up is lost (loom reports the deadlock). And the pair
//! of rings of the two channels, whose reader sleeps once for both.

use std::collections::BTreeMap;
use std::rc::Rc;

use loom::cell::Cell;
use loom::sync::atomic::{fence, AtomicU64};
use loom::sync::Notify;
use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use qnic_nic::env::Channel;

use super::channels::{Inbox, Outbox};
use super::ring::{Consumer, Producer, RECORDS};

/// Room for two records of a word each.
const CAPACITY: usize = 32;

/// Room of which one such record is less than what a consumer releases at once.
const LARGE: usize = 256;

/// A ring. Indices are loom's atomics; records are loom's cells, of which loom reports
/// two accesses at once: nothing but the indices may keep the two sides apart.
#[derive(Clone)]
struct Words {
    indices: Rc<BTreeMap<usize, AtomicU64>>,
    records: Rc<Vec<Cell<u64>>>,
}

impl Words {
    fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    fn with_capacity(capacity: usize) -> Self {
        let index = |offset| (offset, AtomicU64::new(0));
        let records = (0..capacity / 8).map(|_| Cell::new(0));
        Words {
            indices: Rc::new([0, 128, 256].map(index).into_iter().collect()),
            records: Rc::new(records.collect()),
        }
    }
}

impl SharedMemory for Words {
    fn size(&self) -> usize {
        RECORDS + self.records.len() * 8
    }

    fn load_u32(&self, _: usize, _: Ordering) -> u32 {
        unreachable!("all words have 8 bytes")
    }

    fn store_u32(&self, _: usize, _: u32, _: Ordering) {
        unreachable!("all words have 8 bytes")
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        match self.indices.get(&offset) {
            Some(index) => index.load(order),
            None => self.records[(offset - RECORDS) / 8].get(),
        }
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        match self.indices.get(&offset) {
            Some(index) => index.store(value, order),
            None => self.records[(offset - RECORDS) / 8].set(value),
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

/// Reads `records`, and sleeps in between.
fn consume(mut consumer: Consumer<Words>, records: &[&[u8]], notify: &Notify) {
    let mut expected = records.iter();
    while expected.len() > 0 {
        while let Some(record) = consumer.pop().unwrap() {
            assert_eq!(Some(&record), expected.next());
        }
        if expected.len() > 0 && consumer.prepare_sleep().unwrap() {
            notify.wait();
        }
        consumer.wake();
    }
}

/// A consumer that falls asleep against a producer that writes: either its last load
/// finds the record, or the producer finds it asleep.
#[test]
fn no_wake_up_and_no_record_is_lost() {
    check(|| {
        let words = Words::new();
        let mut producer = Producer::new(words.clone());
        let notify = Rc::new(Notify::new());
        let ring = notify.clone();
        let reader = loom::thread::spawn(move || {
            consume(Consumer::new(words), &[&[1; 8], &[2; 8]], &notify)
        });
        for number in 1..=2 {
            assert_eq!(producer.push(&[number; 8]), Ok(true));
            if producer.flush() {
                ring.notify();
            }
        }
        reader.join().unwrap();
    });
}

/// A third record overwrites the first: only when that was read.
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

/// A record that continues at the start of the ring, where another one was read before.
#[test]
fn a_record_that_wraps_is_whole() {
    check(|| {
        let words = Words::new();
        let mut producer = Producer::new(words.clone());
        let mut consumer = Consumer::new(words);
        assert_eq!(producer.push(&[1; 8]), Ok(true));
        assert!(!producer.flush());
        assert_eq!(consumer.pop(), Ok(Some(&[1; 8][..])));
        let notify = Rc::new(Notify::new());
        let ring = notify.clone();
        let reader = loom::thread::spawn(move || consume(consumer, &[&[2; 16]], &notify));
        assert_eq!(producer.push(&[2; 16]), Ok(true), "there is room");
        if producer.flush() {
            ring.notify();
        }
        reader.join().unwrap();
    });
}

/// A consumer that sleeps has released all room.
#[test]
fn a_sleeping_consumer_has_released_all_room() {
    check(|| {
        let words = Words::with_capacity(LARGE);
        let mut producer = Producer::new(words.clone());
        let mut consumer = Consumer::new(words);
        while producer.push(&[1; 8]).unwrap() {}
        assert!(!producer.flush());
        assert_eq!(consumer.pop(), Ok(Some(&[1; 8][..])));
        assert_eq!(consumer.prepare_sleep(), Ok(false));
        assert_eq!(producer.push(&[2; 8]), Ok(true));
    });
}

/// A reader that falls asleep on both rings against a writer that writes to one after the other.
#[test]
fn no_wake_up_is_lost_on_either_channel() {
    check(|| {
        let rings = [Words::new(), Words::new()];
        let [priority, data] = rings.clone();
        let mut outbox = Outbox::new(priority, data);
        let notify = Rc::new(Notify::new());
        let signal = notify.clone();
        let reader = loom::thread::spawn(move || {
            let [priority, data] = rings;
            let mut inbox = Inbox::new(priority, data);
            let mut seen = 0;
            while seen != 3 {
                while let Some(record) = inbox.pop().unwrap() {
                    seen += record[0];
                }
                if seen != 3 && inbox.prepare_sleep().unwrap() {
                    notify.wait();
                }
                inbox.wake();
            }
        });
        for (channel, number) in [(Channel::Data, 1), (Channel::Priority, 2)] {
            assert_eq!(outbox.push(channel, &[number; 8]), Ok(true));
            if outbox.flush() {
                signal.notify();
            }
        }
        reader.join().unwrap();
    });
}
