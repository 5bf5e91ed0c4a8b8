//! Frames between NICs (docs/wire.md).
//!
//! A frame is a [`FrameHeader`] and up to [`MAX_PAYLOAD`] bytes. A transfer is
//! split so that no frame crosses a page border of either side (N9); only frames
//! that never leave a process can be longer (see *Runs*).
//!
//! | kind | sent by | meaning | fields used beside the common ones |
//! |---|---|---|---|
//! | Write | source | payload for the destination's memory; none: a notification alone | ports, segment, key, address, operation, offset, length (from here to the end of the transfer), notification with [`FrameFlags::NOTIFY`] |
//! | ReadRequest | reader | asks for `length` bytes at address | ports, segment, key, address, operation, offset, length, argument (bytes from here to the end of the transfer), notification (where in its page the reader will put the first byte) |
//! | ReadReply | owner | payload for the reader | destination port, operation, offset, address (only where in its page the first byte goes) |
//! | Atomic | issuer | asks for an atomic operation ([`crate::atomic`]) on `length` bytes at address | ports, segment, key, address, operation, length, notification (function), argument (first operand), offset (second operand) |
//! | AtomicReply | owner | it is done | destination port, operation, argument (value), length (detail) |
//! | Ack | either | says how far things are; with [`FrameFlags::PROBE`], asks for the same | length, address, key, argument: 256 bits in this order, the lowest first; bit *i* is set if frame `acknowledge` + 2 + offset + *i* has arrived |
//! | Nak | destination | the frame of sequence number `argument` was refused; `status` says why | operation, offset, argument, status |
//! | ImportRequest | importer | who exports (port, name)? | destination port, operation (token), argument (name), length (wait, ms) |
//! | ImportReply | owner | status and, if `Ok`, the segment | operation (token), status, segment, key, address, offset (length in bytes), notification (access) |
//! | Gone | either | the process on source port ended; port 0: so has the sender's session | source port |
//! | Hello | either | the sender's session begins, or goes on: who are you? | length (window) |
//! | HelloReply | the other | its session | length (window) |
//!
//! # Sessions
//! Each side of a conversation between two NICs names its life in it by a number
//! that only grows. Every frame carries the sender's session and the session of
//! the destination that it is meant for; zero in a Hello says that it is not
//! known. `length` of Hello and HelloReply is the window that the sender of it
//! grants: how many pieces with a payload may be on their way to it, or there and
//! not delivered.
//!
//! # Integrity
//! A header has no check sum. A link that can damage frames adds one of its own
//! and drops what does not match: a NIC gets frames intact or not at all.
//!
//! # Sequence numbers
//! Every frame but Ack, Hello, HelloReply and the Gone of port 0 takes the next
//! sequence number of its conversation and direction, from 1. Any frame says how
//! far the other direction has come:
//!
//! A frame with a payload takes as many numbers in a row as it has [`pieces`], and
//! carries the first of them.
//!
//! - `acknowledge`: everything up to this number has arrived.
//! - `delivered`, never more than `acknowledge`: everything up to this number is
//!   in the memory it was meant for, was answered, or was refused by a Nak whose
//!   arrival has been acknowledged.
//!
//! # Runs
//! On a way within one process a Write or a ReadReply may carry up to [`MAX_RUN`]
//! bytes that touch up to [`RUN_PAGES`] pages of either side. It stands for its
//! pieces, one for each page of the destination: each has its own number, is
//! delivered, held or refused by itself, and counts by itself in the window.
//! [`FrameFlags::NOTIFY`] belongs to the last of them.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a frame header in bytes.
pub const HEADER_BYTES: usize = 120;

/// Most payload bytes in a frame.
pub const MAX_PAYLOAD: usize = crate::PAGE_SIZE;

/// Most pages of either side that a run touches.
pub const RUN_PAGES: usize = 8;

/// Most payload bytes in a frame that stays within a process.
pub const MAX_RUN: usize = RUN_PAGES * crate::PAGE_SIZE;

// `payload_length` has 16 bits.
const _: () = assert!(MAX_RUN <= u16::MAX as usize);

/// Pieces of a payload that goes to `address`: the pages that it touches there, or
/// one for none at all. This is how many sequence numbers its frame takes.
pub const fn pieces(address: u64, length: usize) -> u64 {
    let page = crate::PAGE_SIZE as u64;
    match length {
        0 => 1,
        _ => (address % page + length as u64).div_ceil(page),
    }
}

/// Value of [`FrameHeader::magic`]: "qn".
pub const FRAME_MAGIC: u16 = u16::from_le_bytes(*b"qn");

/// Version of the frame format.
pub const WIRE_VERSION: u8 = 4;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Payload for the destination's memory.
    Write = 1,
    /// Request for payload.
    ReadRequest = 2,
    /// Payload for the reader.
    ReadReply = 3,
    /// Acknowledgement alone.
    Ack = 4,
    /// One frame was not delivered.
    Nak = 5,
    /// Question for a segment by name.
    ImportRequest = 7,
    /// Answer to it.
    ImportReply = 8,
    /// A process ended or a session did.
    Gone = 9,
    /// A session begins or goes on.
    Hello = 10,
    /// Answer to it.
    HelloReply = 11,
    /// Request for an atomic operation.
    Atomic = 12,
    /// Result of one.
    AtomicReply = 13,
}

impl TryFrom<u8> for FrameKind {
    type Error = u8;

    fn try_from(number: u8) -> Result<Self, u8> {
        Ok(match number {
            1 => FrameKind::Write,
            2 => FrameKind::ReadRequest,
            3 => FrameKind::ReadReply,
            4 => FrameKind::Ack,
            5 => FrameKind::Nak,
            7 => FrameKind::ImportRequest,
            8 => FrameKind::ImportReply,
            9 => FrameKind::Gone,
            10 => FrameKind::Hello,
            11 => FrameKind::HelloReply,
            12 => FrameKind::Atomic,
            13 => FrameKind::AtomicReply,
            other => return Err(other),
        })
    }
}

bitflags! {
    /// Modifiers of a frame.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct FrameFlags: u16 {
        /// Write: signal the notification once the payload is delivered.
        const NOTIFY = 1;
        /// Ack: answer with an Ack at once.
        const PROBE = 4;
    }
}

/// The header of a frame.
///
/// ```text
///      0        2        4                 8
///   0  | magic  |ver|kind| flags  | p_len  |
///   8  | s_node | d_node | s_port | d_port |
///  16  | source session                    |
///  24  | destination session               |
///  32  | sequence                          |
///  40  | acknowledge                       |
///  48  | delivered                         |
///  56  | operation                         |
///  64  | offset                            |
///  72  | length                            |
///  80  | address                           |
///  88  | key                               |
///  96  | argument                          |
/// 104  | segment| res.   | notification    |
/// 112  | status          | reserved        |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FrameHeader {
    /// [`FRAME_MAGIC`].
    pub magic: U16,
    /// [`WIRE_VERSION`].
    pub version: u8,
    /// A [`FrameKind`].
    pub kind: u8,
    /// [`FrameFlags`].
    pub flags: U16,
    /// Payload bytes behind the header.
    pub payload_length: U16,
    /// Node that sends.
    pub source_node: U16,
    /// Node it is for.
    pub destination_node: U16,
    /// Port of the process that caused the frame.
    pub source_port: U16,
    /// Port of the process that it concerns at the destination.
    pub destination_port: U16,
    /// Session of the node that sends; never zero.
    pub source_session: U64,
    /// Session of the destination that the frame is meant for; zero: not known.
    pub destination_session: U64,
    /// Sequence number of this frame, or of its first piece; zero if its kind has none.
    pub sequence: U64,
    /// Everything from the destination up to this number has arrived.
    pub acknowledge: U64,
    /// Everything from the destination up to this number is delivered.
    pub delivered: U64,
    /// Names the operation at the node that issued it; answers carry it back.
    pub operation: U64,
    /// Offset within the operation's transfer, in bytes; second operand (Atomic); where
    /// the bit map begins, in frames (Ack).
    pub offset: U64,
    /// Bytes wanted (ReadRequest), bytes to the end of the transfer (Write),
    /// bytes of the operand (Atomic), the detail of the result (AtomicReply),
    /// milliseconds (ImportRequest) or frames (Hello, HelloReply).
    pub length: U64,
    /// Virtual address in the process at the destination port; of a ReadReply only
    /// the place in its page.
    pub address: U64,
    /// Key of the segment.
    pub key: U64,
    /// By kind.
    pub argument: U64,
    /// Segment in the process at the destination port.
    pub segment: U16,
    /// Zero.
    pub reserved0: U16,
    /// Notification number with [`FrameFlags::NOTIFY`], access bits, an atomic
    /// function, or a place in a page (ReadRequest).
    pub notification: U32,
    /// A [`crate::Status`] code.
    pub status: U32,
    /// Zero.
    pub reserved1: U32,
}

const _: () = assert!(size_of::<FrameHeader>() == HEADER_BYTES);
const _: () = assert!(core::mem::offset_of!(FrameHeader, sequence) == 32);
const _: () = assert!(core::mem::offset_of!(FrameHeader, argument) == 96);
const _: () = assert!(core::mem::offset_of!(FrameHeader, status) == 112);
