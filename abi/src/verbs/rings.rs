//! Rings of work requests and completions, as librxe has them: `struct rxe_queue_buf`,
//! `struct rxe_send_wqe`, `struct rxe_recv_wqe` and `struct ib_uverbs_wc` of the kernel's headers
//! `rdma_user_rxe.h` and `ib_user_verbs.h`, on a little-endian machine.
//!
//! ```text
//!   0        QueueHeader: sizes, producer's index, consumer's index
//!   384      entry 0, entry 1, … : a power of two of them, each of a power of two of bytes
//! ```
//! | ring | producer | consumer | entry |
//! |---|---|---|---|
//! | send queue | program | NIC | [`SendEntry`], then pieces or inline bytes |
//! | receive queue, shared receive queue | program | NIC | [`ReceiveEntry`], then pieces |
//! | completion queue | NIC | program | [`WorkCompletion`] |
//!
//! # Indices
//! An index is that of the next entry to be filled or used, below the number of entries. A ring is empty
//! when the two are equal, and full when one entry is free. Each side stores its own index with release
//! and loads the other's with acquire.
//!
//! All of a ring can be written by its program at any time. So the NIC keeps its own index of each ring in
//! its heap, and only stores it here; it takes the other side's index modulo the number of entries; it takes
//! sizes from [`Ring`](super::requests::Ring) and never from the header; it copies an entry once,
//! checks the copy, and works on that. A wrong index costs the program entries that it did not fill:
//! they fail one by one.
//!
//! The header is 384 bytes, so entries of more than 128 bytes may cross a border of pages.
//!
//! # Lengths
//! `length` of an entry is what librxe has counted, and may be wrong for several pieces: the
//! NIC adds the pieces up itself. With [`SendFlags::INLINE`] it is the number of inline bytes. All words of an
//! entry that are not described are librxe's or the kernel's own, and are not looked at.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

use crate::PAGE_SIZE;

/// Offset of the index of the producer in a ring (u32).
pub const PRODUCER: usize = 128;
/// Offset of the index of the consumer (u32).
pub const CONSUMER: usize = 256;
/// Offset of the first entry.
pub const ENTRIES: usize = size_of::<QueueHeader>();
/// Bytes of a piece.
pub const SGE_BYTES: usize = size_of::<Sge>();

const _: () = assert!(CONSUMER + 128 == ENTRIES && ENTRIES < PAGE_SIZE);

bitflags! {
    /// Modifiers of a work request. The bits are those of `enum ib_send_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// It begins when all reads and atomic operations before it have ended.
        const FENCE = 1;
        /// It has a completion also if it succeeds.
        const SIGNALED = 2;
        /// The completion at the peer is one that a program waits for.
        const SOLICITED = 4;
        /// Its bytes stand in the entry.
        const INLINE = 8;
    }
}

bitflags! {
    /// What a completion says. The bits are those of `enum ib_wc_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u32 {
        /// The message has a global route header in front.
        const ROUTE_HEADER = 1;
        /// `immediate` is what the peer has sent with it.
        const IMMEDIATE = 2;
    }
}

layouts! {
    /// What stands in front of a ring: `struct rxe_queue_buf`. The driver fills it before the program
    /// maps it.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | log2_entry      | index_mask      |
    ///   8  | reserved                          | … 128
    /// 128  | producer        | reserved        | … 256
    /// 256  | consumer        | reserved        | … 384
    /// ```
    #[bytes(384)]
    pub struct QueueHeader {
        /// Binary logarithm of the bytes of an entry.
        pub log2_entry: U32,
        /// One less than the number of entries.
        pub index_mask: U32,
        /// Zero.
        pub reserved0: [U32; 30],
        /// Index of the producer.
        pub producer: U32,
        /// Zero.
        pub reserved1: [U32; 31],
        /// Index of the consumer.
        pub consumer: U32,
        /// Zero.
        pub reserved2: [U32; 31],
    }

    /// A scatter-gather element, a piece of memory: `struct rxe_sge`.
    #[bytes(16)]
    pub struct Sge {
        /// Address of the first byte, as the key names it.
        pub address: U64,
        /// Bytes.
        pub length: U32,
        /// Key of the memory, of this process.
        pub key: U32,
    }

    /// Which bytes a work request is about: `struct rxe_dma_info`. Pieces or inline bytes follow.
    #[bytes(24)]
    pub struct Gather {
        /// Bytes, as librxe has counted them.
        pub length: U32,
        /// Not looked at, as the other words but `sges`.
        pub unused0: [U32; 2],
        /// Number of pieces.
        pub sges: U32,
        /// Not looked at.
        pub unused1: [U32; 2],
    }

    /// A work request of a send queue: `struct rxe_send_wqe`.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | id                                |
    ///   8  | unused          | opcode          |
    ///  16  | flags           | immediate       |
    ///  24  | operands, 120 bytes               | … 144
    /// 144  | unused, 40 bytes                  | … 184
    /// 184  | gather, 24 bytes                  | … 208
    /// 208  | pieces, or inline bytes           |
    /// ```
    #[bytes(208)]
    pub struct SendEntry {
        /// The program's own: its completion carries it.
        pub id: U64,
        /// Not looked at.
        pub unused0: U32,
        /// A [`super::Request`].
        pub opcode: U32,
        /// [`SendFlags`].
        pub flags: U32,
        /// For the completion at the peer; the NICs do not look at its bytes.
        pub immediate: U32,
        /// By opcode: [`MemoryOperands`], [`AtomicOperands`] or [`DatagramOperands`], and bytes that are
        /// not looked at.
        pub operands: [U64; 15],
        /// Not looked at.
        pub unused1: [U64; 5],
        /// Which bytes.
        pub gather: Gather,
    }

    /// Operands of a write or a read.
    #[bytes(16)]
    pub struct MemoryOperands {
        /// Address of the first byte at the peer, as the key names it.
        pub address: U64,
        /// Key of the memory there.
        pub key: U32,
        /// Not looked at.
        pub unused: U32,
    }

    /// Operands of an atomic operation.
    #[bytes(32)]
    pub struct AtomicOperands {
        /// Address of the word at the peer, a multiple of eight.
        pub address: U64,
        /// What is compared, or added.
        pub operand: U64,
        /// What replaces the word.
        pub swap: U64,
        /// Key of the memory there.
        pub key: U32,
        /// Not looked at.
        pub unused: U32,
    }

    /// Operands of a datagram.
    #[bytes(16)]
    pub struct DatagramOperands {
        /// Queue pair that it is for.
        pub qp: U32,
        /// Key that this queue pair asks for; with its highest bit set, that of the sending queue
        /// pair is sent.
        pub qkey: U32,
        /// Not looked at.
        pub unused: U32,
        /// A [`super::PathAddress`].
        pub path: U32,
    }

    /// A work request of a receive queue: `struct rxe_recv_wqe`.
    #[bytes(40)]
    pub struct ReceiveEntry {
        /// The program's own: its completion carries it.
        pub id: U64,
        /// Not looked at.
        pub unused: [U32; 2],
        /// Which bytes. Pieces follow.
        pub gather: Gather,
    }

    /// An entry of a completion queue: `struct ib_uverbs_wc`.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | id                                |
    ///   8  | status          | opcode          |
    ///  16  | vendor_error    | length          |
    ///  24  | immediate       | qp              |
    ///  32  | peer_qp         | flags           |
    ///  40  |pkey_idx| s_lid  |sl|d_p|prt| res. |
    ///  48  | reserved                          | … 64
    /// ```
    #[bytes(64)]
    pub struct WorkCompletion {
        /// That of the work request.
        pub id: U64,
        /// An [`super::Outcome`]. Unless Success, only `id`, `vendor_error` and `qp` say something.
        pub status: U32,
        /// A [`super::Completed`].
        pub opcode: U32,
        /// Zero, or the [`crate::Status`] that is the reason.
        pub vendor_error: U32,
        /// Bytes of a receive, a read or an atomic operation.
        pub length: U32,
        /// With [`CompletionFlags::IMMEDIATE`].
        pub immediate: U32,
        /// Queue pair of the work request.
        pub qp: U32,
        /// Queue pair that has sent a datagram.
        pub peer_qp: U32,
        /// [`CompletionFlags`].
        pub flags: U32,
        /// Zero.
        pub pkey_index: U16,
        /// Of a datagram, the node that has sent it, and one more.
        pub source_lid: U16,
        /// Its service level.
        pub service_level: u8,
        /// Zero.
        pub path_bits: u8,
        /// 1.
        pub port: u8,
        /// Zero.
        pub reserved0: u8,
        /// Zero: room up to the size of an entry.
        pub reserved1: [U64; 2],
    }
}

const _: () = assert!(core::mem::offset_of!(QueueHeader, producer) == PRODUCER);
const _: () = assert!(core::mem::offset_of!(QueueHeader, consumer) == CONSUMER);
const _: () = assert!(core::mem::offset_of!(SendEntry, opcode) == 12);
const _: () = assert!(core::mem::offset_of!(SendEntry, operands) == 24);
const _: () = assert!(core::mem::offset_of!(SendEntry, gather) == 184);
const _: () = assert!(core::mem::offset_of!(Gather, sges) == 12);
const _: () = assert!(core::mem::offset_of!(ReceiveEntry, gather) == 16);
const _: () = assert!(core::mem::offset_of!(DatagramOperands, path) == 12);
const _: () = assert!(core::mem::offset_of!(WorkCompletion, qp) == 28);

impl SendEntry {
    /// The operands as those of its opcode.
    pub fn operands<T: zerocopy::FromBytes>(&self) -> T {
        const { assert!(size_of::<T>() <= 120) };
        let bytes = zerocopy::IntoBytes::as_bytes(&self.operands);
        T::read_from_prefix(bytes).map_or_else(|_| T::new_zeroed(), |(operands, _)| operands)
    }
}
