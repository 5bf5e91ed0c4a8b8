//! What an endpoint keeps about its notifications.

pub(crate) mod reader;
pub(crate) mod ring;
pub(crate) mod signal;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};

use qnic_abi::host_area::{signal_offset, SIGNAL_COUNTERS};

use crate::core::{lock, Core};
use ring::NotificationRing;
use signal::NotificationId;

#[derive(Default)]
pub(crate) struct Notifications {
    counters: Counters,
    ring: Mutex<NotificationRing>,
    pub(crate) handlers: Handlers,
    /// The endpoint has a [`crate::Poller`].
    pub(crate) polled: AtomicBool,
    /// Where the next look at several notifications begins.
    pub(crate) turn: AtomicUsize,
}

/// The acknowledge counters of the counted notifications. The signal counters are in the
/// host area.
struct Counters(Box<[AtomicU64]>);

impl Default for Counters {
    fn default() -> Self {
        Counters((0..SIGNAL_COUNTERS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Core {
    /// How often a notification was signalled.
    pub(crate) fn signals(&self, id: NotificationId) -> u64 {
        // Acquire: data written before the signal is visible behind it (partner: the NIC's
        // release store of the counter).
        let counter = signal_offset(id.number());
        self.process
            .host_area()
            .load_u64(counter, Ordering::Acquire)
    }

    /// How many signals of a notification are not acknowledged.
    pub(crate) fn pending(&self, id: NotificationId) -> u64 {
        let acknowledged = self.acknowledged(id).load(Ordering::Acquire);
        self.signals(id).saturating_sub(acknowledged)
    }

    /// Acknowledges one pending signal; returns false if there is none.
    pub(crate) fn acknowledge(&self, id: NotificationId) -> bool {
        let signals = self.signals(id);
        self.acknowledged(id)
            // Release: what this thread did with the signal's data stays in front
            // (partner: the acquire load in `pending`).
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |acknowledged| {
                (acknowledged < signals).then_some(acknowledged + 1)
            })
            .is_ok()
    }

    /// Acknowledges all signals of a notification that is about to get a new purpose.
    pub(crate) fn clear_signals(&self, id: NotificationId) {
        while self.acknowledge(id) {}
    }

    fn acknowledged(&self, id: NotificationId) -> &AtomicU64 {
        &self.notifications.counters.0[id.number() as usize]
    }

    /// The notifications that have arrived.
    pub(crate) fn ring(&self) -> MutexGuard<'_, NotificationRing> {
        lock(&self.notifications.ring)
    }
}

/// What [`crate::Endpoint::arm`] takes.
pub(crate) type Handler = Box<dyn FnMut(NotificationId) + Send>;

#[derive(Default)]
pub(crate) struct Handlers {
    state: Mutex<HandlerState>,
    /// A handler has returned.
    pub(crate) returned: Condvar,
}

#[derive(Default)]
pub(crate) struct HandlerState {
    /// `None`: the handler runs now, or it has panicked.
    pub(crate) slots: BTreeMap<NotificationId, Option<Handler>>,
    /// The handler that runs, and the dispatcher that runs it.
    pub(crate) running: Option<(NotificationId, ThreadId)>,
    pub(crate) dispatcher: Option<Dispatcher>,
}

/// The thread that calls handlers.
pub(crate) struct Dispatcher {
    pub(crate) thread: JoinHandle<()>,
    /// Set to end the thread.
    pub(crate) stopped: Arc<AtomicBool>,
}

impl Handlers {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HandlerState> {
        lock(&self.state)
    }

    /// Waits while a handler runs that is `concerned`.
    pub(crate) fn while_running<'a>(
        &'a self,
        state: MutexGuard<'a, HandlerState>,
        concerned: impl Fn(NotificationId) -> bool,
    ) -> MutexGuard<'a, HandlerState> {
        self.returned
            .wait_while(state, |state| {
                state.running.is_some_and(|(id, _)| concerned(id))
            })
            .unwrap_or_else(PoisonError::into_inner)
    }
}
