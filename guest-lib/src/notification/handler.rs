//! Handlers: functions that run when a notification arrives (N17).
//!
//! ```text
//!   arm ──► slot (handler) ──► NotificationRing::arm ──► NIC enters signals in the queue
//!                                                               │ wake event
//!   dispatcher thread: next_handled ──► acknowledge one ──► call ──► again
//! ```
//!
//! One thread of the library, the dispatcher, calls all handlers of an endpoint. It lives
//! while any handler is armed.
//!
//! # Invariants
//! - A signal is acknowledged before its call, by an atomic step that fails if nothing is
//!   pending. So each signal leads to one call, or is taken by one other thread, however
//!   often its number is in a queue. That covers the arming race: `arm` may find a signal
//!   pending that is entered in the queue as well.
//! - Only the dispatcher calls handlers, one at a time: no handler is entered while one
//!   runs.
//! - A handler that runs is taken out of its slot. The slot stays until it is disarmed, so
//!   that its number cannot be armed again.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

use crate::core::notifications::ring::SignalSink;
use crate::core::notifications::{Dispatcher, Handler};
use crate::core::wait::Wakes;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::notification::NotificationId;

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
        let mut state = core.notifications.handlers.lock();
        if state.slots.contains_key(&id) {
            return Err(Error::Armed(id.number()));
        }
        let pending = core.ring().arm(core, id, SignalSink::Handler)?;
        state.slots.insert(id, Some(handler));
        let started = match &state.dispatcher {
            // No event has woken it for these signals.
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
    /// When it returns, the handler does not run and will not run again. A handler that
    /// drops its own `Armed` returns first. Signals without a call stay pending.
    fn drop(&mut self) {
        self.core.remove_handler(self.id);
    }
}

impl Dispatcher {
    fn start(core: &Arc<Core>) -> Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let (core, stop) = (core.clone(), stopped.clone());
        let thread = thread::Builder::new()
            .name("qnic-handlers".to_owned())
            .spawn(move || dispatch(&core, &stop))
            .map_err(|source| Error::system("start the thread that calls handlers", source))?;
        Ok(Dispatcher { thread, stopped })
    }
}

/// Calls handlers until it is stopped or the device is gone.
fn dispatch(core: &Core, stopped: &AtomicBool) {
    // It does not spin: that would take a processor from the application.
    let next = || {
        core.block(Wakes::Signals, None, || {
            // Acquire: partner is the release store in `remove_handler`.
            if stopped.load(Ordering::Acquire) {
                return Ok(Some(None));
            }
            Ok(core.ring().next_handled(core).map(Some))
        })
    };
    while let Ok(Some(id)) = next() {
        core.call_handler(id);
    }
}

impl Core {
    /// Calls the handler of a notification for one of its signals.
    fn call_handler(&self, id: NotificationId) {
        let handlers = &self.notifications.handlers;
        // A dispatcher that was stopped by its own handler may still run that handler.
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
            _ if panicked => self.ring().disarm(self, id, SignalSink::Handler),
            Some(slot @ None) => *slot = Some(handler),
            _ => {
                drop(state);
                // The thread that disarms it waits until what it holds is dropped, too.
                drop(handler);
                state = handlers.lock();
            }
        }
        state.running = None;
        drop(state);
        handlers.returned.notify_all();
    }

    fn remove_handler(&self, id: NotificationId) {
        let handlers = &self.notifications.handlers;
        let mut state = handlers.lock();
        let handler = state.slots.remove(&id);
        self.ring().disarm(self, id, SignalSink::Handler);
        let me = thread::current().id();
        let dispatcher = state.dispatcher.as_ref();
        let within = dispatcher.is_some_and(|dispatcher| dispatcher.thread.thread().id() == me)
            || state.running.is_some_and(|(_, thread)| thread == me);
        if !within {
            state = handlers.while_running(state, |running| running == id);
        }
        let idle = state.slots.is_empty();
        let dispatcher = state.dispatcher.take_if(|_| idle);
        drop(state);
        // It may hold the last handle of something that locks when it is dropped.
        drop(handler);
        if let Some(dispatcher) = dispatcher {
            // Release: partner is the acquire load in `dispatch`.
            dispatcher.stopped.store(true, Ordering::Release);
            // It fails only if the device is gone, which ends the dispatcher too.
            drop(self.wake());
            if !within {
                // A dispatcher does not panic: it catches panics of handlers.
                drop(dispatcher.thread.join());
            }
        }
    }
}
