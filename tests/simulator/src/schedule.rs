//! Virtual time, the event queue, and tasks that wait.
//!
//! ```text
//!   queue: (time, number, event) ──pop──► now := time ──► the world handles it
//!                 ▲                                         │ resumes a task
//!                 └── at(), notify(), sleep() ◄─────────────┘
//! ```
//! Exactly one thing runs at a time: the world, or the one task ([`crate::task`]) that it
//! has resumed. Each wait has a number of its own, so an event that is late for a wait that
//! is over is dropped; a waiter looks at its condition again in any case.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(crate) type TaskId = usize;

/// Which incarnation of which node: events of an earlier incarnation are void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Incarnation {
    pub(crate) node: usize,
    pub(crate) number: u32,
}

/// What can happen at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A task goes on, if it still is in that wait.
    Resume(TaskId, u64),
    /// A NIC is polled.
    Poll(Incarnation),
    /// A NIC looks at its control queue.
    Control(Incarnation),
    /// A driver is interrupted.
    Interrupt(Incarnation),
    /// A driver serves its datagrams.
    Datagrams(Incarnation),
    /// A doorbell is rung.
    Doorbell(Incarnation, u32),
    /// Frames arrive over the wire of that number.
    Arrival(usize),
    /// A copy of a frame arrives long after it.
    Late(usize),
    /// The oldest frame in that ring of a lossless wire arrives.
    Direct(usize, bool),
    /// Something breaks.
    InjectFault,
    /// Something is repaired: the active fault of that number ends.
    Repair(usize),
}

/// Tasks that wait for something to change.
#[derive(Debug, Default)]
pub(crate) struct Signal(Mutex<Vec<TaskId>>);

/// Clock, events, chance and trace of one simulation; shared by everything in it.
pub(crate) struct Schedule {
    now: AtomicU64,
    number: AtomicU64,
    running: AtomicUsize,
    queue: Mutex<BinaryHeap<Reverse<(u64, u64, Event)>>>,
    /// Number of the wait that each task is in, or comes to next.
    waits: Mutex<Vec<u64>>,
    killed: Mutex<BTreeSet<TaskId>>,
    new_tasks: Mutex<Vec<Body>>,
    random: Mutex<fastrand::Rng>,
    /// Every delay is its shortest, and nothing happens by chance.
    steady: bool,
    trace: Mutex<Trace>,
}

/// Where trace lines go, if they go anywhere.
pub(crate) type Trace = Option<Box<dyn Write + Send>>;

/// What a task does.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The simulation that this thread runs, for locks, which have no other reference to it.
    static CURRENT: RefCell<Weak<Schedule>> = const { RefCell::new(Weak::new()) };
}

/// No task runs: the world does.
const WORLD: usize = usize::MAX;

/// Locks; it is free unless there is a mistake, as there is one thread.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line to the trace of a [`Schedule`].
macro_rules! trace {
    ($schedule:expr, $($line:tt)*) => { $schedule.trace(format_args!($($line)*)) };
}
pub(crate) use trace;

impl Schedule {
    pub(crate) fn new(seed: u64, trace: Trace) -> Self {
        Schedule {
            now: AtomicU64::new(0),
            number: AtomicU64::new(0),
            running: AtomicUsize::new(WORLD),
            queue: Mutex::default(),
            waits: Mutex::default(),
            killed: Mutex::default(),
            new_tasks: Mutex::default(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            steady: false,
            trace: Mutex::new(trace),
        }
    }

    /// Gives every delay its shortest value, and lets nothing happen by chance.
    pub(crate) fn steady(self) -> Self {
        Schedule {
            steady: true,
            ..self
        }
    }

    /// Virtual time in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Puts an event into the queue; those of one time happen in the order of
    /// their entry.
    pub(crate) fn at(&self, time: u64, event: Event) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let time = time.max(self.now());
        lock(&self.queue).push(Reverse((time, number, event)));
    }

    /// Puts an event into the queue, some time from now.
    pub(crate) fn after(&self, delay: Range<u64>, event: Event) {
        let delay = self.delay(delay);
        self.at(self.now().saturating_add(delay), event);
    }

    /// The next event; time goes on to it.
    pub(crate) fn next(&self) -> Option<Event> {
        let Reverse((time, _, event)) = lock(&self.queue).pop()?;
        self.now.store(time, Ordering::Relaxed);
        Some(event)
    }

    /// A number from a range, which must not be empty.
    pub(crate) fn range(&self, range: Range<u64>) -> u64 {
        lock(&self.random).u64(range)
    }

    /// How long something takes, from a range, which must not be empty.
    pub(crate) fn delay(&self, range: Range<u64>) -> u64 {
        match self.steady {
            true => range.start,
            false => self.range(range),
        }
    }

    /// A number below `bound`, or 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        self.range(0..bound.max(1) as u64) as usize
    }

    /// Happens so many times in a thousand.
    pub(crate) fn chance(&self, per_mille: u32) -> bool {
        !self.steady && self.range(0..1000) < u64::from(per_mille)
    }

    pub(crate) fn any(&self) -> u64 {
        lock(&self.random).u64(..)
    }

    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        lock(&self.random).fill(bytes);
    }

    /// Writes a line to the trace: the same bytes for the same seed. What cannot be written is
    /// left out, as a closed pipe ends no simulation.
    pub(crate) fn trace(&self, line: fmt::Arguments<'_>) {
        if let Some(writer) = &mut *lock(&self.trace) {
            let now = self.now();
            let (seconds, rest) = (now / 1_000_000_000, now % 1_000_000_000);
            let _closed = writeln!(writer, "[{seconds}.{rest:09}] {line}");
        }
    }

    /// Writes out what the trace keeps.
    pub(crate) fn flush(&self) {
        if let Some(writer) = &mut *lock(&self.trace) {
            let _closed = writer.flush();
        }
    }

    /// Makes this the simulation of the calling thread.
    pub(crate) fn install(self: &Arc<Self>) {
        CURRENT.with(|current| *current.borrow_mut() = Arc::downgrade(self));
    }

    /// The simulation of the calling thread.
    pub(crate) fn current() -> Arc<Self> {
        let current = CURRENT.with(|current| current.borrow().upgrade());
        current.expect("a simulation runs on this thread")
    }

    /// Adds a task, which starts soon.
    pub(crate) fn spawn(&self, body: impl FnOnce() + Send + 'static) -> TaskId {
        lock(&self.new_tasks).push(Box::new(body));
        let mut waits = lock(&self.waits);
        waits.push(0);
        let task = waits.len() - 1;
        drop(waits);
        self.after(0..500, Event::Resume(task, 0));
        task
    }

    /// Tasks that were added since the last call, in the order of their numbers.
    pub(crate) fn new_tasks(&self) -> Vec<Body> {
        std::mem::take(&mut *lock(&self.new_tasks))
    }

    /// Returns true if a task runs, which can wait.
    pub(crate) fn is_in_task(&self) -> bool {
        self.task() != WORLD
    }

    pub(crate) fn task(&self) -> TaskId {
        self.running.load(Ordering::Relaxed)
    }

    /// Sends a signal that ends a task's process.
    pub(crate) fn kill(&self, task: TaskId) {
        lock(&self.killed).insert(task);
        self.interrupt(task);
    }

    /// Returns true if the process of the running task has such a signal.
    pub(crate) fn is_killed(&self) -> bool {
        lock(&self.killed).contains(&self.task())
    }

    /// The process of the running task has ended; the next one has no signal.
    pub(crate) fn revive(&self) {
        lock(&self.killed).remove(&self.task());
    }

    /// The task goes on if `wait` is the one it is in; returns true if it does.
    pub(crate) fn enter(&self, task: TaskId, wait: u64) -> bool {
        let mut waits = lock(&self.waits);
        let goes_on = waits[task] == wait;
        if goes_on {
            waits[task] += 1;
            self.running.store(task, Ordering::Relaxed);
        }
        goes_on
    }

    /// The task waits again, or has ended.
    pub(crate) fn leave(&self) {
        self.running.store(WORLD, Ordering::Relaxed);
    }

    /// Lets the running task wait until `until` or a notification of `signal`.
    pub(crate) fn wait(&self, signal: Option<&Signal>, until: Option<u64>) {
        let task = self.running.load(Ordering::Relaxed);
        assert_ne!(task, WORLD, "only tasks can wait");
        let wait = lock(&self.waits)[task];
        if let Some(signal) = signal {
            lock(&signal.0).push(task);
        }
        if let Some(until) = until {
            self.at(until, Event::Resume(task, wait));
        }
        crate::task::pause();
    }

    pub(crate) fn sleep(&self, nanoseconds: u64) {
        self.wait(None, Some(self.now().saturating_add(nanoseconds)));
    }

    /// Ends the waits of all tasks for a signal.
    pub(crate) fn notify(&self, signal: &Signal) {
        for task in std::mem::take(&mut *lock(&signal.0)) {
            self.interrupt(task);
        }
    }

    /// Ends the wait of a task, whatever it waits for.
    pub(crate) fn interrupt(&self, task: TaskId) {
        let wait = lock(&self.waits)[task];
        self.after(20..800, Event::Resume(task, wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_then_entry() {
        let schedule = Schedule::new(1, None);
        schedule.at(20, Event::Arrival(1));
        schedule.at(10, Event::Arrival(2));
        schedule.at(20, Event::Arrival(3));
        let order: Vec<_> =
            std::iter::from_fn(|| Some((schedule.next()?, schedule.now()))).collect();
        assert_eq!(
            order,
            [
                (Event::Arrival(2), 10),
                (Event::Arrival(1), 20),
                (Event::Arrival(3), 20)
            ]
        );
    }

    #[test]
    fn a_late_event_does_not_end_a_later_wait() {
        let schedule = Schedule::new(1, None);
        let task = schedule.spawn(|| ());
        assert!(schedule.enter(task, 0));
        schedule.leave();
        assert!(!schedule.enter(task, 0));
        assert!(schedule.enter(task, 1));
    }
}
