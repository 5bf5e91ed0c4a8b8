//! A ring of items from one engine to another: one producer, one consumer, one process.
//!
//! ```text
//!   tail    items ever put in; stored by the producer
//!   head    items ever used; stored by the consumer
//!   slots   a fixed number, each with a lock: an item, or none
//! ```
//! The two sides meet at a slot only if the producer recalls an item while the consumer uses it;
//! otherwise its lock is free whenever one of them takes it.
//!
//! # Order of accesses
//! - Producer: item, `tail` with release. Consumer: `tail` with acquire, item.
//! - Consumer: uses the item, takes it out, `head` with release. Producer: `head` with acquire, then
//!   the slot is free, and what the item referred to is not accessed any more.
//! - Recall: an item that refers to memory is used under the lock of its slot. So once the producer
//!   has had that lock, the consumer has used the item, or will find what the producer has made of
//!   it.
//!
//! Other items are used without the lock: what is done for them may recall items of the ring in the
//! other direction, and each side would wait for the other.

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::primitives::{Guarded, Primitives, System, Word};

/// An item of a ring.
pub(super) trait Item: Debug {
    /// It refers to memory of the producer.
    fn refers(&self) -> bool;
}

#[derive(Debug)]
struct Shared<T: Item, P: Primitives> {
    tail: P::Word,
    head: P::Word,
    slots: Box<[P::Guarded<Option<T>>]>,
}

impl<T: Item, P: Primitives> Shared<T, P> {
    fn slot(&self, place: u64) -> &P::Guarded<Option<T>> {
        &self.slots[place as usize % self.slots.len()]
    }
}

/// The end that puts items in.
#[derive(Debug)]
pub(super) struct Producer<T: Item, P: Primitives = System> {
    shared: Arc<Shared<T, P>>,
    tail: u64,
    /// A number of items that were used.
    used: u64,
}

/// The end that uses them.
#[derive(Debug)]
pub(super) struct Consumer<T: Item, P: Primitives = System> {
    shared: Arc<Shared<T, P>>,
    head: u64,
    /// A number of items that were put in.
    put: u64,
}

/// A ring with room for so many items.
pub(super) fn ring<T: Item, P: Primitives>(room: usize) -> (Producer<T, P>, Consumer<T, P>) {
    let shared = Arc::new(Shared {
        tail: P::Word::default(),
        head: P::Word::default(),
        slots: (0..room).map(|_| Guarded::new(None)).collect(),
    });
    let producer = Producer {
        shared: shared.clone(),
        tail: 0,
        used: 0,
    };
    let consumer = Consumer {
        shared,
        head: 0,
        put: 0,
    };
    (producer, consumer)
}

impl<T: Item, P: Primitives> Producer<T, P> {
    /// Puts an item in.
    ///
    /// # Errors
    /// Returns the item if there is no room.
    pub(super) fn push(&mut self, item: T) -> Result<(), T> {
        let room = self.shared.slots.len() as u64;
        if self.tail - self.used == room {
            self.used = self.used();
            if self.tail - self.used == room {
                return Err(item);
            }
        }
        self.shared.slot(self.tail).with(|slot| *slot = Some(item));
        self.tail += 1;
        // Pairs with the consumer's acquire load: it finds the item.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// How many items were put in.
    pub(super) fn put(&self) -> u64 {
        self.tail
    }

    /// How many items were used: what they referred to is not accessed any more.
    pub(super) fn used(&self) -> u64 {
        // Pairs with the consumer's release store.
        self.shared.head.load(Ordering::Acquire)
    }

    /// Gives `change` all items that are in the ring. Waits for the use of one of them that is
    /// under way.
    pub(super) fn recall(&self, mut change: impl FnMut(&mut T)) {
        for place in self.used()..self.tail {
            self.shared
                .slot(place)
                .with(|slot| slot.iter_mut().for_each(&mut change));
        }
    }
}

impl<T: Item, P: Primitives> Consumer<T, P> {
    /// Returns true if there is no item.
    pub(super) fn is_empty(&mut self) -> bool {
        if self.head == self.put {
            // Pairs with the producer's release store: the item is there.
            self.put = self.shared.tail.load(Ordering::Acquire);
        }
        self.head == self.put
    }

    /// How many items were used.
    pub(super) fn used(&self) -> u64 {
        self.head
    }

    /// How many items were put in: an item that its producer has put into another ring before one that
    /// was found there is among them.
    pub(super) fn put(&mut self) -> u64 {
        // Pairs with the producer's release store: what it stored before is seen, too.
        self.put = self.shared.tail.load(Ordering::Acquire);
        self.put
    }

    /// Uses the oldest item. Returns false if there is none.
    pub(super) fn pop(&mut self, mut use_it: impl FnMut(&mut T)) -> bool {
        if self.is_empty() {
            return false;
        }
        let taken = self.shared.slot(self.head).with(|slot| {
            if let Some(item) = slot.as_mut().filter(|item| item.refers()) {
                use_it(item);
                *slot = None;
            }
            slot.take()
        });
        if let Some(mut item) = taken {
            use_it(&mut item);
        }
        self.head += 1;
        // Pairs with the producer's acquire load: the item was used.
        self.shared.head.store(self.head, Ordering::Release);
        true
    }
}
