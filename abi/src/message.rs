//! Messages between processes, matched in the receiving NIC (Q3, Q4, Q11 to Q13;
//! docs/messages.md): commands and frames.
//!
//! | opcode | command | its end |
//! |---|---|---|
//! | [`Opcode::Send`] | [`SendCommand`] | a completion of kind Send |
//! | [`Opcode::Receive`] | [`ReceiveCommand`] | a completion of kind Receive; with MANY one for each message |
//! | [`Opcode::Cancel`] | [`CancelCommand`] | none of its own: that of what it ends, with Cancelled |
//! | [`Opcode::Probe`] | [`ProbeCommand`] | a completion of kind Probe |
//!
//! Completions are entries of the completion queue ([`crate::host_area::CompletionEntry`]);
//! no counter counts these commands.
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::MESSAGE`] | Windowed | source | [`Message`] | all of a short message |
//! | [`kind::MESSAGE_REQUEST`] | Control | source | [`MessageRequest`] | none: asks for permission |
//! | [`kind::MESSAGE_PERMIT`] | Control | destination | [`MessagePermit`] | none |
//! | [`kind::MESSAGE_DATA`] | Windowed | source | [`MessageData`] | for the pages of the receive |
//! | [`kind::MESSAGE_END`] | Control | source | [`MessageEnd`] | none: gives a message up |
//! | [`kind::MESSAGE_SEEK`] | Control | NIC of a receive | [`MessageSeek`] | none: does a process live that the receive names? |
//! | [`kind::MESSAGE_GONE`] | Control | NIC of that process | [`MessageGone`] | none: it does not |

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES};
use crate::wire::{Body, BODY_BYTES, MAX_SPAN};

/// Endpoints of a process: each has its own receives and messages.
pub const ENDPOINTS: u16 = 16;

pub use qnic_limits::{PROBES, RECEIVES, SENDS};

numbered! {
    /// Opcodes of this protocol.
    pub enum Opcode: u8 {
        /// Send a message.
        Send = 4,
        /// Post a receive.
        Receive = 5,
        /// Take back a posted receive, or a probe that waits.
        Cancel = 6,
        /// Look for a message that has arrived.
        Probe = 10,
    }
}

/// Kinds of frames of this protocol.
pub mod kind {
    /// [`super::Message`], with its payload.
    pub const MESSAGE: u8 = 0x48;
    /// [`super::MessageData`].
    pub const MESSAGE_DATA: u8 = 0x49;
    /// [`super::MessageRequest`]: a payload waits for permission.
    pub const MESSAGE_REQUEST: u8 = 0x98;
    /// [`super::MessagePermit`].
    pub const MESSAGE_PERMIT: u8 = 0x99;
    /// [`super::MessageEnd`].
    pub const MESSAGE_END: u8 = 0x9a;
    /// [`super::MessageSeek`]
    pub const MESSAGE_SEEK: u8 = 0x9b;
    /// [`super::MessageGone`]
    pub const MESSAGE_GONE: u8 = 0x9c;
}

bitflags! {
    /// Modifiers of a [`SendCommand`] and a [`Message`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendFlags: u16 {
        /// The untagged space: the tag is zero.
        const UNTAGGED = 1;
        /// A [`Label`] stands in front of the inline payload. Of a command only.
        const LABEL = 2;
    }
}

bitflags! {
    /// Modifiers of a [`ReceiveCommand`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ReceiveFlags: u32 {
        /// The untagged space: the tag is zero, and so are the ignore bits but with MANY.
        const UNTAGGED = 1;
        /// From any process: node and port of the header are zero.
        const ANY_PROC = 2;
        /// Takes many messages, one behind the other in its memory, until that is full, or less of it than it keeps
        /// for a message ([`ReceiveCommand::ignore`]), or it is cancelled.
        const MANY = 4;
        /// Takes the message that a Probe has claimed, and no other: the tag is its number. With
        /// DISCARD at most; ignore bits, endpoint, node and port are zero.
        const CLAIMED = 8;
        /// Drops the claimed message: there is no memory.
        const DISCARD = 16;
        /// The inline payload is a [`Label`], whose mark is zero: it takes messages of that incarnation of the process
        /// that the header names. Neither with ANY_PROC nor with CLAIMED.
        const LABEL = 32;
    }
}

bitflags! {
    /// Modifiers of a [`ProbeCommand`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ProbeFlags: u32 {
        /// The untagged space: tag and ignore bits are zero.
        const UNTAGGED = 1;
        /// From any process: node and port of the header are zero.
        const ANY_PROC = 2;
        /// Waits for a message if none has arrived.
        const WAIT = 4;
        /// Takes the message out of the matching, for a Receive with [`ReceiveFlags::CLAIMED`].
        const CLAIM = 8;
        /// Drops the message. Not with CLAIM.
        const DISCARD = 16;
    }
}

bitflags! {
    /// Modifiers of a [`CancelCommand`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CancelFlags: u32 {
        /// It takes back the receive of a context.
        const CONTEXT = 1;
    }
}

layouts! {
    /// What the command of a Send or a Receive has no room for: the first bytes of its inline payload, with
    /// [`SendFlags::LABEL`] or [`ReceiveFlags::LABEL`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | incarnation     | mark            |
    /// ```
    #[bytes(8)]
    pub struct Label {
        /// Incarnation of the process that the message is for, or that a receive takes messages of, as its window
        /// has it. If the process on that port has another one, or none, the message fails with PeerGone, and a
        /// receive does not take it. Zero: any.
        pub incarnation: U32,
        /// Carried to the completion of the receive, as `immediate` is: for what a library says of a message that
        /// is not the program's. Zero of a Receive.
        pub mark: U32,
    }

    /// Sends a message to the process that the header names. With
    /// [`CommandHeader::inline_length`], beyond that of a [`Label`], it stands in the entry; `length` is the same then,
    /// and the local fields are zero.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | tag                               |
    ///  24  | immediate                         |
    ///  32  | length                            |
    ///  40  | local_address                     |
    ///  48  | local_key                         |
    ///  56  |l_segm. |endpoint| flags  |reserved|
    ///  64  | inline payload, 128 bytes         | … 192
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct SendCommand {
        /// With [`Opcode::Send`].
        pub header: CommandHeader,
        /// Of the process: its completion carries it.
        pub handle: U64,
        /// What receives compare.
        pub tag: U64,
        /// Carried to the completion of the receive.
        pub immediate: U64,
        /// Bytes of the message, up to [`crate::command::MAX_TRANSFER`]; zero is legal.
        pub length: U64,
        /// Virtual address of the message, in an exported segment of this process, whatever
        /// access that grants; zero if there is no byte.
        pub local_address: U64,
        /// Key of that segment.
        pub local_key: U64,
        /// Index of that segment.
        pub local_segment: U16,
        /// Endpoint of the destination, below [`ENDPOINTS`].
        pub endpoint: U16,
        /// [`SendFlags`].
        pub flags: U16,
        /// Zero.
        pub reserved: U16,
    }

    /// Posts a receive for messages of the process that the header names, or of any.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | tag                               |
    ///  24  | ignore                            |
    ///  32  | length                            |
    ///  40  | local_address                     |
    ///  48  | local_key                         |
    ///  56  |l_segm. |endpoint| flags           |
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct ReceiveCommand {
        /// With [`Opcode::Receive`].
        pub header: CommandHeader,
        /// Of the process: completions carry it, Cancel names it.
        pub handle: U64,
        /// The tag that it takes; the number of a claimed message.
        pub tag: U64,
        /// Bits of the tag that it does not compare. With MANY in the untagged space, where there is no tag: least
        /// bytes of memory that are left for the next message; it ends when there are fewer.
        pub ignore: U64,
        /// Bytes of memory; zero is legal.
        pub length: U64,
        /// Virtual address of the memory, in an exported segment of this process, whatever
        /// access that grants.
        pub local_address: U64,
        /// Key of that segment.
        pub local_key: U64,
        /// Index of that segment.
        pub local_segment: U16,
        /// Own endpoint, below [`ENDPOINTS`].
        pub endpoint: U16,
        /// [`ReceiveFlags`].
        pub flags: U32,
    }

    /// Takes back the posted receive or waiting probe of a handle that was posted first. One that
    /// has its message, or that is not there, is not touched.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | flags           | reserved        | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct CancelCommand {
        /// With [`Opcode::Cancel`].
        pub header: CommandHeader,
        /// That of the receive or the probe; with CONTEXT the number of a Receive context.
        pub handle: U64,
        /// [`CancelFlags`].
        pub flags: U32,
        /// Zero.
        pub reserved0: U32,
        /// Zero.
        pub reserved1: [U64; 5],
    }

    /// Looks for the earliest message that has arrived, that no receive has taken, and that a
    /// receive with this pattern would take.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | tag                               |
    ///  24  | ignore                            |
    ///  32  | incarnation     | reserved0       |
    ///  40  | reserved1                         | … 56
    ///  56  |reserv2 |endpoint| flags           |
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct ProbeCommand {
        /// With [`Opcode::Probe`].
        pub header: CommandHeader,
        /// Of the process: the completion carries it, Cancel names it.
        pub handle: U64,
        /// The tag that it looks for.
        pub tag: U64,
        /// Bits of the tag that it does not compare.
        pub ignore: U64,
        /// Incarnation of the process whose messages it looks for; zero: any, and with ANY_PROC.
        pub incarnation: U32,
        /// Zero.
        pub reserved0: U32,
        /// Zero.
        pub reserved1: [U64; 2],
        /// Zero.
        pub reserved2: U16,
        /// Own endpoint, below [`ENDPOINTS`].
        pub endpoint: U16,
        /// [`ProbeFlags`].
        pub flags: U32,
    }
}

const _: () = assert!(core::mem::offset_of!(SendCommand, local_segment) == 56);
const _: () = assert!(core::mem::offset_of!(ReceiveCommand, local_segment) == 56);
const _: () = assert!(core::mem::offset_of!(ProbeCommand, endpoint) == 58);

impl CommandBody for SendCommand {
    const OPCODE: u8 = Opcode::Send as u8;
}

impl CommandBody for ReceiveCommand {
    const OPCODE: u8 = Opcode::Receive as u8;
}

impl CommandBody for CancelCommand {
    const OPCODE: u8 = Opcode::Cancel as u8;
}

impl CommandBody for ProbeCommand {
    const OPCODE: u8 = Opcode::Probe as u8;
}

/// Body of [`kind::MESSAGE`], and the front of a [`MessageRequest`]: the envelope of a message, in
/// MPI's sense.
///
/// ```text
///      0                 4                 8
///   0  | tag                               |
///   8  | immediate                         |
///  16  | length                            |
///  24  | after                             |
///  32  |endpoint| flags  | mark            |
///  40  | incarnation     | source          |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Message<const KIND: u8> {
    /// What receives compare; zero in the untagged space.
    pub tag: U64,
    /// For the completion of the receive.
    pub immediate: U64,
    /// Bytes of the message.
    pub length: U64,
    /// Sequence number of the frame with the message before it, from the same process to the
    /// same process: it is matched first. Zero: there is none that may not have arrived.
    pub after: U64,
    /// Endpoint of the destination.
    pub endpoint: U16,
    /// [`SendFlags`].
    pub flags: U16,
    /// For the completion of the receive.
    pub mark: U32,
    /// That of the process that it is for; zero: of any.
    pub incarnation: U32,
    /// That of the process that it is from; zero: it has none.
    pub source: U32,
}

/// Body of [`kind::MESSAGE_REQUEST`]: a message, and the packets in which its bytes would come
/// (Q11).
///
/// ```text
///      0                 4                 8
///   0  | message                           | … 48
///  48  | packets         | packet_length   |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MessageRequest {
    /// What the message says of itself; it is not empty.
    pub message: Message<{ kind::MESSAGE_REQUEST }>,
    /// How many packets of [`MessageRequest::packet_length`] have all bytes ([`packets`]). Borders of pages and
    /// windows can make them shorter, and more.
    pub packets: U32,
    /// Longest payload of a [`MessageData`] of this message: up to
    /// [`MAX_SPAN`].
    pub packet_length: U32,
}

layouts! {
    /// Body of [`kind::MESSAGE_PERMIT`]: a receive has taken the message of an operation; its
    /// bytes may come.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | receive                           |
    ///   8  | length                            |
    ///  16  | p_offs.| reserved                 |
    /// ```
    #[bytes(24)]
    pub struct MessagePermit {
        /// Names the receive at its NIC; the data carries it back.
        pub receive: U64,
        /// Bytes that it takes; fewer than the message has: that is truncated. None of a message
        /// that is discarded.
        pub length: U64,
        /// Where in its page the first byte goes.
        pub page_offset: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }

    /// Body of [`kind::MESSAGE_DATA`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | receive                           |
    ///   8  | offset                            |
    ///  16  | p_offs.| reserved                 |
    /// ```
    #[bytes(24)]
    pub struct MessageData {
        /// From the permit.
        pub receive: U64,
        /// Offset of the payload in the message.
        pub offset: U64,
        /// Where in its page the first byte goes.
        pub page_offset: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }

    /// Body of [`kind::MESSAGE_END`]: the operation of a message, that has asked for permission,
    /// runs no more.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | status          | reserved        |
    /// ```
    #[bytes(8)]
    pub struct MessageEnd {
        /// A [`crate::Status`] code: why.
        pub status: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Body of [`kind::MESSAGE_SEEK`]: the process is that on the destination port.
    #[bytes(8)]
    pub struct MessageSeek {
        /// The process is the one with this incarnation.
        pub incarnation: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Body of [`kind::MESSAGE_GONE`]: the process is that on the source port.
    #[bytes(8)]
    pub struct MessageGone {
        /// No process there has this incarnation any more.
        pub incarnation: U32,
        /// Zero.
        pub reserved: U32,
    }
}

const _: () = assert!(size_of::<Message<0>>() == 48 && 48 <= BODY_BYTES);
const _: () = assert!(core::mem::offset_of!(Message<0>, endpoint) == 32);
const _: () = assert!(size_of::<MessageRequest>() == 56 && 56 <= BODY_BYTES);

impl<const KIND: u8> Body for Message<KIND> {
    const KIND: u8 = KIND;

    fn is_valid(&self) -> bool {
        let flags = SendFlags::from_bits(self.flags.get());
        let flags = flags.filter(|flags| !flags.contains(SendFlags::LABEL));
        let tagged = flags.is_some_and(|flags| !flags.contains(SendFlags::UNTAGGED));
        flags.is_some()
            && self.endpoint.get() < ENDPOINTS
            && self.length.get() <= crate::command::MAX_TRANSFER
            && (tagged || self.tag.get() == 0)
    }
}

impl Body for MessageRequest {
    const KIND: u8 = kind::MESSAGE_REQUEST;

    fn is_valid(&self) -> bool {
        let length = self.packet_length.get();
        self.message.is_valid()
            && (1..=MAX_SPAN as u32).contains(&length)
            && self.packets.get() > 0
            && self.packets.get() == packets(self.message.length.get(), length)
    }
}

/// How many packets of a length have so many bytes; if there are more than 32 bits count, the most that they do.
pub fn packets(length: u64, packet_length: u32) -> u32 {
    let packets = length.div_ceil(packet_length.max(1).into());
    u32::try_from(packets).unwrap_or(u32::MAX)
}

impl Body for MessagePermit {
    const KIND: u8 = kind::MESSAGE_PERMIT;

    fn is_valid(&self) -> bool {
        self.reserved.iter().all(|word| word.get() == 0)
            && usize::from(self.page_offset.get()) < crate::PAGE_SIZE
    }
}

impl Body for MessageData {
    const KIND: u8 = kind::MESSAGE_DATA;

    fn is_valid(&self) -> bool {
        self.reserved.iter().all(|word| word.get() == 0)
            && usize::from(self.page_offset.get()) < crate::PAGE_SIZE
    }
}

impl Body for MessageSeek {
    const KIND: u8 = kind::MESSAGE_SEEK;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0
    }
}

impl Body for MessageGone {
    const KIND: u8 = kind::MESSAGE_GONE;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0
    }
}

impl Body for MessageEnd {
    const KIND: u8 = kind::MESSAGE_END;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_its_bytes() {
        let (incarnation, mark) = (1.into(), 2.into());
        let label = Label { incarnation, mark };
        assert_eq!(label.as_bytes(), [1, 0, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn a_question_for_a_process_and_its_answer_have_their_bytes() {
        let (incarnation, reserved) = (8.into(), 0.into());
        let seek = MessageSeek {
            incarnation,
            reserved,
        };
        let gone = MessageGone {
            incarnation,
            reserved,
        };
        let bytes = [8, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((seek.as_bytes(), gone.as_bytes()), (&bytes[..], &bytes[..]));
        assert_eq!((MessageSeek::KIND, MessageGone::KIND), (0x9b, 0x9c));
    }
}
