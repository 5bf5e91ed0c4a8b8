//! The numbers of notifications (N16).

use qnic_abi::host_area::SIGNAL_COUNTERS;

use crate::error::{Error, Result};

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

/// A one-shot notification: a number of 1,024 or more that arrives in its receiver's
/// notification queue once for each time that it was sent (N16). Sender and receiver
/// agree on its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OneShot(u32);

impl OneShot {
    /// Smallest number of a one-shot notification.
    pub const MIN: u32 = SIGNAL_COUNTERS;

    /// The one-shot notification of that number, if there is one.
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

/// A notification of either kind: what a write signals, and a queue returns.
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
        let last = NotificationId::new(1023);
        assert_eq!(Signal::new(1023), last.map(Signal::from));
        assert_eq!(Signal::new(1024), OneShot::new(1024).map(Signal::from));
        assert_eq!(Signal::new(u32::MAX).map(Signal::number), Some(u32::MAX));
        assert_eq!(OneShot::new(1023), None);
    }
}
