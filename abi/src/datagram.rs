//! Unreliable datagrams of the driver (H1 to H3; docs/datagrams.md): its commands, its receive
//! buffers, and the one frame.
//!
//! The driver is a process of its own NIC: it registers with
//! [`crate::control::PROCESS_DRIVER`] on [`DRIVER_PORT`], and its commands name pages by
//! guest-physical address. No other process can issue them. What it sends is a *packet*: up to
//! [`MAX_DATA`] bytes, and a header of up to [`HEADER_CAPACITY`] bytes. What is longer than the
//! route carries is several packets, which the driver splits and joins.
//!
//! ```text
//!   driver                NIC                                NIC               driver
//!   DatagramSend ───────► reads the data ── DATAGRAM ──────► data ─► buffer    ◄── DatagramPost
//!                                           (may be lost)    body ─► record
//!   completion ◄───────── sent                               completion ─────► the buffer is full
//! ```
//!
//! | opcode | command | its end |
//! |---|---|---|
//! | [`Opcode::DatagramSend`] | [`DatagramSendCommand`] | a completion of kind DatagramSend: the NIC reads the data no more. Ok does not say that it was received |
//! | [`Opcode::DatagramPost`] | [`DatagramPostCommand`] | a completion of kind DatagramReceive: `length` bytes of data from `node` and `port` are in the buffer, and the body of their frame is in the record |
//! | [`Opcode::DatagramWithdraw`] | [`DatagramWithdrawCommand`] | none of its own: those of the buffers that it takes back, with Cancelled |
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::DATAGRAM`] | Unreliable | source | [`Datagram`] | the data; none is legal |
//!
//! # Buffers
//! A posted buffer belongs to the NIC until its completion. Buffers of a port are taken in the
//! order in which they were posted, one for each packet. A *steered* one ([`PostFlags::STEERED`])
//! is taken by the packet whose [`Datagram::target`] is its handle, and by no other: so the answer
//! to a request lands in the page that waits for it, without a copy (H6). A packet without a buffer
//! is dropped and counted, and so is one that is longer than its buffer.
//!
//! A port is *bound* for its NIC from its first buffer until all of its buffers are withdrawn, also while
//! it has none posted. A packet to a port that is not bound is dropped, and answered if it asks for
//! that ([`PacketFlags::ASK`]).

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::IntoBytes;

use crate::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES, INLINE_CAPACITY};
#[cfg(doc)]
use crate::wire::SPAN_PAGES;
use crate::wire::{Body, BODY_BYTES, MAX_SPAN};

/// Port of the driver as a process of its NIC.
pub const DRIVER_PORT: u16 = u16::MAX;

/// No driver binds this datagram port or a higher one, so a packet to it that asks comes back from any NIC
/// ([`PacketFlags::ASK`]): the check of a path (U8).
pub const FIRST_ECHO_PORT: u16 = 0xff00;

/// Most header bytes of a packet.
pub const HEADER_CAPACITY: usize = 40;

/// Most data bytes of a packet. They are contiguous in guest-physical memory on both sides, and
/// touch [`SPAN_PAGES`] pages at most. A route may carry less
/// ([`crate::control::PathInfo::max_payload`]).
pub const MAX_DATA: usize = MAX_SPAN;

/// Size of the record of a receive buffer in bytes; it is aligned to that.
pub const RECORD_BYTES: usize = 64;

const _: () = assert!(HEADER_CAPACITY <= INLINE_CAPACITY);
const _: () = assert!(size_of::<Datagram>() <= RECORD_BYTES);

numbered! {
    /// Opcodes of this protocol.
    pub enum Opcode: u8 {
        /// Send a packet.
        DatagramSend = 16,
        /// Give the NIC a receive buffer.
        DatagramPost = 17,
        /// Take receive buffers back.
        DatagramWithdraw = 18,
    }
}

/// Kinds of frames of this protocol.
pub mod kind {
    /// [`super::Datagram`].
    pub const DATAGRAM: u8 = 0xc0;
}

bitflags! {
    /// What a [`Datagram`] says of its place in a message, and of ports that no module has bound.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PacketFlags: u8 {
        /// The last fragment of its message.
        const LAST = 1;
        /// If no module has bound the port that the packet goes to, its NIC answers with UNBOUND.
        const ASK = 2;
        /// The answer of a NIC: no module has bound the port that this packet comes from. It has no
        /// data, and LAST. A driver cannot send it.
        const UNBOUND = 4;
    }
}

bitflags! {
    /// Modifiers of a [`DatagramPostCommand`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PostFlags: u16 {
        /// For the packet that names its handle.
        const STEERED = 1;
    }
}

bitflags! {
    /// Modifiers of a [`DatagramWithdrawCommand`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WithdrawFlags: u16 {
        /// All buffers of the port; the handle is zero.
        const ALL = 1;
    }
}

layouts! {
    /// Sends a packet to a datagram port of the node that the header names. Its header stands in
    /// the entry: `inline_length` is up to [`HEADER_CAPACITY`].
    ///
    /// Fails with NoSuchNode, PeerGone, BadAddress, and BadLength if the route carries less.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | address                           |
    ///  24  | target                            |
    ///  32  | sequence        | frag.  |flg|res.|
    ///  40  | length | s_port | reserved        |
    ///  48  | reserved                          | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct DatagramSendCommand {
        /// With [`Opcode::DatagramSend`]; the port is a datagram port.
        pub header: CommandHeader,
        /// Of the driver: its completion carries it.
        pub handle: U64,
        /// Guest-physical address of the data, which touches [`SPAN_PAGES`] pages at most; zero
        /// if there is none.
        pub address: U64,
        /// [`Datagram::target`].
        pub target: U64,
        /// [`Datagram::sequence`].
        pub sequence: U32,
        /// [`Datagram::fragment`].
        pub fragment: U16,
        /// [`PacketFlags`].
        pub flags: u8,
        /// Zero.
        pub reserved0: u8,
        /// Bytes of data, up to [`MAX_DATA`].
        pub length: U16,
        /// Datagram port that sends.
        pub source_port: U16,
        /// Zero.
        pub reserved1: U32,
        /// Zero.
        pub reserved2: [U64; 2],
    }

    /// Gives the NIC a receive buffer of a datagram port: contiguous memory, and a record for
    /// the body of the frame.
    ///
    /// Fails with BadAddress, BadLength, Malformed, and Exhausted if the NIC has too many.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | header, without a process         |
    ///   8  | handle                            |
    ///  16  | address                           |
    ///  24  | record                            |
    ///  32  | length | port   | flags  | res.   |
    ///  40  | reserved                          | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct DatagramPostCommand {
        /// With [`Opcode::DatagramPost`]; node and port are zero.
        pub header: CommandHeader,
        /// Of the driver, not zero, and no other buffer of the NIC has it.
        pub handle: U64,
        /// Guest-physical address of the buffer, which touches [`SPAN_PAGES`] pages at most.
        pub address: U64,
        /// Guest-physical address of [`RECORD_BYTES`] for the body of the frame.
        pub record: U64,
        /// Bytes of the buffer, 1 to [`MAX_DATA`].
        pub length: U16,
        /// Datagram port that it receives for; not zero.
        pub port: U16,
        /// [`PostFlags`].
        pub flags: U16,
        /// Zero.
        pub reserved0: U16,
        /// Zero.
        pub reserved1: [U64; 3],
    }

    /// Takes back one receive buffer, or all of a port. One that has its packet, or that is not
    /// there, is not touched.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | header, without a process         |
    ///   8  | handle                            |
    ///  16  | port   | flags  | reserved        |
    ///  24  | reserved                          | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct DatagramWithdrawCommand {
        /// With [`Opcode::DatagramWithdraw`]; node and port are zero.
        pub header: CommandHeader,
        /// That of the buffer.
        pub handle: U64,
        /// Its port.
        pub port: U16,
        /// [`WithdrawFlags`].
        pub flags: U16,
        /// Zero.
        pub reserved0: U32,
        /// Zero.
        pub reserved1: [U64; 5],
    }

    /// Body of [`kind::DATAGRAM`], and what the record of a receive buffer has of it. Source and
    /// destination port of the envelope are datagram ports.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | target                            |
    ///   8  | sequence        | frag.  |flg|h_l |
    ///  16  | header, 40 bytes                  | … 56
    /// ```
    #[bytes(BODY_BYTES)]
    pub struct Datagram {
        /// Handle of the steered buffer that it is for; zero: it takes the next one.
        pub target: U64,
        /// Number of the message, of its node; all its fragments have it (H3).
        pub sequence: U32,
        /// Number of the fragment, from 0.
        pub fragment: U16,
        /// [`PacketFlags`].
        pub flags: u8,
        /// Bytes of `header` that count; the rest is zero.
        pub header_length: u8,
        /// Header of the sending module: its bytes, in words.
        pub header: [U64; HEADER_CAPACITY / 8],
    }
}

const _: () = assert!(core::mem::offset_of!(DatagramSendCommand, length) == 40);
const _: () = assert!(core::mem::offset_of!(DatagramPostCommand, length) == 32);
const _: () = assert!(core::mem::offset_of!(Datagram, header) == 16);

impl CommandBody for DatagramSendCommand {
    const OPCODE: u8 = Opcode::DatagramSend as u8;
}

impl CommandBody for DatagramPostCommand {
    const OPCODE: u8 = Opcode::DatagramPost as u8;
}

impl CommandBody for DatagramWithdrawCommand {
    const OPCODE: u8 = Opcode::DatagramWithdraw as u8;
}

impl Body for Datagram {
    const KIND: u8 = kind::DATAGRAM;

    fn is_valid(&self) -> bool {
        let length = usize::from(self.header_length);
        let rest = self.header.as_bytes().get(length..);
        let flags = PacketFlags::from_bits(self.flags);
        let answer = PacketFlags::LAST | PacketFlags::UNBOUND;
        let good = |flags: PacketFlags| !flags.contains(PacketFlags::UNBOUND) || flags == answer;
        flags.is_some_and(good) && rest.is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
    }
}
