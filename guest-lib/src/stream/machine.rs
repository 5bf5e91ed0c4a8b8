//! The protocol on pools: what moves frames, and what waits for what.
//!
//! ```text
//!   threads of the program ──┐            ┌── pump: receive, tick, transmit, flush
//!                            ├── lock ────┤
//!   the service thread ──────┘            └── changed: sleeping threads, wakers of tasks
//! ```
//! The thread with the lock does what is to be done. A thread of the program that has to wait looks
//! for a while itself, then sleeps; the service thread sleeps in the driver for all of them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::stream_protocol::{Address, Changed, Config, ConnectionId, Endpoint};
use qnic_abi::pool::events;
use qnic_shared::timing::Time;
use rustix::event::{eventfd, EventfdFlags};

use super::buffers::{Received, Sending};
use crate::error::{Error, Result};
use crate::pool::{InputFrame, OutputFrame, Pools, Shared};

/// Packets that are taken before something else is done.
const BATCH: usize = 256;

/// How late the service thread may be, in nanoseconds. Were it woken for each deadline that comes
/// before those that it knows, each message of a conversation would cost two switches of threads:
/// one sets a timer for its acknowledgement, which its answer then carries.
pub(super) const SLACK_NS: u64 = 1_000_000;

/// How often a thread looks on when something has come that it does not wait for: an acknowledgement
/// often comes right before the answer. A thread whose stream is idle beside a busy one soon sleeps.
const LOOKS: usize = 8;

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// A stream that can be accepted.
    Incoming,
    /// Anything that changes.
    Anything,
}

/// Threads that sleep until something changes.
#[derive(Debug, Default)]
struct Sleepers {
    changed: Condvar,
    /// How many there are: with the lock held, so a thread that changes something sees them. To wake none
    /// would be a system call all the same.
    count: AtomicUsize,
}

impl Sleepers {
    /// Sleeps, until then at most.
    fn sleep<'a>(
        &self,
        state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        // Relaxed, here and below: the lock orders it.
        self.count.fetch_add(1, Ordering::Relaxed);
        let state = match timeout {
            None => self.changed.wait(state),
            Some(timeout) => self
                .changed
                .wait_timeout(state, timeout)
                .map(|(state, _)| state)
                .map_err(|error| PoisonError::new(error.into_inner().0)),
        };
        self.count.fetch_sub(1, Ordering::Relaxed);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes them; to be called with the lock held.
    fn wake(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) endpoint: Endpoint<Sending, Received>,
    /// Tasks that wait for a stream, and for one to be accepted.
    pub(super) wakers: HashMap<ConnectionId, Vec<Waker>>,
    pub(super) incoming: Vec<Waker>,
    pub(super) has_listener: bool,
    /// A frame for what carries no data.
    spare: Option<OutputFrame>,
    /// Something is to be sent, and no frame is there.
    pub(super) needs_output: bool,
    /// A writer has found no frame, though it may have one.
    pub(super) needs_frame: bool,
    /// Threads of the program that look at the queues themselves.
    pub(super) spinners: usize,
    /// The service thread sleeps, until then if that is known.
    pub(super) asleep: Option<Option<Time>>,
    /// The last handle is gone.
    pub(super) closing: Option<Time>,
    /// The device is gone.
    pub(super) is_gone: bool,
}

/// Streams of one datagram port.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) pools: Arc<Shared>,
    pub(super) config: Config,
    state: Mutex<State>,
    /// Threads that accept, and all others: a frame of a stream is nothing to the former.
    accepting: Sleepers,
    sleeping: Sleepers,
    /// Wakes the service thread.
    pub(super) nudge: OwnedFd,
    epoch: Instant,
}

impl Machine {
    /// One without streams.
    pub(super) fn new(pools: &Pools, config: Config) -> Result<Arc<Self>> {
        let shared = pools.shared().clone();
        let seed = shared.provider.random();
        let endpoint = Endpoint::new(config.clone(), seed);
        let endpoint = endpoint
            .map_err(|error| Error::system(error.to_string(), std::io::ErrorKind::InvalidInput))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let nudge = eventfd(0, flags).map_err(|errno| Error::system("make an eventfd", errno))?;
        Ok(Arc::new(Machine {
            pools: shared,
            config,
            state: Mutex::new(State {
                endpoint,
                wakers: HashMap::new(),
                incoming: Vec::new(),
                has_listener: false,
                spare: None,
                needs_output: false,
                needs_frame: false,
                spinners: 0,
                asleep: None,
                closing: None,
                is_gone: false,
            }),
            accepting: Sleepers::default(),
            sleeping: Sleepers::default(),
            nudge,
            epoch: Instant::now(),
        }))
    }

    pub(super) fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }

    /// How long it is until then.
    pub(super) fn until(&self, time: Time) -> Duration {
        Duration::from_nanos(time.0.saturating_sub(self.now().0))
    }

    /// The state. No code that can panic leaves it half changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the service thread.
    pub(super) fn nudge(&self) {
        self.pools.count_nudge();
        // A counter that is full wakes, too.
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
    }

    /// Does all that is to be done now. Returns an error if the device is gone.
    pub(super) fn pump(&self, state: &mut State) -> Result<()> {
        let outcome = self.try_pump(state);
        if outcome.is_err() && !state.is_gone {
            state.is_gone = true;
            self.wake_all(state);
        }
        outcome
    }

    /// The service thread has found that the device is gone: all that wait learn of it.
    pub(super) fn device_is_gone(&self) {
        let mut state = self.lock();
        state.is_gone = true;
        self.wake_all(&mut state);
    }

    fn try_pump(&self, state: &mut State) -> Result<()> {
        if state.is_gone {
            return Err(Error::DeviceGone);
        }
        let now = self.now();
        for _ in 0..BATCH {
            let Some(frame) = InputFrame::take(&self.pools)? else {
                break;
            };
            let from = Address {
                node: frame.node(),
                port: frame.port(),
            };
            state.endpoint.handle_frame(now, from, Received(frame));
        }
        state.endpoint.tick(now);
        self.transmit(state, now)?;
        if state.needs_frame {
            // Dropped at once, it is free for the first that writes.
            state.needs_frame = OutputFrame::take(&self.pools)?.is_none();
            if !state.needs_frame {
                self.wake_all(state);
            }
        }
        self.pools.flush()?;
        self.tell(state);
        Ok(())
    }

    fn transmit(&self, state: &mut State, now: Time) -> Result<()> {
        state.needs_output = false;
        loop {
            let spare = match state.spare.take() {
                Some(spare) => Some(spare),
                None => OutputFrame::take(&self.pools)?,
            };
            let Some(mut spare) = spare else {
                state.needs_output = true;
                return Ok(());
            };
            let Some(transmit) = state.endpoint.poll_transmit(now) else {
                state.spare = Some(spare);
                return Ok(());
            };
            let (to, header) = (transmit.to, transmit.header);
            match transmit.data {
                Some((sending, length)) => {
                    sending.0.write(0, &header)?;
                    sending.0.send(to.node, to.port, header.len() + length)?;
                    state.spare = Some(spare);
                }
                None => {
                    spare.write(0, &header)?;
                    spare.send(to.node, to.port, header.len())?;
                }
            }
        }
    }

    /// Tells all that wait what has changed.
    fn tell(&self, state: &mut State) {
        if state.closing.is_some() {
            // The thread that has dropped the last handle: no program has the connections any more.
            self.sleeping.wake();
        }
        while let Some(changed) = state.endpoint.poll_changed() {
            let wakers = match changed {
                Changed::Connection(id) => {
                    self.sleeping.wake();
                    state.wakers.remove(&id).unwrap_or_default()
                }
                Changed::Incoming => {
                    self.accepting.wake();
                    self.sleeping.wake();
                    std::mem::take(&mut state.incoming)
                }
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn wake_all(&self, state: &mut State) {
        let wakers = state.wakers.drain().flat_map(|(_, wakers)| wakers);
        wakers.chain(state.incoming.drain(..)).for_each(Waker::wake);
        self.accepting.wake();
        self.sleeping.wake();
    }

    /// A thread of the program has changed something: it is sent, and the service thread wakes if
    /// there is something to do before it would.
    pub(super) fn kick_off(&self, state: &mut State) -> Result<()> {
        self.pump(state)?;
        if let Some(until) = state.asleep {
            let deadline = state.endpoint.deadline();
            let is_earlier =
                deadline.is_some_and(|time| until.is_none_or(|until| time.after(SLACK_NS) < until));
            if is_earlier || state.needs_output || state.needs_frame {
                // It sets the time anew before it sleeps again.
                state.asleep = None;
                self.nudge();
            }
        }
        Ok(())
    }

    /// Does something as soon as it can be done: `attempt` returns None while it cannot.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`], those of `attempt`.
    pub(super) fn wait<T>(
        &self,
        awaited: Awaited,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        let mut state = self.lock();
        if let Some(done) = attempt(&mut state)? {
            return self.done(state, done);
        }
        let end = timeout.and_then(|timeout| start.checked_add(timeout));
        let mut looks = LOOKS;
        loop {
            self.kick_off(&mut state)?;
            if let Some(done) = attempt(&mut state)? {
                return self.done(state, done);
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Err(Error::TimedOut);
            }
            if looks > 0 {
                let has_come;
                (state, has_come) = self.spin(state, end)?;
                looks = if has_come { looks - 1 } else { 0 };
                continue;
            }
            let sleepers = match awaited {
                Awaited::Incoming => &self.accepting,
                Awaited::Anything => &self.sleeping,
            };
            state = sleepers.sleep(state, end.map(|end| end - now));
        }
    }

    /// Hands on what was done. If that fails, what was done is dropped without the lock, which it
    /// may take.
    fn done<T>(&self, mut state: MutexGuard<'_, State>, done: T) -> Result<T> {
        let outcome = self.kick_off(&mut state);
        drop(state);
        outcome.map(|()| done)
    }

    /// Looks at the queues for a while, or has the driver look at the NIC; returns when something
    /// has come, which it says, or it was long enough. Meanwhile the driver need not wake any thread, and
    /// what is due is done here.
    fn spin<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        end: Option<Instant>,
    ) -> Result<(MutexGuard<'a, State>, bool)> {
        let budget = self.pools.provider.spin_budget(state.spinners);
        if budget.is_zero() {
            return Ok((state, false));
        }
        let before = self.pools.statistics().frames_received;
        let until = Instant::now() + budget;
        let until = end.map_or(until, |end| end.min(until));
        state.spinners += 1;
        self.pools.awake();
        let mut outcome = Ok(());
        while outcome.is_ok() && Instant::now() < until && self.pools.ready() & events::INPUT == 0 {
            drop(state);
            let looked = self.pools.look(events::INPUT);
            if self.pools.ready() & events::INPUT == 0 {
                std::thread::yield_now();
            }
            state = self.lock();
            outcome = looked.map(drop);
            if outcome.is_ok()
                && state
                    .endpoint
                    .deadline()
                    .is_some_and(|due| due <= self.now())
            {
                outcome = self.pump(&mut state);
                if self.pools.statistics().frames_received != before {
                    break;
                }
            }
        }
        state.spinners -= 1;
        outcome?;
        if state.spinners == 0 && state.asleep.is_some() {
            // The service thread sleeps in the driver: from here on it is woken again.
            while self.pools.want(self.wanted(&state)) != 0 {
                self.pump(&mut state)?;
            }
        }
        let has_come = self.pools.ready() & events::INPUT != 0
            || self.pools.statistics().frames_received != before;
        Ok((state, has_come))
    }

    /// What the service thread is to be woken for.
    pub(super) fn wanted(&self, state: &State) -> u32 {
        match state.needs_output || state.needs_frame {
            true => events::INPUT | events::OUTPUT,
            false => events::INPUT,
        }
    }
}
