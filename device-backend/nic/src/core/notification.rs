//! Notifications at their destination: signal counters and the notification queue
//! (N16).
//!
//! ```text
//!   signal n < 1024 ──► counter n ──► armed? ──► entry of n unread? ──► new entry
//!                                      │ no        │ yes: they coalesce
//!                                      └───────────┴──► done
//!   signal n ≥ 1024 ──► room for one-shot ones? ──► new entry, else counted as lost
//! ```
//!
//! # Invariants
//! - A counted number has at most one entry that the process has not read.
//! - At most [`ONE_SHOT_ENTRIES`] entries are unread when a one-shot entry is added. So no entry is
//!   overwritten before it is read, however much peers send.
//! - What the process writes (its head, the armed bits) decides about its own entries only: an
//!   invalid head costs it its own notifications.

use qnic_abi::host_area::{
    notification_offset, signal_offset, NOTIFICATIONS_LOST, NOTIFICATION_ENTRIES,
    NOTIFICATION_TAIL, ONE_SHOT_ENTRIES, SIGNAL_COUNTERS,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{armed_bit, NOTIFICATION_HEAD};
use qnic_abi::SharedMemory;

use super::host_pages::Pages;
use crate::env::Host;

/// The notifications of one process.
#[derive(Debug)]
pub(crate) struct Notifications {
    signals: Box<[u64]>,
    /// For each counted one, the value of `tail` behind its last entry; 0 if it
    /// never had one.
    entered: Box<[u64]>,
    /// Entries ever made.
    tail: u64,
    lost: u64,
}

impl Notifications {
    /// No signals, an empty queue.
    pub(crate) fn new() -> Self {
        let zeroes = || vec![0; SIGNAL_COUNTERS as usize].into();
        Notifications {
            signals: zeroes(),
            entered: zeroes(),
            tail: 0,
            lost: 0,
        }
    }

    /// How many entries the process has not read. A head that is none is taken for one that is as far
    /// behind as can be.
    pub(super) fn unread<H: Host>(&self, host: &H, window: usize) -> u64 {
        let unread = self.tail.wrapping_sub(head(host, window));
        unread.min(NOTIFICATION_ENTRIES)
    }

    /// Takes a signal of a process with its window at this offset.
    pub(crate) fn signal<H: Host>(
        &mut self,
        host: &H,
        pages: &Pages,
        window: usize,
        notification: u32,
    ) {
        if notification < SIGNAL_COUNTERS {
            self.count(host, pages, window, notification);
        } else if self.tail.wrapping_sub(head(host, window)) < ONE_SHOT_ENTRIES {
            self.enter(host, pages, notification);
        } else {
            self.lost += 1;
            pages.store(host.memory(), NOTIFICATIONS_LOST, self.lost);
        }
    }

    fn count<H: Host>(&mut self, host: &H, pages: &Pages, window: usize, notification: u32) {
        let index = notification as usize;
        self.signals[index] = self.signals[index].wrapping_add(1);
        pages.store(
            host.memory(),
            signal_offset(notification),
            self.signals[index],
        );
        // Pairs with the process's fence between its store of the armed bit, or of
        // the head, and its look at the counter: either this sees that store, or
        // the process sees the signal.
        let sram = host.sram();
        sram.fence();
        let (word, bit) = armed_bit(notification);
        if sram.load_u64(window + word, Ordering::Relaxed) & bit == 0 {
            return;
        }
        if self.entered[index] > head(host, window) {
            return;
        }
        self.entered[index] = self.tail + 1;
        self.enter(host, pages, notification);
    }

    fn enter<H: Host>(&mut self, host: &H, pages: &Pages, notification: u32) {
        let offset = notification_offset(self.tail);
        pages.store(host.memory(), offset, notification.into());
        self.tail += 1;
        pages.store(host.memory(), NOTIFICATION_TAIL, self.tail);
    }
}

/// How many entries the process says that it has read.
fn head<H: Host>(host: &H, window: usize) -> u64 {
    // Acquire: the process has read its entries before they are overwritten
    // (partner: its release store).
    host.sram()
        .load_u64(window + NOTIFICATION_HEAD, Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use qnic_abi::host_area::HOST_PAGES;
    use qnic_abi::PAGE_SIZE;

    use super::*;
    use crate::testing::{Memory, SimHost, Sram};

    const WINDOW: usize = 0x1000;

    /// The process's side, and what it must see.
    struct Model {
        host: SimHost,
        pages: Pages,
        nic: Notifications,
        head: u64,
        counts: [u64; SIGNAL_COUNTERS as usize],
        armed: Vec<u32>,
        unread: VecDeque<u32>,
        lost: u64,
    }

    impl Model {
        fn new() -> Self {
            Model {
                host: SimHost::new(
                    Sram::new(2 * PAGE_SIZE),
                    Memory::new(HOST_PAGES * PAGE_SIZE),
                ),
                pages: Pages(std::array::from_fn(|page| (page * PAGE_SIZE) as u64)),
                nic: Notifications::new(),
                head: 0,
                counts: [0; SIGNAL_COUNTERS as usize],
                armed: Vec::new(),
                unread: VecDeque::new(),
                lost: 0,
            }
        }

        fn signal(&mut self, number: u32) {
            self.nic.signal(&self.host, &self.pages, WINDOW, number);
            if number >= SIGNAL_COUNTERS {
                match self.unread.len() < ONE_SHOT_ENTRIES as usize {
                    true => self.unread.push_back(number),
                    false => self.lost += 1,
                }
                return;
            }
            self.counts[number as usize] += 1;
            if self.armed.contains(&number) && !self.unread.contains(&number) {
                self.unread.push_back(number);
            }
        }

        fn arm(&mut self, number: u32, on: bool) {
            self.armed.retain(|other| *other != number);
            self.armed.extend(on.then_some(number));
            let (word, bit) = armed_bit(number);
            let sram = &self.host.sram;
            let others = sram.load_u64(WINDOW + word, Ordering::Relaxed) & !bit;
            let value = others | if on { bit } else { 0 };
            sram.store_u64(WINDOW + word, value, Ordering::Relaxed);
        }

        fn take(&mut self, entries: usize) {
            for _ in 0..entries.min(self.unread.len()) {
                let entry = self.host.memory.word(notification_offset(self.head) as u64);
                assert_eq!(Some(entry as u32), self.unread.pop_front());
                self.head += 1;
            }
            let head = WINDOW + NOTIFICATION_HEAD;
            self.host.sram.store_u64(head, self.head, Ordering::Release);
        }

        fn check(&self) {
            let word = |offset| self.host.memory.word(offset as u64);
            assert_eq!(
                word(NOTIFICATION_TAIL),
                self.head + self.unread.len() as u64
            );
            assert!(self.unread.len() <= NOTIFICATION_ENTRIES as usize);
            assert_eq!(word(NOTIFICATIONS_LOST), self.lost);
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Signal(u32),
        Repeat(u32, usize),
        Arm(u32, bool),
        Take(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let number = || prop_oneof![1u32..6, 62u32..66, 1020u32..1028, Just(u32::MAX)];
        let counted = prop_oneof![1u32..6, 62u32..66, 1020u32..1024];
        prop::collection::vec(
            prop_oneof![
                6 => number().prop_map(Step::Signal),
                1 => (number(), 400usize..700).prop_map(|(n, times)| Step::Repeat(n, times)),
                2 => (counted, any::<bool>()).prop_map(|(n, on)| Step::Arm(n, on)),
                2 => (0usize..300).prop_map(Step::Take),
            ],
            0..60,
        )
    }

    proptest! {
        #[test]
        fn the_queue_is_what_coalescing_leaves_of_the_signals(steps in steps()) {
            let mut model = Model::new();
            for step in steps {
                match step {
                    Step::Signal(number) => model.signal(number),
                    Step::Repeat(number, times) => (0..times).for_each(|_| model.signal(number)),
                    Step::Arm(number, on) => model.arm(number, on),
                    Step::Take(entries) => model.take(entries),
                }
                model.check();
            }
            for (number, count) in model.counts.iter().enumerate() {
                let word = model.host.memory.word(signal_offset(number as u32) as u64);
                prop_assert_eq!(word, *count);
            }
            model.take(usize::MAX);
        }

        #[test]
        fn a_head_that_is_none_hurts_nobody_else(
            heads in prop::collection::vec(any::<u64>(), 1..50),
            number in prop_oneof![1u32..1024, 1024u32..],
        ) {
            let mut model = Model::new();
            model.arm(number % SIGNAL_COUNTERS, true);
            for head in &heads {
                let word = WINDOW + NOTIFICATION_HEAD;
                model.host.sram.store_u64(word, *head, Ordering::Relaxed);
                model.nic.signal(&model.host, &model.pages, WINDOW, number);
            }
            let signals = if number < SIGNAL_COUNTERS { heads.len() as u64 } else { 0 };
            let counter = model.host.memory.word(signal_offset(number) as u64);
            prop_assert_eq!(counter, signals);
        }
    }

    #[test]
    fn all_counted_ones_fit_behind_a_full_house_of_one_shots() {
        let mut model = Model::new();
        for number in 1..SIGNAL_COUNTERS {
            model.arm(number, true);
        }
        for number in 0..2000 {
            model.signal(SIGNAL_COUNTERS + number);
        }
        for number in (1..SIGNAL_COUNTERS).chain(1..SIGNAL_COUNTERS) {
            model.signal(number);
        }
        model.check();
        assert_eq!(model.unread.len(), 512 + 1023);
        assert_eq!(model.lost, 2000 - 512);
        model.take(usize::MAX);
    }
}
