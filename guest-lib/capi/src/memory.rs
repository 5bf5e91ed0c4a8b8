//! Memory that processes share: buffers, exported segments, and imported ones.
//!
//! Peers and the NIC may write to exported memory at any time: a program reads it by its address, with
//! atomic loads where a word matters. A program that has seen a notification sees everything that its
//! sender wrote before. Writes without a notification appear in no particular order.
//!
//! Local memory of transfers and messages is named by its address. It lies in a segment that the
//! endpoint exports, with whatever access; of several, the newest counts.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};

use qnic::{
    Access, Buffer, Endpoint, ExportOptions, ExportedSegment, ImportOptions, Importer, Importers,
    NodeId, Notifications, Part, Port, RemoteSegment, Secret, Segment, SegmentName, Source,
    INLINE_CAPACITY,
};

use crate::border::{call, fixed, head, limit, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::export_range::export_range;
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open, take};

/// Memory of this process that can be exported. It stays mapped while a segment made from it lives.
pub struct qnic_buffer(Buffer);

/// A range of memory that is exported. Closing it unexports it at once.
pub struct qnic_segment(Segment);

/// A segment of another process. Closing the last handle of it unimports it.
pub struct qnic_remote(pub(crate) RemoteSegment);

/// Peers may read.
pub const QNIC_READ: u32 = 1;
/// Peers may write.
pub const QNIC_WRITE: u32 = 2;

/// Memory that can be exported: page aligned, zeroed. Stores where it begins; `address` may be null.
///
/// Fails with `QNIC_E_ARGUMENT`: no bytes; `QNIC_E_SYSTEM`.
#[no_mangle]
pub extern "C" fn qnic_buffer_open(
    endpoint: *mut qnic_endpoint,
    length: usize,
    address: Out<Out<c_void>>,
    buffer: Out<*mut qnic_buffer>,
) -> c_int {
    open(buffer, || {
        let made = get(endpoint)?.0.allocate(length)?;
        address.set(Out::new(made.as_ptr().cast()))?;
        Ok(qnic_buffer(made))
    })
}

/// Closes the handle. The memory stays while a segment of it is open, and goes with the last one.
#[no_mangle]
pub extern "C" fn qnic_buffer_close(buffer: *mut qnic_buffer) -> c_int {
    close(buffer)
}

/// A process that may import a segment; port 0: every process of the node.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_process {
    /// Its node.
    pub node: u16,
    /// Its port.
    pub port: u16,
}

fixed!(qnic_process { node, port });

/// Only the processes of the list may import the segment.
pub const QNIC_EXPORT_LISTED: u32 = 1;
/// Only processes that present the secret may.
pub const QNIC_EXPORT_SECRET: u32 = 2;
/// Writers may signal no notification.
pub const QNIC_EXPORT_NO_SIGNALS: u32 = 4;
/// The range may overlap others of this endpoint.
pub const QNIC_EXPORT_OVERLAPPING: u32 = 8;

/// What an export grants beside access. Null or zeros: all of it, to every process.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_export_options {
    /// Size of this structure.
    pub size: usize,
    /// `QNIC_EXPORT_…`.
    pub flags: u32,
    /// First notification that writers may signal; 0: every one.
    pub first_notification: u32,
    /// Last notification that they may signal.
    pub last_notification: u32,
    /// How many processes are listed, 32 at most.
    pub listed_count: u32,
    /// The list.
    pub listed: In<qnic_process>,
    /// The secret, if the flags say that there is one: 16 bytes, not all zero.
    pub secret: [u8; 16],
}

head!(qnic_export_options {
    flags,
    first_notification,
    last_notification,
    listed_count,
    listed,
    secret
});

fn secret_of(bytes: [u8; 16]) -> Result<Secret> {
    Secret::new(bytes).ok_or_else(|| Failure::argument("a secret of zeros is none"))
}

/// Which processes a list and a secret admit.
pub(crate) fn importers(
    flags: u32,
    listed: In<qnic_process>,
    count: u32,
    secret: [u8; 16],
) -> Result<Importers> {
    let mut importers = Importers::anyone();
    if flags & QNIC_EXPORT_LISTED != 0 {
        let entry = |process: &qnic_process| match *process {
            qnic_process { node, port: 0 } => Importer::Node(NodeId(node)),
            qnic_process { node, port } => Importer::Process(NodeId(node), Port(port)),
        };
        let listed: Vec<_> = listed.items(count as usize)?.iter().map(entry).collect();
        importers = Importers::listed(&listed);
    }
    if flags & QNIC_EXPORT_SECRET != 0 {
        importers = importers.and_secret(secret_of(secret)?);
    }
    Ok(importers)
}

/// Options of an export as the library takes them.
pub(crate) fn export_options(
    access: u32,
    options: In<qnic_export_options>,
) -> Result<ExportOptions> {
    let given = options.head()?;
    let granted = Access::from_bits(access);
    let granted = granted.ok_or_else(|| Failure::argument("no such access"))?;
    let known =
        QNIC_EXPORT_LISTED | QNIC_EXPORT_SECRET | QNIC_EXPORT_NO_SIGNALS | QNIC_EXPORT_OVERLAPPING;
    if given.flags & !known != 0 {
        return Err(Failure::argument("no such flag of an export"));
    }
    let admitted = importers(given.flags, given.listed, given.listed_count, given.secret)?;
    let mut options = ExportOptions::new(granted).importers(admitted);
    if given.flags & QNIC_EXPORT_NO_SIGNALS != 0 {
        options = options.notifications(Notifications::None);
    } else if given.first_notification != 0 {
        let range = (given.first_notification, given.last_notification);
        options = options.notifications(Notifications::Range(range.0, range.1));
    }
    Ok(match given.flags & QNIC_EXPORT_OVERLAPPING {
        0 => options,
        _ => options.overlapping(),
    })
}

/// Exports a buffer under a name that is unique in this process. `access` is of `QNIC_READ` and
/// `QNIC_WRITE`; `options` may be null.
///
/// Fails with `QNIC_E_NAME_EXISTS`, `QNIC_E_EXHAUSTED`, `QNIC_E_OVERLAPPING`, `QNIC_E_ARGUMENT`.
#[no_mangle]
pub extern "C" fn qnic_export(
    endpoint: *mut qnic_endpoint,
    name: u64,
    buffer: *mut qnic_buffer,
    access: u32,
    options: In<qnic_export_options>,
    segment: Out<*mut qnic_segment>,
) -> c_int {
    open(segment, || {
        let (endpoint, buffer) = (get(endpoint)?, get(buffer)?);
        let options = export_options(access, options)?;
        let exported = endpoint.0.export(SegmentName(name), &buffer.0, options)?;
        Ok(qnic_segment(exported))
    })
}

/// Exports any memory of this process. In a guest, all that the process itself may access; in host
/// mode, parts of buffers. Until the segment is closed it stays mapped, and readable; writable if
/// `access` grants writing, or reads and messages go there.
///
/// Fails as `qnic_export`, and with why the memory cannot be exported: `QNIC_E_BAD_ADDRESS`,
/// `QNIC_E_NOT_MAPPED`, `QNIC_E_READ_ONLY_MEMORY`, …
#[no_mangle]
pub extern "C" fn qnic_export_memory(
    endpoint: *mut qnic_endpoint,
    name: u64,
    address: Out<c_void>,
    length: usize,
    access: u32,
    options: In<qnic_export_options>,
    segment: Out<*mut qnic_segment>,
) -> c_int {
    open(segment, || {
        let endpoint = get(endpoint)?;
        let options = export_options(access, options)?;
        let exported = export_range(&endpoint.0, SegmentName(name), address, length, options)?;
        Ok(qnic_segment(exported))
    })
}

/// Unexports a segment and closes it: its transfers end with an error, and when this returns, neither
/// NIC nor peers use the memory any more.
///
/// Fails with `QNIC_E_DEVICE_GONE`: the handle is closed, and the memory is not used either.
#[no_mangle]
pub extern "C" fn qnic_segment_close(segment: *mut qnic_segment) -> c_int {
    call(|| match take(segment)? {
        Some(qnic_segment(segment)) => Ok(segment.unexport()?),
        None => Ok(()),
    })
}

/// A segment, exported or imported.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_segment_info {
    /// Size of this structure.
    pub size: usize,
    /// Its name.
    pub name: u64,
    /// Address of its first byte in the process that exports it.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The access that it grants.
    pub access: u32,
    /// Node of the process that exports it.
    pub node: u16,
    /// Port of that process.
    pub port: u16,
}

head!(qnic_segment_info {
    name,
    address,
    length,
    access,
    node,
    port
});

impl qnic_segment_info {
    fn of_remote(remote: &RemoteSegment) -> Self {
        qnic_segment_info {
            size: size_of::<Self>(),
            name: remote.name().0,
            address: remote.address(),
            length: remote.len(),
            access: remote.access().bits(),
            node: remote.node().0,
            port: remote.port().0,
        }
    }
}

/// Finds the exported segment that holds all of `length` bytes at `address`. Of several, the newest is
/// found.
///
/// Fails with `QNIC_E_NOT_EXPORTED`: no single one does.
#[no_mangle]
pub extern "C" fn qnic_export_lookup(
    endpoint: *mut qnic_endpoint,
    address: In<c_void>,
    length: usize,
    info: Out<qnic_segment_info>,
) -> c_int {
    call(|| {
        let endpoint = &get(endpoint)?.0;
        let (found, _) = locate(endpoint, address.address(), length)?;
        info.set_head(qnic_segment_info {
            size: size_of::<qnic_segment_info>(),
            name: found.name().0,
            address: found.address(),
            length: found.len() as u64,
            access: found.access().bits(),
            node: endpoint.node().0,
            port: endpoint.port().0,
        })
    })
}

/// Imports a segment of another process, of any node. `timeout_ns` is how long to wait until it is
/// exported, in nanoseconds. `secret` is null, or the 16 bytes that the exporter asks for.
///
/// Fails with `QNIC_E_NAME_NOT_FOUND`, `QNIC_E_NO_SUCH_NODE`, `QNIC_E_PEER_GONE`,
/// `QNIC_E_IMPORT_REFUSED`, `QNIC_E_EXHAUSTED`.
#[no_mangle]
pub extern "C" fn qnic_import(
    endpoint: *mut qnic_endpoint,
    node: u16,
    port: u16,
    name: u64,
    secret: In<u8>,
    timeout_ns: i64,
    remote: Out<*mut qnic_remote>,
) -> c_int {
    open(remote, || {
        let mut options = ImportOptions::new(limit(timeout_ns));
        if !secret.is_null() {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(secret.items(16)?);
            options = options.secret(secret_of(bytes)?);
        }
        let name = SegmentName(name);
        let imported = get(endpoint)?
            .0
            .import(NodeId(node), Port(port), name, options)?;
        Ok(qnic_remote(imported))
    })
}

/// Closes an imported segment.
#[no_mangle]
pub extern "C" fn qnic_remote_close(remote: *mut qnic_remote) -> c_int {
    close(remote)
}

/// Describes an imported segment.
#[no_mangle]
pub extern "C" fn qnic_remote_get_info(
    remote: *mut qnic_remote,
    info: Out<qnic_segment_info>,
) -> c_int {
    call(|| info.set_head(qnic_segment_info::of_remote(&get(remote)?.0)))
}

/// Opens another handle of the imported segment that holds an address of a remote process, and stores
/// the offset of the address in it. Of several, the one that was imported last is found.
///
/// Fails with `QNIC_E_NO_SUCH_SEGMENT`: none does.
#[no_mangle]
pub extern "C" fn qnic_import_lookup(
    endpoint: *mut qnic_endpoint,
    node: u16,
    port: u16,
    address: u64,
    offset: Out<u64>,
    remote: Out<*mut qnic_remote>,
) -> c_int {
    open(remote, || {
        let endpoint = get(endpoint)?;
        let found = endpoint.0.import_lookup(NodeId(node), Port(port), address);
        let (found, at) = found.ok_or_else(|| Failure::no_such_segment(address))?;
        offset.set(at)?;
        Ok(qnic_remote(found))
    })
}

/// Fills 16 bytes with a secret that no process can guess.
///
/// Fails with `QNIC_E_SYSTEM`.
#[no_mangle]
pub extern "C" fn qnic_secret_random(secret: Out<u8>) -> c_int {
    call(|| {
        let room = secret.items(16)?;
        let hex = Secret::random()?.to_hex();
        let number = u128::from_str_radix(&hex, 16).unwrap_or(0);
        room.copy_from_slice(&number.to_be_bytes());
        Ok(())
    })
}

/// The exported segment that holds local memory, and the offset in it.
pub(crate) fn locate(
    endpoint: &Endpoint,
    address: u64,
    length: usize,
) -> Result<(ExportedSegment, usize)> {
    let found = endpoint.export_lookup(address, length as u64);
    let (segment, offset) = found.ok_or_else(|| Failure::not_exported(address, length))?;
    // It is memory of this process.
    Ok((segment, offset as usize))
}

/// Local memory of an operation: a range that is exported.
pub(crate) struct Local {
    segment: ExportedSegment,
    offset: usize,
    length: usize,
}

impl Local {
    pub(crate) fn new(endpoint: &Endpoint, address: u64, length: usize) -> Result<Self> {
        let (segment, offset) = locate(endpoint, address, length)?;
        Ok(Local {
            segment,
            offset,
            length,
        })
    }

    pub(crate) fn part(&self) -> Part<'_> {
        self.segment.part(self.offset, self.length)
    }
}

/// Where the bytes of a write or a message come from: copied, if they travel in the command; else a
/// range that is exported; else what the library says to them.
pub(crate) struct Bytes {
    copy: [u8; INLINE_CAPACITY],
    local: Option<Local>,
}

impl Bytes {
    pub(crate) fn new() -> Self {
        Bytes {
            copy: [0; INLINE_CAPACITY],
            local: None,
        }
    }

    /// The source. `self` keeps what it needs.
    pub(crate) fn source(
        &mut self,
        endpoint: &Endpoint,
        bytes: In<c_void>,
        length: usize,
    ) -> Result<Source<'_>> {
        let room = endpoint.inline_max().min(INLINE_CAPACITY);
        if bytes.copy_to(length, &mut self.copy[..room])? {
            return Ok(Source::Bytes(&self.copy[..length]));
        }
        match Local::new(endpoint, bytes.address(), length) {
            Ok(local) => Ok(Source::Part(self.local.insert(local).part())),
            Err(_) => Ok(Source::Bytes(bytes.bytes(length)?)),
        }
    }
}
