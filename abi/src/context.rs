//! Contexts of messages: operations that a process describes in its window of SRAM, page by page
//! (Q4, Q5), buffers that are locked and translated once (Q7), and the doorbells that say which
//! context is free (Q8).
//!
//! ```text
//!   window (SRAM)                                     host area (guest memory)
//!   ┌────────────┬──────────────────────────────┐     ┌──────────┐
//!   │ context 0  │ region: K page descriptors,  │     │ doorbell │  Free ──► Used ──► Done
//!   │  peer, tag │ or the bytes of a short      │     │    0     │    ▲     process    │ NIC
//!   │  length, … │ message                      │     │          │    └────────────────┘
//!   ├────────────┼──────────────────────────────┤     ├──────────┤          process
//!   │ context 1  │  …                           │     │    1     │
//!   └────────────┴──────────────────────────────┘     ├──────────┤
//!     M of Sends, M of Receives                       │ pool     │  Q pages, for the life
//!                                                     └──────────┘  of the process
//! ```
//! | opcode | command | its end |
//! |---|---|---|
//! | [`Opcode::SendContext`] | [`ContextCommand`]: a Send of what a Send context says | its doorbell |
//! | [`Opcode::ReceiveContext`] | the same of a Receive context | its doorbell |
//!
//! The process takes a context whose doorbell is Free, stores [`DoorbellState::Used`], fills the
//! context and its region, and issues the command. The NIC copies both when it reads the command;
//! what is stored there later means nothing to the operation. At its end the NIC stores the
//! doorbell: [`DoorbellState::Done`] with the result if the context has
//! [`ContextFlags::NOTIFY`] or has failed, otherwise [`DoorbellState::Free`]. The process stores
//! Free when it has read the result. A context that is under way is not taken again: a command
//! that names it is malformed.
//!
//! A process takes the context behind the one that it took last, if that is free, or scans on
//! from there: the one that was taken longest ago is the likeliest to be free.
//!
//! M bounds what stands in SRAM, not what a process may have under way: [`crate::message`]'s
//! commands name memory without a context.
//!
//! A NIC can have fewer contexts, shorter regions and smaller pools than the layout has room for
//! ([`Counts`], Q1). Those that it has stand in front; it refuses the others.
//!
//! # Memory of a context
//! | flags | bytes |
//! |---|---|
//! | [`ContextFlags::REGION`] | of a Send: those in the region, up to [`REGION_BYTES`] |
//! | [`ContextFlags::POOL`] | in the pool from `pool_page` and `pool_offset` on |
//! | [`ContextFlags::LIST`] | in the pages that the descriptors in a page of the pool name, `pool_page`; otherwise as with neither |
//! | none of them | in the pages that the descriptors in the region name, all of one exported segment |
//!
//! A list of more than [`CONTEXT_PAGES`] descriptors does not fit in the region (Q6): it stands in a
//! page of the pool, where the NIC finds it without a fault, and is copied with the context. So the
//! process can use that page again when the NIC has ended the context.
//!
//! The bytes of a context that names pages are those of its pages one behind the other: each
//! but the first begins where its page begins, each but the last ends where its page ends. So a
//! message crosses the borders of pages at the same offsets as it would in memory in one piece,
//! and no packet needs more than two descriptors (Q13). The pages themselves stand anywhere.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

use crate::command::{CommandHeader, DESCRIPTOR_BYTES};
use crate::PAGE_SIZE;
use qnic_limits::Counts;

/// Contexts of each direction that a window has room for: M of Q4 at most ([`Counts`]).
pub const CONTEXTS: usize = 32;

/// Page descriptors that the region of a context has room for: K of Q5 at most.
pub const CONTEXT_PAGES: usize = 8;

/// Page descriptors in a list of [`ContextFlags::LIST`]: as many as a page of the pool has room
/// for.
pub const LIST_PAGES: usize = PAGE_SIZE / size_of::<PageDescriptor>();

/// Bytes of a short message that the region of a context has room for: as many as an entry of the
/// command queue.
pub const REGION_BYTES: usize = CONTEXT_PAGES * size_of::<PageDescriptor>();

/// Size in bytes of a context with its region.
pub const CONTEXT_BYTES: usize = size_of::<MessageContext>() + REGION_BYTES;

/// Pages of the buffer pool that a host area has room for: Q of Q7 at most.
pub const POOL_PAGES: usize = 16;

const _: () = assert!(
    Counts::MOST.contexts as usize == CONTEXTS
        && Counts::MOST.context_pages as usize == CONTEXT_PAGES
        && Counts::MOST.pool_pages as usize == POOL_PAGES
);

numbered! {
    /// Opcodes of contexts.
    pub enum Opcode: u8 {
        /// Send the message of a Send context.
        SendContext = 13,
        /// Post the receive of a Receive context.
        ReceiveContext = 14,
    }
}

numbered! {
    /// What a process may do with a context (Q8).
    pub enum DoorbellState: u32 {
        /// It can be taken.
        Free = 0,
        /// It is taken, and the NIC has not ended it.
        Used = 1,
        /// It has ended; the doorbell has the result.
        Done = 2,
    }
}

bitflags! {
    /// Modifiers of a [`MessageContext`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ContextFlags: u32 {
        /// The untagged space: tag and ignore bits are zero.
        const UNTAGGED = 1;
        /// Of a Receive: from any process; node and port are zero.
        const ANY_PROC = 2;
        /// Its end is told, also if it is Ok.
        const NOTIFY = 4;
        /// Of a Send: the bytes stand in the region.
        const REGION = 8;
        /// The bytes are in the buffer pool.
        const POOL = 16;
        /// The page descriptors stand in a page of the buffer pool, up to [`LIST_PAGES`]. Neither
        /// with REGION nor with POOL; `pool_offset` is zero.
        const LIST = 32;
    }
}

layouts! {
    /// A context, in front of its region.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | r_node | r_port | flags           |
    ///   8  | tag                               |
    ///  16  | ignore, or immediate              |
    ///  24  | length                            |
    ///  32  | local_key                         |
    ///  40  |l_segm. |endpoint|p_page  |p_offs. |
    ///  48  | pages  |reserved| mark            |
    ///  56  | incarnation     | reserved        |
    /// ```
    #[bytes(64)]
    pub struct MessageContext {
        /// Node of the other process.
        pub remote_node: U16,
        /// Port of the other process.
        pub remote_port: U16,
        /// [`ContextFlags`].
        pub flags: U32,
        /// Tag of the message; the tag that a Receive takes.
        pub tag: U64,
        /// Of a Receive: bits of the tag that it does not compare. Of a Send: what the
        /// completion of the receive carries.
        pub ignore_or_immediate: U64,
        /// Bytes of the message, or of the memory of a Receive; zero is legal.
        pub length: U64,
        /// Key of the segment with the pages; zero without pages.
        pub local_key: U64,
        /// Index of the segment with the pages; zero without pages.
        pub local_segment: U16,
        /// Endpoint of the receiver, below [`crate::message::ENDPOINTS`].
        pub endpoint: U16,
        /// With POOL: the page of the pool with the first byte; with LIST: that with the
        /// descriptors. Below the pages of the NIC's pools.
        pub pool_page: U16,
        /// With POOL: where in that page it stands.
        pub pool_offset: U16,
        /// How many pages the bytes lie in; zero if there is no byte, and with REGION.
        pub pages: U16,
        /// Zero.
        pub reserved0: U16,
        /// Of a Send: the mark of its message ([`crate::message::Label::mark`]); zero of a Receive.
        pub mark: U32,
        /// The incarnation of the process that it is for, or that it takes messages of
        /// ([`crate::message::Label::incarnation`]); zero with ANY_PROC.
        pub incarnation: U32,
        /// Zero.
        pub reserved1: U32,
    }

    /// A page of a context: an entry of its region, or of its list.
    ///
    /// ```text
    ///      0                 4        6        8
    ///   0  | address                           |
    ///   8  | offset | length | valid           |
    /// ```
    #[bytes(16)]
    pub struct PageDescriptor {
        /// Virtual address of the page, a multiple of [`PAGE_SIZE`].
        pub address: U64,
        /// Where in the page its bytes begin; zero but of the first.
        pub offset: U16,
        /// How many bytes it has; all others but of the last.
        pub length: U16,
        /// One. The first descriptor with a zero here ends the list.
        pub valid: U32,
    }

    /// Issues the operation of a context.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | context         | reserved        | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct ContextCommand {
        /// With an [`Opcode`], and node and port of the context; the inline length is zero.
        pub header: CommandHeader,
        /// Number of the context of its direction, below the contexts of the NIC.
        pub context: U32,
        /// Zero.
        pub reserved0: U32,
        /// Zero.
        pub reserved1: [U64; 6],
    }
}

const _: () = assert!(core::mem::offset_of!(MessageContext, local_segment) == 40);
const _: () = assert!(REGION_BYTES == crate::command::INLINE_CAPACITY);

impl ContextCommand {
    /// Issues the operation of the context with that number, which stands in `described`.
    pub fn new(opcode: Opcode, context: usize, described: &MessageContext) -> Self {
        Self {
            header: CommandHeader {
                opcode: opcode as u8,
                remote_node: described.remote_node,
                remote_port: described.remote_port,
                ..CommandHeader::default()
            },
            context: (context as u32).into(),
            ..Self::default()
        }
    }
}

/// Bytes of a short message that the regions of a NIC have room for.
pub const fn region_bytes(counts: Counts) -> usize {
    counts.context_pages as usize * size_of::<PageDescriptor>()
}

/// How many pages `length` bytes lie in that begin `offset` bytes into their first page.
pub const fn pages_of(offset: usize, length: u64) -> u64 {
    match length {
        0 => 0,
        _ => (offset as u64)
            .saturating_add(length)
            .div_ceil(PAGE_SIZE as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_from_the_offset_of_the_first() {
        let page = PAGE_SIZE as u64;
        assert_eq!(pages_of(0, 0), 0);
        assert_eq!(pages_of(4095, 1), 1);
        assert_eq!(
            pages_of(4095, u64::MAX),
            u64::MAX.div_ceil(page),
            "any length"
        );
        assert_eq!(pages_of(4095, 2), 2);
        assert_eq!(pages_of(0, page), 1);
        assert_eq!(pages_of(1, page), 2);
        assert_eq!(pages_of(1, CONTEXT_PAGES as u64 * page - 1), 8);
    }
}
