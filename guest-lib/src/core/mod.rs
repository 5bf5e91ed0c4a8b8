//! What an endpoint and everything made from it share: the registered process, its
//! command queue, and the state that [`crate::memory`], [`crate::notification`],
//! [`crate::message`] and [`crate::atomic`] keep here.

pub(crate) mod batch;
pub(crate) mod completion;
pub(crate) mod contexts;
mod counted;
mod failures;
mod health;
pub(crate) mod lanes;
pub(crate) mod map;
pub(crate) mod messages;
pub(crate) mod notifications;
mod patience;
pub(crate) mod pool;
pub(crate) mod posted;
pub(crate) mod quiet;
pub(crate) mod record;
pub(crate) mod tracker;
pub(crate) mod wait;
mod words;

pub use qnic_shared::window as queue;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qnic_abi::command::{Descriptor, INLINE_CAPACITY};
use qnic_abi::header::Counts;
use qnic_abi::window::Changes;
use qnic_abi::{uapi, NodeId, Port};

use crate::error::{Error, Operation, Result, TransferError, TransferErrors};
use crate::path::Path;
use crate::provider::{CallError, Process, Provider};
use counted::CountedNames;
use lanes::Destination;
use map::{Exports, Imports};
use messages::Messages;
use notifications::Notifications;
use posted::Posted;
use queue::{Command, Ring, Sleepers, WakeRequests};
use quiet::{Quiet, Urgency};
use record::Records;
use tracker::{Claims, Issued, Mark, Summary, Tracker};
use wait::Wakes;
use words::Mapped;

/// How a command is issued.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IssueOptions {
    /// A ticket gets its failure.
    pub(crate) claimed: bool,
    /// Without room, failures of a peer that is gone are reported instead of the wait
    /// ([`Core::check_reachable`]).
    pub(crate) reports: bool,
    /// When the wait for room in the queue ends; `None`: never.
    pub(crate) deadline: Option<Instant>,
}

impl IssueOptions {
    /// For a command with a ticket.
    pub(crate) const CLAIMED: Self = IssueOptions {
        claimed: true,
        reports: false,
        deadline: None,
    };

    pub(crate) fn until(self, deadline: Option<Instant>) -> Self {
        IssueOptions { deadline, ..self }
    }
}

/// What a program sets of the endpoints that it registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Inline limit in bytes; without one, the NIC's holds.
    pub(crate) inline_max: Option<usize>,
    /// Most transfers and atomic operations under way.
    pub(crate) operations: usize,
}

/// A registered process, and what the library knows about it.
pub(crate) struct Core {
    pub(crate) process: Box<dyn Process>,
    mapped: Mapped,
    pub(crate) provider: Arc<dyn Provider>,
    /// Wake requests of threads that wait for what the process's own commands bring, too.
    wakes: WakeRequests,
    /// What they wait for.
    sleepers: Mutex<Sleepers>,
    /// Wake requests of threads that wait for a notification.
    signal_wakes: WakeRequests,
    pub(crate) claims: Claims,
    /// Longest part of a segment that is written inline, in bytes (N10).
    pub(crate) inline_max: usize,
    /// Longest ordinary bytes that are: as the NIC says, or the limit if that is higher. They
    /// live for one call only, so a lower limit is not for them.
    pub(crate) inline_room: usize,
    /// After what silence its NIC gives up another one.
    pub(crate) peer_timeout: Duration,
    /// What its NIC has for each process (Q1).
    pub(crate) counts: Counts,
    tracker: Mutex<Tracker>,
    posted: Posted,
    /// Receives for which the doorbell was not rung.
    quiet: Quiet,
    /// Copy of the tracker's generation, for threads that wait without its lock.
    generation: AtomicU64,
    /// State of [`crate::memory`].
    pub(crate) exports: Mutex<Exports>,
    pub(crate) imports: Arc<Mutex<Imports>>,
    /// State of [`crate::notification`].
    pub(crate) notifications: Notifications,
    /// State of [`crate::message`].
    messages: Messages,
    /// State of [`crate::atomic`].
    pub(crate) records: Records,
    /// State of [`crate::names`].
    pub(crate) names: CountedNames,
    /// The log says that the device is gone.
    lost: AtomicBool,
}

impl Core {
    pub(crate) fn new(
        process: Box<dyn Process>,
        provider: Arc<dyn Provider>,
        settings: Settings,
    ) -> Result<Self> {
        let registration = process.registration();
        let counts = registration.counts().check().map_err(Error::Count)?;
        let peer_timeout = registration.peer_timeout_ms.get().into();
        let announced = (registration.inline_max.get() as usize).min(INLINE_CAPACITY);
        let inline_max = settings
            .inline_max
            .unwrap_or(announced)
            .min(INLINE_CAPACITY);
        Ok(Core {
            inline_max,
            inline_room: announced.max(inline_max),
            peer_timeout: Duration::from_millis(peer_timeout),
            mapped: Mapped::of(process.as_ref()),
            wakes: WakeRequests::new(process.window()),
            sleepers: Mutex::default(),
            signal_wakes: WakeRequests::for_signals(process.window()),
            process,
            provider,
            claims: Claims::new(),
            tracker: Mutex::new(Tracker::new(
                settings.operations,
                counts.command_entries.into(),
            )),
            posted: Posted::new(),
            quiet: Quiet::default(),
            generation: AtomicU64::new(0),
            exports: Mutex::default(),
            imports: Arc::default(),
            notifications: Notifications::default(),
            messages: Messages::new(counts),
            counts,
            records: Records::new(),
            names: CountedNames::default(),
            lost: AtomicBool::new(false),
        })
    }

    /// Node and port of the process.
    pub(crate) fn name(&self) -> (NodeId, Port) {
        let registration = self.process.registration();
        (
            NodeId(registration.node.get()),
            Port(registration.port.get()),
        )
    }

    pub(crate) fn tracker(&self) -> MutexGuard<'_, Tracker> {
        lock(&self.tracker)
    }

    /// The tracker after a look at the host area.
    fn polled_tracker(&self) -> MutexGuard<'_, Tracker> {
        let mut tracker = self.tracker();
        tracker.poll(&self.area(), &self.claims);
        tracker
    }

    /// Puts a command into the queue; waits while the queue is full (Q2).
    ///
    /// # Errors
    /// [`Error::QueueFull`]: the deadline is over; [`Error::QueueFailed`], …
    pub(crate) fn issue(
        &self,
        descriptor: &Descriptor,
        payload: &[u8],
        summary: Summary,
        options: IssueOptions,
    ) -> Result<Issued> {
        self.check_device()?;
        let mut tracker = self.tracker();
        let mut lane = tracker.lane(summary.destination());
        while !tracker.has_room(lane) {
            if options.reports {
                self.report_unreachable(&mut tracker, lane, &summary.failure)?;
            }
            tracker = self.wait_for_room(tracker, summary.destination(), options.deadline)?;
            lane = tracker.lane(summary.destination());
        }
        let issued = self.enter(
            tracker,
            lane,
            (descriptor, payload),
            summary,
            options.claimed,
        );
        // A NIC with completions that are not read would not read the command.
        self.progress_messages();
        Ok(issued)
    }

    /// Puts a command with a ticket into the queue; `None` if there is no room.
    ///
    /// # Errors
    /// [`Error::DeviceGone`]
    fn try_issue(&self, command: (&Descriptor, &[u8]), summary: Summary) -> Result<Option<Issued>> {
        self.check_device()?;
        let mut tracker = self.tracker();
        let lane = tracker.lane(summary.destination());
        if !tracker.has_room(lane) {
            tracker.poll(&self.area(), &self.claims);
            if !tracker.has_room(lane) {
                return Ok(None);
            }
        }
        Ok(Some(self.enter(tracker, lane, command, summary, true)))
    }

    /// Puts a command for which there is room into the queue.
    #[inline]
    fn enter(
        &self,
        mut tracker: MutexGuard<'_, Tracker>,
        lane: u8,
        (descriptor, payload): (&Descriptor, &[u8]),
        summary: Summary,
        claimed: bool,
    ) -> Issued {
        let mut descriptor = *descriptor;
        descriptor.header.lane = lane;
        let command = Command::new(&descriptor, payload);
        let issued = tracker.enter(lane, summary, &self.claims, claimed);
        if tracker.countdown.count() {
            self.time_transfer(issued.mark, self.now());
        }
        self.publish(&command, tracker, issued.number, Urgency::Usual);
        issued
    }

    /// Waits until another command to a destination fits, if that is so only later.
    #[cold]
    fn wait_for_room<'a>(
        &'a self,
        mut tracker: MutexGuard<'a, Tracker>,
        destination: Destination,
        deadline: Option<Instant>,
    ) -> Result<MutexGuard<'a, Tracker>> {
        let generation = tracker.generation;
        let has_room = |tracker: &mut Tracker| {
            tracker.poll(&self.area(), &self.claims);
            let lane = tracker.lane(destination);
            tracker.has_room(lane)
        };
        if has_room(&mut tracker) {
            return Ok(tracker);
        }
        drop(tracker);
        let room = self.wait_for(deadline, || match has_room(&mut self.tracker()) {
            true => Ok(Some(())),
            false => self.check_queue(generation).map(|()| None),
        });
        room.map_err(|error| match error {
            Error::TimedOut => Error::QueueFull,
            other => other,
        })?;
        Ok(self.tracker())
    }

    /// Puts a command into the queue that no counter counts. Returns false if there is no room.
    ///
    /// # Errors
    /// [`Error::DeviceGone`]
    pub(crate) fn post(&self, descriptor: &Descriptor, payload: &[u8]) -> Result<bool> {
        self.post_as(descriptor, payload, Urgency::Usual)
    }

    /// The same, with the doorbell as it is urgent.
    ///
    /// # Errors
    /// [`Error::DeviceGone`]
    pub(crate) fn post_as(
        &self,
        descriptor: &Descriptor,
        payload: &[u8],
        urgency: Urgency,
    ) -> Result<bool> {
        let area = &self.area();
        self.check_device()?;
        let mut tracker = self.tracker();
        if !tracker.has_slot() {
            tracker.poll(area, &self.claims);
            if !tracker.has_slot() {
                return Ok(false);
            }
        }
        let number = tracker.enter_uncounted();
        let command = Command::new(descriptor, payload);
        self.publish(&command, tracker, number, urgency);
        Ok(true)
    }

    /// Puts a command into the queue, and rings the doorbell if that is due.
    fn publish(
        &self,
        command: &Command,
        mut tracker: MutexGuard<'_, Tracker>,
        number: u64,
        urgency: Urgency,
    ) {
        let (window, area) = (&self.window(), &self.area());
        command.store(window, self.counts.place(number));
        let ring = match self.leave_out(number, tracker.generation) {
            true => Ring::Never,
            false => tracker.doorbell.due(window, area, (number, urgency.most())),
        };
        self.quiet.note(ring);
        drop(tracker);
        if ring == Ring::Now {
            self.process.ring_doorbell();
        }
    }

    /// Reports failures that no ticket has reported yet, if there is no room: earlier
    /// operations of this kind to the same process failed because that process or its
    /// node is gone. Without this, a program would wait for each queue of commands anew.
    ///
    /// # Errors
    /// [`Error::Transfer`]
    pub(crate) fn check_reachable(&self, what: &TransferError) -> Result<()> {
        let mut tracker = self.tracker();
        let lane = tracker.lane((what.node, what.port));
        match tracker.has_room(lane) {
            true => Ok(()),
            false => self.report_unreachable(&mut tracker, lane, what),
        }
    }

    #[cold]
    fn report_unreachable(
        &self,
        tracker: &mut Tracker,
        lane: u8,
        what: &TransferError,
    ) -> Result<()> {
        tracker.poll(&self.area(), &self.claims);
        if tracker.has_room(lane) {
            return Ok(());
        }
        let gone = (what.node, what.port);
        Error::transfers(tracker.unclaimed().take_unreachable(gone, what.operation))
    }

    /// Waits until a command and all earlier ones of its kind are complete.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the deadline is over; nothing is known of the command, and nothing
    /// has changed. [`Error::DeviceGone`], [`Error::QueueFailed`], [`Error::QueueReset`].
    pub(crate) fn wait_complete(&self, mark: Mark, deadline: Option<Instant>) -> Result<()> {
        let wakes = Wakes::For(Changes::of_lane(mark.lane));
        self.wait_with(wakes, deadline, || match self.is_complete(mark)? {
            true => Ok(Some(())),
            false => self.check_queue(mark.generation).map(|()| None),
        })?;
        self.note_seen(mark);
        Ok(())
    }

    /// Returns true if a command and all earlier ones of its kind are complete.
    ///
    /// # Errors
    /// [`Error::QueueReset`]: the command will never complete.
    pub(crate) fn is_complete(&self, mark: Mark) -> Result<bool> {
        self.check_generation(mark.generation)?;
        Ok(self.is_done(mark))
    }

    /// Returns true if the NIC has counted a command and all earlier ones of its kind.
    pub(crate) fn is_done(&self, mark: Mark) -> bool {
        let area = &self.area();
        let done = completion::done(area, mark.lane, mark.operation) >= mark.ordinal;
        if !done {
            // A thread may test instead of waiting.
            self.ring_left_out();
        }
        done
    }

    /// Takes the failure of a claimed command that is complete, and ends the claim.
    pub(crate) fn take_result(&self, issued: &Issued) -> Option<TransferError> {
        let mut tracker = self.polled_tracker();
        self.claims.release(issued);
        tracker.take_claimed(issued)
    }

    /// Gives the failure of a claimed command, if it has one, to the next fence or flush.
    pub(crate) fn disclaim(&self, issued: &Issued) {
        if !self.claims.release(issued) {
            self.tracker().disclaim(issued);
        }
    }

    /// Ends the claim of a command, and has its failure dropped.
    pub(crate) fn silence(&self, issued: &Issued) {
        let mut tracker = self.tracker();
        if !self.claims.silence(issued) {
            tracker.take_claimed(issued);
        }
    }

    /// Waits for a command and all earlier ones of its kind to its destination, then reports those
    /// that failed and have no ticket. An error of the wait takes no report away.
    pub(crate) fn fence(
        &self,
        mark: Mark,
        destination: Destination,
        deadline: Option<Instant>,
    ) -> Result<()> {
        self.wait_complete(mark, deadline)?;
        let mut tracker = self.polled_tracker();
        let unclaimed = tracker.unclaimed();
        Error::transfers(unclaimed.take(mark.operation, Some(destination)))
    }

    /// Waits for all commands of these kinds that were issued before the call, to one destination or
    /// to all, then reports as [`Core::fence`] does.
    pub(crate) fn flush(
        &self,
        kinds: &[Operation],
        destination: Option<Destination>,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let marks: Vec<_> = {
            let tracker = self.tracker();
            let marks = kinds.iter().map(|kind| tracker.last(*kind, destination));
            marks.flatten().collect()
        };
        for mark in marks {
            self.wait_complete(mark, deadline)?;
        }
        self.note_flushed(kinds);
        let mut tracker = self.polled_tracker();
        let mut failures = TransferErrors::default();
        for kind in kinds {
            failures.append(tracker.unclaimed().take(*kind, destination));
        }
        Error::transfers(failures)
    }

    /// Waits for all writes that the program has issued before the call, and not for
    /// the library's own. Reports no failure: each stays with its ticket or fence.
    pub(crate) fn wait_program_writes(&self) -> Result<()> {
        let marks = self.tracker().last_program_writes();
        marks
            .into_iter()
            .try_for_each(|mark| self.wait_complete(mark, None))
    }

    /// Waits for all writes, the library's own included, to one destination or to all. Reports no
    /// failure.
    pub(crate) fn wait_writes(
        &self,
        destination: Option<Destination>,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let marks = self.tracker().last(Operation::Write, destination);
        marks
            .into_iter()
            .try_for_each(|mark| self.wait_complete(mark, deadline))
    }

    /// Starts the command queue again after [`Error::QueueFailed`].
    pub(crate) fn reset_queue(&self) -> Result<()> {
        self.reset_messages(|| self.reset_transfers())?;
        // Threads that wait for what has ended by this look again.
        self.wake()
    }

    fn reset_transfers(&self) -> Result<()> {
        let mut tracker = self.polled_tracker();
        let mut call = uapi::ResetQueue::default();
        let what = || "reset the command queue".to_owned();
        retry(what, || self.process.reset_queue(&mut call))?;
        Error::check(call.status.get(), what)?;
        tracker.reset(&self.claims);
        log::warn!(
            "{}: the command queue was reset, and what was in it dropped",
            self.place()
        );
        // Release: partner is the acquire load in `check_generation`.
        self.generation.store(tracker.generation, Ordering::Release);
        Ok(())
    }

    /// What the route to a node is like.
    pub(crate) fn path(&self, node: NodeId) -> Result<Path> {
        let what = || format!("ask for the route to {node}");
        let mut call = uapi::Path {
            node: node.0.into(),
            ..uapi::Path::default()
        };
        retry(what, || self.process.path(&mut call))?;
        Error::check(call.status.get(), what)?;
        Ok(Path::new(&call.path))
    }

    /// Wakes the sleeping threads of this process, so that they look again.
    pub(crate) fn wake(&self) -> Result<()> {
        let what = || "wake this process".to_owned();
        let mut call = uapi::Wake::default();
        retry(what, || self.process.wake(&mut call))?;
        Error::check(call.status.get(), what)
    }

    fn check_generation(&self, generation: u64) -> Result<()> {
        // Acquire: partner is the release store in `reset_queue`.
        match self.generation.load(Ordering::Acquire) == generation {
            true => Ok(()),
            false => Err(Error::QueueReset),
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// Locks, also after a panic of another thread: every critical section leaves its
/// state consistent at each of its steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call of the platform, again if a signal interrupts it.
///
/// # Errors
/// The [`Error`] for a [`CallError`]; `what` names the call.
pub(crate) fn retry<T>(
    what: impl FnOnce() -> String,
    mut call: impl FnMut() -> std::result::Result<T, CallError>,
) -> Result<T> {
    loop {
        match call() {
            Err(CallError::Interrupted) => (),
            result => return result.map_err(|error| Error::call(what, error)),
        }
    }
}
