//! The exported segments of one process (N2). The table is in the NIC's own
//! memory and decides what a key is worth (N11); the keys in the physical map
//! only say which segment's range a page was entered for.

use std::collections::BTreeMap;

use qnic_abi::header::SEGMENTS_PER_PROCESS;
use qnic_abi::{Access, Key, SegmentId, SegmentName, Status};

use super::permissions::Permissions;

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
    slots: Vec<Option<Segment>>,
    names: BTreeMap<SegmentName, SegmentId>,
}

impl SegmentTable {
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
        self.slots[index] = Some(segment);
        Ok(())
    }

    /// Revokes a segment.
    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<Segment> {
        let segment = self.slots.get_mut(usize::from(id.0))?.take()?;
        self.names.remove(&segment.name);
        Some(segment)
    }

    /// The segment of that name.
    pub(crate) fn find(&self, name: SegmentName) -> Option<(SegmentId, &Segment)> {
        let id = *self.names.get(&name)?;
        Some((id, self.get(id)?))
    }

    fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.slots.get(usize::from(id.0))?.as_ref()
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
