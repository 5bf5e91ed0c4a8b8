//! Handlers: procedures that run when a notification arrives (N17).
//!
//! ```text
//!   arm ──► slot (handler) ──► Arrivals::arm ──► NIC enters signals in the queue
//!                                                       │ wake event
//!   dispatcher thread: next_handled ──► acknowledge one ──► call ──► again
//! ```
//!
//! One thread of the library, which lives while any handler is armed, calls all
//! handlers of an endpoint.
//!
//! # Invariants
//! - A signal is acknowledged before its call, and by an atomic step that fails
//!   when nothing is pending: so each signal has one call or one other taker,
//!   however often its number stands in a queue. That covers the arming race: a
//!   signal may be found pending by `arm` and be entered in the queue as well.
//! - Only the dispatcher calls handlers, one at a time: no handler is entered
//!   while one runs.
//! - The handler that runs is out of its slot; its slot stays, so that its number
//!   cannot be armed again, until it is disarmed.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

use crate::core::{lock, Core};
use crate::error::{Error, Result};
use crate::notification::ring::Taker;
use crate::notification::NotificationId;

/// What [`crate::Endpoint::arm`] takes.
type Handler = Box<dyn FnMut(NotificationId) + Send>;

/// The handlers of one endpoint.
#[derive(Default)]
pub(crate) struct Handlers {
    state: Mutex<State>,
    /// A handler has returned.
    returned: Condvar,
}

#[derive(Default)]
struct State {
    /// `None`: it runs now, or it has panicked.
    slots: BTreeMap<NotificationId, Option<Handler>>,
    /// What runs, and the dispatcher that runs it.
    running: Option<(NotificationId, ThreadId)>,
    dispatcher: Option<Dispatcher>,
}

struct Dispatcher {
    thread: JoinHandle<()>,
    /// It was told to end.
    stopped: Arc<AtomicBool>,
}

/// A handler that is armed; dropping it disarms it.
///
/// It keeps its endpoint registered.
#[must_use = "dropping it disarms the handler"]
pub struct Armed {
    core: Arc<Core>,
    id: NotificationId,
}

impl Armed {
    /// Arms a notification (notfArm).
    pub(crate) fn new(core: &Arc<Core>, id: NotificationId, handler: Handler) -> Result<Self> {
        let mut state = core.handlers.lock();
        if state.slots.contains_key(&id) {
            return Err(Error::Armed(id.number()));
        }
        let pending = lock(&core.arrivals).arm(core, id, Taker::Handler)?;
        state.slots.insert(id, Some(handler));
        let started = match &state.dispatcher {
            // It was not woken for these signals.
            Some(_) if pending => core.wake(),
            Some(_) => Ok(()),
            None => Dispatcher::start(core).map(|dispatcher| state.dispatcher = Some(dispatcher)),
        };
        drop(state);
        let armed = Armed {
            core: core.clone(),
            id,
        };
        started.map(|()| armed)
    }

    /// The notification that it handles.
    pub fn id(&self) -> NotificationId {
        self.id
    }
}

impl std::fmt::Debug for Armed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Armed").field("id", &self.id).finish()
    }
}

impl Drop for Armed {
    /// When it returns, the handler does not run and will not run again; called by a
    /// handler, it lets that one return. Signals without a call stay pending.
    fn drop(&mut self) {
        self.core.disarm(self.id);
    }
}

impl Dispatcher {
    fn start(core: &Arc<Core>) -> Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let (core, stop) = (core.clone(), stopped.clone());
        let thread = thread::Builder::new()
            .name("qnic-handlers".to_owned())
            .spawn(move || dispatch(&core, &stop))
            .map_err(|source| Error::System {
                what: "start the thread that calls handlers".to_owned(),
                source,
            })?;
        Ok(Dispatcher { thread, stopped })
    }

    fn is_this_thread(&self) -> bool {
        self.thread.thread().id() == thread::current().id()
    }
}

/// Calls handlers until it is stopped or the device is gone.
fn dispatch(core: &Core, stopped: &AtomicBool) {
    // It does not spin: who arms a handler has better things to do with the core.
    let next = || {
        core.block(&core.signal_wakes, None, || {
            // Acquire: partner is the release store in `disarm`.
            if stopped.load(Ordering::Acquire) {
                return Ok(Some(None));
            }
            Ok(lock(&core.arrivals).next_handled(core).map(Some))
        })
    };
    while let Ok(Some(id)) = next() {
        core.call_handler(id);
    }
}

impl Handlers {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits while a handler runs for which `concerned` says so.
    fn while_running<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        concerned: impl Fn(NotificationId) -> bool,
    ) -> MutexGuard<'a, State> {
        self.returned
            .wait_while(state, |state| {
                state.running.is_some_and(|(id, _)| concerned(id))
            })
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Calls the handler of a notification for one of its signals.
    fn call_handler(&self, id: NotificationId) {
        let handlers = &self.handlers;
        // Another dispatcher, one that was stopped from its own handler, may not
        // have come back from it yet.
        let mut state = handlers.while_running(handlers.lock(), |_| true);
        let Some(slot) = state.slots.get_mut(&id) else {
            return;
        };
        let Some(mut handler) = slot.take() else {
            return;
        };
        if !self.acknowledge(id) {
            *slot = Some(handler);
            return;
        }
        state.running = Some((id, thread::current().id()));
        drop(state);
        let panicked = catch_unwind(AssertUnwindSafe(|| handler(id))).is_err();
        let mut state = handlers.lock();
        match state.slots.get_mut(&id) {
            _ if panicked => lock(&self.arrivals).disarm(self, id, Taker::Handler),
            Some(slot @ None) => *slot = Some(handler),
            _ => {
                drop(state);
                // Who disarms it waits until what it holds is gone, too.
                drop(handler);
                state = handlers.lock();
            }
        }
        state.running = None;
        drop(state);
        handlers.returned.notify_all();
    }

    fn disarm(&self, id: NotificationId) {
        let mut state = self.handlers.lock();
        let handler = state.slots.remove(&id);
        lock(&self.arrivals).disarm(self, id, Taker::Handler);
        let me = thread::current().id();
        let own = state.dispatcher.as_ref();
        let within = own.is_some_and(Dispatcher::is_this_thread)
            || state.running.is_some_and(|(_, thread)| thread == me);
        if !within {
            state = self.handlers.while_running(state, |running| running == id);
        }
        let idle = state.slots.is_empty();
        let dispatcher = state.dispatcher.take_if(|_| idle);
        drop(state);
        // What it holds may be the last handle of something that locks.
        drop(handler);
        if let Some(dispatcher) = dispatcher {
            // Release: partner is the acquire load in `dispatch`.
            dispatcher.stopped.store(true, Ordering::Release);
            // It fails only if the device is gone, which ends the dispatcher too.
            drop(self.wake());
            if !within {
                // A dispatcher does not panic: handlers are caught.
                drop(dispatcher.thread.join());
            }
        }
    }
}
