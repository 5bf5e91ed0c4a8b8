//! The queue in which the notifications of many senders arrive one by one (N16).

use std::time::Duration;

use crate::core::notifications::ring::SignalSink;
use crate::core::Core;
use crate::error::Result;
use crate::notification::{NotificationId, Signal};

/// The notification queue of an endpoint.
///
/// One-shot notifications arrive here and nowhere else, each as often as it was sent, in
/// the order of its sender. Counted ones arrive here while they are
/// [watched](Self::watch). The queue only names a counted notification: the caller
/// acknowledges its signals ([`crate::Notification::acknowledge`]). While some are
/// pending, it comes again, after all others that wait.
///
/// Several threads may take at once. A one-shot notification goes to one of them; a
/// counted one may be named to several until its signals are acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct NotificationQueue<'e> {
    core: &'e Core,
}

impl<'e> NotificationQueue<'e> {
    pub(crate) fn new(core: &'e Core) -> Self {
        NotificationQueue { core }
    }

    /// Lets a counted notification arrive here, with the signals that are pending.
    ///
    /// # Errors
    /// [`crate::Error::Armed`]: it is watched already, or has a handler.
    pub fn watch(&self, id: NotificationId) -> Result<()> {
        let pending = self.core.ring().arm(self.core, id, SignalSink::Queue)?;
        match pending {
            // No event has woken threads that sleep in `wait` for these signals.
            true => self.core.wake(),
            false => Ok(()),
        }
    }

    /// Ends that; signals that are pending stay pending.
    pub fn unwatch(&self, id: NotificationId) {
        self.core.ring().disarm(self.core, id, SignalSink::Queue);
    }

    /// Takes the next notification, if there is one; never blocks (notfQRemove).
    ///
    /// # Errors
    /// [`crate::Error::NotificationsLost`]
    pub fn remove(&self) -> Result<Option<Signal>> {
        self.core.ring().next_queued(self.core)
    }

    /// Waits for the next notification and takes it (notfQWait): spins briefly, then
    /// sleeps. No timeout means no limit.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`], [`crate::Error::NotificationsLost`],
    /// [`crate::Error::DeviceGone`]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Signal> {
        self.core.wait_signal(timeout, || self.remove())
    }
}
