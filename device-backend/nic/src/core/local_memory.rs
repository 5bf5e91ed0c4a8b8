//! Memory of a process that one of its own commands names.

use qnic_abi::{Access, Key, SegmentId, Status, VniId};

use super::{Core, PageKey};

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
