//! Memory that processes share: buffers, exported and imported segments (N2, N3).

mod buffer;
mod options;
mod remote;
mod segment;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::control::MAX_IMPORT_WAIT_MS;
use qnic_abi::{uapi, NodeId, Port, SegmentName, Status};
use qnic_shared::region::SharedRegion;

use crate::core::{lock, retry};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::provider::Provider;

pub use buffer::Buffer;
pub use options::{
    ExportOptions, ImportOptions, Importer, Importers, NoSecret, Notifications, Secret,
};
pub use remote::RemoteSegment;
pub(crate) use remote::Target;
pub use segment::{ExportedSegment, Part, Segment};
pub(crate) use segment::{LocalMemory, Range};

/// Memory of a platform that can be exported.
pub(crate) fn allocate(provider: &dyn Provider, length: usize) -> Result<Buffer> {
    if length == 0 {
        return Err(Error::EmptyMemory);
    }
    let what = || format!("allocate {length} bytes");
    retry(what, || provider.allocate(length)).map(Buffer::new)
}

/// # Memory
impl Endpoint {
    /// Memory that can be exported: page aligned, zeroed.
    ///
    /// # Errors
    /// [`Error::EmptyMemory`], [`Error::System`]
    pub fn allocate(&self, length: usize) -> Result<Buffer> {
        allocate(self.core().provider.as_ref(), length)
    }

    /// Exports a buffer under a name that is unique in this process (N2). `options` is an
    /// [`Access`](qnic_abi::Access), or [`ExportOptions`]: which processes may import the segment, and
    /// which notifications its writers may signal.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NameExists` or `Exhausted` among others;
    /// [`Error::TooManyImporters`].
    pub fn export(
        &self,
        name: SegmentName,
        buffer: &Buffer,
        options: impl Into<ExportOptions>,
    ) -> Result<Segment> {
        let memory = buffer.memory().clone();
        Segment::export(self.core().clone(), name, memory, &options.into(), 0)
    }

    /// Exports any ordinary memory of this process: any address, any length.
    ///
    /// In a guest this is all that the process itself may access: heap and stacks, static
    /// data, shared memory, memfd, files that are mapped, huge pages. What it may only read
    /// (constants, for example) can be exported for reading and be the source of writes,
    /// but takes no data: a read that is directed there fails with `ReadOnlyMemory`. In
    /// host mode the memory must be part of a [`Buffer`].
    ///
    /// In memory of a file that is mapped privately, data that arrives is this process's
    /// own; in memory that is shared all processes see it, and it reaches the file as the
    /// process's own stores do. Beyond the end of a file there is no memory: such a
    /// transfer fails with `PageUnavailable`.
    ///
    /// # Safety
    /// Until the segment is dropped (or, if it never is, for ever):
    /// `address .. address + length` stays mapped and readable, and writable if
    /// the access grants writing or reads are directed there; while peers may write
    /// to it, this process accesses it only through raw pointers or atomics.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NameExists`, `Exhausted`, `BadAddress`, `Overlapping` (see
    /// [`ExportOptions::overlapping`]), or with why the memory cannot be exported (`NotMapped`, `SramTooSmall`, `UnreadableMemory`;
    /// `ReadOnlyMemory` with [`Access::WRITE`](crate::Access::WRITE); `SecretMemory`, `DaxMemory`,
    /// `UserFaultMemory`, `DeviceMemory`); [`Error::EmptyMemory`].
    #[allow(unsafe_code)]
    pub unsafe fn export_range(
        &self,
        name: SegmentName,
        address: *mut u8,
        length: usize,
        options: impl Into<ExportOptions>,
    ) -> Result<Segment> {
        let Some(base) = NonNull::new(address) else {
            return Err(Error::refused(
                "export memory at address 0",
                Status::BadAddress,
            ));
        };
        // SAFETY: the caller promises what `from_raw` asks for.
        let memory = unsafe { SharedRegion::from_raw(base, length) };
        let core = self.core().clone();
        Segment::export(core, name, Arc::new(memory), &options.into(), 0)
    }

    /// The exported segment that holds all of `length` bytes at `address`, and the offset of
    /// `address` in it, in bytes; O(log segments) (N3). `None` if no single segment does. Of
    /// several such segments the newest is found; physical ones are not.
    pub fn export_lookup(&self, address: u64, length: u64) -> Option<(ExportedSegment, u64)> {
        let exports = lock(&self.core().exports);
        let (entry, offset) = exports.find((), address, length).next()?;
        let found = ExportedSegment::new(self.core(), address - offset, *entry);
        Some((found, offset))
    }

    /// Imports a segment of another process. That process may run on this node, or be
    /// this very process. `options` is how long to wait until it exports the segment (N3),
    /// also for its node to be there, zero to ask once; or [`ImportOptions`], with a secret.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NameNotFound`, `NoSuchNode`, `PeerGone`, `Exhausted`, and
    /// `ImportRefused` at once if the exporter does not admit this process ([`Importers`]).
    pub fn import(
        &self,
        node: NodeId,
        port: Port,
        name: SegmentName,
        options: impl Into<ImportOptions>,
    ) -> Result<RemoteSegment> {
        let options = options.into();
        let core = self.core();
        let what = || format!("import segment {:#x} of {node}, {port}", name.0);
        let until = core.now()
            + options
                .wait
                .min(Duration::from_millis(MAX_IMPORT_WAIT_MS.into()));
        let call = retry(what, || {
            let left = until.saturating_duration_since(core.now());
            let mut call = uapi::Import {
                node: node.0.into(),
                port: port.0.into(),
                name: name.0.into(),
                wait_ms: (left.as_micros().div_ceil(1000) as u32).into(),
                secret: options.abi_secret(),
                ..Default::default()
            };
            core.process.import(&mut call).map(|()| call)
        })?;
        Error::check(call.status.get(), what)?;
        match call.length.get() {
            0 => Err(Error::refused(what(), Status::BadLength)),
            _ => Ok(RemoteSegment::new(&core.imports, &call)),
        }
    }

    /// The imported segment that holds `address` of a remote process, and the
    /// offset in it; O(log segments) (N3). Of several, that which was imported last is found: an
    /// earlier one may be of an export that has ended.
    pub fn import_lookup(
        &self,
        node: NodeId,
        port: Port,
        address: u64,
    ) -> Option<(RemoteSegment, u64)> {
        let imports = lock(&self.core().imports);
        let mut found = imports.find((node, port), address, 1);
        found.find_map(|(remote, offset)| Some((RemoteSegment(remote.upgrade()?), offset)))
    }
}
