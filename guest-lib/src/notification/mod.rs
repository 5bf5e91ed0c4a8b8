//! Notifications (N16): a peer signals with a write. This process tests, waits for and
//! acknowledges counted notifications by their numbers ([`Notification`]), or takes all of
//! them from its queue ([`NotificationQueue`]).

mod handler;
mod poller;
mod queue;

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::Result;

pub use crate::core::notifications::signal::{NotificationId, OneShot, Signal};
pub use handler::Armed;
pub use poller::Poller;
pub use queue::NotificationQueue;

/// One counted notification of an endpoint.
///
/// It holds two numbers: how often it was signalled, and how often this process
/// has acknowledged it. Signals are *pending* while the first is larger.
///
/// Order (N18): a process that has seen a signal sees all data that its sender wrote to
/// this node before it.
#[derive(Debug, Clone, Copy)]
pub struct Notification<'e> {
    core: &'e Arc<Core>,
    id: NotificationId,
}

impl Notification<'_> {
    /// Its number.
    pub fn id(&self) -> NotificationId {
        self.id
    }

    /// How often it was signalled since this process registered.
    pub fn signals(&self) -> u64 {
        self.core.signals(self.id)
    }

    /// Number of signals that are not acknowledged; never blocks (notfTest).
    pub fn pending(&self) -> u64 {
        self.core.pending(self.id)
    }

    /// Returns true if a signal is pending; never blocks (notfTest).
    pub fn test(&self) -> bool {
        self.pending() > 0
    }

    /// Spins until a signal is pending and returns how many are (notfSpin). It never
    /// sleeps: for waits that are known to be short.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`]
    pub fn spin(&self, timeout: Duration) -> Result<u64> {
        self.core.spin_for(timeout, || Ok(self.some_pending()))
    }

    /// Waits until a signal is pending and returns how many are: spins briefly,
    /// then sleeps (notfWait). No timeout means no limit.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`], [`crate::Error::DeviceGone`]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<u64> {
        self.core.wait_signal(timeout, || Ok(self.some_pending()))
    }

    /// Acknowledges one pending signal (notfAck); returns false if none is pending.
    /// Several threads may acknowledge at once: one of them takes each signal.
    pub fn acknowledge(&self) -> bool {
        self.core.acknowledge(self.id)
    }

    /// Waits for a signal and acknowledges it, in one step: of several threads
    /// that take, each gets signals of its own.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`], [`crate::Error::DeviceGone`]
    pub fn take(&self, timeout: Option<Duration>) -> Result<()> {
        let ready = || Ok(self.acknowledge().then_some(()));
        self.core.wait_signal(timeout, ready)
    }

    /// Calls `handler` once for each signal, beginning with
    /// those that are pending, until the result is dropped (notfArm; N17).
    ///
    /// A thread of this library calls the handlers of an endpoint, one at a time; their
    /// notifications take turns. The signal is acknowledged before the call. A handler
    /// may call this library, arm and disarm; while it waits, the other handlers wait
    /// too. A handler that panics is not called again. When the device is gone, the calls
    /// end and nothing reports that.
    ///
    /// # Errors
    /// [`crate::Error::Armed`]: it has a handler, or the queue watches it;
    /// [`crate::Error::DeviceGone`], [`crate::Error::System`].
    pub fn arm(&self, handler: impl FnMut(NotificationId) + Send + 'static) -> Result<Armed> {
        Armed::new(self.core, self.id, Box::new(handler))
    }

    fn some_pending(&self) -> Option<u64> {
        Some(self.pending()).filter(|pending| *pending > 0)
    }
}

/// # Notifications
impl Endpoint {
    /// A counted notification of this process (N16).
    pub fn notification(&self, id: NotificationId) -> Notification<'_> {
        let core = self.core();
        Notification { core, id }
    }

    /// The notifications of this process that arrive in its queue (N16).
    pub fn queue(&self) -> NotificationQueue<'_> {
        NotificationQueue::new(self.core())
    }

    /// Waits until a signal of one of several counted notifications is pending, and
    /// returns that notification. If several are pending, they take turns. Acknowledges
    /// nothing.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`], [`crate::Error::DeviceGone`]; without any `ids` and
    /// timeout it waits for ever.
    pub fn wait_any(
        &self,
        ids: &[NotificationId],
        timeout: Option<Duration>,
    ) -> Result<NotificationId> {
        let core = self.core();
        // Relaxed: any starting point is fair in the long run.
        let turn = core.notifications.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn.checked_rem(ids.len()).unwrap_or(0);
        let (behind, ahead) = ids.split_at(start);
        let pending = |id: &&NotificationId| core.pending(**id) > 0;
        core.wait_signal(timeout, || {
            Ok(ahead.iter().chain(behind).find(pending).copied())
        })
    }

    /// A descriptor for event loops that becomes readable when a notification
    /// arrives (N17).
    ///
    /// # Errors
    /// [`crate::Error::Polled`]: there is one; [`crate::Error::System`]
    pub fn poller(&self) -> Result<Poller> {
        Poller::new(self.core())
    }
}
