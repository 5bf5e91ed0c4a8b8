//! The exported segments of one process (N2). The table is in the NIC's own memory and decides what
//! a key grants (N11). The keys in the physical map only say for which process a page was entered.
//! Segments may overlap, and several may lie in one page.
//!
//! # Permissions
//! An exporter may restrict more than access: which processes may import a segment, and which notifications its
//! writers may signal. A NIC checks an import when it arrives, and an import that waits for a name
//! when that name is exported. A process that has imported a segment holds its key, and is not
//! checked again.
//!
//! Permissions live as long as their segment: a segment that is exported anew under the same name
//! has its own. Their memory is bounded, by [`IMPORTERS_MAX`](qnic_abi::export::IMPORTERS_MAX) for
//! each segment that a process can export.

use std::collections::BTreeMap;
use std::fmt;

use qnic_abi::export::{ExportOptions, Importer};
use qnic_abi::header::{SEGMENTS_OF_EACH, SEGMENTS_PER_PROCESS};
use qnic_abi::{Access, Key, Secret, SegmentId, SegmentName, Status, VniId};
use subtle::ConstantTimeEq;

use super::Core;

/// First address that cannot be exported: a [`qnic_abi::page_table::Tag`] has 48
/// bits for the virtual page number, so pages below it have tags of their own.
const ADDRESS_END: u64 = 1 << 60;

/// How the pages of a range are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKey {
    /// In the page table, where they carry this key in the physical map.
    Table(Key),
    /// Their addresses are guest-physical (N25).
    Physical,
}

/// An exported range of memory.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) name: SegmentName,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) key: Key,
    pub(crate) page_key: PageKey,
    pub(crate) access: Access,
    pub(crate) permissions: Permissions,
}

impl Segment {
    /// Checks the range.
    fn check(&self) -> Result<(), Status> {
        if self.length == 0 {
            return Err(Status::BadLength);
        }
        match self.address.checked_add(self.length) {
            Some(end) if end <= ADDRESS_END => Ok(()),
            _ => Err(Status::BadAddress),
        }
    }

    /// First address behind the segment.
    pub(crate) fn end(&self) -> u64 {
        self.address + self.length
    }

    fn covers(&self, address: u64, length: u64) -> bool {
        address >= self.address
            && address
                .checked_add(length)
                .is_some_and(|end| end <= self.end())
    }
}

/// The segments of one process.
#[derive(Debug, Default)]
pub(crate) struct SegmentTable {
    /// By number. Boxed: a number says nothing of how many there are.
    slots: Vec<Option<Box<Segment>>>,
    names: BTreeMap<SegmentName, SegmentId>,
}

impl SegmentTable {
    /// Segments beyond those that each process can have.
    pub(crate) fn beyond(&self) -> u32 {
        self.count().saturating_sub(SEGMENTS_OF_EACH)
    }

    /// Number of segments.
    pub(crate) fn count(&self) -> u32 {
        self.names.len() as u32
    }

    /// Publishes a segment.
    pub(crate) fn insert(&mut self, id: SegmentId, segment: Segment) -> Result<(), Status> {
        segment.check()?;
        if u32::from(id.0) >= SEGMENTS_PER_PROCESS {
            return Err(Status::Malformed);
        }
        let index = usize::from(id.0);
        if self.get(id).is_some() {
            return Err(Status::Exhausted);
        }
        if self.find(segment.name).is_some() {
            return Err(Status::NameExists);
        }
        if index >= self.slots.len() {
            self.slots.resize(index + 1, None);
        }
        self.names.insert(segment.name, id);
        self.slots[index] = Some(Box::new(segment));
        Ok(())
    }

    /// Revokes a segment.
    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<Box<Segment>> {
        let segment = self.slots.get_mut(usize::from(id.0))?.take()?;
        self.names.remove(&segment.name);
        Some(segment)
    }

    /// The segment of that name.
    pub(crate) fn find(&self, name: SegmentName) -> Option<(SegmentId, &Segment)> {
        let id = *self.names.get(&name)?;
        Some((id, self.get(id)?))
    }

    /// The segment of that number.
    pub(crate) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.slots.get(usize::from(id.0))?.as_deref()
    }

    /// Checks key, access and range of a transfer (N11); with empty `access` that
    /// of the process to its own memory.
    pub(crate) fn authorise(
        &self,
        id: SegmentId,
        key: Key,
        access: Access,
        address: u64,
        length: u64,
    ) -> Result<&Segment, Status> {
        let segment = self.get(id).ok_or(Status::NoSuchSegment)?;
        if segment.key != key {
            return Err(Status::BadKey);
        }
        if !segment.access.contains(access) {
            return Err(Status::AccessDenied);
        }
        if !segment.covers(address, length) {
            return Err(Status::BadAddress);
        }
        Ok(segment)
    }
}

/// What an exporter permits.
#[derive(Clone)]
pub(crate) struct Permissions {
    /// Processes that may import; `None`: every one.
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
    /// Without the secret, and without the names of the importers.
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

/// Memory of the own process: a range in a segment that it exports, whatever access that grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LocalMemory {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) key: Key,
    pub(crate) segment: SegmentId,
}

impl LocalMemory {
    /// Returns how its pages are found, if the process has exported it.
    pub(crate) fn authorise(&self, core: &Core, vni: VniId) -> Result<PageKey, Status> {
        if self.length == 0 {
            return Ok(PageKey::Table(Key(0)));
        }
        let process = core.process(vni).ok_or(Status::NoSuchVni)?;
        let (address, length) = (self.address, self.length);
        let own = Access::empty();
        let segments = &process.segments;
        let segment = segments.authorise(self.segment, self.key, own, address, length)?;
        Ok(segment.page_key)
    }

    /// Returns true if any of its bytes is in a segment.
    pub(crate) fn uses(&self, segment: SegmentId) -> bool {
        self.length > 0 && self.segment == segment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::export::ExportOptions;

    fn segment(name: u64, address: u64, length: u64) -> Segment {
        Segment {
            name: SegmentName(name),
            address,
            length,
            key: Key(name * 10),
            page_key: PageKey::Table(Key(1)),
            access: Access::READ,
            permissions: Permissions::new(&ExportOptions::open()).unwrap(),
        }
    }

    #[test]
    fn names_slots_and_ranges_are_checked() {
        let mut table = SegmentTable::default();
        let id = SegmentId(3);
        assert_eq!(table.insert(id, segment(1, 0x1000, 0x800)), Ok(()));
        assert_eq!(table.insert(id, segment(2, 0, 1)), Err(Status::Exhausted));
        let other = SegmentId(0);
        for (wanted, got) in [
            (Status::NameExists, segment(1, 0, 1)),
            (Status::BadLength, segment(2, 0, 0)),
            (Status::BadAddress, segment(2, u64::MAX, 2)),
            (Status::BadAddress, segment(2, ADDRESS_END - 1, 2)),
        ] {
            assert_eq!(table.insert(other, got), Err(wanted));
        }
        assert_eq!(
            table.insert(SegmentId(SEGMENTS_PER_PROCESS as u16), segment(2, 0, 1)),
            Err(Status::Malformed)
        );
        assert_eq!(table.count(), 1);
        assert_eq!(table.find(SegmentName(1)).unwrap().0, id);
        assert!(table.remove(id).is_some());
        assert!(table.remove(id).is_none());
        assert!(table.remove(SegmentId(u16::MAX)).is_none());
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn a_transfer_needs_key_access_and_range() {
        let mut table = SegmentTable::default();
        let id = SegmentId(0);
        table.insert(id, segment(1, 0x1000, 0x800)).unwrap();
        let check = |key, access, address, length| {
            table
                .authorise(id, Key(key), access, address, length)
                .map(|_| ())
        };
        assert_eq!(check(10, Access::READ, 0x1000, 0x800), Ok(()));
        assert_eq!(check(10, Access::READ, 0x1800, 0), Ok(()));
        assert_eq!(check(11, Access::READ, 0x1000, 1), Err(Status::BadKey));
        assert_eq!(
            check(10, Access::WRITE, 0x1000, 1),
            Err(Status::AccessDenied)
        );
        for (address, length) in [(0xfff, 1), (0x1000, 0x801), (u64::MAX, 2), (0x1801, 0)] {
            assert_eq!(
                check(10, Access::READ, address, length),
                Err(Status::BadAddress)
            );
        }
        let missing = table.authorise(SegmentId(1), Key(10), Access::READ, 0x1000, 1);
        assert_eq!(missing.map(drop), Err(Status::NoSuchSegment));
    }
}

#[cfg(test)]
mod permissions_tests {
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
