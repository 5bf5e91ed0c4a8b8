//! The queue in which the notifications of many senders arrive one by one (N16).

use std::time::Duration;

use crate::core::{lock, Core};
use crate::error::{Error, Result};
use crate::notification::ring::Taker;
use crate::notification::{NotificationId, Signal};

/// The notification queue of an endpoint.
///
/// One-shot notifications arrive here and nowhere else, each as often as it was
/// sent, in the order of its sender. Counted ones arrive here while they are
/// [watched](Self::watch); a counted one is only named: its signals are acknowledged
/// by who takes it ([`crate::Notification::acknowledge`]), and while some are pending
/// it comes again, after all others that wait.
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
    /// [`Error::Armed`]: it is watched already, or has a handler.
    pub fn watch(&self, id: NotificationId) -> Result<()> {
        let mut arrivals = lock(&self.core.arrivals);
        let pending = arrivals.arm(self.core, id, Taker::Queue)?;
        drop(arrivals);
        match pending {
            // Who sleeps in `wait` was not woken for these signals.
            true => self.core.wake(),
            false => Ok(()),
        }
    }

    /// Ends that; signals that are pending stay so.
    pub fn unwatch(&self, id: NotificationId) {
        lock(&self.core.arrivals).disarm(self.core, id, Taker::Queue);
    }

    /// Takes the next notification, if there is one; never blocks (notfQRemove).
    ///
    /// # Errors
    /// [`Error::NotificationsLost`]
    pub fn remove(&self) -> Result<Option<Signal>> {
        lock(&self.core.arrivals).next_queued(self.core)
    }

    /// Waits for the next notification and takes it (notfQWait): spins briefly, then
    /// sleeps. No timeout means no limit.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::NotificationsLost`], [`Error::DeviceGone`]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Signal> {
        self.core
            .wait_signal(self.core.deadline(timeout), || self.remove())
    }
}

impl Core {
    /// Wakes the threads of this process that sleep, to look again.
    pub(crate) fn wake(&self) -> Result<()> {
        let what = || "wake this process".to_owned();
        let mut call = qnic_abi::uapi::Wake::default();
        crate::core::retry(|| self.process.wake(&mut call))
            .map_err(|error| Error::call(what, error))?;
        Error::check(call.status.get(), what)
    }

    /// Waits for a pending signal of any of these notifications.
    pub(crate) fn wait_any(
        &self,
        ids: &[NotificationId],
        timeout: Option<Duration>,
    ) -> Result<NotificationId> {
        // Relaxed: any starting point is fair in the long run.
        let turn = self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let start = turn.checked_rem(ids.len()).unwrap_or(0);
        let (behind, ahead) = ids.split_at(start);
        let pending = |id: &&NotificationId| self.pending(**id) > 0;
        self.wait_signal(self.deadline(timeout), || {
            Ok(ahead.iter().chain(behind).find(pending).copied())
        })
    }
}
