//! Imported segments (N3).

use std::sync::{Arc, Mutex};

use qnic_abi::command::CommandHeader;
use qnic_abi::{uapi, Access, NodeId, Port, SegmentName, Status};
use zerocopy::FromZeros;

use crate::core::lock;
use crate::core::map::{Imports, Remote};
use crate::core::tracker::Summary;
use crate::error::{Error, Operation, Result, TransferError};

/// A segment of another process, imported (N3). Clones are cheap; dropping the
/// last one unimports it.
#[derive(Debug, Clone)]
pub struct RemoteSegment(pub(crate) Arc<Remote>);

/// The remote side of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// With node and port of the process.
    pub(crate) header: CommandHeader,
    pub(crate) address: u64,
    pub(crate) key: u64,
    pub(crate) segment: u16,
}

impl RemoteSegment {
    /// Enters what an import returned in the map.
    pub(crate) fn new(imports: &Arc<Mutex<Imports>>, call: &uapi::Import) -> Self {
        let remote = Arc::new(Remote {
            imports: Arc::downgrade(imports),
            node: NodeId(call.node.get()),
            port: Port(call.port.get()),
            name: SegmentName(call.name.get()),
            segment: call.segment.get(),
            access: Access::from_bits_truncate(call.access.get()),
            address: call.address.get(),
            length: call.length.get(),
            key: call.key.get(),
        });
        let (process, weak) = ((remote.node, remote.port), Arc::downgrade(&remote));
        lock(imports).insert(process, remote.address, remote.length, weak);
        RemoteSegment(remote)
    }

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

    /// The access that it grants.
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
        Error::check_range("remote segment", self.len(), offset, length)
    }

    /// The remote side of an operation on `length` bytes at `offset`, and what a failure
    /// message will say.
    pub(crate) fn describe(
        &self,
        operation: Operation,
        offset: u64,
        length: u64,
    ) -> Result<(Target, Summary)> {
        self.check(offset, length)?;
        let mut header = CommandHeader::new_zeroed();
        header.remote_node = self.node().0.into();
        header.remote_port = self.port().0.into();
        let target = Target {
            header,
            address: self.address() + offset,
            key: self.0.key,
            segment: self.0.segment,
        };
        let failure = TransferError {
            operation,
            node: self.node(),
            port: self.port(),
            segment: self.name(),
            offset,
            length,
            status: Status::Ok,
        };
        let silent = false;
        Ok((target, Summary { failure, silent }))
    }
}
