//! Requests of the driver on the control virtqueue (Q9).
//!
//! A request is one readable buffer of [`REQUEST_BYTES`]: a [`RequestHeader`] and
//! a body by opcode, padded with zeroes. The reply is one writable buffer of
//! [`REPLY_BYTES`]. Replies may come in another order than requests (an
//! [`Opcode::Import`] waits), and each request gets exactly one.
//!
//! | opcode | body | reply body | fails with |
//! |---|---|---|---|
//! | Hello | [`Hello`] | none | VersionMismatch, SramTooSmall |
//! | NewProcess | [`NewProcess`] | none | NoSuchVni, VniInUse, PortInUse, BadAddress, Malformed |
//! | DeleteProcess | none | none | NoSuchVni |
//! | Export | [`Export`] | none | NoSuchVni, NameExists, Exhausted, BadLength, BadAddress, Malformed |
//! | Unexport | [`Unexport`] | none | NoSuchVni, NoSuchSegment |
//! | Import | [`Import`] | [`Imported`] | NoSuchVni, NoSuchNode, NameNotFound, Exhausted, Aborted, PeerGone |
//! | FaultDone | [`FaultDone`] | none | NoSuchVni |
//! | ResetQueue | none | none | NoSuchVni |
//! | Query | none | [`Statistics`] | |
//!
//! When the reply of DeleteProcess or Unexport is there, the NIC touches no page
//! on behalf of that process or segment any more; running transfers have ended
//! with [`crate::Status::Aborted`] on this side and
//! [`crate::Status::NoSuchSegment`] or [`crate::Status::PeerGone`] on the other.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::host_area::HOST_PAGES;

/// Size of a request in bytes.
pub const REQUEST_BYTES: usize = 64;

/// Size of a reply in bytes.
pub const REPLY_BYTES: usize = 128;

/// Longest time that an import can wait, in milliseconds.
pub const MAX_IMPORT_WAIT_MS: u32 = 3_600_000;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Opcode {
    /// The first request after a reset: compares versions, checks the SRAM.
    Hello = 1,
    /// Registers a process on a VNI and a port (N1). Its window's command queue
    /// must be zero.
    NewProcess = 2,
    /// Ends a process: aborts its transfers, forgets its segments.
    DeleteProcess = 3,
    /// Publishes a segment (N2).
    Export = 4,
    /// Revokes a segment at once (N2).
    Unexport = 5,
    /// Asks another node for a segment by name (N3).
    Import = 6,
    /// Answers [`crate::event::Kind::PageFault`].
    FaultDone = 7,
    /// Starts the command queue of a VNI again after an error. Commands that are
    /// still in the queue, or running, are dropped; numbers, counters and window
    /// restart at 0. Signal counters stay as they are.
    ResetQueue = 8,
    /// Asks for counters.
    Query = 9,
}

impl TryFrom<u32> for Opcode {
    type Error = u32;

    fn try_from(number: u32) -> Result<Self, u32> {
        Ok(match number {
            1 => Opcode::Hello,
            2 => Opcode::NewProcess,
            3 => Opcode::DeleteProcess,
            4 => Opcode::Export,
            5 => Opcode::Unexport,
            6 => Opcode::Import,
            7 => Opcode::FaultDone,
            8 => Opcode::ResetQueue,
            9 => Opcode::Query,
            other => return Err(other),
        })
    }
}

/// The first 8 bytes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RequestHeader {
    /// An [`Opcode`].
    pub opcode: U32,
    /// The VNI that the request is about; zero for Hello and Query.
    pub vni: U16,
    /// Zero.
    pub reserved: U16,
}

/// Body of [`Opcode::Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Hello {
    /// The driver's [`crate::ABI_VERSION`].
    pub abi_version: U32,
    /// Zero.
    pub reserved: U32,
    /// One more than the highest physical frame number the driver may map.
    pub frames: U64,
}

/// Body of [`Opcode::NewProcess`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct NewProcess {
    /// Port of the process, not zero.
    pub port: U16,
    /// Zero.
    pub reserved0: U16,
    /// Process id in the guest, for people.
    pub pid: U32,
    /// Guest-physical addresses of the pages of the host area ([`crate::host_area`]).
    pub host_area: [U64; HOST_PAGES],
}

/// Body of [`Opcode::Export`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Export {
    /// Index chosen by the driver, free until now.
    pub segment: U16,
    /// Zero.
    pub reserved0: U16,
    /// [`crate::Access`] granted to peers; at least one bit.
    pub access: U32,
    /// Name of the segment, unique in its process.
    pub name: U64,
    /// First virtual address.
    pub address: U64,
    /// Length in bytes, not zero.
    pub length: U64,
    /// Random key that peers and the process itself must show.
    pub key: U64,
    /// Key that the physical map carries for the pages of this range: several
    /// segments over one range share it.
    pub page_key: U64,
}

/// Body of [`Opcode::Unexport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Unexport {
    /// Index of the segment.
    pub segment: U16,
    /// Zero.
    pub reserved: [U16; 3],
}

/// Body of [`Opcode::Import`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Import {
    /// Node that exports; may be this node.
    pub node: U16,
    /// Port of the process that exports.
    pub port: U16,
    /// How long to wait for the segment to appear, in milliseconds, up to
    /// [`MAX_IMPORT_WAIT_MS`]; 0 asks once.
    pub wait_ms: U32,
    /// Name of the segment.
    pub name: U64,
}

/// Body of [`Opcode::FaultDone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FaultDone {
    /// The address of the fault event.
    pub address: U64,
    /// The number of pages of the fault event.
    pub pages: U32,
    /// `Ok` when the first of the pages at least is entered in the page table,
    /// else why not; `Ok` lets the transfers that wait try again.
    pub status: U32,
}

/// The first 8 bytes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReplyHeader {
    /// A [`crate::Status`] code.
    pub status: U32,
    /// Zero.
    pub reserved: U32,
}

/// Reply body of [`Opcode::Import`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Imported {
    /// Index of the segment in its process.
    pub segment: U16,
    /// Zero.
    pub reserved: U16,
    /// [`crate::Access`] that it grants.
    pub access: U32,
    /// First virtual address in the process that exports.
    pub address: U64,
    /// Length in bytes.
    pub length: U64,
    /// Its key.
    pub key: U64,
}

/// Reply body of [`Opcode::Query`]: what the NIC holds now, and what it has counted
/// since it was reset.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Statistics {
    /// Registered processes.
    pub processes: U32,
    /// Exported segments of all processes.
    pub segments: U32,
    /// Commands of local processes that are not complete.
    pub operations: U32,
    /// Imports of peers that wait here for a name.
    pub parked_imports: U32,
    /// Faults reported to the driver and not answered.
    pub faults_pending: U32,
    /// Frames locked in the physical map now.
    pub frames_locked: U32,
    /// Commands read from queues.
    pub commands: U64,
    /// Payload bytes sent.
    pub bytes_sent: U64,
    /// Payload bytes delivered into local memory.
    pub bytes_received: U64,
    /// Notifications delivered to local processes.
    pub notifications: U64,
    /// Lookups in the page table that found the page.
    pub page_hits: U64,
    /// Lookups that did not.
    pub page_misses: U64,
    /// Transfers refused for a key, an address or an access (N11).
    pub protection_errors: U64,
    /// Commands that were no commands.
    pub malformed_commands: U64,
    /// Transfers aborted by unexport, exit or reset.
    pub aborted: U64,
    /// Frames that were refused as malformed.
    pub malformed_frames: U64,
}

const _: () = assert!(size_of::<RequestHeader>() == 8);
const _: () = assert!(size_of::<Hello>() == 16);
const _: () = assert!(size_of::<NewProcess>() == 32);
const _: () = assert!(size_of::<Export>() == 48);
const _: () = assert!(size_of::<Unexport>() == 8);
const _: () = assert!(size_of::<Import>() == 16);
const _: () = assert!(size_of::<FaultDone>() == 16);
const _: () = assert!(size_of::<Imported>() == 32);
const _: () = assert!(size_of::<Statistics>() == 104);
const _: () = assert!(size_of::<RequestHeader>() + size_of::<Export>() <= REQUEST_BYTES);
const _: () = assert!(size_of::<ReplyHeader>() + size_of::<Statistics>() <= REPLY_BYTES);
