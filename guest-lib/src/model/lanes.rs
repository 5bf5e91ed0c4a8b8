//! Models of wake requests that are for some changes only (`qnic_abi::window`, "Interrupts"): of threads that
//! wait for lanes of their own, for others, and for anything.
//!
//! The NIC executes writes of two lanes, which succeed: each changes the counters of its lane and nothing else.

use loom::sync::Mutex;
use qnic_abi::host_area::writes_done_offset;
use qnic_abi::window::Changes;

use super::notifications::write_to_itself;
use super::wakes::Generation;
use super::*;
use crate::core::queue::Sleepers;

/// Lanes of the NIC's commands.
type Turns = &'static [&'static [u8]];

const ORDERS: [Turns; 3] = [&[&[1], &[2]], &[&[2], &[1]], &[&[1, 2]]];

/// What the threads of the process use.
#[derive(Clone)]
struct Side {
    window: Words,
    area: Words,
    generation: Rc<Generation>,
    requests: Rc<WakeRequests>,
    sleepers: Rc<Mutex<Sleepers>>,
}

impl Side {
    /// Returns true if the write of a lane is complete.
    fn sees(&self, lane: u8) -> bool {
        completion::done(&self.area, lane, Operation::Write) == 1
    }

    /// Asks as the library does; returns the generation that the event ends.
    fn request(&self, changes: Changes) -> u64 {
        let seen = self.generation.now();
        let mut sleepers = self.sleepers.lock().unwrap();
        let changes = sleepers.add(seen, changes);
        self.requests.request_for(&self.window, changes);
        seen
    }

    /// Waits as a thread of the library does.
    fn wait(&self, changes: Changes, lane: u8) {
        loop {
            let seen = self.request(changes);
            if self.sees(lane) {
                return;
            }
            self.generation.wait(seen);
        }
    }
}

/// A NIC and its process.
fn model() -> (Box<Model>, Side) {
    let mut model = Model::with_words([WAKE_REQUEST], [1, 2].map(writes_done_offset));
    model.export();
    let side = Side {
        window: model.window.clone(),
        area: model.host_area.clone(),
        generation: Rc::default(),
        requests: Rc::new(WakeRequests::new(&model.window)),
        sleepers: Rc::new(Mutex::new(Sleepers::default())),
    };
    (model, side)
}

/// Executes writes in a thread of its own.
fn execute(model: Box<Model>, turns: Turns, side: &Side) -> loom::thread::JoinHandle<()> {
    model.execute(turns, |lane| write_to_itself(0, *lane), &side.generation)
}

/// Two threads wait, one for a lane and the other for these: neither takes the event of the other.
fn both_are_woken(changes: Changes) {
    for turns in ORDERS {
        check(move || {
            let (model, side) = model();
            let nic = execute(model, turns, &side);
            let other = side.clone();
            let thread = loom::thread::spawn(move || other.wait(changes, 2));
            side.wait(Changes::of_lane(1), 1);
            thread.join().unwrap();
            nic.join().unwrap();
        });
    }
}

#[test]
fn threads_that_wait_for_lanes_of_their_own_are_woken() {
    both_are_woken(Changes::of_lane(2));
}

#[test]
fn threads_that_wait_for_a_lane_and_for_anything_are_woken() {
    both_are_woken(Changes::ANYTHING);
}

/// It is woken for its lane and for nothing else, whatever has come before: events after each turn.
#[test]
fn a_thread_is_woken_for_what_it_asks_and_for_nothing_else() {
    let cases: [(Changes, Turns, u64); 6] = [
        (Changes::of_lane(1), &[&[2], &[2]], 0),
        (Changes::of_lane(1), &[&[2], &[1]], 1),
        (Changes::of_lane(1), &[&[1], &[1]], 1),
        (Changes::of_lane(2), &[&[1, 2]], 1),
        (Changes::HEAD, &[&[1], &[2]], 0),
        (Changes::ANYTHING, &[&[1], &[2]], 1),
    ];
    for (changes, turns, events) in cases {
        check(move || {
            let (model, side) = model();
            side.request(changes);
            execute(model, turns, &side).join().unwrap();
            assert_eq!(side.generation.now(), events, "{changes:?}, {turns:?}");
        });
    }
}
