//! Options of an export (N2): which processes may import the segment, and which notifications its
//! writers may signal. They travel from the library to the driver ([`crate::uapi::Export`]) and from
//! there to the NIC ([`crate::control::Export`]), which alone decides by them.
//!
//! ```text
//!      0                 4                 8
//!   0  | secret                            | … 16
//!  16  | first notific.  | last notific.   |
//!  24  | flags           | count           |
//!  32  | importers[0]    | importers[1]    | … 160
//! ```
//!
//! # Importers
//! Each condition that is given has to hold: with [`LISTED`], the list names the importer;
//! with a secret, the importer presents the same one. Zeroed options give no condition: every
//! process may import. The exporting process itself always may: it has the key anyway.
//!
//! # Notifications
//! Writers may signal the numbers from the first to the last, both included. Zeroed options allow none, since
//! there is no notification 0. A write that names another number is refused as a whole, in
//! each of its frames, with [`crate::Status::AccessDenied`].

use zerocopy::little_endian::{U16, U32};

use crate::ids::Secret;

/// Entries of the list of importers.
pub const IMPORTERS_MAX: usize = 32;

/// Flag of [`ExportOptions`]: only the importers of the list may import the segment; none of
/// them, if it is empty.
pub const LISTED: u32 = 1;

layouts! {
    /// A process that may import, or all processes of a node.
    #[bytes(4)]
    pub struct Importer {
        /// Its node.
        pub node: U16,
        /// Its port; 0: every process of that node.
        pub port: U16,
    }

    /// Options of an export.
    #[bytes(160)]
    pub struct ExportOptions {
        /// What an importer has to present; zero: nothing.
        pub secret: Secret,
        /// First notification that writers may signal.
        pub first_notification: U32,
        /// Last one.
        pub last_notification: U32,
        /// 0 or [`LISTED`].
        pub flags: U32,
        /// Entries of `importers` that count; zero without [`LISTED`].
        pub count: U32,
        /// The list of importers; zero behind the first `count`.
        pub importers: [Importer; IMPORTERS_MAX],
    }
}

const _: () = assert!(core::mem::offset_of!(ExportOptions, first_notification) == 16);
const _: () = assert!(core::mem::offset_of!(ExportOptions, importers) == 32);

impl ExportOptions {
    /// Every process may import the segment, and its writers may signal every notification.
    pub fn open() -> Self {
        ExportOptions {
            first_notification: 1.into(),
            last_notification: u32::MAX.into(),
            ..Default::default()
        }
    }

    /// Returns true if flags, count and list agree.
    pub fn is_valid(&self) -> bool {
        let count = self.count.get() as usize;
        let unused = self.importers.get(count..);
        let empty = Importer::default();
        match self.flags.get() {
            0 => count == 0 && self.importers == [empty; IMPORTERS_MAX],
            LISTED => unused.is_some_and(|unused| unused.iter().all(|entry| *entry == empty)),
            _ => false,
        }
    }

    /// The list; `None`: there is none. For options that are valid.
    pub fn listed(&self) -> Option<&[Importer]> {
        match self.flags.get() & LISTED {
            0 => None,
            _ => self.importers.get(..self.count.get() as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_count_and_list_have_to_agree() {
        let importer = Importer {
            node: 3.into(),
            port: 7.into(),
        };
        let with = |flags: u32, count: u32, entries: usize| {
            let mut options = ExportOptions {
                flags: flags.into(),
                count: count.into(),
                ..Default::default()
            };
            options.importers[..entries].fill(importer);
            options
        };
        for (flags, count, entries) in [(0, 0, 0), (1, 0, 0), (1, 2, 2), (1, 32, 32), (1, 3, 2)] {
            let options = with(flags, count, entries);
            assert!(options.is_valid(), "{flags} {count} {entries}");
            let listed = options.listed().map(<[_]>::len);
            assert_eq!(listed, (flags == LISTED).then_some(count as usize));
        }
        for (flags, count, entries) in [
            (0, 1, 1),
            (0, 0, 1),
            (1, 1, 2),
            (1, 33, 32),
            (1, u32::MAX, 0),
            (2, 0, 0),
            (3, 1, 1),
        ] {
            assert!(
                !with(flags, count, entries).is_valid(),
                "{flags} {count} {entries}"
            );
        }
    }
}
