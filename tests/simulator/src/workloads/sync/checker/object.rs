//! An object and the queues that joined it, as changes of its memory show them.

use qnic_abi::atomic::WaitQueue;

use super::fifo::{Entry, FifoQueue};
use super::Kind;
use crate::machine::memory::Words;

/// The central structure of a wait queue or a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Structure {
    head: u64,
    pub(super) tail: u64,
    pub(super) count: u64,
    pending: u64,
    pub(super) value: u64,
    pub(super) generation: u64,
}

impl Structure {
    pub(super) fn of(words: &Words) -> Self {
        let words = [words[0], words[1], words[2], words[3]];
        let queue: WaitQueue = zerocopy::transmute!(words.map(u64::to_le));
        Structure {
            head: queue.head.get(),
            tail: queue.tail.get(),
            count: queue.count.get().into(),
            pending: queue.pending.get().into(),
            value: queue.value.get().into(),
            generation: queue.generation.get().into(),
        }
    }

    /// Entries that wait and that no wake-up is meant for.
    pub(super) fn waiting(&self) -> u64 {
        self.count.saturating_sub(self.pending)
    }
}

/// Turns that processes have taken since a lock was free; 0: it is free.
fn lock_turns(words: &Words) -> u64 {
    words[2] & u64::from(u32::MAX)
}

/// Returns true if this change frees a lock, and that by a recovery: it begins the next
/// generation.
pub(super) fn frees_by_recovery(before: &Words, after: &Words) -> bool {
    lock_turns(before) != 0 && lock_turns(after) == 0 && before[2] >> 32 != after[2] >> 32
}

/// An object in the memory of its owner.
#[derive(Default)]
pub(super) struct Object {
    /// The queue that processes join now is the last; there is always one.
    pub(super) queues: Vec<FifoQueue>,
    /// A process has died since the queue was begun, and may be in it.
    pub(super) tainted: bool,
}

impl Object {
    pub(super) fn new() -> Self {
        let mut object = Object::default();
        object.empty();
        object
    }

    /// The last queue that an entry has joined.
    pub(super) fn queue_of(&self, entry: Entry) -> Option<&FifoQueue> {
        self.queues.iter().rev().find(|queue| queue.holds(entry))
    }

    pub(super) fn queue_of_mut(&mut self, entry: Entry) -> Option<&mut FifoQueue> {
        let mut queues = self.queues.iter_mut().rev();
        queues.find(|queue| queue.holds(entry))
    }

    /// Entries that were served in all queues.
    pub(super) fn served(&self) -> u64 {
        self.queues.iter().map(|queue| queue.count as u64).sum()
    }

    pub(super) fn last(&mut self) -> &mut FifoQueue {
        self.queues.last_mut().expect("there is always one")
    }

    /// The object is empty again.
    pub(super) fn empty(&mut self) {
        self.tainted = false;
        self.queues.push(FifoQueue::default());
    }

    /// Checks that an entry which is served is so by its turn.
    pub(super) fn check_served(&self, slot: usize, entry: Entry) {
        let queue = self.queue_of(entry);
        let served = queue.is_some_and(|queue| queue.served(entry));
        assert!(served, "sync worker {slot} is woken out of turn");
    }

    /// What the words of a lock say; returns the entry that has joined.
    pub(super) fn lock_changed(&mut self, before: &Words, after: &Words) -> Option<Entry> {
        let (turns, now) = (lock_turns(before), lock_turns(after));
        if now == 0 && turns != 0 {
            if frees_by_recovery(before, after) {
                self.empty();
                return None;
            }
            let queue = self.last();
            queue.pass_withdrawn(None);
            assert_eq!(queue.first(), None, "a lock that is held becomes free");
        } else if now > turns {
            let entry = Entry::of(after[1])?;
            let queue = self.last();
            if turns == 0 {
                assert_eq!(
                    queue.first(),
                    None,
                    "a lock that is held is given to another process"
                );
                assert_eq!(Entry::of(after[0]), Some(entry), "the holder is not named");
            }
            queue.join(entry);
            return Some(entry);
        } else if now < turns {
            self.last().withdrawn += turns - now;
        } else if before[1] != after[1] {
            // The last withdraws. It may die before it takes its turn off the count.
            self.last().withdrawn += 1;
        }
        None
    }

    /// A new head has joined this queue, not one that a recovery has thrown away.
    fn check_head(&mut self, before: &Structure, after: &Structure) {
        let named = Entry::of(after.head).filter(|_| after.head != before.head);
        let there = named.is_none_or(|entry| self.last().holds(entry));
        assert!(there, "a queue gets a head that has not joined it");
    }

    /// What became of a wait queue; returns the entry that has joined.
    pub(super) fn queue_changed(
        &mut self,
        kind: Kind,
        before: &Structure,
        after: &Structure,
    ) -> Option<Entry> {
        let woken = before.waiting().saturating_sub(after.waiting());
        (0..woken).for_each(|_| self.last().serve());
        assert!(
            after.value <= before.value || before.waiting() == 0,
            "a unit becomes free while a process waits for it"
        );
        if after.count <= before.count {
            self.check_head(before, after);
            return None;
        }
        assert!(
            kind != Kind::Semaphore || before.value == 0,
            "a process waits for a unit that is free"
        );
        let entry = Entry::of(after.tail)?;
        self.last().join(entry);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_tells_how_many_wait_without_a_wake_up() {
        let mut words = Words::default();
        words[1] = 5;
        words[2] = 3 | 1 << 32;
        words[3] = 2 | 7 << 32;
        let structure = Structure::of(&words);
        assert_eq!((structure.waiting(), structure.value), (2, 2));
        assert_eq!(structure.generation, 7);
    }
}
