//! The one call of the library that asks a promise of its caller.

#![allow(unsafe_code)]

use std::ffi::c_void;

use qnic::{Endpoint, ExportOptions, Segment, SegmentName};

use crate::border::Out;
use crate::failure::Result;

/// Exports memory of the program, which keeps it mapped while the segment is open.
pub(crate) fn export_range(
    endpoint: &Endpoint,
    name: SegmentName,
    address: Out<c_void>,
    length: usize,
    options: ExportOptions,
) -> Result<Segment> {
    let address = address.pointer().cast();
    // SAFETY: the program promises what `export_range` asks for, as the documentation of
    // `qnic_export_memory` says.
    Ok(unsafe { endpoint.export_range(name, address, length, options) }?)
}
