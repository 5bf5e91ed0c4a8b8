//! Messages to all members of a group, or to some of them (Broadcast and Multicast of QNIX §5, with
//! their short forms; Q3, Q15; docs/collectives.md): command and frames.
//!
//! | opcode | command | its end |
//! |---|---|---|
//! | [`OPCODE`] | [`MulticastCommand`] | a completion of kind Collective |
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::MULTICAST`] | Windowed | neighbour in the tree, towards the source | [`Multicast`] | a part of the ranks and the bytes |
//! | [`kind::MULTICAST_TAKEN`] | Windowed | neighbour in the tree, away from it | [`MulticastTaken`] | none |
//!
//! The ranks of a message, [`U16`] each, and its bytes are one row. A row is one piece, or, beyond what
//! [`kept_bytes`] allows, several of [`piece_bytes`] each. A piece is cut into parts of the length that
//! the group has agreed on ([`crate::collective::is_part_length`]).
//!
//! ```text
//!   row      │ ranks │ bytes                                          │
//!   pieces   ├───────────────┼───────────────┼───────────────┼────────┤    members take one after the other
//!   parts    ├───┼───┼───┼───┼───┼───┼───┼───┼───┼───┼───┼───┼───┼────┤    a frame each
//! ```

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

use crate::collective::MAX_MEMBERS;
use crate::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES, INLINE_CAPACITY};
use crate::wire::Body;

/// The opcode.
pub const OPCODE: u8 = 11;

/// Most bytes of a multicast.
pub const MAX_BYTES: u32 = 1 << 31;

/// Most bytes of a multicast in one piece, in a group of few members.
pub const MAX_KEPT_BYTES: u32 = 64 << 10;

/// Most ranks that a command can name, with their count in front of them.
pub const MAX_RANKS: usize = INLINE_CAPACITY / 2 - 1;

/// Bytes that a NIC keeps of each member of a group of that size, if they are not received. A longer
/// multicast has several pieces.
pub const fn kept_bytes(size: u32) -> u32 {
    let share = (8 << 20) / if size == 0 { 1 } else { size };
    if share < MAX_KEPT_BYTES {
        share
    } else {
        MAX_KEPT_BYTES
    }
}

/// Bytes of each piece of a multicast of that length but the last one, ranks counted.
pub const fn piece_bytes(size: u32, length: u32) -> u64 {
    let kept = kept_bytes(size);
    if length > kept {
        kept as u64 / 4
    } else {
        kept as u64 + 2 * MAX_RANKS as u64
    }
}

// The ranks are in the first piece.
const _: () = assert!(piece_bytes(MAX_MEMBERS, MAX_BYTES) > 2 * MAX_RANKS as u64);

/// Kinds of frames.
pub mod kind {
    /// [`super::Multicast`].
    pub const MULTICAST: u8 = 0x55;
    /// [`super::MulticastTaken`].
    pub const MULTICAST_TAKEN: u8 = 0x56;
}

bitflags! {
    /// Modifiers of a [`MulticastCommand`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct MulticastFlags: u8 {
        /// The untagged space: the tag is zero.
        const UNTAGGED = 1;
        /// To some members: the entry has their count, 1 to [`MAX_RANKS`], and their ranks, [`U16`]
        /// each. Without it, to all others.
        const RANKS = 2;
        /// The bytes stand in the entry, behind the ranks; the local fields are zero.
        const SHORT = 4;
    }
}

bitflags! {
    /// Modifiers of a [`Multicast`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PartFlags: u8 {
        /// The untagged space: the tag is zero.
        const UNTAGGED = 1;
        /// No more of this message comes: its memory cannot be read on. The part has no bytes, and stands
        /// where a piece begins that is not the first.
        const GIVEN_UP = 2;
    }
}

layouts! {
    /// Sends a message to members of a group, of which receives of those take it.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | group                             |
    ///  24  | tag                               |
    ///  32  | immediate                         |
    ///  40  | local_address                     |
    ///  48  | local_key                         |
    ///  56  |l_segm. |endp|flags| length        |
    ///  64  | count and ranks, bytes            | … 192
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct MulticastCommand {
        /// With [`OPCODE`]; the inline payload is the ranks and, if it is short, the bytes.
        pub header: CommandHeader,
        /// Of the process: the completion carries it.
        pub handle: U64,
        /// From the completion of the join.
        pub group: U64,
        /// What receives compare.
        pub tag: U64,
        /// Carried to the completions of the receives.
        pub immediate: U64,
        /// Virtual address of the message, in an exported segment of this process, whatever access that
        /// grants.
        pub local_address: U64,
        /// Key of that segment.
        pub local_key: U64,
        /// Index of that segment.
        pub local_segment: U16,
        /// Endpoint of the members, below [`crate::message::ENDPOINTS`].
        pub endpoint: u8,
        /// [`MulticastFlags`].
        pub flags: u8,
        /// Bytes of the message, up to [`MAX_BYTES`].
        pub length: U32,
    }

    /// Body of [`kind::MULTICAST`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | number                            |
    ///   8  | tag                               |
    ///  16  | immediate                         |
    ///  24  | length          | offset          |
    ///  32  | rank            | ranks  | home   |
    ///  40  | node   | port   |endp|flags|  rsvd |
    /// ```
    #[bytes(48)]
    pub struct Multicast {
        /// The group's.
        pub number: U64,
        /// What receives compare.
        pub tag: U64,
        /// For the completions of the receives.
        pub immediate: U64,
        /// Bytes of the message, without ranks.
        pub length: U32,
        /// Where in the row of ranks and bytes this part begins.
        pub offset: U32,
        /// Rank of the source.
        pub rank: U32,
        /// How many ranks it names; zero: it is for all.
        pub ranks: U16,
        /// Node of the group's home.
        pub home: U16,
        /// Node of the source.
        pub node: U16,
        /// Its port.
        pub port: U16,
        /// As in the command.
        pub endpoint: u8,
        /// [`PartFlags`].
        pub flags: u8,
        /// Zero.
        pub reserved: U16,
    }

    /// Body of [`kind::MULTICAST_TAKEN`]: so many pieces of messages of a source were received or staged
    /// at all members on this side of the tree.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | number                            |
    ///   8  | rank            | count           |
    ///  16  | home   | reserved                 |
    /// ```
    #[bytes(24)]
    pub struct MulticastTaken {
        /// The group's.
        pub number: U64,
        /// Rank of the source.
        pub rank: U32,
        /// Pieces, since the group has begun; wraps.
        pub count: U32,
        /// Node of the group's home.
        pub home: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }
}

const _: () = assert!(core::mem::offset_of!(MulticastCommand, local_segment) == 56);

impl CommandBody for MulticastCommand {
    const OPCODE: u8 = OPCODE;
}

impl Multicast {
    /// Bytes of the row of ranks and bytes.
    pub fn row(&self) -> u64 {
        2 * u64::from(self.ranks.get()) + u64::from(self.length.get())
    }
}

impl Body for Multicast {
    const KIND: u8 = kind::MULTICAST;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0
            && PartFlags::from_bits(self.flags).is_some()
            && u16::from(self.endpoint) < crate::message::ENDPOINTS
            && self.rank.get() < MAX_MEMBERS
            && usize::from(self.ranks.get()) <= MAX_RANKS
            && self.length.get() <= MAX_BYTES
            && u64::from(self.offset.get()) <= self.row()
    }
}

impl Body for MulticastTaken {
    const KIND: u8 = kind::MULTICAST_TAKEN;

    fn is_valid(&self) -> bool {
        self.rank.get() < MAX_MEMBERS && self.reserved.iter().all(|word| word.get() == 0)
    }
}
