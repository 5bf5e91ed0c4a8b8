//! Exported and imported segments (N2, N3).

use std::sync::{Arc, Weak};

use qnic_abi::{uapi, Access, NodeId, Port, SegmentName};

use crate::core::{lock, retry, Core};
use crate::error::{Error, Result};
use crate::memory::map::Exported;
use crate::provider::Memory;

/// A range of this process's memory that is exported: peers may import it, and it
/// can be source and destination of this endpoint's own transfers.
///
/// Dropping it unexports it at once: transfers that touch it end with an error on
/// both sides, and when the drop returns nothing touches the memory any more (N2).
/// It keeps its endpoint registered and its memory mapped.
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
        let what = || {
            format!(
                "export {} bytes at {:#x} as segment {:#x}",
                memory.size(),
                memory.address(),
                name.0
            )
        };
        let mut call = uapi::Export {
            access: access.bits().into(),
            name: name.0.into(),
            address: memory.address().into(),
            length: (memory.size() as u64).into(),
            flags: flags.into(),
            ..Default::default()
        };
        retry(|| core.process.export(&mut call)).map_err(|error| Error::call(what, error))?;
        Error::check(call.status.get(), what)?;
        let exported = Exported {
            segment: call.segment.get(),
            key: call.key.get(),
        };
        let base = call.address.get();
        if flags & uapi::PHYSICAL == 0 {
            lock(&core.exports).insert(base, memory.size() as u64, exported);
        }
        Ok(Segment {
            core,
            memory,
            base,
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

    /// What peers may do with it.
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

    /// A part of it, as source of a write or destination of a read. Whether it
    /// lies within the segment is checked where it is used.
    pub fn part(&self, offset: usize, length: usize) -> Part<'_> {
        Part {
            segment: self,
            offset,
            length,
        }
    }

    /// Unexports it, like dropping it, and says whether that worked.
    ///
    /// # Errors
    /// [`Error::DeviceGone`] among others; the memory is not touched any more then
    /// either.
    pub fn unexport(mut self) -> Result<()> {
        self.revoke()
    }

    fn revoke(&mut self) -> Result<()> {
        self.revoked = true;
        lock(&self.core.exports).remove(self.base, self.exported);
        let what = || format!("unexport segment {:#x}", self.name.0);
        let mut call = uapi::Unexport {
            segment: self.exported.segment.into(),
            ..Default::default()
        };
        retry(|| self.core.process.unexport(&mut call))
            .map_err(|error| Error::call(what, error))?;
        Error::check(call.status.get(), what)
    }

    pub(crate) fn is_of(&self, core: &Core) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.core), core)
    }

    pub(crate) fn exported(&self) -> Exported {
        self.exported
    }

    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.memory
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.revoked {
            // A drop cannot report; `unexport` does. The only way to fail is that
            // the device is gone, and the segment with it.
            drop(self.revoke());
        }
    }
}

/// A part of a [`Segment`].
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Part<'_> {
    pub(crate) fn check(&self, core: &Core) -> Result<()> {
        if !self.segment.is_of(core) {
            return Err(Error::ForeignSegment);
        }
        let size = self.segment.len();
        if self.offset <= size && self.length <= size - self.offset {
            return Ok(());
        }
        Err(Error::OutOfRange {
            segment: "local segment",
            segment_length: size as u64,
            offset: self.offset as u64,
            length: self.length as u64,
        })
    }
}

/// A segment of another process, imported (N3). Clones are cheap; dropping the
/// last one unimports it.
#[derive(Debug, Clone)]
pub struct RemoteSegment(pub(crate) Arc<Remote>);

/// What an import brought.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) core: Weak<Core>,
    /// Number in the import map.
    pub(crate) number: u64,
    pub(crate) node: NodeId,
    pub(crate) port: Port,
    pub(crate) name: SegmentName,
    pub(crate) segment: u16,
    pub(crate) access: Access,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) key: u64,
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            lock(&core.imports).remove((self.node.0, self.port.0), self.address, self.number);
        }
    }
}

impl RemoteSegment {
    /// Node of the process that exports it.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Port of the process that exports it.
    pub fn port(&self) -> Port {
        self.0.port
    }

    /// Its name.
    pub fn name(&self) -> SegmentName {
        self.0.name
    }

    /// What it grants.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Virtual address of its first byte in the process that exports it.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.length
    }

    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<()> {
        if offset <= self.len() && length <= self.len() - offset {
            return Ok(());
        }
        Err(Error::OutOfRange {
            segment: "remote segment",
            segment_length: self.len(),
            offset,
            length,
        })
    }
}
