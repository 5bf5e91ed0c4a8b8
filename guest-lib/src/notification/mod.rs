//! Notifications (N16): a peer signals with a write; of counted ones this process
//! tests, waits for and acknowledges each by its number, of all together it takes
//! them from its queue ([`crate::NotificationQueue`]).

pub(crate) mod handler;
pub(crate) mod poller;
pub(crate) mod queue;
pub(crate) mod reader;
pub(crate) mod ring;

use std::sync::atomic::Ordering;
use std::time::Duration;

use qnic_abi::host_area::{signal_offset, SIGNAL_COUNTERS};

use crate::core::Core;
use crate::error::{Error, Result};

pub use handler::Armed;
pub use poller::Poller;
pub use queue::NotificationQueue;

/// Number of a counted notification, 1 to 1,023 (N16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NotificationId(u32);

impl NotificationId {
    /// Largest number of a counted notification.
    pub const MAX: u32 = SIGNAL_COUNTERS - 1;

    /// The notification of that number, if there is one.
    pub const fn new(number: u32) -> Option<Self> {
        if number >= 1 && number <= Self::MAX {
            Some(NotificationId(number))
        } else {
            None
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for NotificationId {
    type Error = Error;

    fn try_from(number: u32) -> Result<Self> {
        Self::new(number).ok_or(Error::BadNotification(number))
    }
}

/// A one-shot notification: a number of 1,024 or more that arrives once for each
/// time that it was sent, in its receiver's notification queue (N16). It can carry
/// any meaning that sender and receiver agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OneShot(u32);

impl OneShot {
    /// Smallest number of a one-shot notification.
    pub const MIN: u32 = SIGNAL_COUNTERS;

    /// The notification of that number, if it is that of a one-shot one.
    pub const fn new(number: u32) -> Option<Self> {
        if number >= Self::MIN {
            Some(OneShot(number))
        } else {
            None
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// What a write can signal, and what comes out of a notification queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// A counted notification.
    Counted(NotificationId),
    /// A one-shot notification.
    OneShot(OneShot),
}

impl Signal {
    /// The notification of that number; there is none with the number 0.
    pub const fn new(number: u32) -> Option<Self> {
        match (NotificationId::new(number), OneShot::new(number)) {
            (Some(id), _) => Some(Signal::Counted(id)),
            (None, Some(one_shot)) => Some(Signal::OneShot(one_shot)),
            (None, None) => None,
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Signal::Counted(id) => id.number(),
            Signal::OneShot(one_shot) => one_shot.number(),
        }
    }
}

impl From<NotificationId> for Signal {
    fn from(id: NotificationId) -> Self {
        Signal::Counted(id)
    }
}

impl From<OneShot> for Signal {
    fn from(one_shot: OneShot) -> Self {
        Signal::OneShot(one_shot)
    }
}

/// One counted notification of an endpoint.
///
/// It holds two numbers: how often it was signalled, and how often this process
/// has acknowledged it. Signals are *pending* while the first is larger.
///
/// Order (N18): who has seen a signal sees all data that its sender wrote to this
/// node before it.
#[derive(Debug, Clone, Copy)]
pub struct Notification<'e> {
    core: &'e Core,
    id: NotificationId,
}

impl<'e> Notification<'e> {
    pub(crate) fn new(core: &'e Core, id: NotificationId) -> Self {
        Notification { core, id }
    }

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

    /// Says whether a signal is pending; never blocks (notfTest).
    pub fn test(&self) -> bool {
        self.pending() > 0
    }

    /// Spins until a signal is pending and returns how many are (notfSpin). It
    /// never sleeps: for waits that are known to be short.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub fn spin(&self, timeout: Duration) -> Result<u64> {
        self.core.spin_for(timeout, || Ok(self.some_pending()))
    }

    /// Waits until a signal is pending and returns how many are: spins briefly,
    /// then sleeps (notfWait). No timeout means no limit.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<u64> {
        let ready = || Ok(self.some_pending());
        self.core.wait_signal(self.core.deadline(timeout), ready)
    }

    /// Acknowledges one pending signal (notfAck); `false` if none is pending.
    /// Several threads may acknowledge at once: each signal is taken by one.
    pub fn acknowledge(&self) -> bool {
        self.core.acknowledge(self.id)
    }

    /// Waits for a signal and acknowledges it, in one step: of several threads
    /// that take, each gets signals of its own.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]
    pub fn take(&self, timeout: Option<Duration>) -> Result<()> {
        let ready = || Ok(self.acknowledge().then_some(()));
        self.core.wait_signal(self.core.deadline(timeout), ready)
    }

    fn some_pending(&self) -> Option<u64> {
        Some(self.pending()).filter(|pending| *pending > 0)
    }
}

impl Core {
    /// How often a notification was signalled.
    pub(crate) fn signals(&self, id: NotificationId) -> u64 {
        // Acquire: data written before the signal is visible behind it (partner:
        // the NIC's release store of the counter).
        let host_area = self.process.host_area();
        host_area.load_u64(signal_offset(id.0), Ordering::Acquire)
    }

    /// How many of its signals are not acknowledged.
    pub(crate) fn pending(&self, id: NotificationId) -> u64 {
        let acknowledged = self.acknowledged[id.0 as usize].load(Ordering::Acquire);
        self.signals(id).saturating_sub(acknowledged)
    }

    /// Acknowledges one pending signal, if there is one.
    pub(crate) fn acknowledge(&self, id: NotificationId) -> bool {
        let signals = self.signals(id);
        self.acknowledged[id.0 as usize]
            // Release: what this thread did with the signal's data stays in front
            // (partner: the acquire load in `pending`).
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |acknowledged| {
                (acknowledged < signals).then_some(acknowledged + 1)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_1_to_1023() {
        assert_eq!(NotificationId::new(0), None);
        assert_eq!(NotificationId::new(1).map(NotificationId::number), Some(1));
        assert!(NotificationId::try_from(1023).is_ok());
        assert!(matches!(
            NotificationId::try_from(1024),
            Err(Error::BadNotification(1024))
        ));
        assert_eq!(Signal::new(0), None);
        assert_eq!(
            Signal::new(1023),
            NotificationId::new(1023).map(Signal::from)
        );
        assert_eq!(Signal::new(1024), OneShot::new(1024).map(Signal::from));
        assert_eq!(Signal::new(u32::MAX).map(Signal::number), Some(u32::MAX));
        assert_eq!(OneShot::new(1023), None);
    }
}
