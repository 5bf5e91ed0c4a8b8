//! Receives for which no doorbell is rung: the NIC reads them when a message comes (`qnic_abi::window`, "Doorbell").
//!
//! ```text
//!   receive ──► the NIC sleeps, and no message waits: left out ──► the next Send rings, or a message comes
//!                                             └── LOOKS looks in vain, some time, or a thread sleeps: rung
//! ```
//! A doorbell of a guest stops its processor for 13 µs and more. A receive that is posted behind a Send would ring a
//! second one, and what it says can wait: nothing has come that it could take. It cannot wait for ever, as the NIC
//! watches the sender for receives that it has read: a process that looks often rings after a number of looks, one that
//! looks rarely by the clock, which is read at some of the looks.
//!
//! # Invariants
//! - No thread of the process sleeps while a doorbell is left out here.
//! - Few receives are left out, so the command queue does not fill up with them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::core::queue::Ring;
use crate::core::Core;

/// Looks in vain after which the doorbell is rung: some 0.1 ms in host mode, 0.4 ms in an emulated guest. An answer
/// comes before.
const LOOKS: u32 = 1024;

/// Looks between two at which the clock is read.
const CLOCK: u32 = 16;

/// How long a doorbell is left out when the clock is read next.
const LONG: Duration = Duration::from_millis(1);

/// Commands that stand in the queue unread, at most.
const MOST: u64 = 8;

/// How soon the NIC is to read a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Usual,
    /// When a message comes; otherwise some time.
    Message,
}

impl Urgency {
    /// How many commands may stand unread with it.
    pub(super) fn most(self) -> u64 {
        match self {
            Urgency::Usual => 0,
            Urgency::Message => MOST,
        }
    }
}

/// What is left out.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// Looks in vain until the doorbell is rung; 0: none is left out.
    looks: AtomicU32,
    /// When the clock was read first since the last one was left out, in microseconds since `begin`; 0: not yet.
    since: AtomicU64,
    begin: OnceLock<Instant>,
}

impl Quiet {
    /// A command was stored, and the doorbell is rung, or not. Called with the tracker locked.
    #[inline]
    pub(super) fn note(&self, ring: Ring) {
        let looks = match ring {
            Ring::Later => LOOKS,
            // It is rung for all.
            Ring::Now => 0,
            Ring::Never => return,
        };
        // Relaxed: a number by itself; what it stands for is settled under the tracker's lock.
        self.looks.store(looks, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }

    /// Microseconds, from one on, as the clock says.
    fn now(&self) -> u64 {
        let begin = self.begin.get_or_init(Instant::now);
        begin.elapsed().as_micros() as u64 + 1
    }

    /// Whether it was long ago that the clock was read first.
    #[cold]
    fn is_old(&self, now: u64) -> bool {
        // Relaxed: as above.
        match self.since.load(Ordering::Relaxed) {
            0 => self.since.store(now, Ordering::Relaxed),
            since => return now.saturating_sub(since) >= LONG.as_micros() as u64,
        }
        false
    }
}

impl Core {
    /// A look was in vain.
    #[inline]
    pub(super) fn tire_of_quiet(&self) {
        self.tire_of_quiet_at(|| self.quiet.now());
    }

    /// The same, by this clock of microseconds.
    #[inline]
    pub(crate) fn tire_of_quiet_at(&self, now: impl FnOnce() -> u64) {
        // Relaxed: as it is stored. A look that another thread overwrites is not counted, and one that comes late has
        // the doorbell looked at once more.
        match self.quiet.looks.load(Ordering::Relaxed) {
            0 => {}
            1 => self.ring_quiet(),
            looks if looks % CLOCK == 0 && self.quiet.is_old(now()) => self.ring_quiet(),
            looks => self.quiet.looks.store(looks - 1, Ordering::Relaxed),
        }
    }

    /// Rings for what is left out, if the NIC sleeps and has not read it.
    #[inline]
    pub(super) fn end_quiet(&self) {
        if self.quiet.looks.load(Ordering::Relaxed) > 0 {
            self.ring_quiet();
        }
    }

    #[cold]
    fn ring_quiet(&self) {
        let (window, area) = (&self.window(), &self.area());
        let mut tracker = self.tracker();
        self.quiet.looks.store(0, Ordering::Relaxed);
        let last = tracker.last_number();
        let ring = last.is_some_and(|last| tracker.doorbell.must_ring(window, area, last));
        drop(tracker);
        if ring {
            self.process.ring_doorbell();
        }
    }
}
