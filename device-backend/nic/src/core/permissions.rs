//! What an exporter permits beside access (N2): who may import a segment, and which
//! notifications its writers may signal.
//!
//! They are made with a segment and dropped with it: nothing is left when it is revoked, and one
//! that is exported anew under the same name has its own. Their memory is bounded, by
//! [`IMPORTERS_MAX`](qnic_abi::export::IMPORTERS_MAX) for each of the segments that a process can
//! export.
//!
//! An import is checked when it arrives, and one that waits for a name when that is exported. A
//! process that has imported a segment has its key, and is not checked again.

use std::fmt;

use qnic_abi::export::{ExportOptions, Importer};
use qnic_abi::{Secret, Status};
use subtle::ConstantTimeEq;

/// What an exporter permits.
#[derive(Clone)]
pub(crate) struct Permissions {
    /// Who may import; `None`: every process.
    listed: Option<Box<[Importer]>>,
    /// What an importer has to present, if it is one.
    secret: Secret,
    first_notification: u32,
    last_notification: u32,
}

impl Permissions {
    /// What the options of an export say.
    pub(crate) fn new(options: &ExportOptions) -> Result<Self, Status> {
        if !options.is_valid() {
            return Err(Status::Malformed);
        }
        Ok(Permissions {
            listed: options.listed().map(Into::into),
            secret: options.secret,
            first_notification: options.first_notification.get(),
            last_notification: options.last_notification.get(),
        })
    }

    /// Returns true if a process may import the segment with what it presents. The process must
    /// not learn which condition has failed.
    pub(crate) fn admits(&self, importer: Importer, presented: &Secret) -> bool {
        self.lists(importer) & self.accepts(presented)
    }

    fn lists(&self, importer: Importer) -> bool {
        self.listed.as_ref().is_none_or(|listed| {
            listed.iter().any(|entry| {
                entry.node == importer.node && (entry.port == 0 || entry.port == importer.port)
            })
        })
    }

    /// Compares secrets, in a time that does not depend on them.
    fn accepts(&self, presented: &Secret) -> bool {
        !self.secret.is_some() || self.secret.0.ct_eq(&presented.0).into()
    }

    /// Returns true if writers may signal a notification.
    #[inline]
    pub(crate) fn allows(&self, notification: u32) -> bool {
        (self.first_notification..=self.last_notification).contains(&notification)
    }
}

impl fmt::Debug for Permissions {
    /// Without the secret, and without the names of who has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permissions")
            .field("listed", &self.listed.as_ref().map(|listed| listed.len()))
            .field("secret", &self.secret)
            .field(
                "notifications",
                &(self.first_notification..=self.last_notification),
            )
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn importer(node: u16, port: u16) -> Importer {
        Importer {
            node: node.into(),
            port: port.into(),
        }
    }

    fn permissions(change: impl FnOnce(&mut ExportOptions)) -> Permissions {
        let mut options = ExportOptions::open();
        change(&mut options);
        Permissions::new(&options).expect("valid options")
    }

    const NONE: Secret = Secret([0; 16]);

    #[test]
    fn every_condition_that_is_given_has_to_hold() {
        let secret = Secret([7; 16]);
        let list = |options: &mut ExportOptions| {
            options.flags = qnic_abi::export::LISTED.into();
            options.count = 2.into();
            options.importers[0] = importer(1, 5);
            options.importers[1] = importer(2, 0);
        };
        let open = permissions(|_| {});
        let listed = permissions(list);
        let secretive = permissions(|options| options.secret = secret);
        let both = permissions(|options| {
            list(options);
            options.secret = secret;
        });
        let nobody = permissions(|options| options.flags = qnic_abi::export::LISTED.into());
        for (from, presented, admitted) in [
            ((1, 5), NONE, [true, true, false, false]),
            ((1, 6), NONE, [true, false, false, false]),
            ((2, 6), NONE, [true, true, false, false]),
            ((0, 0), NONE, [true, false, false, false]),
            ((1, 5), secret, [true, true, true, true]),
            ((3, 5), secret, [true, false, true, false]),
            ((1, 5), Secret([8; 16]), [true, true, false, false]),
        ] {
            let from = importer(from.0, from.1);
            let got = [&open, &listed, &secretive, &both].map(|it| it.admits(from, &presented));
            assert_eq!(got, admitted, "{from:?}");
            assert!(!nobody.admits(from, &presented));
        }
    }

    #[test]
    fn writers_may_signal_the_numbers_of_the_range() {
        let range = |first: u32, last: u32| {
            permissions(|options| {
                options.first_notification = first.into();
                options.last_notification = last.into();
            })
        };
        for (first, last, allowed) in [
            (0, 0, [false; 4]),
            (1, 0, [false; 4]),
            (5, 6, [false, true, false, false]),
            (5, 1024, [false, true, true, false]),
            (1, u32::MAX, [true; 4]),
        ] {
            let permissions = range(first, last);
            assert_eq!(
                [4, 5, 1024, u32::MAX].map(|n| permissions.allows(n)),
                allowed
            );
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let permissions = permissions(|options| options.secret = Secret([0xa5; 16]));
        let shown = format!("{permissions:?}");
        assert!(!shown.contains("165") && !shown.contains("a5"), "{shown}");
    }
}
