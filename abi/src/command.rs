//! One entry of a process's command queue (NetVM §5.2, table 10; N9, N10): what all
//! commands have in common.
//!
//! ```text
//!   ┌───────────┬───────────────────────────────┬──────────────────────────┐
//!   │ header, 8 │ body, 56: by opcode           │ inline payload, 128      │
//!   └───────────┴───────────────────────────────┴──────────────────────────┘
//!    first word: stored last, with release; zeroed by the NIC once read
//! ```
//! | opcodes | protocol |
//! |---|---|
//! | 1, 2 | [`crate::rdma`] |
//! | 3 | [`crate::atomic`] |
//! | 4 to 6, 10 | [`crate::message`] |
//! | 7 to 9 | [`crate::collective`] |
//! | 12 | [`crate::process_names`] |
//! | 13, 14 | [`crate::context`] |
//! | 16 to 18 | [`crate::datagram`] |
//! | 20, 21 | [`crate::verbs::commands`] |
//!
//! A command names the whole operation, of any length and alignment: the NIC splits it
//! at page borders of either side (N9).

use bitflags::bitflags;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size of an entry of the command queue in bytes.
pub const COMMAND_BYTES: usize = 192;

/// Size in bytes of the part of an entry in front of the inline payload.
pub const DESCRIPTOR_BYTES: usize = 64;

/// Size in bytes of the part of a descriptor that all opcodes have.
pub const COMMAND_HEADER_BYTES: usize = 8;

/// Room for inline payload in an entry, in bytes.
pub const INLINE_CAPACITY: usize = COMMAND_BYTES - DESCRIPTOR_BYTES;

/// Writes up to this many bytes travel inline unless tuned otherwise (N10).
pub const DEFAULT_INLINE_MAX: usize = 96;

/// Longest transfer of one command, in bytes.
pub const MAX_TRANSFER: u64 = 1 << 40;

const _: () = assert!(DEFAULT_INLINE_MAX <= INLINE_CAPACITY);
const _: () = assert!(INLINE_CAPACITY <= u8::MAX as usize);

bitflags! {
    /// Modifiers that every command can have.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CommandFlags: u8 {
        /// Write the completion counters of its lane back as soon as this command and all earlier
        /// ones of its counter there are complete.
        const PUBLISH = 1;
    }
}

layouts! {
    /// The first word of a descriptor. No opcode is 0: an entry whose first word is zero is
    /// free.
    ///
    /// ```text
    ///      0        1        2        3        4        6        8
    ///   0  | opcode | flags  | i_len  | lane   | r_node | r_port |
    /// ```
    #[bytes(COMMAND_HEADER_BYTES)]
    pub struct CommandHeader {
        /// What the command does.
        pub opcode: u8,
        /// [`CommandFlags`].
        pub flags: u8,
        /// Payload bytes in the entry, behind the descriptor; up to [`INLINE_CAPACITY`].
        pub inline_length: u8,
        /// Lane in whose order it completes (`host_area`, "Completion"), if a counter
        /// counts it.
        pub lane: u8,
        /// Node of the remote process; may be this node.
        pub remote_node: U16,
        /// Port of the remote process.
        pub remote_port: U16,
    }
}

/// The first 64 bytes of an entry: a command of any opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Descriptor {
    /// What all commands have.
    pub header: CommandHeader,
    /// By opcode.
    pub body: [u8; DESCRIPTOR_BYTES - COMMAND_HEADER_BYTES],
}

const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES);
const _: () = assert!(core::mem::offset_of!(CommandHeader, remote_node) == 4);

/// Implemented by the descriptor of each opcode, which is [`DESCRIPTOR_BYTES`] long and
/// begins with a [`CommandHeader`].
pub trait CommandBody: FromBytes + IntoBytes + KnownLayout + Immutable + Copy {
    /// The opcode.
    const OPCODE: u8;

    /// A command that is zero but for its opcode.
    fn command() -> Self {
        let mut raw = Descriptor::new_zeroed();
        raw.header.opcode = Self::OPCODE;
        raw.read()
    }

    /// The same bytes as a command of any opcode.
    fn descriptor(&self) -> Descriptor {
        const { assert!(size_of::<Self>() == DESCRIPTOR_BYTES) };
        let mut raw = Descriptor::new_zeroed();
        raw.as_mut_bytes().copy_from_slice(self.as_bytes());
        raw
    }
}

impl Descriptor {
    /// What the bytes mean if the opcode is that of `C`.
    pub fn read<C: CommandBody>(&self) -> C {
        const { assert!(size_of::<C>() == DESCRIPTOR_BYTES) };
        C::read_from_bytes(self.as_bytes()).unwrap_or_else(|_| C::new_zeroed())
    }

    /// The first eight bytes of the body. Of a command that a completion ends they are its handle,
    /// of one that names a context its number.
    pub fn handle(&self) -> u64 {
        self.body
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}
