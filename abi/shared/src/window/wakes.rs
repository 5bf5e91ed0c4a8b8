//! Wake requests: what a process asks its NIC for before it blocks.
//!
//! ```text
//!   WAKE_REQUEST         updates of the host area       ┐ the NIC remembers for each word which
//!   SIGNAL_WAKE_REQUEST  what other processes cause     ┘ value it has acted upon last
//! ```
//! A library has threads that wait for either, each with [`WakeRequests`] of its own word. A driver is
//! one waiter that changes what it waits for: [`SwitchedWakes`].
//!
//! Threads share a word: what one asks for replaces what another has asked for, and is for [`Sleepers`], all
//! that may be asleep.
//!
//! # Invariants
//! - A value that was requested once is never requested again. So the NIC has not acted upon the
//!   value of a new request, whatever it saw of the ones before and of what was taken back.
//! - What is taken back stands in front of the new request, whose fence covers both.

use core::sync::atomic::AtomicU64;

use qnic_abi::shared::Ordering;
use qnic_abi::window::{Changes, SIGNAL_WAKE_REQUEST, WAKE_REQUEST};
use qnic_abi::SharedMemory;

/// Source of wake requests of one process; each value is stored once.
#[derive(Debug)]
pub struct WakeRequests {
    /// Offset of the word in the window.
    word: usize,
    last: AtomicU64,
}

impl WakeRequests {
    /// Requests of threads that wait for anything. Continues after the value that an
    /// earlier process left in the window.
    pub fn new<M: SharedMemory + ?Sized>(window: &M) -> Self {
        Self::at(WAKE_REQUEST, window)
    }

    /// Requests of threads that wait for a notification only.
    pub fn for_signals<M: SharedMemory + ?Sized>(window: &M) -> Self {
        Self::at(SIGNAL_WAKE_REQUEST, window)
    }

    fn at<M: SharedMemory + ?Sized>(word: usize, window: &M) -> Self {
        let last = Changes::number(window.load_u64(word, Ordering::Relaxed));
        WakeRequests {
            word,
            last: AtomicU64::new(last),
        }
    }

    /// Asks the NIC for a wake event at its next update of the host area, or at the
    /// next notification. The caller looks at the host area once more before it
    /// blocks.
    ///
    /// Several threads may ask at once: the value that is stored last differs from
    /// every value that the NIC has acted upon before.
    pub fn request<M: SharedMemory + ?Sized>(&self, window: &M) {
        self.request_for(window, Changes::ANYTHING);
    }

    /// The same, for some changes only. Threads that may be asleep for others lose theirs
    /// ([`Sleepers`]).
    pub fn request_for<M: SharedMemory + ?Sized>(&self, window: &M, changes: Changes) {
        // Relaxed: only the value matters, it is unique whatever the order.
        let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        window.store_u64(self.word, changes.request(number), Ordering::Relaxed);
        // Partner: the NIC's fence between its update of the host area and its
        // load of the word. Either the NIC sees the request, or the caller's next look
        // sees the update.
        window.fence();
    }

    /// The number of the last request: the value that was stored, as a driver waits for anything.
    fn last(&self) -> u64 {
        // Relaxed: a number to compare with; nothing is read because of it.
        self.last.load(Ordering::Relaxed)
    }

    /// Takes back what was asked for since the NIC has acted upon `seen`: it sends no event until
    /// the next request. If it has acted upon a later one meanwhile, that event comes, and one
    /// more.
    fn cancel<M: SharedMemory + ?Sized>(&self, window: &M, seen: u64) {
        // Relaxed: nothing is published. A NIC that still sees the request sends an event too many; the
        // next request has a fence behind it.
        window.store_u64(self.word, seen, Ordering::Relaxed);
    }
}

/// What the threads of a process that may be asleep wait for. Locked from [`Sleepers::add`] until the request
/// for these is stored.
///
/// An event wakes all threads of its generation, so what they wait for is forgotten with the first
/// thread that asks in a later one.
#[derive(Debug, Default)]
pub struct Sleepers {
    /// The wake generation in which they have asked.
    generation: u64,
    changes: Changes,
}

impl Sleepers {
    /// A thread that sleeps until this generation ends waits for these. Returns what to ask for.
    pub fn add(&mut self, generation: u64, changes: Changes) -> Changes {
        if generation > self.generation {
            *self = Sleepers::default();
            self.generation = generation;
        }
        self.changes |= changes;
        self.changes
    }
}

/// What a wake event is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Any update of the host area: the end of the process's own commands, too.
    Anything,
    /// Events that other processes cause, as solicited events of InfiniBand: notifications, packets that arrive,
    /// buffers that come back, and packets that could not be sent.
    Solicited,
}

/// Requests of one kind.
#[derive(Debug)]
struct Kind {
    requests: WakeRequests,
    /// The last one that the NIC has acted upon, as far as is known.
    woken_by: u64,
}

impl Kind {
    fn new(requests: WakeRequests) -> Self {
        let woken_by = requests.last();
        Kind { requests, woken_by }
    }

    fn cancel<M: SharedMemory + ?Sized>(&self, window: &M) {
        if self.requests.last() != self.woken_by {
            self.requests.cancel(window, self.woken_by);
        }
    }
}

/// Wake requests of one waiter that changes what it waits for: of both kinds, of which one is asked
/// for at a time.
///
/// ```text
///            arm(Solicited)               arm(Anything)
///   idle ──────────────────► solicited ◄───────────────► anything
///     ▲                          │       arm(Solicited)     │
///     └───────── disarm ─────────┴──────────────────────────┘
/// ```
/// An event answers a request of before the last switch, too: the waiter looks at the host area, and
/// asks again.
#[derive(Debug)]
pub struct SwitchedWakes {
    anything: Kind,
    solicited: Kind,
}

impl SwitchedWakes {
    /// Requests that continue after the values that are in the window. Nothing is asked for yet.
    pub fn new<M: SharedMemory + ?Sized>(window: &M) -> Self {
        SwitchedWakes {
            anything: Kind::new(WakeRequests::new(window)),
            solicited: Kind::new(WakeRequests::for_signals(window)),
        }
    }

    /// Asks for a wake event, in place of what was asked for before. The caller looks at the host area
    /// once more before it blocks.
    pub fn arm<M: SharedMemory + ?Sized>(&self, window: &M, awaited: Awaited) {
        match awaited {
            // It includes the others.
            Awaited::Anything => {
                self.solicited.cancel(window);
                self.anything.requests.request(window);
            }
            Awaited::Solicited => {
                self.anything.cancel(window);
                self.solicited.requests.request(window);
            }
        }
    }

    /// Asks for no wake event any more, but for one that may be under way.
    pub fn disarm<M: SharedMemory + ?Sized>(&self, window: &M) {
        self.anything.cancel(window);
        self.solicited.cancel(window);
    }

    /// A wake event has come. Which request it answers is not known: if it is another one than this
    /// supposes, one event more comes.
    pub fn woken(&mut self) {
        for kind in [&mut self.anything, &mut self.solicited] {
            kind.woken_by = kind.requests.last();
        }
    }
}
