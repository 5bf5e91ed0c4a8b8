//! Frames of reliable streams (S6; docs/streams.md): what two processes send each other through
//! their shared pools ([`crate::pool`]), each as the data of one datagram.
//!
//! ```text
//!   the side that connects                           the side that accepts
//!   Open ───────────────────────────────────────────►
//!        ◄─────────────────────────────────────────── Accept
//!   Data, Ack, Probe ◄──────────────────────────────► Data, Ack, Probe
//!   Data with END ◄─────────────────────────────────► Data with END
//!   Reset ◄─────────────────────────────────────────► Reset
//! ```
//!
//! | kind | says | `number` | `detail` | data |
//! |---|---|---|---|---|
//! | [`Kind::Open`] | begin a connection; `to` is zero | | most bytes of a frame | |
//! | [`Kind::Accept`] | it has begun | | most bytes of a frame | |
//! | [`Kind::Data`] | bytes of the stream; with [`StreamFlags::END`] the last ones, or none | of the frame, from 0 | | yes |
//! | [`Kind::Ack`] | what has come | | | |
//! | [`Kind::Probe`] | send an Ack at once | | | |
//! | [`Kind::Reset`] | the connection `to` has ended; `from` is zero if the sender has none | | [`Reason`] | |
//!
//! Node and port of the sender come with the datagram, and no process can choose them. A connection is
//! known by two random numbers, one from each side: a frame of an earlier connection names none
//! that is there.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

/// First bytes of each frame.
pub const MAGIC: u16 = u16::from_le_bytes(*b"qS");

/// Size of the header of a frame in bytes.
pub const HEADER_BYTES: usize = size_of::<StreamHeader>();

/// Most frames behind the first one that is missing of which a frame can say that they have come.
pub const SELECTIVE_BITS: usize = 256;

/// Largest window, in frames: a frame can say of each whether it has come.
pub const MAX_WINDOW: u32 = SELECTIVE_BITS as u32 + 1;

/// Least of `detail` in Open and Accept.
pub const MIN_FRAME_BYTES: usize = crate::pool::MIN_FRAME_BYTES;

const _: () = assert!(HEADER_BYTES < MIN_FRAME_BYTES);

numbered! {
    /// Kinds of frames.
    pub enum Kind: u8 {
        /// Begins a connection.
        Open = 1,
        /// Confirms it.
        Accept = 2,
        /// Bytes.
        Data = 3,
        /// What has come, and nothing else.
        Ack = 4,
        /// Asks for an Ack.
        Probe = 5,
        /// Ends a connection.
        Reset = 6,
    }
}

numbered! {
    /// Why a connection was reset.
    pub enum Reason: u32 {
        /// There is no such connection.
        Unknown = 1,
        /// No process listens.
        Refused = 2,
        /// Too many connections.
        Full = 3,
        /// The program has given it up.
        Aborted = 4,
    }
}

bitflags! {
    /// Flags of a frame.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct StreamFlags: u8 {
        /// Of Data: nothing follows.
        const END = 1;
    }
}

layouts! {
    /// What each frame begins with. Its data follows, up to the frame's end.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | magic  |kind|flg| window          |
    ///   8  | to                                |
    ///  16  | from                              |
    ///  24  | number                            |
    ///  32  | acknowledged                      |
    ///  40  | selective, 256 bits               | … 72
    ///  72  | detail          | repeated        |
    /// ```
    #[bytes(80)]
    pub struct StreamHeader {
        /// [`MAGIC`].
        pub magic: U16,
        /// [`Kind`].
        pub kind: u8,
        /// [`StreamFlags`].
        pub flags: u8,
        /// The sender takes frames with numbers less than `acknowledged` + `window`; up to
        /// [`MAX_WINDOW`].
        pub window: U32,
        /// The receiver's number of the connection.
        pub to: U64,
        /// The sender's.
        pub from: U64,
        /// Of a Data frame, from 0; else zero.
        pub number: U64,
        /// All frames before this number have come.
        pub acknowledged: U64,
        /// Bit *n*, of word *n* / 64: frame `acknowledged` + 1 + *n* has come.
        pub selective: [U64; SELECTIVE_BITS / 64],
        /// See the table of kinds; else zero.
        pub detail: U32,
        /// Data frames that have come more than once, so far; wraps around.
        pub repeated: U32,
    }
}

const _: () = assert!(core::mem::offset_of!(StreamHeader, to) == 8);
const _: () = assert!(core::mem::offset_of!(StreamHeader, acknowledged) == 32);
const _: () = assert!(core::mem::offset_of!(StreamHeader, detail) == 72);

impl StreamHeader {
    /// Its kind if the header agrees with itself and with `data` bytes behind it. Whether the
    /// connection exists, and whether the numbers are in its windows, is for the receiver to say.
    pub fn check(&self, data: usize) -> Option<Kind> {
        let kind = Kind::try_from(self.kind).ok()?;
        let flags = StreamFlags::from_bits(self.flags)?;
        let detail = self.detail.get();
        let is_data = kind == Kind::Data;
        let frame_bytes = MIN_FRAME_BYTES..=crate::pool::MAX_FRAME_BYTES;
        let good_detail = match kind {
            Kind::Open | Kind::Accept => frame_bytes.contains(&(detail as usize)),
            Kind::Reset => Reason::try_from(detail).is_ok(),
            _ => detail == 0,
        };
        let good_data = match is_data {
            true => data > 0 || flags.contains(StreamFlags::END),
            false => data == 0 && flags.is_empty() && self.number.get() == 0,
        };
        let good = self.magic.get() == MAGIC
            && self.window.get() <= MAX_WINDOW
            && (self.to.get() == 0) == (kind == Kind::Open)
            && (self.from.get() != 0 || kind == Kind::Reset)
            && good_detail
            && good_data;
        good.then_some(kind)
    }
}
