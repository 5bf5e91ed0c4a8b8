//! What a NIC does to the central structure of a wait queue or a counting
//! semaphore (NetVM §8.3, §8.4, tables 19 and 22; N22, N24).
//!
//! The entries form a chain in the memory of their processes; this structure knows its two ends.
//! When an entry is taken from the queue, NewHead names its successor. Until then the head is not
//! known, and a further Dequeue leaves a *pending* wakeup, which NewHead passes on.
//!
//! # Difference from the source
//! In NetVM, a Dequeue that finds no head always becomes a pending wakeup. If each waiting entry has
//! one already, the additional one outlives them: it wakes a later entry without a signal, or loses
//! a unit of a semaphore. Here a queue in which each entry has a pending wakeup counts as empty:
//! `pending` never exceeds `count`.
//!
//! # Generations
//! A function is executed only in the generation that it names. Reset begins the next one: requests
//! of participants of the old queue have no effect then, however late they come.
//!
//! The structure lies in the memory of a process, which may hold anything: every value is valid, and
//! arithmetic saturates.

use qnic_abi::atomic::{detail, Function, WaitQueue, EMPTY_QUEUE, STALE};

/// What an atomic operation brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Outcome {
    pub(super) value: u64,
    pub(super) detail: u64,
}

impl Outcome {
    pub(super) fn word(value: u64) -> Self {
        Outcome { value, detail: 0 }
    }

    fn new(value: u64, first: u32, second: u32) -> Self {
        Outcome {
            value,
            detail: detail(first, second),
        }
    }
}

/// Executes one function on a queue of that generation; `operand` is an entry, or the new value
/// and generation.
pub(super) fn execute(
    queue: &mut WaitQueue,
    function: Function,
    [operand, generation]: [u64; 2],
) -> Outcome {
    let present = u64::from(queue.generation.get());
    if generation != present {
        return Outcome {
            value: present,
            detail: STALE,
        };
    }
    let entry = operand;
    match function {
        Function::Enqueue => {
            let before = enqueue(queue, entry);
            Outcome::new(before, queue.count.get(), 0)
        }
        Function::Dequeue => {
            let (entry, count) = dequeue(queue);
            Outcome::new(entry, count, 0)
        }
        Function::NewHead => new_head(queue, entry),
        Function::SemaphoreP => semaphore_p(queue, entry),
        Function::SemaphoreV => semaphore_v(queue),
        Function::Reset => {
            *queue = WaitQueue {
                value: (operand as u32).into(),
                generation: ((operand >> 32) as u32).into(),
                ..WaitQueue::default()
            };
            Outcome::default()
        }
        // On words.
        _ => Outcome::default(),
    }
}

fn enqueue(queue: &mut WaitQueue, entry: u64) -> u64 {
    let count = queue.count.get().saturating_add(1);
    let before = if count == 1 {
        queue.head = entry.into();
        0
    } else {
        queue.tail.get()
    };
    queue.count = count.into();
    queue.tail = entry.into();
    before
}

/// Returns true if any entry waits that no wakeup is pending for.
fn waits(queue: &WaitQueue) -> bool {
    queue.count.get() > queue.pending.get()
}

/// The entry that leaves, if it is known, and how many stay.
fn dequeue(queue: &mut WaitQueue) -> (u64, u32) {
    if !waits(queue) {
        return (0, EMPTY_QUEUE);
    }
    let head = queue.head.get();
    let count = queue.count.get();
    if head == 0 {
        queue.pending = (queue.pending.get() + 1).into();
        return (0, count);
    }
    queue.head = 0.into();
    queue.count = (count - 1).into();
    (head, count - 1)
}

fn new_head(queue: &mut WaitQueue, entry: u64) -> Outcome {
    let pending = queue.pending.get();
    if pending == 0 {
        queue.head = entry.into();
        return Outcome::new(0, queue.count.get(), 0);
    }
    queue.pending = (pending - 1).into();
    queue.count = queue.count.get().saturating_sub(1).into();
    Outcome::new(1, queue.count.get(), 0)
}

fn semaphore_p(queue: &mut WaitQueue, entry: u64) -> Outcome {
    let value = queue.value.get();
    if value > 0 {
        queue.value = (value - 1).into();
        return Outcome::new(0, queue.count.get(), value);
    }
    let before = enqueue(queue, entry);
    Outcome::new(before, queue.count.get(), 0)
}

fn semaphore_v(queue: &mut WaitQueue) -> Outcome {
    if waits(queue) {
        let (entry, count) = dequeue(queue);
        return Outcome::new(entry, count, 0);
    }
    let value = queue.value.get().saturating_add(1);
    queue.value = value.into();
    Outcome::new(0, queue.count.get(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_abi::atomic::split_detail;
    use std::collections::{BTreeMap, VecDeque};

    /// The processes: which one is chained behind which, and which were woken and have
    /// yet to name their successor.
    #[derive(Default)]
    struct World {
        queue: WaitQueue,
        next: BTreeMap<u64, u64>,
        /// Woken entries with a successor, which they have not named.
        handing_over: Option<u64>,
        woken: Vec<u64>,
        entries: u64,
    }

    impl World {
        /// A process calls enqueue or semP and chains itself up.
        fn enter(&mut self, function: Function) -> Option<u64> {
            self.entries += 1;
            let me = self.entries;
            let outcome = execute(&mut self.queue, function, [me, 0]);
            let (_, value) = split_detail(outcome.detail);
            if function == Function::SemaphoreP && value > 0 {
                return None;
            }
            if outcome.value != 0 {
                self.next.insert(outcome.value, me);
            }
            Some(me)
        }

        /// A process calls dequeue or semV, and wakes the process that it got.
        fn signal(&mut self, function: Function) {
            let outcome = execute(&mut self.queue, function, [0, 0]);
            if outcome.value != 0 {
                self.wake(outcome.value, split_detail(outcome.detail).0);
            }
        }

        fn wake(&mut self, entry: u64, count: u32) {
            self.woken.push(entry);
            if count > 0 {
                assert_eq!(self.handing_over.replace(entry), None, "two without a head");
            }
        }

        /// The one that was woken last names its successor.
        fn hand_over(&mut self) {
            if let Some(entry) = self.handing_over.take() {
                let next = self.next[&entry];
                let outcome = execute(&mut self.queue, Function::NewHead, [next, 0]);
                if outcome.value == 1 {
                    self.wake(next, split_detail(outcome.detail).0);
                }
            }
        }

        fn settle(&mut self) {
            while self.handing_over.is_some() {
                self.hand_over();
            }
        }
    }

    #[test]
    fn a_signal_too_many_is_lost_even_while_the_head_is_not_known() {
        let mut world = World::default();
        for _ in 0..2 {
            world.enter(Function::Enqueue);
        }
        for _ in 0..3 {
            world.signal(Function::Dequeue);
        }
        assert_eq!(world.queue.pending.get(), 1);
        world.settle();
        assert_eq!(world.woken, [1, 2]);
        for _ in 0..2 {
            world.enter(Function::Enqueue);
        }
        world.signal(Function::Dequeue);
        world.settle();
        assert_eq!(world.woken, [1, 2, 3], "only one was signalled");
    }

    #[test]
    fn an_empty_queue_says_so() {
        let mut queue = WaitQueue::default();
        let outcome = execute(&mut queue, Function::Dequeue, [0, 0]);
        assert_eq!(outcome, Outcome::new(0, EMPTY_QUEUE, 0));
        assert_eq!(queue, WaitQueue::default());
    }

    #[test]
    fn a_reset_begins_another_generation() {
        let mut queue = WaitQueue::default();
        execute(&mut queue, Function::Enqueue, [7, 0]);
        execute(&mut queue, Function::Reset, [3 | 5 << 32, 0]);
        let expected = WaitQueue {
            value: 3.into(),
            generation: 5.into(),
            ..WaitQueue::default()
        };
        assert_eq!(queue, expected);
        // A second one of the same recovery, which comes late.
        execute(&mut queue, Function::Reset, [9 | 1 << 32, 0]);
        assert_eq!(queue, expected);
    }

    proptest! {
        #[test]
        fn a_wait_queue_agrees_with_a_queue(steps in prop::collection::vec(0u8..4, 0..200)) {
            let mut world = World::default();
            let (mut waiting, mut woken) = (VecDeque::new(), Vec::new());
            for step in steps {
                match step {
                    0 | 1 => waiting.extend(world.enter(Function::Enqueue)),
                    2 => {
                        world.signal(Function::Dequeue);
                        woken.extend(waiting.pop_front());
                    }
                    _ => world.hand_over(),
                }
                prop_assert!(world.queue.pending.get() <= world.queue.count.get());
                prop_assert!(woken.starts_with(&world.woken), "first come, first served");
            }
            world.settle();
            prop_assert_eq!(&world.woken, &woken);
            prop_assert_eq!(world.queue.count.get() as usize, waiting.len());
            prop_assert_eq!(world.queue.pending.get(), 0);
        }

        #[test]
        fn a_semaphore_agrees_with_a_count_and_a_queue(
            start in 0u32..4,
            steps in prop::collection::vec(0u8..5, 0..200),
        ) {
            let mut world = World::default();
            world.queue.value = start.into();
            let (mut count, mut waiting, mut woken) = (start, VecDeque::new(), Vec::new());
            for step in steps {
                match step {
                    0 | 1 => {
                        let entered = world.enter(Function::SemaphoreP);
                        prop_assert_eq!(entered.is_none(), count > 0);
                        match entered {
                            Some(entry) => waiting.push_back(entry),
                            None => count -= 1,
                        }
                    }
                    2 | 3 => {
                        world.signal(Function::SemaphoreV);
                        match waiting.pop_front() {
                            Some(entry) => woken.push(entry),
                            None => count += 1,
                        }
                    }
                    _ => world.hand_over(),
                }
                prop_assert_eq!(world.queue.value.get(), count);
                prop_assert!(woken.starts_with(&world.woken), "first come, first served");
            }
            world.settle();
            prop_assert_eq!(&world.woken, &woken);
            prop_assert_eq!(world.queue.count.get() as usize, waiting.len());
        }

        #[test]
        fn nothing_in_memory_can_hurt(words: [u64; 4], entry: u64) {
            for function in Function::ALL {
                let mut queue: WaitQueue = zerocopy::transmute!(words);
                let generation = queue.generation.get().into();
                execute(&mut queue, function, [entry, generation]);
            }
        }

        #[test]
        fn nothing_of_another_generation_has_an_effect(words: [u64; 4], entry: u64, other: u64) {
            let before: WaitQueue = zerocopy::transmute!(words);
            let present = u64::from(before.generation.get());
            prop_assume!(other != present);
            for function in Function::ALL {
                let mut queue = before;
                let outcome = execute(&mut queue, function, [entry, other]);
                prop_assert_eq!(queue, before);
                prop_assert_eq!((outcome.value, outcome.detail), (present, STALE));
            }
        }
    }
}
