//! What an export grants beside access, and what an import presents (N2).
//!
//! ```text
//!   export(name, &buffer, options)                 import(node, port, name, options)
//!     access                what may be done         wait     for the name to appear
//!     importers             which may import         secret   that the exporter asks for
//!     notifications         what writers may signal
//!     overlapping           whether the range may overlap others
//! ```
//! An [`Access`] alone is options too: every process may import the segment, and its writers
//! may signal every notification of this process. A [`Duration`] alone is the options of an
//! import that presents no secret.
//!
//! The NIC of the exporter decides. A process that it does not admit gets
//! [`Status::ImportRefused`](crate::Status), which does not say whether the process is not
//! listed or the secret is wrong. A write that notifies with a number that the segment does not
//! allow fails with `AccessDenied`: nothing of it is stored or signalled.
//!
//! # What this protects, and what not
//! - A list names a process by node and port. Once that port is free, any process of that node may
//!   register it: where the processes of a node do not trust each other, use a secret.
//! - A process that has imported a segment has its key, and may hand it on. Unexport the
//!   segment to take the right back from all.
//! - A secret reaches the NICs of both nodes and the links between them. No capture, counter,
//!   log or message shows it.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use qnic_abi::export::{self, IMPORTERS_MAX, LISTED};
use qnic_abi::{uapi, Access, NodeId, Port};

use crate::core::notifications::signal::{NotificationId, Signal};
use crate::error::{Error, Result};

/// A value of 128 bits that a process presents to import a segment. Processes pass it on by
/// other means than the NIC: the environment, a file, a pipe.
///
/// Only [`Secret::to_hex`] prints it, and the result can be parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(qnic_abi::Secret);

impl Secret {
    /// A secret that no process can guess, from the system's random source.
    ///
    /// # Errors
    /// [`Error::System`] if the system has none.
    pub fn random() -> Result<Self> {
        loop {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes)
                .map_err(|error| Error::system("make a secret", std::io::Error::from(error)))?;
            if let Some(secret) = Secret::new(bytes) {
                return Ok(secret);
            }
        }
    }

    /// The secret of these bytes; `None` if all are zero.
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        let secret = qnic_abi::Secret(bytes);
        secret.is_some().then_some(Secret(secret))
    }

    /// 32 hexadecimal digits, from which it can be parsed.
    pub fn to_hex(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0 .0))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text is no [`Secret`]: expected 32 hexadecimal digits that are not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no secret: expected 32 hexadecimal digits, not all zero")]
pub struct NoSecret;

impl FromStr for Secret {
    type Err = NoSecret;

    fn from_str(text: &str) -> std::result::Result<Self, NoSecret> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).map_err(|_| NoSecret)?;
        let secret = digits.then(|| Secret::new(number.to_be_bytes()));
        secret.flatten().ok_or(NoSecret)
    }
}

/// One entry of a list of [`Importers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Importer {
    /// Every process of a node.
    Node(NodeId),
    /// The process on a port of a node.
    Process(NodeId, Port),
}

/// The processes that may import a segment. The exporting process itself always may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Importers {
    listed: Option<Vec<Importer>>,
    secret: Option<Secret>,
}

impl Importers {
    /// Most entries of a list.
    pub const MAX: usize = IMPORTERS_MAX;

    /// Every process of every node.
    pub fn anyone() -> Self {
        Importers::default()
    }

    /// No other process: for memory that is only source or destination of own transfers.
    pub fn nobody() -> Self {
        Importers::listed(&[])
    }

    /// Those of a list of at most [`Importers::MAX`] entries; an export with a longer one
    /// fails.
    pub fn listed(importers: &[Importer]) -> Self {
        Importers {
            listed: Some(importers.to_vec()),
            secret: None,
        }
    }

    /// Every process that presents this secret.
    pub fn with_secret(secret: Secret) -> Self {
        Importers::anyone().and_secret(secret)
    }

    /// Those of them that also present this secret.
    pub fn and_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The secret that they present.
    pub fn secret(&self) -> Option<Secret> {
        self.secret
    }
}

/// Which notifications of the exporting process the writers of a segment may signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Notifications {
    /// Every counted and one-shot notification.
    #[default]
    All,
    /// None.
    None,
    /// Those from the first number to the last, both included.
    Range(u32, u32),
}

impl Notifications {
    /// One notification, counted or one-shot.
    pub fn only(signal: impl Into<Signal>) -> Self {
        let number = signal.into().number();
        Notifications::Range(number, number)
    }

    fn numbers(self) -> (u32, u32) {
        match self {
            Notifications::All => (1, u32::MAX),
            Notifications::None => (0, 0),
            Notifications::Range(first, last) => (first, last),
        }
    }
}

impl From<NotificationId> for Notifications {
    fn from(id: NotificationId) -> Self {
        Notifications::only(id)
    }
}

impl From<RangeInclusive<NotificationId>> for Notifications {
    fn from(range: RangeInclusive<NotificationId>) -> Self {
        Notifications::Range(range.start().number(), range.end().number())
    }
}

/// Options of an export. An [`Access`] becomes options that grant all the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    access: Access,
    importers: Importers,
    notifications: Notifications,
    overlapping: bool,
}

impl ExportOptions {
    /// Every process may import the segment, and its writers may signal every notification.
    pub fn new(access: Access) -> Self {
        ExportOptions {
            access,
            importers: Importers::anyone(),
            notifications: Notifications::All,
            overlapping: false,
        }
    }

    /// The processes that may import the segment.
    pub fn importers(mut self, importers: impl Into<Importers>) -> Self {
        self.importers = importers.into();
        self
    }

    /// A process that imports the segment has to present this secret, and meet the conditions of
    /// [`ExportOptions::importers`].
    pub fn secret(mut self, secret: Secret) -> Self {
        self.importers = self.importers.and_secret(secret);
        self
    }

    /// What writers of the segment may signal.
    pub fn notifications(mut self, notifications: impl Into<Notifications>) -> Self {
        self.notifications = notifications.into();
        self
    }

    /// The range may have addresses in common with other segments of this process, as registration
    /// caches need it. Without this, an export is refused with `Overlapping` if its range overlaps
    /// that of another segment without being the same. So a program finds out that it has mistaken
    /// one object for another. Several objects in one page do not overlap.
    pub fn overlapping(mut self) -> Self {
        self.overlapping = true;
        self
    }

    /// Flags of the call to the driver.
    pub(crate) fn flags(&self) -> u32 {
        match self.overlapping {
            true => uapi::OVERLAPPING,
            false => 0,
        }
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// As the driver takes them.
    ///
    /// # Errors
    /// [`Error::TooManyImporters`]
    pub(crate) fn to_abi(&self) -> Result<export::ExportOptions> {
        let (first, last) = self.notifications.numbers();
        let mut options = export::ExportOptions {
            secret: self
                .importers
                .secret
                .map_or_else(Default::default, |own| own.0),
            first_notification: first.into(),
            last_notification: last.into(),
            ..Default::default()
        };
        let Some(listed) = &self.importers.listed else {
            return Ok(options);
        };
        if listed.len() > IMPORTERS_MAX {
            return Err(Error::TooManyImporters(listed.len()));
        }
        options.flags = LISTED.into();
        options.count = (listed.len() as u32).into();
        for (entry, importer) in options.importers.iter_mut().zip(listed) {
            let (node, port) = match *importer {
                Importer::Node(node) => (node, Port(0)),
                Importer::Process(node, port) => (node, port),
            };
            entry.node = node.0.into();
            entry.port = port.0.into();
        }
        Ok(options)
    }
}

impl From<Access> for ExportOptions {
    fn from(access: Access) -> Self {
        ExportOptions::new(access)
    }
}

impl From<&ExportOptions> for ExportOptions {
    fn from(options: &ExportOptions) -> Self {
        options.clone()
    }
}

impl From<&[Importer]> for Importers {
    fn from(importers: &[Importer]) -> Self {
        Importers::listed(importers)
    }
}

impl<const N: usize> From<&[Importer; N]> for Importers {
    fn from(importers: &[Importer; N]) -> Self {
        Importers::listed(importers)
    }
}

/// Options of an import. A [`Duration`] becomes options without a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportOptions {
    pub(crate) wait: Duration,
    pub(crate) secret: Option<Secret>,
}

impl ImportOptions {
    /// Waits up to `wait` until the segment is exported; zero asks once.
    pub fn new(wait: Duration) -> Self {
        ImportOptions { wait, secret: None }
    }

    /// Presents a secret, if there is one. An exporter that asks for none ignores it.
    pub fn secret(mut self, secret: impl Into<Option<Secret>>) -> Self {
        self.secret = secret.into();
        self
    }

    pub(crate) fn abi_secret(&self) -> qnic_abi::Secret {
        self.secret.map_or_else(Default::default, |own| own.0)
    }
}

impl From<Duration> for ImportOptions {
    fn from(wait: Duration) -> Self {
        ImportOptions::new(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_printed_on_request_only() {
        let secret: Secret = "00112233445566778899aabbccddeeff".parse().unwrap();
        assert_eq!(secret.to_hex(), "00112233445566778899aabbccddeeff");
        let options = ExportOptions::new(Access::READ).secret(secret);
        let shown = format!("{secret:?} {options:?} {:?}", options.to_abi().unwrap());
        assert!(!shown.contains("17") && !shown.contains("1122"), "{shown}");
        for text in [
            "",
            "1",
            &"0".repeat(32),
            &"g".repeat(32),
            &format!("+{}", "1".repeat(31)),
        ] {
            assert_eq!(text.parse::<Secret>(), Err(NoSecret), "{text}");
        }
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
    }

    #[test]
    fn options_say_what_the_driver_reads() {
        let open = ExportOptions::from(Access::READ).to_abi().unwrap();
        assert_eq!(open, export::ExportOptions::open());
        let nobody = ExportOptions::new(Access::READ)
            .importers(Importers::nobody())
            .notifications(Notifications::None)
            .to_abi()
            .unwrap();
        assert_eq!(nobody.listed().map(<[_]>::len), Some(0));
        assert_eq!(nobody.last_notification.get(), 0);
        let listed = [
            Importer::Node(NodeId(3)),
            Importer::Process(NodeId(4), Port(9)),
        ];
        let options = ExportOptions::new(Access::WRITE)
            .importers(&listed)
            .notifications(NotificationId::new(7).unwrap())
            .to_abi()
            .unwrap();
        assert!(options.is_valid());
        let numbers = options.listed().unwrap().iter();
        let numbers: Vec<_> = numbers.map(|e| (e.node.get(), e.port.get())).collect();
        assert_eq!(numbers, [(3, 0), (4, 9)]);
        assert_eq!(options.first_notification.get(), 7);
        let many = [listed[0]; Importers::MAX + 1];
        let refused = ExportOptions::new(Access::READ).importers(&many).to_abi();
        assert!(matches!(refused, Err(Error::TooManyImporters(33))));
    }
}
