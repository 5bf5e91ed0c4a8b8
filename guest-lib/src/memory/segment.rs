//! Exported segments (N2), and handles of them that a lookup gives (N3).

use std::sync::{Arc, Weak};

use qnic_abi::collective::CollectiveCommand;
use qnic_abi::message::{ReceiveCommand, SendCommand};
use qnic_abi::multicast::MulticastCommand;
use qnic_abi::rdma::{ReadCommand, WriteCommand};
use qnic_abi::{uapi, Access, SegmentName};

use crate::core::map::{ExportEntry, Exported};
use crate::core::{lock, retry, Core};
use crate::error::{Error, Result};
use crate::memory::options::ExportOptions;
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
        options: &ExportOptions,
        flags: u32,
    ) -> Result<Self> {
        let access = options.access();
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
            flags: (flags | options.flags()).into(),
            options: options.to_abi()?,
            ..Default::default()
        };
        retry(what, || core.process.export(&mut call))?;
        Error::check(call.status.get(), what).inspect_err(|error| log::warn!("{error}"))?;
        if flags & uapi::PHYSICAL != 0 {
            log::info!(
                "{length} bytes at {address:#x} are pinned while segment {:#x} lives",
                name.0
            );
        }
        let exported = Exported {
            segment: call.segment.get(),
            key: call.key.get(),
        };
        if flags & uapi::PHYSICAL == 0 {
            let entry = ExportEntry {
                exported,
                name,
                access,
                length,
            };
            lock(&core.exports).insert((), call.address.get(), length, entry);
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
            owner: Owner::Segment(self),
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
        let is_this = |other: &ExportEntry| other.exported == self.exported;
        let range = (self.base, self.memory.size() as u64);
        lock(&self.core.exports).remove((), range, is_this);
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

/// A segment that this process exports, as [`Endpoint::export_lookup`] finds it by an address
/// (N3).
///
/// It names the segment and does not own it: when the [`Segment`] is dropped, the segment is
/// unexported at once, and a transfer of a part of this handle ends with an error (N2). Clones
/// are cheap.
///
/// [`Endpoint::export_lookup`]: crate::Endpoint::export_lookup
#[derive(Debug, Clone)]
pub struct ExportedSegment {
    core: Weak<Core>,
    address: u64,
    entry: ExportEntry,
}

impl ExportedSegment {
    /// The segment of `entry`, whose first byte is at `address`.
    pub(crate) fn new(core: &Arc<Core>, address: u64, entry: ExportEntry) -> Self {
        let core = Arc::downgrade(core);
        ExportedSegment {
            core,
            address,
            entry,
        }
    }

    /// Name under which peers import it.
    pub fn name(&self) -> SegmentName {
        self.entry.name
    }

    /// The access that peers have.
    pub fn access(&self) -> Access {
        self.entry.access
    }

    /// Virtual address of its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        // It is memory of this process.
        self.entry.length as usize
    }

    /// A part of it, as source of a write or destination of a read. As source it travels by
    /// DMA, however short it is (N10): the NIC reads it, if it is still exported.
    pub fn part(&self, offset: usize, length: usize) -> Part<'_> {
        Part {
            owner: Owner::Exported(self),
            offset,
            length,
        }
    }
}

/// A part of a [`Segment`] or of an [`ExportedSegment`].
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    owner: Owner<'a>,
    offset: usize,
    pub(crate) length: usize,
}

/// What a part is of.
#[derive(Debug, Clone, Copy)]
enum Owner<'a> {
    Segment(&'a Segment),
    Exported(&'a ExportedSegment),
}

/// Exported memory of this process, as commands name it.
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) exported: Exported,
}

/// A command that names memory of this process.
pub(crate) trait LocalMemory {
    /// Names it; its length stands elsewhere.
    fn set_local(&mut self, range: &Range);
}

macro_rules! local_memory {
    ($($command:ty),* $(,)?) => {
        $(impl LocalMemory for $command {
            #[inline]
            fn set_local(&mut self, range: &Range) {
                self.local_address = range.address.into();
                self.local_segment = range.exported.segment.into();
                self.local_key = range.exported.key.into();
            }
        })*
    };
}

local_memory! {
    WriteCommand,
    ReadCommand,
    SendCommand,
    ReceiveCommand,
    CollectiveCommand,
    MulticastCommand,
}

impl Part<'_> {
    /// Its memory. It lies within its segment, and the segment belongs to `core`.
    ///
    /// # Errors
    /// [`Error::ForeignSegment`], [`Error::OutOfRange`]
    pub(crate) fn range(&self, core: &Core) -> Result<Range> {
        let (owner, base, size, exported) = match self.owner {
            Owner::Segment(segment) => {
                let owner = Arc::as_ptr(&segment.core);
                (owner, segment.base, segment.len(), segment.exported)
            }
            Owner::Exported(found) => {
                let owner = found.core.as_ptr();
                (owner, found.address, found.len(), found.entry.exported)
            }
        };
        if !std::ptr::eq(owner, core) {
            return Err(Error::ForeignSegment);
        }
        let (offset, length) = (self.offset as u64, self.length as u64);
        Error::check_range("local segment", size as u64, offset, length)?;
        Ok(Range {
            address: base + offset,
            length,
            exported,
        })
    }

    /// Copies its first bytes out; returns false if only the NIC may read them, as the segment
    /// may have been unexported and its memory be gone.
    #[must_use]
    pub(crate) fn read(&self, bytes: &mut [u8]) -> bool {
        match self.owner {
            Owner::Segment(segment) => segment.memory.read_bytes(self.offset, bytes),
            Owner::Exported(_) => return bytes.is_empty(),
        }
        true
    }
}
