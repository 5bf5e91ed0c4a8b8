//! Transfers by physical address, NetVM's writeP and readP, **for comparison only** (N25).
//!
//! A physical segment is pinned while it is exported. The NIC reaches it without page
//! table, lock or page fault, as a NIC with static pinning would. Everything else is as
//! with any segment: it is exported under a name with an access and a key, imported by
//! peers, and named as source or destination of [`Endpoint::write`] and
//! [`Endpoint::read`]. A transfer is a writeP or readP if its segments at both ends are
//! physical; so both ends have to allow it.
//!
//! # Privilege
//! [`register`] is refused with `AccessDenied` unless the process may access all
//! memory anyway: in a guest it needs `CAP_SYS_RAWIO`; a host-mode node must have
//! been started with [`crate::HOST_PHYSICAL_VARIABLE`] or
//! `qnic_host::HostNode::allow_physical`. An ordinary endpoint cannot export
//! physical memory.
//!
//! ```no_run
//! use qnic::{physical, Access, Nic, Port, SegmentName};
//!
//! # fn main() -> qnic::Result<()> {
//! let endpoint = physical::register(&Nic::open()?, Port(7))?;
//! let page = endpoint.allocate(4096)?;
//! let pinned = physical::export(&endpoint, SegmentName(1), &page, Access::WRITE)?;
//! # Ok(())
//! # }
//! ```

use qnic_abi::{uapi, Port, SegmentName};

use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::memory::{Buffer, ExportOptions, Segment};
use crate::nic::Nic;

/// Registers like [`Nic::register`], and asks for the privilege to export physical
/// memory.
///
/// # Errors
/// Those of [`Nic::register`]; [`crate::Error::Refused`] with `AccessDenied` without
/// privilege.
pub fn register(nic: &Nic, port: Port) -> Result<Endpoint> {
    nic.register_with(port, uapi::PHYSICAL)
}

/// Pins a buffer until the segment is dropped, and exports it by its physical
/// address. In a guest its pages must be physically contiguous, which only a buffer
/// of one page is sure to be.
///
/// # Errors
/// Those of [`Endpoint::export`]; [`crate::Error::Refused`] with `AccessDenied` if the
/// endpoint was not made by [`register`], with `BadAddress` if the pages are not
/// contiguous.
pub fn export(
    endpoint: &Endpoint,
    name: SegmentName,
    buffer: &Buffer,
    options: impl Into<ExportOptions>,
) -> Result<Segment> {
    let memory = buffer.memory().clone();
    let core = endpoint.core().clone();
    Segment::export(core, name, memory, &options.into(), uapi::PHYSICAL)
}
