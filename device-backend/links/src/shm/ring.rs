//! A ring of records from one process to another: one producer, one consumer.
//!
//! ```text
//!   0        tail     bytes ever written; stored by the producer
//!   128      head     bytes ever read; stored by the consumer
//!   256      asleep   1: the consumer sleeps and must be woken by its eventfd
//!   4096     records  a power of two of bytes
//!
//!   a record   | length in bytes (8) | bytes, filled up to a multiple of 8 |
//! ```
//!
//! Everything is accessed in words of 8 bytes; a record that reaches the end of the ring
//! continues at its start. `tail` and `head` only grow: their difference is the number of
//! bytes in the ring, their remainders are offsets. Each side keeps its own index in
//! private memory and never reads it back, so the other side cannot change it.
//!
//! # Order of accesses
//! - Producer: record, `tail` with release. Consumer: `tail` with acquire, record. So the
//!   consumer reads only whole records.
//! - Consumer: record, `head` with release. Producer: `head` with acquire, next record
//!   at that offset. So nothing is overwritten that is still being read.
//! - To sleep, the consumer stores `asleep`, executes a full fence and loads `tail`; the
//!   producer stores `tail`, executes a full fence and loads `asleep`. One of them sees
//!   the other's store: no wake-up is lost.
//!
//! # A hostile peer
//! The other process can write any word at any time. Both indices are checked against
//! what this side knows before they are used. A length is read once, and checked against
//! what is in the ring and against the longest record. A check that fails is [`Broken`]:
//! the ring is not used any more. Changing records gains the other process nothing: it
//! could have sent such records.

use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use zerocopy::IntoBytes;

/// Longest record in bytes: a frame.
pub(super) const MAX_RECORD: usize = crate::codec::MAX_FRAME;

/// Offset of the first record.
pub(super) const RECORDS: usize = 4096;

const TAIL: usize = 0;
const HEAD: usize = 128;
const ASLEEP: usize = 256;

/// Width of all words.
const WORD: usize = 8;

/// Bytes of records after which the producer publishes them without waiting for a flush:
/// publishing takes the cache line of `tail` away from the consumer.
const PUBLISH_AFTER: u64 = 16 << 10;

/// Why a ring cannot be used any more: the other side broke its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    /// The consumer has moved its index backwards, or beyond what was written.
    #[error("its reader claims to have read up to {found:#x}, between {low:#x} and {high:#x} was expected")]
    Head { found: u64, low: u64, high: u64 },
    /// The producer has moved its index backwards, or beyond what fits.
    #[error("its writer claims to have written up to {found:#x}, between {low:#x} and {high:#x} was expected")]
    Tail { found: u64, low: u64, high: u64 },
    /// A record is empty, longer than a frame, or not all there.
    #[error("a record of {length} bytes, at most {most} are there or allowed")]
    Record { length: u64, most: u64 },
}

/// Bytes of a record of `length` bytes in the ring.
const fn span(length: usize) -> u64 {
    (WORD + length.next_multiple_of(WORD)) as u64
}

/// The records part of a ring.
#[derive(Debug)]
struct Records<M> {
    memory: M,
    capacity: u64,
}

impl<M: SharedMemory> Records<M> {
    /// The size of the memory is [`RECORDS`] and a power of two: its mapping checks
    /// that.
    fn new(memory: M) -> Self {
        let capacity = (memory.size() - RECORDS) as u64;
        debug_assert!(capacity.is_power_of_two() && capacity >= span(1));
        Records { memory, capacity }
    }

    /// Offset of the word at `index`.
    fn offset(&self, index: u64) -> usize {
        RECORDS + (index & (self.capacity - 1)) as usize
    }

    fn load(&self, index: u64) -> u64 {
        self.memory.load_u64(self.offset(index), Ordering::Relaxed)
    }

    fn store(&self, index: u64, word: u64) {
        let offset = self.offset(index);
        self.memory.store_u64(offset, word, Ordering::Relaxed);
    }

    /// How many of `count` words at `index` lie before the end of the ring; the others lie
    /// at its start.
    fn before_end(&self, index: u64, count: usize) -> usize {
        let end = RECORDS + self.capacity as usize;
        count.min((end - self.offset(index)) / WORD)
    }

    fn write(&self, index: u64, words: &[u64]) {
        let (first, second) = words.split_at(self.before_end(index, words.len()));
        self.memory.write_words(self.offset(index), first);
        if !second.is_empty() {
            self.memory.write_words(RECORDS, second);
        }
    }

    fn read(&self, index: u64, words: &mut [u64]) {
        let (first, second) = words.split_at_mut(self.before_end(index, words.len()));
        self.memory.read_words(self.offset(index), first);
        if !second.is_empty() {
            self.memory.read_words(RECORDS, second);
        }
    }
}

/// The side that writes.
#[derive(Debug)]
pub(super) struct Producer<M> {
    records: Records<M>,
    tail: u64,
    /// Index that the consumer can see.
    published: u64,
    /// Index at the last check whether the consumer sleeps.
    flushed: u64,
    /// Last index of the consumer, checked.
    head: u64,
    /// The record being written, in private memory.
    record: Vec<u64>,
}

impl<M: SharedMemory> Producer<M> {
    /// The writer of a fresh ring: all its words are zero.
    pub(super) fn new(memory: M) -> Self {
        Producer {
            records: Records::new(memory),
            tail: 0,
            published: 0,
            flushed: 0,
            head: 0,
            record: vec![0; MAX_RECORD.div_ceil(WORD)],
        }
    }

    /// Writes a record of 1 to [`MAX_RECORD`] bytes. Returns false if it does not fit now.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<bool, Broken> {
        let span = span(bytes.len());
        if bytes.is_empty() || bytes.len() > MAX_RECORD || !self.fits(span)? {
            return Ok(false);
        }
        let words = &mut self.record[..bytes.len().div_ceil(WORD)];
        words.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        self.records.store(self.tail, bytes.len() as u64);
        self.records.write(self.tail + WORD as u64, words);
        self.tail += span;
        if self.tail - self.published >= PUBLISH_AFTER {
            self.publish();
        }
        Ok(true)
    }

    fn fits(&mut self, span: u64) -> Result<bool, Broken> {
        let capacity = self.records.capacity;
        if self.tail + span - self.head <= capacity {
            return Ok(true);
        }
        // Pairs with the release store in `Consumer::release`.
        let found = self.records.memory.load_u64(HEAD, Ordering::Acquire);
        let (low, high) = (self.head, self.published);
        if !(low..=high).contains(&found) {
            return Err(Broken::Head { found, low, high });
        }
        self.head = found;
        Ok(self.tail + span - self.head <= capacity)
    }

    /// Publishes all records, if any are not. A consumer that sleeps does not notice.
    #[inline]
    pub(super) fn publish_pending(&mut self) {
        if self.published != self.tail {
            self.publish();
        }
    }

    fn publish(&mut self) {
        // Pairs with the acquire load in `Consumer::refresh`.
        let memory = &self.records.memory;
        memory.store_u64(TAIL, self.tail, Ordering::Release);
        self.published = self.tail;
    }

    /// Publishes all records. Returns true if the consumer sleeps, or is about to: then
    /// the caller must write its eventfd.
    #[must_use]
    pub(super) fn flush(&mut self) -> bool {
        if self.flushed == self.tail {
            return false;
        }
        self.flushed = self.tail;
        self.publish_pending();
        // Pairs with the fence in `Consumer::prepare_sleep`.
        let memory = &self.records.memory;
        memory.fence();
        let asleep = memory.load_u64(ASLEEP, Ordering::Relaxed) != 0;
        if asleep {
            // One write to the eventfd is enough. If the consumer has woken by itself and
            // announced again that it sleeps, this store may undo that: the write follows.
            memory.store_u64(ASLEEP, 0, Ordering::Relaxed);
        }
        asleep
    }
}

/// The side that reads.
#[derive(Debug)]
pub(super) struct Consumer<M> {
    records: Records<M>,
    head: u64,
    /// Index that the producer can see.
    released: u64,
    /// Last index of the producer, checked.
    tail: u64,
    /// The record being read, in private memory.
    record: Vec<u64>,
}

impl<M: SharedMemory> Consumer<M> {
    /// The reader of a fresh ring: all its words are zero.
    pub(super) fn new(memory: M) -> Self {
        Consumer {
            records: Records::new(memory),
            head: 0,
            released: 0,
            tail: 0,
            record: vec![0; MAX_RECORD.div_ceil(WORD)],
        }
    }

    /// Returns true if there is no record.
    #[inline]
    pub(super) fn is_empty(&mut self) -> Result<bool, Broken> {
        if self.head == self.tail {
            self.refresh(Ordering::Acquire)?;
        }
        Ok(self.head == self.tail)
    }

    /// The next record, copied to private memory.
    pub(super) fn pop(&mut self) -> Result<Option<&[u8]>, Broken> {
        if self.is_empty()? {
            return Ok(None);
        }
        let available = self.tail - self.head;
        let length = self.records.load(self.head);
        let most = (available - WORD as u64).min(MAX_RECORD as u64);
        if length == 0 || length > most {
            return Err(Broken::Record { length, most });
        }
        let length = length as usize;
        let words = &mut self.record[..length.div_ceil(WORD)];
        self.records.read(self.head + WORD as u64, words);
        self.head += span(length);
        if self.head - self.released >= self.records.capacity / 8 {
            self.release();
        }
        Ok(self.record.as_bytes().get(..length))
    }

    /// Gives the space of all records that were read back to the producer.
    pub(super) fn release(&mut self) {
        if self.released != self.head {
            // Pairs with the acquire load in `Producer::fits`.
            let memory = &self.records.memory;
            memory.store_u64(HEAD, self.head, Ordering::Release);
            self.released = self.head;
        }
    }

    /// Loads and checks the index of the producer.
    fn refresh(&mut self, order: Ordering) -> Result<(), Broken> {
        // With `Acquire`, pairs with the release store in `Producer::publish`.
        let found = self.records.memory.load_u64(TAIL, order);
        let (low, high) = (self.tail, self.head + self.records.capacity);
        if !(low..=high).contains(&found) || found % WORD as u64 != 0 {
            return Err(Broken::Tail { found, low, high });
        }
        self.tail = found;
        Ok(())
    }

    /// Announces that the consumer is about to sleep until its eventfd is written. Returns
    /// false if there is a record. Either way [`Consumer::wake`] must be called next.
    pub(super) fn prepare_sleep(&mut self) -> Result<bool, Broken> {
        self.release();
        let memory = &self.records.memory;
        memory.store_u64(ASLEEP, 1, Ordering::Relaxed);
        // Pairs with the fence in `Producer::flush`.
        memory.fence();
        // Acquire: `pop` reads the records that it finds.
        self.refresh(Ordering::Acquire)?;
        Ok(self.head == self.tail)
    }

    /// Announces that the consumer does not sleep.
    pub(super) fn wake(&mut self) {
        let memory = &self.records.memory;
        memory.store_u64(ASLEEP, 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_nic::testing::Sram;
    use std::collections::VecDeque;

    const CAPACITY: usize = 16 << 10;

    fn memory() -> Sram {
        Sram::new(RECORDS + CAPACITY)
    }

    fn ring(memory: &Sram) -> (Producer<&Sram>, Consumer<&Sram>) {
        (Producer::new(memory), Consumer::new(memory))
    }

    #[test]
    fn the_longest_record_fits_and_a_longer_one_never() {
        let memory = memory();
        let (mut producer, mut consumer) = ring(&memory);
        let longest = vec![7; MAX_RECORD];
        assert_eq!(producer.push(&longest), Ok(true));
        assert_eq!(producer.push(&vec![7; MAX_RECORD + 1]), Ok(false));
        assert_eq!(producer.push(&[]), Ok(false));
        assert_eq!(consumer.pop(), Ok(None), "not flushed");
        assert!(!producer.flush());
        assert_eq!(consumer.pop(), Ok(Some(&longest[..])));
        assert_eq!(consumer.pop(), Ok(None));
    }

    #[test]
    fn a_sleeping_consumer_is_woken_once() {
        let memory = memory();
        let (mut producer, mut consumer) = ring(&memory);
        assert_eq!(consumer.prepare_sleep(), Ok(true));
        assert_eq!(producer.push(b"one"), Ok(true));
        assert!(producer.flush());
        assert_eq!(producer.push(b"two"), Ok(true));
        assert!(!producer.flush());
        assert_eq!(consumer.prepare_sleep(), Ok(false));
        consumer.wake();
        assert_eq!(consumer.pop(), Ok(Some(&b"one"[..])));
        assert_eq!(consumer.pop(), Ok(Some(&b"two"[..])));
        assert!(!producer.flush());
    }

    #[test]
    fn each_broken_rule_has_its_name() {
        let high = CAPACITY as u64;
        for found in [8 * high, high + 8, 4] {
            let memory = memory();
            let (_, mut consumer) = ring(&memory);
            memory.store_u64(TAIL, found, Ordering::Relaxed);
            let (low, broken) = (0, consumer.pop().unwrap_err());
            assert_eq!(broken, Broken::Tail { found, low, high });
        }
        for (length, there) in [
            (0, 64),
            (57, 64),
            (u64::MAX, 64),
            (MAX_RECORD as u64 + 1, high),
        ] {
            let memory = memory();
            let (_, mut consumer) = ring(&memory);
            memory.store_u64(TAIL, there, Ordering::Relaxed);
            memory.store_u64(RECORDS, length, Ordering::Relaxed);
            let most = (there - 8).min(MAX_RECORD as u64);
            assert_eq!(consumer.pop(), Err(Broken::Record { length, most }));
        }
        let memory = memory();
        let (mut producer, _) = ring(&memory);
        while producer.push(&[1; 4000]).unwrap() {}
        let _ = producer.flush();
        let found = producer.tail + 8;
        memory.store_u64(HEAD, found, Ordering::Relaxed);
        let (low, high) = (0, producer.tail);
        let broken = producer.push(&[1; 4000]).unwrap_err();
        assert_eq!(broken, Broken::Head { found, low, high });
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(usize),
        Flush,
        Pop,
        Release,
        Sleep,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..=MAX_RECORD).prop_map(Step::Push),
            2 => (1usize..40).prop_map(Step::Push),
            3 => Just(Step::Flush),
            6 => Just(Step::Pop),
            1 => Just(Step::Release),
            1 => Just(Step::Sleep),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against a queue: every record comes out once, whole and in order, however
        /// often the ring wraps; it is full only if it has no room.
        #[test]
        fn records_come_out_as_they_went_in(steps in prop::collection::vec(step(), 1..400)) {
            let memory = memory();
            let (mut producer, mut consumer) = ring(&memory);
            let (mut queue, mut used, mut number) = (VecDeque::new(), 0, 0u8);
            for step in steps {
                match step {
                    Step::Push(length) => {
                        number = number.wrapping_add(1);
                        let record: Vec<_> = (0..length).map(|at| number ^ at as u8).collect();
                        let pushed = producer.push(&record).unwrap();
                        let room = consumer.released + CAPACITY as u64;
                        prop_assert_eq!(pushed, used + span(length) <= room);
                        if pushed {
                            used += span(length);
                            queue.push_back(record);
                        }
                    }
                    Step::Flush => prop_assert!(!producer.flush()),
                    Step::Pop => match consumer.pop().unwrap() {
                        Some(record) => prop_assert_eq!(record, &queue.pop_front().unwrap()[..]),
                        None => prop_assert_eq!(consumer.head, producer.published),
                    },
                    Step::Release => consumer.release(),
                    Step::Sleep => {
                        let empty = consumer.prepare_sleep().unwrap();
                        prop_assert_eq!(empty, consumer.head == producer.published);
                        consumer.wake();
                    }
                }
            }
            let _ = producer.flush();
            while let Some(record) = queue.pop_front() {
                prop_assert_eq!(consumer.pop().unwrap(), Some(&record[..]));
            }
            prop_assert_eq!(consumer.pop(), Ok(None));
        }

        /// Whatever the other side writes, and when: no panic, no record that is longer
        /// than allowed.
        #[test]
        fn any_words_are_survived(
            steps in prop::collection::vec((step(), 0usize..40, any::<u64>(), 0u32..64), 1..200),
        ) {
            let memory = memory();
            let (mut producer, mut consumer) = ring(&memory);
            for (step, target, word, shift) in steps {
                let offset = match target {
                    0 => TAIL,
                    1 => HEAD,
                    2 => ASLEEP,
                    record => RECORDS + record * 408,
                };
                memory.store_u64(offset, word >> shift, Ordering::Relaxed);
                let whole = match step {
                    Step::Push(length) => producer.push(&vec![1; length]).is_ok(),
                    Step::Flush => {
                        let _ = producer.flush();
                        true
                    }
                    Step::Pop => match consumer.pop() {
                        Ok(record) => {
                            prop_assert!(record.is_none_or(|bytes| bytes.len() <= MAX_RECORD));
                            true
                        }
                        Err(_) => false,
                    },
                    Step::Release => {
                        consumer.release();
                        true
                    }
                    Step::Sleep => consumer.prepare_sleep().is_ok(),
                };
                if !whole {
                    break;
                }
            }
        }
    }
}
