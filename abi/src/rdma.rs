//! Remote memory access (NetVM §5; N9, N10): its commands and its frames.
//!
//! | opcode | command | counts as |
//! |---|---|---|
//! | [`Opcode::Write`] | [`WriteCommand`] | write |
//! | [`Opcode::Read`] | [`ReadCommand`] | read |
//! | [`Opcode::Fence`] | [`FenceCommand`] | nothing: an entry of the completion queue ends it |
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::WRITE`] | Windowed | requester | [`Write`] | for the responder's memory; none: a notification alone |
//! | [`kind::READ_REQUEST`] | Control | requester | [`ReadRequest`] | none |
//! | [`kind::READ_RESPONSE`] | Windowed | responder | [`ReadResponse`] | for the requester's memory |

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

use crate::command::{CommandBody, CommandHeader, COMMAND_HEADER_BYTES, DESCRIPTOR_BYTES};
use crate::wire::{Body, BODY_BYTES};

numbered! {
    /// Opcodes of this protocol.
    pub enum Opcode: u8 {
        /// Transfer from local memory (or the inline payload) to a remote segment.
        Write = 1,
        /// Transfer from a remote segment to local memory.
        Read = 2,
        /// Tells when the sources of writes may be reused.
        Fence = 19,
    }
}

/// Kinds of frames of this protocol.
pub mod kind {
    /// [`super::Write`].
    pub const WRITE: u8 = 0x40;
    /// [`super::ReadRequest`].
    pub const READ_REQUEST: u8 = 0x90;
    /// [`super::ReadResponse`].
    pub const READ_RESPONSE: u8 = 0x41;
}

bitflags! {
    /// Modifiers of a [`Write`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WriteFlags: u32 {
        /// Signal the notification behind the last byte.
        const NOTIFY = 1;
    }
}

layouts! {
    /// A write (N9, N10). With [`CommandHeader::inline_length`] its payload stands in the
    /// entry; `length` is the same then, and the local fields are zero.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | length                            |
    ///  16  | local_address                     |
    ///  24  | local_key                         |
    ///  32  | remote_address                    |
    ///  40  | remote_key                        |
    ///  48  | l_segm.| r_segm.| notification    |
    ///  56  | handle                            |
    ///  64  | inline payload, 128 bytes         | … 192
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct WriteCommand {
        /// With [`Opcode::Write`].
        pub header: CommandHeader,
        /// Bytes to transfer, up to [`crate::command::MAX_TRANSFER`]. Zero is legal: a
        /// notification alone.
        pub length: U64,
        /// Virtual address of the local memory, in an exported segment of this process,
        /// whatever access it grants to peers.
        pub local_address: U64,
        /// Key of that segment.
        pub local_key: U64,
        /// Virtual address in the remote process.
        pub remote_address: U64,
        /// Key of the remote segment.
        pub remote_key: U64,
        /// Index of the local segment.
        pub local_segment: U16,
        /// Index of the remote segment.
        pub remote_segment: U16,
        /// Zero, or the number of a notification, counted or one-shot ([`crate::host_area`]). It is
        /// signalled at the destination after all data of this and of every earlier write of this
        /// process to that node has been delivered (N9, N18).
        pub notification: U32,
        /// Zero, or the handle of its entry in the completion queue (N12).
        pub handle: U64,
    }

    /// A read (N9).
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | length                            |
    ///  16  | local_address                     |
    ///  24  | local_key                         |
    ///  32  | remote_address                    |
    ///  40  | remote_key                        |
    ///  48  | l_segm.| r_segm.| reserved        |
    ///  56  | handle                            |
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct ReadCommand {
        /// With [`Opcode::Read`].
        pub header: CommandHeader,
        /// Bytes to transfer, up to [`crate::command::MAX_TRANSFER`].
        pub length: U64,
        /// Virtual address of the local memory, in an exported segment of this process.
        pub local_address: U64,
        /// Key of that segment.
        pub local_key: U64,
        /// Virtual address in the remote process.
        pub remote_address: U64,
        /// Key of the remote segment.
        pub remote_key: U64,
        /// Index of the local segment.
        pub local_segment: U16,
        /// Index of the remote segment.
        pub remote_segment: U16,
        /// Zero.
        pub reserved: U32,
        /// Zero, or the handle of its entry in the completion queue (N12).
        pub handle: U64,
    }

    /// A fence of one side (N9): its completion, of kind
    /// [`Transfer`](crate::host_area::CompletionKind::Transfer), comes as soon as the NIC reads no
    /// source of the writes any more that were issued before it in its lane. They may not have been
    /// delivered, and the fence tells of no failure. With status
    /// [`Exhausted`](crate::Status::Exhausted) if too many fences of the process wait.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | reserved, 48 bytes                |
    ///  56  | handle                            |
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct FenceCommand {
        /// With [`Opcode::Fence`], and the lane. The node is that of the lane's writes.
        pub header: CommandHeader,
        /// Zero.
        pub reserved: [U64; 6],
        /// Handle of its entry in the completion queue; not zero.
        pub handle: U64,
    }
}

const _: () = assert!(core::mem::offset_of!(WriteCommand, length) == COMMAND_HEADER_BYTES);
const _: () = assert!(core::mem::offset_of!(WriteCommand, notification) == 52);

impl CommandBody for WriteCommand {
    const OPCODE: u8 = Opcode::Write as u8;
}

impl CommandBody for ReadCommand {
    const OPCODE: u8 = Opcode::Read as u8;
}

impl CommandBody for FenceCommand {
    const OPCODE: u8 = Opcode::Fence as u8;
}

layouts! {
    /// Body of [`kind::WRITE`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | address                           |
    ///   8  | key                               |
    ///  16  | offset                            |
    ///  24  | remaining                         |
    ///  32  | segment| flags  | notification    |
    /// ```
    #[bytes(40)]
    pub struct Write {
        /// Virtual address of the payload in the process at the destination port.
        pub address: U64,
        /// Key of the segment.
        pub key: U64,
        /// Offset of the payload within the operation's transfer, in bytes.
        pub offset: U64,
        /// Bytes from here to the end of the transfer.
        pub remaining: U64,
        /// Segment in the process at the destination port.
        pub segment: U16,
        /// [`WriteFlags`]; NOTIFY belongs to the last frame: signal the notification.
        pub flags: U16,
        /// Number of the notification that the write signals at its end, in each of its
        /// frames; zero: none. So a write with a number that the segment does not allow is
        /// refused before any of it is stored.
        pub notification: U32,
    }
}

layouts! {
    /// Body of [`kind::READ_REQUEST`]: asks for bytes.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | address                           |
    ///   8  | key                               |
    ///  16  | offset                            |
    ///  24  | remaining                         |
    ///  32  | length          | segment|p_offs. |
    /// ```
    #[bytes(40)]
    pub struct ReadRequest {
        /// Virtual address in the process at the destination port.
        pub address: U64,
        /// Key of the segment.
        pub key: U64,
        /// Offset within the operation's transfer, in bytes.
        pub offset: U64,
        /// Bytes from here to the end of the transfer.
        pub remaining: U64,
        /// Bytes wanted, up to [`crate::wire::MAX_SPAN`].
        pub length: U32,
        /// Segment in the process at the destination port.
        pub segment: U16,
        /// Where in its page the requester puts the first byte.
        pub page_offset: U16,
    }

    /// Body of [`kind::READ_RESPONSE`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | offset                            |
    ///   8  | p_offs.| reserved                 |
    /// ```
    #[bytes(16)]
    pub struct ReadResponse {
        /// Offset of the payload within the operation's transfer, in bytes.
        pub offset: U64,
        /// Where in its page the first byte goes.
        pub page_offset: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }
}

const _: () = assert!(size_of::<Write>() <= BODY_BYTES);
const _: () = assert!(core::mem::offset_of!(Write, segment) == 32);
const _: () = assert!(core::mem::offset_of!(ReadRequest, length) == 32);

impl Body for Write {
    const KIND: u8 = kind::WRITE;

    fn is_valid(&self) -> bool {
        WriteFlags::from_bits(self.flags.get().into()).is_some()
    }
}

impl Body for ReadRequest {
    const KIND: u8 = kind::READ_REQUEST;

    fn is_valid(&self) -> bool {
        usize::from(self.page_offset.get()) < crate::PAGE_SIZE
    }
}

impl Body for ReadResponse {
    const KIND: u8 = kind::READ_RESPONSE;

    fn is_valid(&self) -> bool {
        self.reserved.iter().all(|word| word.get() == 0)
            && usize::from(self.page_offset.get()) < crate::PAGE_SIZE
    }
}
