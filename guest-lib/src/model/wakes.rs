//! Models of wake requests of both kinds: of a waiter that changes which kind it asks for while the
//! NIC signals, as the driver does with its datagrams, and of two threads that ask for one each.
//!
//! The NIC executes two commands: one signals the process itself, which concerns either kind, the
//! other fails, which concerns those only that wait for anything.

use loom::sync::{Condvar, Mutex};
use qnic_abi::host_area::signal_offset;
use qnic_abi::window::SIGNAL_WAKE_REQUEST;

use super::notifications::{notify, ID};
use super::*;
use crate::core::queue::{Awaited, SwitchedWakes};

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Signal,
    Fail,
}

use Does::{Fail, Signal};

/// The wake generation: how many events have come.
#[derive(Default)]
pub(super) struct Generation {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Generation {
    pub(super) fn now(&self) -> u64 {
        *self.count.lock().unwrap()
    }

    /// An event wakes every thread.
    pub(super) fn next(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Sleeps until it is another one; returns that.
    pub(super) fn wait(&self, seen: u64) -> u64 {
        let mut count = self.count.lock().unwrap();
        while *count == seen {
            count = self.changed.wait(count).unwrap();
        }
        *count
    }
}

/// What a thread of the process uses.
#[derive(Clone)]
struct Side {
    window: Words,
    area: Words,
    generation: Rc<Generation>,
}

impl Side {
    /// Returns true if what a command does has happened.
    fn sees(&self, what: Does) -> bool {
        let offset = match what {
            Signal => signal_offset(ID),
            Fail => ERRORS,
        };
        self.area.load_u64(offset, Ordering::Acquire) == 1
    }
}

impl Does {
    fn command(&self) -> Command {
        match self {
            Signal => notify(ID),
            Fail => write(),
        }
    }
}

/// What the NIC executes: commands of one turn, of the next one, …
type Turns = &'static [&'static [Does]];

const ORDERS: [Turns; 3] = [
    &[&[Signal], &[Fail]],
    &[&[Fail], &[Signal]],
    &[&[Signal, Fail]],
];

/// A NIC and its process.
fn model() -> (Box<Model>, Side) {
    let window = [WAKE_REQUEST, SIGNAL_WAKE_REQUEST];
    let mut model = Model::with_words(window, [signal_offset(ID), ERRORS]);
    model.export();
    let side = Side {
        window: model.window.clone(),
        area: model.host_area.clone(),
        generation: Rc::default(),
    };
    (model, side)
}

impl Model {
    /// Executes commands in a thread of its own.
    pub(super) fn execute<T: Sync>(
        mut self: Box<Self>,
        turns: &'static [&'static [T]],
        make: fn(&T) -> Command,
        generation: &Rc<Generation>,
    ) -> loom::thread::JoinHandle<()> {
        let generation = generation.clone();
        loom::thread::spawn(move || {
            let mut number = 0;
            for turn in turns {
                for command in *turn {
                    make(command).store(&self.window, number);
                    number += 1;
                }
                self.nic.handle_doorbell(0);
                self.poll();
                while self.nic.poll_event().is_some() {
                    generation.next();
                }
            }
            assert_eq!(self.nic.counters().commands, number);
        })
    }
}

/// A waiter that changes what it asks for: the driver.
struct Waiter {
    side: Side,
    wakes: SwitchedWakes,
    /// Events that it has taken.
    seen: u64,
}

impl Waiter {
    fn new(side: &Side) -> Self {
        Waiter {
            wakes: SwitchedWakes::new(&side.window),
            side: side.clone(),
            seen: 0,
        }
    }

    fn arm(&mut self, awaited: Awaited) {
        self.interrupt();
        self.wakes.arm(&self.side.window, awaited);
    }

    /// Takes the events that have come, as an interrupt does at any time.
    fn interrupt(&mut self) {
        let now = self.side.generation.now();
        if std::mem::replace(&mut self.seen, now) != now {
            self.wakes.woken();
        }
    }

    /// Asks, looks, and sleeps until the look finds what is waited for.
    fn wait(&mut self, awaited: Awaited, what: Does) {
        loop {
            self.arm(awaited);
            if self.side.sees(what) {
                return;
            }
            self.side.generation.wait(self.seen);
        }
    }
}

/// The waiter does these things while the NIC executes the commands, in whatever order.
fn nobody_sleeps_for_ever(run: impl Fn(&mut Waiter) + Sync + Send + Copy + 'static) {
    for turns in ORDERS {
        check(move || {
            let (model, side) = model();
            let nic = model.execute(turns, Does::command, &side.generation);
            run(&mut Waiter::new(&side));
            nic.join().unwrap();
        });
    }
}

/// It waits for what others do, and then for its own.
#[test]
fn a_waiter_that_then_waits_for_anything_is_woken() {
    nobody_sleeps_for_ever(|waiter| {
        waiter.wait(Awaited::Solicited, Signal);
        waiter.wait(Awaited::Anything, Fail);
    });
}

/// It waits for its own, and then for what others do.
#[test]
fn a_waiter_that_then_waits_for_signals_is_woken() {
    nobody_sleeps_for_ever(|waiter| {
        waiter.wait(Awaited::Anything, Fail);
        waiter.wait(Awaited::Solicited, Signal);
    });
}

/// It changes its mind before any event has come, both ways: the value that the NIC acts upon may be
/// that of any of these requests, or what was there before.
#[test]
fn a_waiter_that_changes_its_mind_is_woken() {
    nobody_sleeps_for_ever(|waiter| {
        waiter.arm(Awaited::Solicited);
        waiter.arm(Awaited::Anything);
        waiter.wait(Awaited::Solicited, Signal);
    });
    nobody_sleeps_for_ever(|waiter| {
        waiter.arm(Awaited::Anything);
        waiter.arm(Awaited::Solicited);
        waiter.wait(Awaited::Anything, Fail);
    });
}

/// It looks for a while and asks for nothing meanwhile, as a thread that waits for datagrams does:
/// whenever the NIC acts upon the first request, or sees that it was taken back, the next one is a
/// new one, of either kind.
#[test]
fn a_request_that_was_taken_back_loses_no_wake_up() {
    for first in [Awaited::Anything, Awaited::Solicited] {
        for (then, what) in [
            (Awaited::Anything, Fail),
            (Awaited::Anything, Signal),
            (Awaited::Solicited, Signal),
        ] {
            nobody_sleeps_for_ever(move |waiter| {
                waiter.arm(first);
                waiter.wakes.disarm(&waiter.side.window);
                waiter.wait(then, what);
            });
        }
    }
}

/// What the waiter does not ask for, or not any more, raises no event: each step, what the NIC
/// executes then, and how many events come.
#[test]
fn a_waiter_is_woken_for_what_it_asks_and_for_nothing_else() {
    type Step = fn(&mut Waiter);
    let solicited: Step = |waiter| {
        waiter.arm(Awaited::Anything);
        waiter.arm(Awaited::Solicited);
    };
    let anything: Step = |waiter| {
        waiter.arm(Awaited::Solicited);
        waiter.arm(Awaited::Anything);
    };
    let no_solicited: Step = |waiter| {
        waiter.arm(Awaited::Solicited);
        waiter.wakes.disarm(&waiter.side.window);
    };
    let nothing: Step = |waiter| {
        waiter.arm(Awaited::Anything);
        waiter.wakes.disarm(&waiter.side.window);
    };
    let steps: [(Step, Turns, u64); 6] = [
        (solicited, &[&[Fail]], 0),
        (solicited, &[&[Fail], &[Signal]], 1),
        // The first event has answered all that was asked for.
        (anything, &[&[Fail], &[Signal]], 1),
        (anything, &[&[Signal, Fail]], 1),
        (no_solicited, &[&[Fail], &[Signal]], 0),
        (nothing, &[&[Fail], &[Signal]], 0),
    ];
    for (step, turns, events) in steps {
        check(move || {
            let (model, side) = model();
            let mut waiter = Waiter::new(&side);
            step(&mut waiter);
            model
                .execute(turns, Does::command, &side.generation)
                .join()
                .unwrap();
            assert_eq!(side.generation.now(), events, "{turns:?}");
        });
    }
}

/// Two threads of a process, each with the word of what it waits for. The event that one has asked for
/// wakes both, and the other asks again: neither loses its own.
#[test]
fn an_event_that_another_thread_has_asked_for_loses_none() {
    for turns in ORDERS {
        check(move || {
            let (model, side) = model();
            let nic = model.execute(turns, Does::command, &side.generation);
            let other = side.clone();
            let thread = loom::thread::spawn(move || {
                let requests = WakeRequests::for_signals(&other.window);
                sleep_until(&other, &requests, Signal);
            });
            let requests = WakeRequests::new(&side.window);
            sleep_until(&side, &requests, Fail);
            thread.join().unwrap();
            nic.join().unwrap();
        });
    }
}

/// A thread of a program waits.
fn sleep_until(side: &Side, requests: &WakeRequests, what: Does) {
    loop {
        let seen = side.generation.now();
        requests.request(&side.window);
        if side.sees(what) {
            return;
        }
        side.generation.wait(seen);
    }
}
