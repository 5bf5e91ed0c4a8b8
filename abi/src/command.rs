//! One entry of a process's command queue (NetVM §5.2, table 10; N9, N10).
//!
//! A descriptor names the whole operation, of any length and alignment: the NIC
//! splits it at page borders of either side (N9).

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of an entry of the command queue in bytes.
pub const COMMAND_BYTES: usize = 192;

/// Size in bytes of the part of an entry in front of the inline payload.
pub const DESCRIPTOR_BYTES: usize = 64;

/// Room for inline payload in an entry, in bytes.
pub const INLINE_CAPACITY: usize = COMMAND_BYTES - DESCRIPTOR_BYTES;

/// Writes up to this many bytes travel inline unless tuned otherwise (N10).
pub const DEFAULT_INLINE_MAX: usize = 96;

/// Longest transfer of one command, in bytes.
pub const MAX_TRANSFER: u64 = 1 << 40;

const _: () = assert!(DEFAULT_INLINE_MAX <= INLINE_CAPACITY);

/// What a command does. No opcode is 0: an entry whose first word is zero is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Transfer from local memory (or the inline payload) to a remote segment.
    Write = 1,
    /// Transfer from a remote segment to local memory.
    Read = 2,
    /// Atomic operation on a remote segment ([`crate::atomic`], N20). Counts as a
    /// read where completions are counted.
    Atomic = 3,
}

impl TryFrom<u8> for Opcode {
    type Error = u8;

    fn try_from(number: u8) -> Result<Self, u8> {
        match number {
            1 => Ok(Opcode::Write),
            2 => Ok(Opcode::Read),
            3 => Ok(Opcode::Atomic),
            other => Err(other),
        }
    }
}

bitflags! {
    /// Modifiers of a command.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CommandFlags: u8 {
        /// Signal the notification [`Descriptor::notification`] at the
        /// destination after all data of this and of every earlier write of this
        /// process to that node has been delivered (N9, N18). Writes only.
        const NOTIFY = 1;
        /// The payload stands in the entry, behind the descriptor; `length` is at
        /// most [`INLINE_CAPACITY`], and the local address, key and segment are
        /// zero. Writes only.
        const INLINE = 2;
        /// Publish the completion counters as soon as this command and all
        /// earlier ones of its kind are complete.
        const PUBLISH = 4;
    }
}

/// The first 64 bytes of an entry.
///
/// ```text
///      0        1        2        4                 8
///   0  | opcode | flags  | funct. | notification    |  first word: stored last,
///   8  | length                                     |  with release; zeroed by
///  16  | local_address                              |  the NIC once read
///  24  | local_key                                  |
///  32  | remote_address                             |
///  40  | remote_key                                 |
///  48  | r_node | r_port | l_segm. | r_segm.        |
///  56  | reserved                                   |
///  64  | inline payload, 128 bytes                  | … 192
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Descriptor {
    /// An [`Opcode`].
    pub opcode: u8,
    /// [`CommandFlags`].
    pub flags: u8,
    /// A [`crate::atomic::Function`]; zero unless atomic.
    pub function: U16,
    /// Number of the notification with [`CommandFlags::NOTIFY`], counted or one-shot
    /// ([`crate::host_area`]) and not zero; else zero.
    pub notification: U32,
    /// Bytes to transfer, up to [`MAX_TRANSFER`]. Zero is legal: a notification alone.
    /// Atomic: size of the operand.
    pub length: U64,
    /// Virtual address of the local memory, in an exported segment of this
    /// process, whatever access it grants to peers. Atomic: the first operand, `x`.
    pub local_address: U64,
    /// Key of that segment. Atomic: the second operand, `y`.
    pub local_key: U64,
    /// Virtual address in the remote process.
    pub remote_address: U64,
    /// Key of the remote segment.
    pub remote_key: U64,
    /// Node of the remote process; may be this node.
    pub remote_node: U16,
    /// Port of the remote process.
    pub remote_port: U16,
    /// Index of the local segment. Atomic: number of the result record, below
    /// [`crate::host_area::RESULT_RECORDS`].
    pub local_segment: U16,
    /// Index of the remote segment.
    pub remote_segment: U16,
    /// Zero.
    pub reserved1: U64,
}

const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES);
const _: () = assert!(core::mem::offset_of!(Descriptor, length) == 8);
const _: () = assert!(core::mem::offset_of!(Descriptor, remote_address) == 32);
const _: () = assert!(core::mem::offset_of!(Descriptor, remote_node) == 48);
const _: () = assert!(core::mem::offset_of!(Descriptor, reserved1) == 56);
