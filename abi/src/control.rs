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
//! | Export | [`Export`] | none | NoSuchVni, NameExists, Exhausted, BadLength, BadAddress, AccessDenied, Malformed |
//! | Unexport | [`Unexport`] | none | NoSuchVni, NoSuchSegment |
//! | Import | [`Import`] | [`Imported`] | NoSuchVni, NoSuchNode, NameNotFound, ImportRefused, Exhausted, Aborted, PeerGone |
//! | FaultDone | [`FaultDone`] | none | NoSuchVni |
//! | ResetQueue | none | none | NoSuchVni |
//! | Query | [`Query`] | [`CounterPage`] | |
//! | AnnounceReset | none | none | |
//! | QueryPath | [`QueryPath`] | [`PathInfo`] | NoSuchNode |
//! | 12 to 19 | [`crate::verbs::requests`] | there | there |
//!
//! # The driver's queue (Q9)
//! In the source, the driver has a command queue of D entries, and for each entry a doorbell in host
//! memory, in which the NIC reports the end of the entry's command. Here the control virtqueue is
//! this queue, D is its size, and the reply buffer of an entry is its doorbell. A single notification
//! covers all entries, as a single look of the NIC at the queue does in the source.
//!
//! When the reply of DeleteProcess or Unexport is there, the NIC touches no page
//! on behalf of that process or segment any more; running transfers have ended
//! with [`crate::Status::Aborted`] on this side and
//! [`crate::Status::NoSuchSegment`] or [`crate::Status::PeerGone`] on the other.
//!
//! # Physical segments (N25)
//! A process that was registered with [`PROCESS_PHYSICAL`] may export with
//! [`EXPORT_PHYSICAL`] a range of guest-physical addresses. A transfer between two
//! such segments is what NetVM calls writeP and readP: no page table, no lock, no
//! fault. It exists for comparison only. All other rules of segments hold: name,
//! key, access and range are checked at both ends, so both ends must have allowed
//! it; and every access must lie in the memory of its guest.

use zerocopy::little_endian::{U16, U32, U64};

use crate::counters::CounterPage;
use crate::export::ExportOptions;
use crate::host_area::HOST_PAGES;
use crate::ids::Secret;

/// Size of a request in bytes.
pub const REQUEST_BYTES: usize = 512;

/// Size of a reply in bytes.
pub const REPLY_BYTES: usize = 512;

/// Longest time that an import can wait, in milliseconds.
pub const MAX_IMPORT_WAIT_MS: u32 = 3_600_000;

/// Flag of [`NewProcess`]: the process may export physical memory (N25). The driver gives it only
/// to a process that may access all memory of the system anyway.
pub const PROCESS_PHYSICAL: u16 = 1;

/// Flag of [`NewProcess`]: the process is the driver itself, on
/// [`crate::datagram::DRIVER_PORT`]. It may send and receive datagrams, and names pages by
/// guest-physical address. A NIC has one such process at most.
pub const PROCESS_DRIVER: u16 = 2;

/// Flag of [`Export`]: the address is guest-physical (N25). `AccessDenied` unless
/// the process has [`PROCESS_PHYSICAL`], `BadAddress` if not all of the range is
/// memory of the guest.
pub const EXPORT_PHYSICAL: u16 = 1;

/// Flag of [`PathInfo`]: each frame arrives once, in order, at once.
pub const PATH_LOSSLESS: u32 = 1;

numbered! {
    /// What a request asks for.
    pub enum Opcode: u32 {
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
        /// Answers `event::Kind::PageFault`.
        FaultDone = 7,
        /// Starts the command queue of a VNI again after an error. Commands that are
        /// still in the queue, or running, are dropped; numbers, counters and window
        /// restart at 0. Signal counters and the completion queue stay as they are
        /// ([`mod@crate::host_area`]).
        ResetQueue = 8,
        /// Asks for a page of the NIC's counters ([`mod@crate::counters`]).
        Query = 9,
        /// The driver is about to reset the device: when its queues stop, the NIC does not
        /// wait for them to go on, and its peers learn at once that it is gone. The reply comes
        /// when peers have received what was sent to them, or after a second. So a reset after the
        /// reply loses nothing that the node has sent, unless the second was over.
        AnnounceReset = 10,
        /// Asks what the route to a node is like (U8).
        QueryPath = 11,
        /// Makes a completion queue (X18), as `verbs::requests` says of all that follow.
        CreateCompletionQueue = 12,
        /// Makes a shared receive queue.
        CreateSharedReceiveQueue = 13,
        /// Changes the limit of a shared receive queue.
        ModifySharedReceiveQueue = 14,
        /// Makes a queue pair.
        CreateQueuePair = 15,
        /// Changes state and attributes of a queue pair.
        ModifyQueuePair = 16,
        /// Asks for the state of a queue pair.
        QueryQueuePair = 17,
        /// Gives a segment a key for verbs.
        RegisterMemory = 18,
        /// Ends an object of verbs.
        DestroyObject = 19,
    }
}

layouts! {
    /// The first 8 bytes of a request.
    #[bytes(8)]
    pub struct RequestHeader {
        /// An [`Opcode`].
        pub opcode: U32,
        /// The VNI that the request is about; zero for Hello, Query, QueryPath and
        /// AnnounceReset.
        pub vni: U16,
        /// Zero.
        pub reserved: U16,
    }

    /// Body of [`Opcode::Hello`].
    #[bytes(16)]
    pub struct Hello {
        /// The driver's [`crate::ABI_VERSION`].
        pub abi_version: U32,
        /// Zero.
        pub reserved: U32,
        /// One more than the highest physical frame number the driver may map.
        pub frames: U64,
    }

    /// Body of [`Opcode::QueryPath`].
    #[bytes(8)]
    pub struct QueryPath {
        /// The other node.
        pub node: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }

    /// Reply body of [`Opcode::QueryPath`].
    #[bytes(24)]
    pub struct PathInfo {
        /// Most bytes of a transfer that one frame carries.
        pub max_payload: U32,
        /// Fragments that may be on their way to the node, or there and not delivered.
        pub window: U32,
        /// Smoothed time from a frame to its acknowledgement, in nanoseconds; 0 if none
        /// was measured, as on a lossless route.
        pub round_trip: U64,
        /// [`PATH_LOSSLESS`] or 0.
        pub flags: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Body of [`Opcode::NewProcess`].
    #[bytes(8 + 8 * HOST_PAGES)]
    pub struct NewProcess {
        /// Port of the process, not zero.
        pub port: U16,
        /// [`PROCESS_PHYSICAL`], [`PROCESS_DRIVER`], or 0.
        pub flags: U16,
        /// Process id in the guest, for people.
        pub pid: U32,
        /// Guest-physical addresses of the pages of the host area ([`crate::host_area`]).
        pub host_area: [U64; HOST_PAGES],
    }

    /// Body of [`Opcode::Export`].
    #[bytes(208)]
    pub struct Export {
        /// Index chosen by the driver, free until now.
        pub segment: U16,
        /// 0 or [`EXPORT_PHYSICAL`].
        pub flags: U16,
        /// [`crate::Access`] granted to peers; at least one bit.
        pub access: U32,
        /// Name of the segment, unique in its process.
        pub name: U64,
        /// First virtual address; guest-physical with [`EXPORT_PHYSICAL`].
        pub address: U64,
        /// Length in bytes, not zero.
        pub length: U64,
        /// Random key that peers and the process itself must present.
        pub key: U64,
        /// Key that the physical map carries for the pages of this range: several
        /// segments over one range share it. Zero with [`EXPORT_PHYSICAL`].
        pub page_key: U64,
        /// Which processes may import it, and what its writers may signal.
        pub options: ExportOptions,
    }

    /// Body of [`Opcode::Unexport`].
    #[bytes(8)]
    pub struct Unexport {
        /// Index of the segment.
        pub segment: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }

    /// Body of [`Opcode::Import`].
    #[bytes(32)]
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
        /// What the exporter may ask for; zero: nothing.
        pub secret: Secret,
    }

    /// Body of [`Opcode::FaultDone`].
    #[bytes(16)]
    pub struct FaultDone {
        /// The number of the fault. If that fault was given up, or its process has ended, the
        /// answer has no effect: the next process on the VNI may have a fault of its own for the
        /// same address.
        pub fault: U64,
        /// `Ok` when the first of the pages at least is entered in the page table,
        /// else why not; `Ok` lets the transfers that wait try again.
        pub status: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// The first 8 bytes of a reply.
    #[bytes(8)]
    pub struct ReplyHeader {
        /// A [`crate::Status`] code.
        pub status: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Reply body of [`Opcode::Import`].
    #[bytes(32)]
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

    /// Body of [`Opcode::Query`].
    #[bytes(8)]
    pub struct Query {
        /// Number of the first counter of the page.
        pub first: U32,
        /// Zero.
        pub reserved: U32,
    }
}

const _: () = assert!(size_of::<RequestHeader>() + size_of::<Export>() <= REQUEST_BYTES);
const _: () = assert!(core::mem::offset_of!(Export, options) == 48);
const _: () = assert!(core::mem::offset_of!(Import, secret) == 16);
const _: () = assert!(size_of::<RequestHeader>() + size_of::<NewProcess>() <= REQUEST_BYTES);
const _: () = assert!(size_of::<ReplyHeader>() + size_of::<CounterPage>() <= REPLY_BYTES);
