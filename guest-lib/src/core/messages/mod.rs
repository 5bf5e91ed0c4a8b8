//! What an endpoint keeps about its messages: requests, and the completions that end them.
//!
//! ```text
//!   program ──► Request ──► `requests` ◄── deliver ◄── completion queue ◄── NIC
//!                  │ send      ▲                          drained by posts and waits
//!                  ▼           │ handle
//!               `outbox` ── a place? ─► command queue ──► NIC
//! ```
//!
//! # Invariants
//! - The handle of a command is the key of its request; a key is never used twice. So a late
//!   completion, of a command from before a queue reset for example, ends no other request.
//! - Fewer Sends are at the NIC than it takes. A NIC that runs as many as it can reads no more
//!   commands: so Receives and Cancels are read whatever Sends wait for.
//! - Fewer receives and waiting probes are at the NIC than it refuses: beyond that the next one waits
//!   for room, or has not begun ([`counted`]).
//! - Sends to one destination are posted in the order of the calls, and wait for no other
//!   destination ([`outbox`]).
//! - Entries of the completion queue are taken by every call that posts, and by every wait for
//!   anything, of each thread. So the queue stands still only while the program does.
//! - What a peer can fill is bounded: a multi-receive with [`ARRIVED_LIMIT`] messages that the
//!   program has not taken is cancelled.
//!
//! # Waiting
//! A thread that takes entries takes those of all. The others sleep on the wake generation like
//! threads that wait for transfers: each has stored a wake request before its last look, so the
//! update of the host area that brought its completion wakes it, whichever thread took the entry.

mod calls;
mod contexts;
mod counted;
mod ends;
mod guard;
pub(crate) mod outbox;
mod pending;
pub(crate) mod ring;
mod transfers;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use qnic_abi::command::{CommandBody, INLINE_CAPACITY};
use qnic_abi::header::Counts;
use qnic_abi::host_area::{CompletionEntry, CompletionKind, COMPLETION_MORE};
use qnic_abi::message::{CancelCommand, CancelFlags, ReceiveCommand, ReceiveFlags, SendCommand};
use qnic_abi::window::Changes;
use qnic_abi::Status;
use slotmap::{Key, KeyData, SlotMap};

use crate::core::contexts::{any_ended, ContextName, Contexts};
use crate::core::pool::PoolPages;
use crate::core::quiet::Urgency;
use crate::core::{lock, Core};
use crate::error::{Error, Result};
use calls::Calls;
use counted::{Counted, Posted};
use guard::Guard;
use outbox::{Held, Outbox};
use ring::CompletionReader;

pub(crate) use pending::{Pending, Requesting};

/// Messages of a multi-receive that the program has not taken.
pub(crate) const ARRIVED_LIMIT: usize = 4096;

slotmap::new_key_type! {
    /// Names a request.
    pub(crate) struct RequestKey;
}

/// How long an operation waits for room.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RoomWait {
    /// Not at all.
    None,
    /// Until then; `None`: as long as it takes.
    Until(Option<Instant>),
}

impl RoomWait {
    fn deadline(self) -> Option<Instant> {
        match self {
            RoomWait::None => None,
            RoomWait::Until(deadline) => deadline,
        }
    }

    /// The answer when there is no room now.
    fn no_room<T>(self) -> Result<Option<T>> {
        match self {
            RoomWait::None => Err(Error::WouldBlock),
            RoomWait::Until(_) => Ok(None),
        }
    }
}

/// How a request has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// As the NIC says.
    Completed(CompletionEntry),
    /// The command queue was reset.
    Reset,
}

/// What the library knows about a request.
#[derive(Debug)]
struct Entry {
    end: Option<End>,
    /// Messages of a multi-receive but for the last.
    arrived: VecDeque<CompletionEntry>,
    /// Bytes that they have in its memory.
    filled: u64,
    /// Nothing waits for its end.
    detached: bool,
    /// Cancelled, or about to be.
    cancelled: bool,
    /// The NIC has it in a context, which has not ended.
    context: Option<ContextName>,
    /// What it counts as until it has ended.
    counts: Counted,
}

impl Entry {
    /// Returns its end, once nothing more comes. Long messages of a multi-receive may end behind
    /// its last: they fill its memory up to where the last one begins. The offset of a claim is a
    /// name.
    fn end(&self) -> Option<End> {
        let awaits = |last: &CompletionEntry| {
            last.kind == CompletionKind::Receive as u8 && self.filled < last.offset.get()
        };
        match self.end {
            Some(End::Completed(last)) if awaits(&last) => None,
            end => end,
        }
    }
}

#[derive(Debug)]
struct State {
    reader: CompletionReader,
    requests: SlotMap<RequestKey, Entry>,
    outbox: Outbox,
    /// Receives and probes that are to be cancelled.
    cancels: VecDeque<RequestKey>,
    /// Numbers of claimed messages that are to be discarded. The NIC bounds what is claimed.
    discards: VecDeque<u64>,
    contexts: Contexts<RequestKey>,
    calls: Calls,
    posted: Posted,
    pool: PoolPages,
    /// Sends of contexts that have failed while nothing waited for them.
    failed_sends: u64,
    /// Requests that have ended, if anything lists them.
    ended: Option<VecDeque<RequestKey>>,
}

/// The messages of an endpoint.
#[derive(Debug)]
pub(crate) struct Messages {
    state: Mutex<State>,
    /// Copy of the reader's head, for looks without the lock.
    head: AtomicU64,
    /// Moves when a request may have ended.
    changes: AtomicU64,
    /// Something is to be posted once there is room.
    unposted: AtomicBool,
    /// Copy of the bitmap of contexts that are held, for looks without the lock.
    held: AtomicU64,
}

/// Remembers what a thread has seen, so that it locks only after a change.
#[derive(Debug, Default)]
pub(crate) struct Seen(Option<u64>);

impl State {
    fn new(counts: Counts) -> Self {
        State {
            reader: CompletionReader::default(),
            requests: SlotMap::default(),
            outbox: Outbox::default(),
            cancels: VecDeque::new(),
            discards: VecDeque::new(),
            contexts: Contexts::new(counts.contexts as usize),
            calls: Calls::default(),
            posted: Posted::default(),
            pool: PoolPages::new(counts.pool_pages as usize),
            failed_sends: 0,
            ended: None,
        }
    }

    /// Hands an entry of the completion queue to its request.
    fn deliver(&mut self, entry: &CompletionEntry) {
        let key = RequestKey::from(KeyData::from_ffi(entry.handle.get()));
        self.end(key, entry);
    }

    fn end(&mut self, key: RequestKey, entry: &CompletionEntry) {
        let Some(request) = self.requests.get_mut(key) else {
            return;
        };
        if entry.flags & COMPLETION_MORE == 0 {
            request.end.get_or_insert(End::Completed(*entry));
            match std::mem::take(&mut request.counts) {
                Counted::Nowhere => {}
                Counted::Send(destination) => self.outbox.ended(destination),
                Counted::Receive => self.posted.receives -= 1,
                Counted::Probe => self.posted.probes -= 1,
                Counted::Call(calls) => self.calls.ended(calls),
            }
        } else {
            request.filled = request.filled.saturating_add(entry.length.get());
            request.arrived.push_back(*entry);
            if request.arrived.len() >= ARRIVED_LIMIT
                && !std::mem::replace(&mut request.cancelled, true)
            {
                self.cancels.push_back(key);
            }
        }
        if !request.detached {
            self.ended.iter_mut().for_each(|ended| ended.push_back(key));
        } else if request.end().is_some() {
            self.requests.remove(key);
            self.discards.extend(claimed_by(entry));
        }
    }

    fn insert(&mut self, counts: Counted) -> RequestKey {
        self.requests.insert(Entry {
            end: None,
            arrived: VecDeque::new(),
            filled: 0,
            detached: false,
            cancelled: false,
            context: None,
            counts,
        })
    }

    /// Posts a command that a completion ends; `None` if the command queue is full.
    fn begin(&mut self, core: &Core, command: impl Requesting) -> Result<Option<RequestKey>> {
        self.begin_with(core, command, &[], Urgency::Usual)
    }

    /// The same with an inline payload, and with the doorbell as it is urgent.
    fn begin_with(
        &mut self,
        core: &Core,
        command: impl Requesting,
        payload: &[u8],
        urgency: Urgency,
    ) -> Result<Option<RequestKey>> {
        let key = self.insert(Counted::Nowhere);
        let posted = core.post_as(
            &command.descriptor_of(key.data().as_ffi()),
            payload,
            urgency,
        );
        if !matches!(posted, Ok(true)) {
            self.requests.remove(key);
        }
        posted.map(|posted| posted.then_some(key))
    }

    /// Posts what waits, as far as there is room.
    fn post(&mut self, core: &Core) -> Result<()> {
        while let Some(key) = self.cancels.front() {
            let wanted = self.requests.get(*key);
            if wanted.is_some_and(|request| request.end.is_none()) {
                let mut command = CancelCommand::command();
                command.handle = key.data().as_ffi().into();
                if let Some(context) = wanted.and_then(|request| request.context) {
                    command.handle = (context.number as u64).into();
                    command.flags = CancelFlags::CONTEXT.bits().into();
                }
                if !core.post(&command.descriptor(), &[])? {
                    return Ok(());
                }
            }
            self.cancels.pop_front();
        }
        while let Some(message) = self.discards.front() {
            // Its handle is zero, which is no request: its completion ends none.
            let mut command = ReceiveCommand::command();
            command.tag = (*message).into();
            command.flags = (ReceiveFlags::CLAIMED | ReceiveFlags::DISCARD)
                .bits()
                .into();
            if !core.post(&command.descriptor(), &[])? {
                return Ok(());
            }
            self.discards.pop_front();
        }
        while let Some(send) = self.outbox.next() {
            let length = usize::from(send.descriptor.header.inline_length);
            if !core.post(&send.descriptor, &send.payload[..length])? {
                return Ok(());
            }
            if let Some(context) = send.context {
                self.contexts.note_posted(context);
            }
            self.outbox.next_posted();
        }
        Ok(())
    }

    /// Returns true if something may be posted. A Send that waits for a place may be when another
    /// one has ended.
    fn has_unposted(&self) -> bool {
        !self.cancels.is_empty() || !self.discards.is_empty() || self.outbox.has_turns()
    }
}

/// The number of the message that a probe has claimed.
fn claimed_by(entry: &CompletionEntry) -> Option<u64> {
    let found =
        entry.kind == CompletionKind::Probe as u8 && entry.status.get() == Status::Ok.code();
    found
        .then(|| entry.offset.get())
        .filter(|number| *number != 0)
}

impl Messages {
    pub(crate) fn new(counts: Counts) -> Self {
        Messages {
            state: Mutex::new(State::new(counts)),
            head: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            unposted: AtomicBool::new(false),
            held: AtomicU64::new(0),
        }
    }

    /// Returns true if a completion is unread, or something is to be posted.
    #[inline]
    fn needs_progress(&self, core: &Core) -> bool {
        // Acquire; partner: the release in `Guard::drain`. A thread that sees the head sees that
        // something has changed.
        CompletionReader::tail(&core.area()) != self.head.load(Ordering::Acquire)
            || self.unposted.load(Ordering::Relaxed)
            // Acquire; partner: the release in the drop of a `Guard`.
            || any_ended(&core.pages(), self.held.load(Ordering::Acquire))
    }

    /// What a thread that sleeps is to be woken for, whatever it waits for: room for what is to be posted.
    pub(super) fn awaited(&self) -> Changes {
        // Relaxed: ordered by the lock of the wake requests, which the thread that stores it takes behind.
        match self.unposted.load(Ordering::Relaxed) {
            true => Changes::HEAD,
            false => Changes::empty(),
        }
    }
}

impl Core {
    /// Takes what the NIC has completed, and posts what waits for room. Costs two loads if
    /// there is nothing.
    #[inline]
    pub(crate) fn progress_messages(&self) {
        if self.messages.needs_progress(self) {
            // A device that is gone is noticed by the wait itself.
            drop(Guard::progress(self));
        }
    }

    /// Counts what may have ended requests; `None` if there is something to do, or nothing runs any more.
    #[inline]
    pub(crate) fn message_changes(&self) -> Option<u64> {
        let is_quiet = !self.messages.needs_progress(self) && self.check_running().is_ok();
        if is_quiet {
            self.tire_of_quiet();
        }
        // Acquire; partner: the release in `Guard::drain` and `reset_messages`.
        is_quiet.then(|| self.messages.changes.load(Ordering::Acquire))
    }

    /// Begins a Send, or holds it until there is a place for it. If there is no room for it
    /// either, waits for some until the deadline, or not at all without one.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::TimedOut`]: there is no room. [`Error::DeviceGone`],
    /// [`Error::QueueFailed`]
    pub(crate) fn post_send(
        &self,
        command: SendCommand,
        payload: &[u8],
        room_wait: RoomWait,
    ) -> Result<RequestKey> {
        self.post_when_room(room_wait.deadline(), |state| {
            let destination = state.outbox.of(&command.header);
            let posts = state.outbox.may_post(destination);
            if !posts && !state.outbox.may_hold(destination) {
                return room_wait.no_room();
            }
            let key = state.insert(Counted::Send(destination));
            let descriptor = command.descriptor_of(key.data().as_ffi());
            if posts {
                match self.post(&descriptor, payload) {
                    Ok(false) => {}
                    Ok(true) => {
                        state.outbox.posted(destination);
                        return Ok(Some(key));
                    }
                    Err(error) => {
                        state.requests.remove(key);
                        return Err(error);
                    }
                }
            }
            let mut copy = [0; INLINE_CAPACITY];
            copy[..payload.len()].copy_from_slice(payload);
            let held = Held {
                descriptor,
                payload: copy,
                context: None,
            };
            state.outbox.hold(destination, held);
            Ok(Some(key))
        })
    }

    /// Posts a command that a completion ends; waits while the command queue is full.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub(crate) fn post_command(&self, command: impl Requesting) -> Result<RequestKey> {
        self.post_when_room(None, |state| state.begin(self, command))
    }

    /// The same, if there is room in the command queue.
    ///
    /// # Errors
    /// As [`Core::post_command`]
    pub(crate) fn try_command(&self, command: impl Requesting) -> Result<Option<RequestKey>> {
        let mut guard = Guard::progress(self)?;
        match guard.state.begin(self, command)? {
            Some(key) => Ok(Some(key)),
            None => self.check_running().map(|()| None),
        }
    }

    /// Bounds the Sends that wait in the library.
    pub(crate) fn hold_sends(&self, most: usize) {
        lock(&self.messages.state).outbox.set_most(most);
    }

    fn post_when_room<T>(
        &self,
        deadline: Option<Instant>,
        mut post: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait_for(deadline, || {
            let mut guard = Guard::progress(self)?;
            match post(&mut guard.state)? {
                Some(posted) => Ok(Some(posted)),
                None => self.check_running().map(|()| None),
            }
        })
    }

    /// Takes the end of a request, if it has ended; it is forgotten then.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub(crate) fn take_end(&self, key: RequestKey, seen: &mut Seen) -> Result<Option<End>> {
        self.look(seen, |state| {
            let ended = state.requests.get(key).is_none_or(|it| it.end().is_some());
            match ended {
                true => Some(state.requests.remove(key).and_then(|it| it.end)),
                false => None,
            }
        })
        // Only its one owner takes the end of a request, and once.
        .map(|found| found.map(|end| end.unwrap_or(End::Reset)))
    }

    /// Takes the next message of a multi-receive: `Ok` with a message that leaves the receive
    /// posted, `Err` with its end, which stays.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    #[allow(clippy::type_complexity)]
    pub(crate) fn take_arrived(
        &self,
        key: RequestKey,
        seen: &mut Seen,
    ) -> Result<Option<std::result::Result<CompletionEntry, End>>> {
        self.look(seen, |state| {
            let request = state.requests.get_mut(key)?;
            let arrived = request.arrived.pop_front().map(Ok);
            arrived.or(request.end().map(Err))
        })
    }

    /// Looks for something in the state, after [`Core::progress_messages`]. A thread that has
    /// looked before does so again only after a change, and checks the queue otherwise.
    #[inline]
    fn look<T>(
        &self,
        seen: &mut Seen,
        find: impl FnOnce(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        // Acquire; partner: the release in `Guard::drain` and `reset_messages`.
        let changes = self.messages.changes.load(Ordering::Acquire);
        if seen.0.replace(changes) != Some(changes) {
            if let Some(found) = find(&mut lock(&self.messages.state)) {
                self.check_own()?;
                // There may be more.
                seen.0 = None;
                return Ok(Some(found));
            }
        }
        // A thread may test instead of waiting.
        self.ring_left_out();
        self.tire_of_quiet();
        self.check_running().map(|()| None)
    }

    /// Has a receive or a probe cancelled. Nothing happens to one that has ended.
    pub(crate) fn cancel_receive(&self, key: RequestKey) -> Result<()> {
        let mut guard = Guard::progress(self)?;
        let state = &mut *guard.state;
        let Some(request) = state.requests.get_mut(key) else {
            return Ok(());
        };
        if !std::mem::replace(&mut request.cancelled, true) {
            state.cancels.push_back(key);
        }
        state.post(self)
    }

    /// Has a claimed message discarded.
    pub(crate) fn discard_claimed(&self, message: u64) -> Result<()> {
        let mut guard = Guard::progress(self)?;
        guard.state.discards.push_back(message);
        guard.state.post(self)
    }

    /// Lets a request go: its end is of no interest any more. The NIC may not have ended it. A
    /// message that it claims, or has claimed, is discarded.
    pub(crate) fn detach_request(&self, key: RequestKey) {
        let mut state = lock(&self.messages.state);
        let Some(request) = state.requests.get_mut(key) else {
            return;
        };
        request.detached = true;
        let Some(end) = request.end() else {
            return;
        };
        state.requests.remove(key);
        drop(state);
        if let End::Completed(entry) = end {
            if let Some(message) = claimed_by(&entry) {
                // An error says that the NIC holds nothing of this process.
                drop(self.discard_claimed(message));
            }
        }
    }

    /// Ends all requests after a reset of the command queue: the NIC has dropped them. `reset`
    /// runs while nothing is posted.
    pub(crate) fn reset_messages(&self, reset: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut guard = Guard::lock(self);
        reset()?;
        guard.drain();
        let state = &mut *guard.state;
        state.requests.retain(|_, request| {
            request.end.get_or_insert(End::Reset);
            request.context = None;
            request.counts = Counted::Nowhere;
            !request.detached
        });
        if let Some(ended) = &mut state.ended {
            ended.extend(state.requests.keys());
        }
        state.calls = Calls::default();
        state.posted = Posted::default();
        state.outbox.clear();
        state.cancels.clear();
        state.discards.clear();
        state.reset_contexts(self);
        // Release; partner: the acquire load in `Core::look`.
        self.messages.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
