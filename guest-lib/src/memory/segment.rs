//! Exported segments (N2).

use std::sync::Arc;

use qnic_abi::{uapi, Access, SegmentName};

use crate::core::map::Exported;
use crate::core::{lock, retry, Core};
use crate::error::{Error, Result};
use crate::provider::Memory;

/// A range of this process's memory that is exported: peers may import it, and it
/// can be source and destination of this endpoint's own transfers.
///
/// Dropping it unexports it at once. Transfers that touch it end with an error on both
/// sides, and when the drop returns nothing touches the memory any more (N2). It keeps
/// its endpoint registered and its memory mapped.
#[derive(Debug)]
pub struct Segment {
    core: Arc<Core>,
    memory: Arc<dyn Memory>,
    /// Address by which transfers name the first byte.
    base: u64,
    name: SegmentName,
    access: Access,
    exported: Exported,
    revoked: bool,
}

impl Segment {
    pub(crate) fn export(
        core: Arc<Core>,
        name: SegmentName,
        memory: Arc<dyn Memory>,
        access: Access,
        flags: u32,
    ) -> Result<Self> {
        if memory.size() == 0 {
            return Err(Error::EmptyMemory);
        }
        let (length, address) = (memory.size() as u64, memory.address());
        let what = || {
            format!(
                "export {length} bytes at {address:#x} as segment {:#x}",
                name.0
            )
        };
        let mut call = uapi::Export {
            access: access.bits().into(),
            name: name.0.into(),
            address: address.into(),
            length: length.into(),
            flags: flags.into(),
            ..Default::default()
        };
        retry(what, || core.process.export(&mut call))?;
        Error::check(call.status.get(), what)?;
        let exported = Exported {
            segment: call.segment.get(),
            key: call.key.get(),
        };
        if flags & uapi::PHYSICAL == 0 {
            lock(&core.exports).insert((), call.address.get(), length, exported);
        }
        Ok(Segment {
            core,
            memory,
            base: call.address.get(),
            name,
            access,
            exported,
            revoked: false,
        })
    }

    /// Name under which peers import it.
    pub fn name(&self) -> SegmentName {
        self.name
    }

    /// The access that peers have.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Address of its first byte: virtual, or guest-physical
    /// ([`crate::physical`]).
    pub fn address(&self) -> u64 {
        self.base
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.size()
    }

    /// A part of it, as source of a write or destination of a read. The transfer checks
    /// whether the part lies within the segment.
    pub fn part(&self, offset: usize, length: usize) -> Part<'_> {
        Part {
            segment: self,
            offset,
            length,
        }
    }

    /// Unexports it, like dropping it, and returns an error if that failed.
    ///
    /// # Errors
    /// [`Error::DeviceGone`] among others; the memory is not touched any more then
    /// either.
    pub fn unexport(mut self) -> Result<()> {
        self.revoke()
    }

    fn revoke(&mut self) -> Result<()> {
        self.revoked = true;
        let is_this = |other: &Exported| *other == self.exported;
        lock(&self.core.exports).remove((), self.base, is_this);
        let what = || format!("unexport segment {:#x}", self.name.0);
        let mut call = uapi::Unexport {
            segment: self.exported.segment.into(),
            ..Default::default()
        };
        retry(what, || self.core.process.unexport(&mut call))?;
        Error::check(call.status.get(), what)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.revoked {
            // A drop cannot report; `unexport` does. It fails only if the device is
            // gone, and the segment with it.
            drop(self.revoke());
        }
    }
}

/// A part of a [`Segment`].
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    segment: &'a Segment,
    offset: usize,
    pub(crate) length: usize,
}

/// Exported memory of this process, as commands name it.
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) exported: Exported,
}

impl Part<'_> {
    /// Its memory. It lies within its segment, and the segment belongs to `core`.
    ///
    /// # Errors
    /// [`Error::ForeignSegment`], [`Error::OutOfRange`]
    pub(crate) fn range(&self, core: &Core) -> Result<Range> {
        let segment = self.segment;
        if !std::ptr::eq(Arc::as_ptr(&segment.core), core) {
            return Err(Error::ForeignSegment);
        }
        let (offset, length) = (self.offset as u64, self.length as u64);
        Error::check_range("local segment", segment.len() as u64, offset, length)?;
        Ok(Range {
            address: segment.base + offset,
            length,
            exported: segment.exported,
        })
    }

    /// Copies its first bytes out.
    pub(crate) fn read(&self, bytes: &mut [u8]) {
        self.segment.memory.read_bytes(self.offset, bytes);
    }
}
