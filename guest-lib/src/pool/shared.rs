//! Pools as all that use them share them: the queues under a lock, and what becomes of frames.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qnic_abi::pool::{events, OpenPools, Pool, PoolInfo, PoolKick, PoolWait, Shape};
use qnic_abi::{uapi, NodeId};
use qnic_shared::pool::{Packet, ProcessSide};

use crate::core::retry;
use crate::error::{Error, Result};
use crate::path::Path;
use crate::provider::{CallError, Memory, Pools, Provider};

/// Waits in a row for one packet each, after which those to come are taken to be for one, too.
const CONVERSATION: u64 = 8;

/// Pauses between two looks at the queues.
const SPINS: u32 = 32;

/// What a process has counted of its pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames given to the driver to be sent.
    pub frames_sent: u64,
    /// Packets received.
    pub frames_received: u64,
    /// System calls that told the driver to look at the queues (S4).
    pub kicks: u64,
    /// System calls that blocked (S3).
    pub waits: u64,
    /// System calls by which threads of this process wake the one that serves its streams.
    pub nudges: u64,
}

impl Statistics {
    /// All system calls.
    pub fn calls(&self) -> u64 {
        self.kicks + self.waits + self.nudges
    }

    /// System calls for each frame that was sent or received.
    pub fn calls_per_frame(&self) -> f64 {
        let frames = (self.frames_sent + self.frames_received).max(1);
        self.calls() as f64 / frames as f64
    }
}

/// Where an output frame is.
#[derive(Debug)]
pub(super) enum Place {
    /// Not in use, or on its way to the driver and back without a wait for it.
    Away,
    /// With its [`OutputFrame`].
    Here(qnic_shared::pool::OutputFrame),
    /// With the driver; its [`OutputFrame`] waits for it.
    Lent,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) side: ProcessSide,
    /// Output frames that can be filled.
    pub(super) free: Vec<qnic_shared::pool::OutputFrame>,
    pub(super) places: Vec<Place>,
}

/// Pools that are open.
#[derive(Debug)]
pub(crate) struct Shared {
    pools: Box<dyn Pools>,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) port: u16,
    pub(crate) node: NodeId,
    pub(crate) shape: Shape,
    state: Mutex<State>,
    sent: AtomicU64,
    received: AtomicU64,
    /// What had been received when a thread waited last, and how many waits in a row were for one
    /// packet each, an answer to what was sent ([`Shared::converses`]).
    received_before: AtomicU64,
    singles: AtomicU64,
    /// What had been sent then.
    sent_before: AtomicU64,
    /// Threads that look at the queues themselves.
    spinners: AtomicUsize,
    kicks: AtomicU64,
    waits: AtomicU64,
    nudges: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        pools: Box<dyn Pools>,
        call: &OpenPools,
        provider: Arc<dyn Provider>,
    ) -> Result<Self> {
        let sizes = [
            call.frame_bytes.get() as usize,
            usize::from(call.inputs.get()),
        ];
        let outputs = usize::from(call.outputs.get());
        let shape = Shape::new(sizes[0], sizes[1], outputs)
            .filter(|shape| shape.bytes() <= pools.range().size())
            .ok_or_else(|| Error::Incompatible("the range of the pools is too short".into()))?;
        Ok(Shared {
            port: call.port.get(),
            node: NodeId(call.node.get()),
            shape,
            state: Mutex::new(State {
                side: ProcessSide::new(shape),
                free: Vec::with_capacity(outputs),
                places: (0..outputs).map(|_| Place::Away).collect(),
            }),
            pools,
            provider,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            received_before: AtomicU64::new(0),
            singles: AtomicU64::new(0),
            sent_before: AtomicU64::new(0),
            spinners: AtomicUsize::new(0),
            kicks: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            nudges: AtomicU64::new(0),
        })
    }

    /// The queues. A thread that has panicked with the lock has changed nothing half.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn range(&self) -> &dyn Memory {
        self.pools.range()
    }

    /// Offset of a frame in the range.
    pub(super) fn offset(&self, pool: Pool, index: usize) -> usize {
        self.shape.frame(pool, index)
    }

    /// Takes back all frames that were sent.
    pub(super) fn reap(&self, state: &mut State) -> Result<()> {
        while let Some(frame) = state.side.take_output(&self.range()) {
            let frame = frame.map_err(|_| broken())?;
            let place = &mut state.places[frame.index()];
            match place {
                Place::Lent => *place = Place::Here(frame),
                Place::Away | Place::Here(_) => state.free.push(frame),
            }
        }
        Ok(())
    }

    /// Takes an output frame that is free; returns its index.
    pub(super) fn take_output(&self) -> Result<Option<usize>> {
        let mut state = self.state();
        if state.free.is_empty() {
            self.reap(&mut state)?;
        }
        let frame = state.free.pop();
        Ok(frame.map(|frame| {
            let index = frame.index();
            state.places[index] = Place::Here(frame);
            index
        }))
    }

    /// Takes the packet that came first.
    pub(super) fn take_packet(&self) -> Result<Option<Packet<qnic_shared::pool::Input>>> {
        let Some(packet) = self.state().side.receive(&self.range()) else {
            return Ok(None);
        };
        let packet = packet.map_err(|_| broken())?;
        self.received.fetch_add(1, Ordering::Relaxed);
        Ok(Some(packet))
    }

    /// Has a frame sent.
    pub(super) fn send(
        &self,
        state: &mut State,
        packet: Packet<qnic_shared::pool::Output>,
    ) -> Result<()> {
        let sent = state.side.send(&self.range(), packet);
        sent.map_err(|_| broken())?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn flush(&self) -> Result<()> {
        let must_kick = self.state().side.must_kick(&self.range());
        if !must_kick {
            return Ok(());
        }
        self.kicks.fetch_add(1, Ordering::Relaxed);
        let mut call = PoolKick::default();
        retry(|| "kick the driver".into(), || self.pools.kick(&mut call))?;
        Error::check(call.status.get(), || "kick the driver".into())
    }

    /// Says what this process wants to be woken for; returns those [`events`] that are there.
    ///
    /// [`events`]: qnic_abi::pool::events
    pub(crate) fn want(&self, wanted: u32) -> u32 {
        let state = self.state();
        let mut ready = state.side.want(&self.range(), wanted);
        if !state.free.is_empty() {
            ready |= wanted & events::OUTPUT;
        }
        ready
    }

    /// Says that this process looks at the queues itself.
    pub(crate) fn awake(&self) {
        self.state().side.awake(&self.range());
    }

    /// Has the driver look at the NIC for a while, which ends when one of the events is there, or
    /// another thread wants the processor. Returns false where the driver does not do that.
    pub(crate) fn look(&self, events: u32) -> Result<bool> {
        if !self.pools.looks() {
            return Ok(false);
        }
        let mut call = PoolWait {
            events: events.into(),
            timeout_ns: 0.into(),
            ..PoolWait::default()
        };
        self.waits.fetch_add(1, Ordering::Relaxed);
        match self.pools.wait(&mut call) {
            Ok(()) | Err(CallError::TimedOut | CallError::Interrupted) => Ok(true),
            Err(error) => Err(Error::call(|| "look for frames".into(), error)),
        }
    }

    /// Returns an error if the device is gone: then its descriptor is readable for ever, and nothing comes.
    pub(crate) fn check(&self) -> Result<()> {
        let mut call = PoolWait {
            events: events::INPUT.into(),
            timeout_ns: 1.into(),
            ..PoolWait::default()
        };
        self.count_wait();
        match self.pools.wait(&mut call) {
            Ok(()) | Err(CallError::TimedOut | CallError::Interrupted) => Ok(()),
            Err(error) => Err(Error::call(|| "look for the device".into(), error)),
        }
    }

    /// Looks before a thread sleeps. In a conversation the driver looks at the NIC, which then sends no
    /// event. Packets in bursts come by events, each with what has arrived by then: the thread looks at
    /// the queues itself, without a call for each of them.
    fn look_first(&self, events: u32, timeout: Option<Duration>) -> Result<()> {
        let converses = self.converses();
        // Relaxed: a count that only chooses how long a thread looks.
        let others = self.spinners.fetch_add(1, Ordering::Relaxed);
        let budget = self.provider.spin_budget(others);
        let mut outcome = Ok(());
        if timeout.is_none_or(|timeout| timeout >= budget) {
            let end = Instant::now() + budget;
            while outcome.is_ok() && Instant::now() < end && self.ready() & events == 0 {
                let looked = match converses {
                    true => self.look(events),
                    false => Ok(false),
                };
                if matches!(looked, Ok(false)) {
                    (0..SPINS).for_each(|_| std::hint::spin_loop());
                }
                outcome = looked.map(drop);
            }
        }
        self.spinners.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    /// Notes that a thread waits; returns true if the last [`CONVERSATION`] waits were for one packet
    /// each, an answer to what was sent before.
    fn converses(&self) -> bool {
        // Relaxed: numbers for a guess, and nothing is read because of them.
        let advance = |counter: &AtomicU64, before: &AtomicU64| {
            let now = counter.load(Ordering::Relaxed);
            now.wrapping_sub(before.swap(now, Ordering::Relaxed))
        };
        let received = advance(&self.received, &self.received_before);
        let sent = advance(&self.sent, &self.sent_before);
        let singles = match (received, sent) {
            // A burst, of which this thread takes one after the other.
            (1, 0) => self.singles.load(Ordering::Relaxed),
            (0 | 1, _) => self.singles.fetch_add(1, Ordering::Relaxed) + 1,
            _ => {
                self.singles.store(0, Ordering::Relaxed);
                0
            }
        };
        singles >= CONVERSATION
    }

    pub(crate) fn wait(&self, events: u32, timeout: Option<Duration>) -> Result<()> {
        self.flush()?;
        let end = timeout.map(|timeout| Instant::now() + timeout);
        self.look_first(events, timeout)?;
        loop {
            if self.want(events) != 0 {
                break;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            // Zero would not sleep, but look.
            let nanoseconds = left.map_or(-1, |left| left.as_nanos().clamp(1, 1 << 62) as i64);
            let mut call = PoolWait {
                events: events.into(),
                timeout_ns: nanoseconds.into(),
                ..PoolWait::default()
            };
            self.waits.fetch_add(1, Ordering::Relaxed);
            match self.pools.wait(&mut call) {
                Ok(()) => Error::check(call.status.get(), || "wait for frames".into())?,
                Err(CallError::Interrupted) => {}
                Err(error) => {
                    self.awake();
                    return Err(Error::call(|| "wait for frames".into(), error));
                }
            }
        }
        self.awake();
        Ok(())
    }

    /// Asks to be woken; the descriptor to poll, or none if one of the events is there.
    pub(crate) fn poll(&self, events: u32) -> Result<Option<BorrowedFd<'_>>> {
        self.flush()?;
        self.pools.clear_event();
        if self.want(events) != 0 {
            self.awake();
            return Ok(None);
        }
        let event = self.pools.event();
        event
            .map(Some)
            .map_err(|error| Error::call(|| "poll the pools".into(), error))
    }

    /// The descriptor that is polled, when others than the caller say what is wanted.
    pub(crate) fn poll_descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.pools.clear_event();
        let event = self.pools.event();
        event.map_err(|error| Error::call(|| "poll the pools".into(), error))
    }

    /// Which [`events`] are there.
    ///
    /// [`events`]: qnic_abi::pool::events
    pub(crate) fn ready(&self) -> u32 {
        self.state().side.ready(&self.range())
    }

    /// Counts a system call that blocks.
    pub(crate) fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a system call that wakes a thread of this process, or takes note of that.
    pub(crate) fn count_nudge(&self) {
        self.nudges.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            frames_sent: self.sent.load(Ordering::Relaxed),
            frames_received: self.received.load(Ordering::Relaxed),
            kicks: self.kicks.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            nudges: self.nudges.load(Ordering::Relaxed),
        }
    }

    pub(super) fn info(&self) -> Result<PoolInfo> {
        let mut info = PoolInfo::default();
        let what = || "ask for the counters of the pools".to_owned();
        retry(what, || self.pools.info(&mut info))?;
        Error::check(info.status.get(), what)?;
        Ok(info)
    }

    /// Bytes that the route to a node carries in one packet, up to those of a frame; those of a
    /// frame if the route is not known yet. It is asked for with a system call.
    pub(crate) fn route_bytes(&self, node: NodeId) -> usize {
        let frame = self.shape.frame_bytes();
        self.path(node)
            .map_or(frame, |path| (path.max_payload as usize).clamp(1, frame))
    }

    /// What the NIC knows of the route to a node, if they have a session.
    pub(crate) fn path(&self, node: NodeId) -> Option<Path> {
        let mut call = uapi::Path {
            node: node.0.into(),
            ..uapi::Path::default()
        };
        let asked = self.pools.path(&mut call);
        (asked.is_ok() && call.status.get() == 0).then(|| Path::new(&call.path))
    }
}

/// The driver breaks the rules of the queues.
pub(super) fn broken() -> Error {
    Error::Incompatible("the driver fills slots of the pools with nonsense".into())
}
