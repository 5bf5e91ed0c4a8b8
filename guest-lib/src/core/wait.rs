//! Waiting: spin briefly ([`patience`]), then sleep until the NIC wakes this process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use qnic_abi::host_area::WAKE_GENERATION;
use qnic_abi::uapi;
use qnic_abi::window::Changes;
use qnic_abi::SharedMemory;

use crate::core::patience;
use crate::core::{lock, Core};
use crate::error::{Error, Result};
use crate::provider::CallError;

/// How long a spinning thread keeps its processor, at least. The NIC that it waits for may need
/// just that: a thread that yields late makes each answer late (docs/performance.md, "Messages").
const TURN: Duration = Duration::from_nanos(500);

/// Threads of this process that spin now.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// Counts a spinning thread while it lives.
struct Spinner;

impl Spinner {
    /// Counts the calling thread; returns how many threads were spinning before.
    fn enter() -> (Self, usize) {
        // Relaxed: a hint for how long to spin.
        (Spinner, SPINNERS.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What wakes a thread that sleeps. A change of any other kind (a stopped queue, an entry of the completion
/// queue) does in any case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wakes {
    /// Some changes.
    For(Changes),
    /// Notifications; nothing else does.
    Signals,
}

/// The earlier of a point in time and a deadline, if there is one.
pub(crate) fn earlier(point: Instant, deadline: Option<Instant>) -> Instant {
    deadline.map_or(point, |deadline| deadline.min(point))
}

impl Core {
    /// The time by the clock of the platform.
    pub(crate) fn now(&self) -> Instant {
        self.provider.now()
    }

    /// The point in time after a timeout; `None`: no limit.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        timeout.and_then(|timeout| self.now().checked_add(timeout))
    }

    /// Returns true if a deadline, if there is one, is over.
    pub(crate) fn is_over(&self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| self.now() >= deadline)
    }

    /// Waits until `ready` returns something: looks, spins, sleeps. Any update by the
    /// NIC wakes the caller.
    ///
    /// # Errors
    /// Those of `ready`, [`Error::TimedOut`], [`Error::DeviceGone`].
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait_with(Wakes::For(Changes::ANYTHING), deadline, ready)
    }

    /// Waits like [`Core::wait_for`], for an entry of the completion queue. Counters of lanes do not
    /// wake the caller.
    ///
    /// # Errors
    /// Those of [`Core::wait_for`].
    pub(crate) fn wait_for_entry<T>(
        &self,
        deadline: Option<Instant>,
        ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        // The head: Sends that wait in the library are posted by threads that wait.
        self.wait_with(Wakes::For(Changes::HEAD), deadline, ready)
    }

    /// Waits like [`Core::wait_for`] until a point in time. Returns `None` if nothing
    /// came by then.
    ///
    /// # Errors
    /// Those of `ready`, [`Error::DeviceGone`].
    pub(crate) fn wait_until<T>(
        &self,
        until: Instant,
        ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        match self.wait_for(Some(until), ready) {
            Ok(found) => Ok(Some(found)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits like [`Core::wait_for`], for something that only a notification brings:
    /// nothing else wakes the caller.
    pub(crate) fn wait_signal<T>(
        &self,
        timeout: Option<Duration>,
        ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait_with(Wakes::Signals, self.deadline(timeout), ready)
    }

    pub(super) fn wait_with<T>(
        &self,
        wakes: Wakes,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        if let Some(found) = self.look_for(&mut ready)? {
            return Ok(found);
        }
        self.ring_left_out();
        self.end_quiet();
        let (spinner, others) = Spinner::enter();
        let budget = self.provider.spin_budget(others);
        if budget.is_zero() {
            drop(spinner);
            return self.block(wakes, deadline, ready);
        }
        let part = patience::part_of(budget);
        if let Some(found) = self.spin(part, deadline, &mut ready)? {
            patience::note(None, budget);
            return Ok(found);
        }
        drop(spinner);
        let asleep = self.now();
        let is_over = deadline.is_some_and(|deadline| asleep >= deadline);
        let found = self.block(wakes, deadline, ready);
        // A wait that its deadline ends while it spins says nothing of how long it would have been.
        if !is_over {
            let slept = self.now().saturating_duration_since(asleep);
            patience::note(Some(part + slept), budget);
        }
        found
    }

    /// Waits until `ready` returns something, without ever sleeping.
    ///
    /// # Errors
    /// Those of `ready`, [`Error::TimedOut`].
    pub(crate) fn spin_for<T>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.ring_left_out();
        let _spinner = Spinner::enter();
        self.spin(timeout, None, &mut ready)?.ok_or(Error::TimedOut)
    }

    /// Waits like [`Core::wait_for`], but sleeps at once (`qnic_abi::host_area`, "Blocking").
    pub(crate) fn block<T>(
        &self,
        wakes: Wakes,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            let generation = self.request_wake(wakes);
            if let Some(found) = self.look_for(&mut ready)? {
                return Ok(found);
            }
            match self.sleep(generation, deadline) {
                Ok(()) | Err(CallError::Interrupted) => (),
                Err(CallError::TimedOut) => return ready()?.ok_or(Error::TimedOut),
                Err(CallError::Gone) => return Err(self.lose_device()),
                Err(error) => return Err(Error::call(|| "wait".into(), error)),
            }
        }
    }

    /// Asks for a wake event. Returns the generation that it ends.
    pub(crate) fn request_wake(&self, wakes: Wakes) -> u64 {
        self.end_quiet();
        let (window, host_area) = (&self.window(), &self.area());
        // Acquire: a wake event after this load changes the generation
        // (partner: the driver's increment before it wakes any thread).
        let generation = || host_area.load_u64(WAKE_GENERATION, Ordering::Acquire);
        match wakes {
            Wakes::Signals => {
                let seen = generation();
                self.signal_wakes.request(window);
                seen
            }
            Wakes::For(changes) => {
                let mut sleepers = lock(&self.sleepers);
                let seen = generation();
                let changes = sleepers.add(seen, changes | self.messages.awaited());
                self.wakes.request_for(window, changes);
                seen
            }
        }
    }

    /// One look of a wait. A waiting thread takes completions of messages: what it waits for may
    /// come only once they have room.
    #[inline]
    fn look_for<T>(&self, ready: &mut impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        self.progress_messages();
        ready()
    }

    fn sleep(
        &self,
        generation: u64,
        deadline: Option<Instant>,
    ) -> std::result::Result<(), CallError> {
        let timeout_ns = deadline.map_or(-1, |deadline| {
            let left = deadline.saturating_duration_since(self.now());
            i64::try_from(left.as_nanos()).unwrap_or(i64::MAX)
        });
        let mut call = uapi::Wait {
            generation: generation.into(),
            timeout_ns: timeout_ns.into(),
            ..Default::default()
        };
        self.process.wait(&mut call)
    }

    /// Looks until `ready` returns something, `budget` is used up or the deadline is
    /// over. Reads the clock only after the first looks, and yields the processor every
    /// [`TURN`]: the NIC or the peer may need it.
    fn spin<T>(
        &self,
        budget: Duration,
        deadline: Option<Instant>,
        ready: &mut impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let (mut start, mut yielded) = (None, None);
        loop {
            for _ in 0..self.provider.looks() {
                if let Some(found) = self.look_for(ready)? {
                    return Ok(Some(found));
                }
                std::hint::spin_loop();
            }
            let now = self.now();
            let spent = now - *start.get_or_insert(now);
            if spent >= budget || deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            if now - *yielded.get_or_insert(now) >= TURN {
                std::thread::yield_now();
                yielded = None;
            }
        }
    }
}
