//! An exported buffer: the pair that every program here uses.

use anyhow::{Context, Result};
use qnic::{Access, Buffer, Endpoint, Part, Segment, SegmentName};

/// A buffer and the segment under which it is exported.
pub(crate) struct Exported {
    pub(crate) buffer: Buffer,
    pub(crate) segment: Segment,
}

impl Exported {
    /// Allocates `length` bytes and exports them for reading and writing.
    pub(crate) fn new(endpoint: &Endpoint, name: SegmentName, length: usize) -> Result<Self> {
        let buffer = endpoint
            .allocate(length)
            .with_context(|| format!("allocate {length} bytes"))?;
        let segment = endpoint
            .export(name, &buffer, Access::READ | Access::WRITE)
            .context("export a buffer")?;
        Ok(Exported { buffer, segment })
    }

    /// A part of it, for a transfer.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Part<'_> {
        self.segment.part(offset, length)
    }
}
