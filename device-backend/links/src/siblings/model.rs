//! Rings and bells in every interleaving of two engines, on loom's atomics and locks.

use std::cell::Cell as Plain;
use std::rc::Rc;

use loom::cell::Cell;
use loom::sync::atomic::{fence, AtomicU64, Ordering};
use loom::sync::{Mutex, Notify};

use super::bell::Bell;
use super::inbox::Inbox;
use super::primitives::{Guarded, Primitives, Word};
use super::ring::{ring, Consumer, Item, Producer};

#[derive(Debug)]
struct Loom;

#[derive(Debug)]
struct LoomWord(AtomicU64);

impl Default for LoomWord {
    fn default() -> Self {
        LoomWord(AtomicU64::new(0))
    }
}

impl Word for LoomWord {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

impl<T: std::fmt::Debug> Guarded<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock().expect("no thread panics"))
    }
}

impl Primitives for Loom {
    type Word = LoomWord;
    type Guarded<T: std::fmt::Debug> = Mutex<T>;

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// A page of the sender: loom reports two accesses at once.
type Page = Rc<Cell<u64>>;

/// What is in a frame.
#[derive(Debug)]
enum Content {
    Value(u64),
    Page(PageRef),
}

struct PageRef(Page);

impl std::fmt::Debug for PageRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a page")
    }
}

impl Item for Content {
    fn refers(&self) -> bool {
        matches!(self, Content::Page(_))
    }
}

impl Content {
    fn value(&self) -> u64 {
        match self {
            Content::Value(value) => *value,
            Content::Page(page) => page.0.get(),
        }
    }

    fn recall(&mut self) {
        *self = Content::Value(self.value());
    }
}

type Ends = (Producer<Content, Loom>, Consumer<Content, Loom>);

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// An engine that falls asleep against one that sends: every item comes, once and in order.
#[test]
fn no_item_and_no_wake_up_is_lost() {
    check(|| {
        let (mut producer, mut consumer): Ends = ring(2);
        let bell = Rc::new(Bell::<Loom>::default());
        let notify = Rc::new(Notify::new());
        let (its_bell, its_notify) = (bell.clone(), notify.clone());
        let engine = loom::thread::spawn(move || {
            let mut expected = 1;
            while expected <= 2 {
                while consumer.pop(|item| {
                    assert_eq!(item.value(), expected);
                    expected += 1;
                }) {}
                if expected <= 2 && its_bell.prepare_sleep(|| !consumer.is_empty()) {
                    its_notify.wait();
                }
                its_bell.wake();
            }
        });
        for number in 1..=2 {
            assert!(producer.push(Content::Value(number)).is_ok());
            if bell.must_ring() {
                notify.notify();
            }
        }
        engine.join().unwrap();
    });
}

/// U4: an item of the long ring is used behind all that its producer has put into the short one before it.
#[test]
fn a_long_item_is_used_behind_what_was_sent_before_it() {
    check(|| {
        let (mut small, takes_small): Ends = ring(2);
        let (mut long, takes_long): Ends = ring(2);
        let mut inbox = Inbox::new([takes_small, takes_long]);
        let engine = loom::thread::spawn(move || {
            let seen = Plain::new(0);
            for _ in 0..4 {
                inbox.pop(|item| {
                    let value = item.value();
                    assert!(value == 1 || seen.get() & 1 == 1, "{value} before 1");
                    assert!(value != 4 || seen.get() & 3 == 3, "4 before 2");
                    seen.set(seen.get() | value);
                });
            }
        });
        assert!(small.push(Content::Value(1)).is_ok());
        assert!(long.push(Content::Value(2)).is_ok());
        assert!(long.push(Content::Value(4)).is_ok());
        engine.join().unwrap();
    });
}

/// A slot is filled again only when its item was used.
#[test]
fn a_full_ring_takes_nothing() {
    check(|| {
        let (mut producer, mut consumer): Ends = ring(1);
        assert!(producer.push(Content::Value(1)).is_ok());
        let engine = loom::thread::spawn(move || {
            let seen = Plain::new(0);
            for _ in 0..2 {
                consumer.pop(|item| {
                    assert_eq!(item.value(), seen.get() + 1);
                    seen.set(item.value());
                });
            }
            assert!(seen.get() > 0, "one was there from the start");
        });
        let _ = producer.push(Content::Value(2));
        engine.join().unwrap();
    });
}

/// N6: a page is the sender's again once its item counts as used.
#[test]
fn a_page_whose_item_was_used_is_not_read() {
    check(|| {
        let (mut producer, mut consumer): Ends = ring(2);
        let page: Page = Rc::new(Cell::new(7));
        let item = Content::Page(PageRef(page.clone()));
        assert!(producer.push(item).is_ok());
        let engine = loom::thread::spawn(move || {
            consumer.pop(|item| assert_eq!(item.value(), 7));
        });
        if producer.used() == producer.put() {
            page.set(8);
        }
        engine.join().unwrap();
    });
}

/// N2, N8, X9: once a recall has returned, no page is read; and what was sent arrives.
#[test]
fn a_page_that_was_recalled_is_not_read() {
    check(|| {
        let (mut producer, mut consumer): Ends = ring(2);
        let page: Page = Rc::new(Cell::new(7));
        let engine = loom::thread::spawn(move || {
            let seen = Plain::new(0);
            for _ in 0..2 {
                consumer.pop(|item| {
                    assert_eq!(item.value(), 7);
                    seen.set(seen.get() + 1);
                });
            }
        });
        for _ in 0..2 {
            let item = Content::Page(PageRef(page.clone()));
            assert!(producer.push(item).is_ok());
        }
        producer.recall(Content::recall);
        page.set(8);
        engine.join().unwrap();
    });
}

/// Two engines that send to each other, and recall for what comes from the other: neither waits
/// for ever (loom reports the deadlock).
#[test]
fn recalls_in_both_directions_do_not_wait_for_each_other() {
    check(|| {
        let (mut to_second, mut at_second): Ends = ring(1);
        let (mut to_first, mut at_first): Ends = ring(1);
        let work = |out: &mut Producer<Content, Loom>, inbox: &mut Consumer<Content, Loom>| {
            inbox.pop(|item| match item.refers() {
                true => assert_eq!(item.value(), 7),
                false => out.recall(Content::recall),
            });
        };
        let page = || Content::Page(PageRef(Rc::new(Cell::new(7))));
        assert!(to_second.push(page()).is_ok());
        let second = loom::thread::spawn(move || {
            assert!(to_first.push(Content::Value(1)).is_ok());
            work(&mut to_first, &mut at_second);
        });
        work(&mut to_second, &mut at_first);
        second.join().unwrap();
    });
}
