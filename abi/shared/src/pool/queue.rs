//! A queue between two sides: a slot for each frame, zero means empty.
//!
//! ```text
//!   producer                       slot                      consumer
//!   put: fill, Release ──────────► word ──── Acquire ──────► take
//!                                   0  ◄──── zero, Relaxed ─┘
//! ```
//! The producer's check that the slot is zero needs no ordering: the producer has a frame
//! again only because the consumer has handed one back, through another queue and with release,
//! after it has zeroed this slot.

use qnic_abi::pool::{Queue, Shape};
use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;

/// Positions in a queue, from one side.
#[derive(Debug)]
struct Cursor {
    /// Offset of the first slot.
    slots: usize,
    count: usize,
    next: usize,
}

impl Cursor {
    fn new(shape: Shape, queue: Queue) -> Self {
        let pool = match queue {
            Queue::OutputFull | Queue::OutputEmpty => qnic_abi::pool::Pool::Output,
            Queue::InputFull | Queue::InputEmpty => qnic_abi::pool::Pool::Input,
        };
        Cursor {
            slots: shape.queue(queue),
            count: shape.frames(pool),
            next: 0,
        }
    }

    fn slot(&self) -> usize {
        self.slots + self.next * 8
    }

    fn advance(&mut self) {
        self.next = (self.next + 1) % self.count;
    }

    /// The slot before.
    fn last(&self) -> usize {
        self.slots + (self.next + self.count - 1) % self.count * 8
    }
}

/// The side that fills slots.
#[derive(Debug)]
pub(crate) struct Producer {
    cursor: Cursor,
    tail: usize,
}

impl Producer {
    pub(crate) fn new(shape: Shape, queue: Queue) -> Self {
        Producer {
            cursor: Cursor::new(shape, queue),
            tail: queue.tail(),
        }
    }

    /// Fills the next slot with `word`, which is not zero; returns false if it is not empty.
    pub(crate) fn put<M: SharedMemory>(&mut self, memory: &M, word: u64) -> bool {
        let slot = self.cursor.slot();
        if memory.load_u64(slot, Ordering::Relaxed) != 0 {
            return false;
        }
        // Partner: the acquire in `Consumer::take`.
        memory.store_u64(slot, word, Ordering::Release);
        self.cursor.advance();
        memory.store_u32(self.tail, self.cursor.next as u32, Ordering::Relaxed);
        true
    }

    /// Returns true if the consumer has not taken all words.
    pub(crate) fn has_unread<M: SharedMemory>(&self, memory: &M) -> bool {
        memory.load_u64(self.cursor.last(), Ordering::Relaxed) != 0
    }
}

/// The side that empties slots.
#[derive(Debug)]
pub(crate) struct Consumer {
    cursor: Cursor,
    head: usize,
}

impl Consumer {
    pub(crate) fn new(shape: Shape, queue: Queue) -> Self {
        Consumer {
            cursor: Cursor::new(shape, queue),
            head: queue.head(),
        }
    }

    /// Takes the word of the next slot, read once, and empties the slot.
    pub(crate) fn take<M: SharedMemory>(&mut self, memory: &M) -> Option<u64> {
        let slot = self.cursor.slot();
        // Partner: the release in `Producer::put`.
        let word = memory.load_u64(slot, Ordering::Acquire);
        if word == 0 {
            return None;
        }
        memory.store_u64(slot, 0, Ordering::Relaxed);
        self.cursor.advance();
        memory.store_u32(self.head, self.cursor.next as u32, Ordering::Relaxed);
        Some(word)
    }

    /// Returns true if there is no word to take.
    pub(crate) fn is_empty<M: SharedMemory>(&self, memory: &M) -> bool {
        memory.load_u64(self.cursor.slot(), Ordering::Relaxed) == 0
    }
}
