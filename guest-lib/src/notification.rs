//! Counted notifications (N16): a peer signals with a write, this process tests,
//! waits and acknowledges.

use std::sync::atomic::Ordering;
use std::time::Duration;

use qnic_abi::host_area::{signal_offset, SIGNAL_COUNTERS};
use qnic_abi::SharedMemory;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::wait::deadline;

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
        // Acquire: data written before the signal is visible behind it (partner:
        // the NIC's release store of the counter).
        let offset = signal_offset(self.id.0);
        let host_area = self.core.process.host_area();
        host_area.load_u64(offset, Ordering::Acquire)
    }

    /// Number of signals that are not acknowledged; never blocks (notfTest).
    pub fn pending(&self) -> u64 {
        let acknowledged = self.acknowledged().load(Ordering::Acquire);
        self.signals().saturating_sub(acknowledged)
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
        self.core.wait_for(deadline(timeout), ready)
    }

    /// Acknowledges one pending signal (notfAck); `false` if none is pending.
    /// Several threads may acknowledge at once: each signal is taken by one.
    pub fn acknowledge(&self) -> bool {
        let signals = self.signals();
        self.acknowledged()
            // Release: what this thread did with the signal's data stays in front
            // (partner: the acquire load in `pending`).
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |acknowledged| {
                (acknowledged < signals).then_some(acknowledged + 1)
            })
            .is_ok()
    }

    /// Waits for a signal and acknowledges it, in one step: of several threads
    /// that take, each gets signals of its own.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]
    pub fn take(&self, timeout: Option<Duration>) -> Result<()> {
        let ready = || Ok(self.acknowledge().then_some(()));
        self.core.wait_for(deadline(timeout), ready)
    }

    fn some_pending(&self) -> Option<u64> {
        Some(self.pending()).filter(|pending| *pending > 0)
    }

    fn acknowledged(&self) -> &std::sync::atomic::AtomicU64 {
        &self.core.acknowledged[self.id.0 as usize]
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
    }
}
