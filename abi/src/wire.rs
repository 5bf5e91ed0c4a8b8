//! Frames between NICs (docs/wire.md): the envelope that every frame has, and the
//! bodies of the frames that belong to no protocol.
//!
//! ```text
//!   ┌──────────────┬─────────────────┬──────────────────┐
//!   │ Envelope, 64 │ body, by kind   │ payload, or none │
//!   └──────────────┴─────────────────┴──────────────────┘
//!    for the        for the protocol
//!    transport      that owns the kind
//! ```
//! | kinds | class | bodies |
//! |---|---|---|
//! | 0x01 to 0x05: Ack, Hello, HelloReply, Goodbye, Leave | [`Class::Session`] | this page |
//! | 0x80 to 0x83: Nak, ProcessGone, Window, WindowTaken | [`Class::Control`] | this page |
//! | 0x40, 0x41, 0x90 | Windowed, Control | [`crate::rdma`] |
//! | 0xa0, 0xa1 | Control | [`crate::atomic`] |
//! | 0xb0, 0xb1 | Control | [`crate::directory`] |
//! | 0x48, 0x49, 0x98 to 0x9a | Windowed, Control | [`crate::message`] |
//! | 0xc0 | Unreliable | [`crate::datagram`] |
//! | 0x60, 0x61, 0x88 to 0x8b, 0xc8, 0xc9 | Windowed, Control, Unreliable | [`crate::verbs::frames`] |
//!
//! A transfer is split so that no frame crosses a page border of either side (N9);
//! only frames that never leave a process can be longer (see *Page spans*).
//!
//! # Classes
//! The upper two bits of the kind are the class: it says what the transport does with a
//! frame. The transport knows no kind but its own.
//!
//! # Sessions
//! Each side of a conversation between two NICs names its incarnation in it by a
//! number that only grows. Every frame carries the sender's session and the session of
//! the destination that it is meant for; zero in a Hello says that it is not known.
//!
//! # Sequence numbers
//! Every frame of class Windowed or Control takes the next sequence number of its
//! session and direction, from 1. A frame with a payload takes as many numbers in a
//! row as it has fragments, and carries the first of them. Any frame says how far
//! the other direction has come:
//!
//! - `acknowledge`: everything up to this number has arrived.
//! - `delivered`, never more than `acknowledge`: everything up to this number is in the
//!   memory it was meant for, was answered, or was refused by a Nak whose arrival has
//!   been acknowledged.
//!
//! # Page spans
//! On a route within one process a Windowed frame may carry up to [`MAX_SPAN`] bytes
//! that touch up to [`SPAN_PAGES`] pages of either side. It stands for its fragments,
//! one for each page of the destination: each has its own number, is delivered, held
//! or refused by itself, and counts by itself in the window. A frame of class Unreliable may be
//! as long there.
//!
//! # Integrity
//! An envelope has no check sum. A link that can damage frames adds one of its own and
//! drops what does not match: a NIC gets frames intact or not at all.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size of an envelope in bytes.
pub const ENVELOPE_BYTES: usize = 64;

/// Room for the body of a frame, in bytes. Each kind uses as much of it as its type has.
pub const BODY_BYTES: usize = 56;

/// Most bytes of a frame in front of its payload.
pub const HEADER_BYTES: usize = ENVELOPE_BYTES + BODY_BYTES;

/// Most payload bytes in a frame.
pub const MAX_PAYLOAD: usize = crate::PAGE_SIZE;

/// Most pages of either side that a page span touches.
pub const SPAN_PAGES: usize = 8;

/// Most payload bytes in a frame that stays within a process.
pub const MAX_SPAN: usize = SPAN_PAGES * crate::PAGE_SIZE;

// `payload_length` has 16 bits.
const _: () = assert!(MAX_SPAN <= u16::MAX as usize);

/// Fragments of a payload that goes to `address`: the pages that it touches there, or
/// one for none at all. This is how many sequence numbers its frame takes.
pub const fn fragments(address: u64, length: usize) -> u64 {
    let page = crate::PAGE_SIZE as u64;
    match length {
        0 => 1,
        _ => (address % page + length as u64).div_ceil(page),
    }
}

/// Value of [`Envelope::magic`]: "qn".
pub const FRAME_MAGIC: u16 = u16::from_le_bytes(*b"qn");

/// Version of the frame format.
pub const WIRE_VERSION: u8 = 22;

/// What the transport does with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// The transport's own; no number.
    Session = 0,
    /// Numbered, and counts in the window that the peer has granted: it may have to wait
    /// there for memory (N15). May have a payload.
    Windowed = 1,
    /// Numbered, and needs no memory.
    Control = 2,
    /// Neither numbered nor acknowledged nor sent again. May have a payload.
    Unreliable = 3,
}

impl Class {
    /// The class of frames of a kind.
    #[inline]
    pub const fn of(kind: u8) -> Class {
        match kind >> 6 {
            0 => Class::Session,
            1 => Class::Windowed,
            2 => Class::Control,
            _ => Class::Unreliable,
        }
    }

    /// The lowest kind of this class.
    pub const fn first_kind(self) -> u8 {
        (self as u8) << 6
    }

    /// Returns true if frames of this class have sequence numbers.
    pub const fn is_numbered(self) -> bool {
        matches!(self, Class::Windowed | Class::Control)
    }

    /// Returns true if frames of this class may have a payload.
    pub const fn takes_payload(self) -> bool {
        matches!(self, Class::Windowed | Class::Unreliable)
    }
}

/// Kinds of frames that belong to no protocol.
pub mod kind {
    /// [`super::Ack`].
    pub const ACK: u8 = 1;
    /// [`super::Hello`]: a session begins, or goes on.
    pub const HELLO: u8 = 2;
    /// [`super::Hello`], in answer to a HELLO.
    pub const HELLO_REPLY: u8 = 3;
    /// [`super::Empty`]: the sender's session has ended.
    pub const GOODBYE: u8 = 4;
    /// [`super::Leave`]: nothing is under way; shall the session end?
    pub const LEAVE: u8 = 5;
    /// [`super::Nak`].
    pub const NAK: u8 = 0x80;
    /// [`super::ProcessGone`].
    pub const PROCESS_GONE: u8 = 0x81;
    /// [`super::Window`]: the window that the sender grants is another one.
    pub const WINDOW: u8 = 0x82;
    /// [`super::Window`], in answer: no more than that is under way.
    pub const WINDOW_TAKEN: u8 = 0x83;
}

/// Implemented by the body of each kind of frame.
pub trait Body: FromBytes + IntoBytes + KnownLayout + Immutable + Copy {
    /// Kind of these frames.
    const KIND: u8;

    /// Returns true if flags and reserved fields are as the format says; a body without
    /// any is always valid.
    fn is_valid(&self) -> bool {
        true
    }
}

layouts! {
    /// What the transport needs of a frame.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | magic  |ver|kind|frg|b_l | p_len  |
    ///   8  | s_node | d_node | s_port | d_port |
    ///  16  | source session                    |
    ///  24  | destination session               |
    ///  32  | sequence                          |
    ///  40  | acknowledge                       |
    ///  48  | delivered                         |
    ///  56  | operation                         |
    /// ```
    #[bytes(ENVELOPE_BYTES)]
    pub struct Envelope {
        /// [`FRAME_MAGIC`].
        pub magic: U16,
        /// [`WIRE_VERSION`].
        pub version: u8,
        /// What the frame is: one of [`kind`], or of a protocol.
        pub kind: u8,
        /// Fragments of the frame, which is how many sequence numbers it takes: the pages
        /// that its payload touches at the destination ([`fragments`]). Zero in a class
        /// without numbers.
        pub fragments: u8,
        /// Bytes of the body, up to [`BODY_BYTES`].
        pub body_length: u8,
        /// Payload bytes behind the body.
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
        /// Sequence number of this frame, or of its first fragment; zero in a class without
        /// numbers.
        pub sequence: U64,
        /// Everything from the destination up to this number has arrived.
        pub acknowledge: U64,
        /// Everything from the destination up to this number is delivered.
        pub delivered: U64,
        /// Names the operation at the node that requested it; answers carry it back.
        pub operation: U64,
    }
}

const _: () = assert!(core::mem::offset_of!(Envelope, source_node) == 8);
const _: () = assert!(core::mem::offset_of!(Envelope, sequence) == 32);
const _: () = assert!(core::mem::offset_of!(Envelope, operation) == 56);

/// An envelope and a body of any kind, without the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Frame {
    /// What every frame has.
    pub envelope: Envelope,
    /// The body, with zeroes behind it.
    pub body: [u8; BODY_BYTES],
}

const _: () = assert!(size_of::<Frame>() == HEADER_BYTES);

impl Frame {
    /// A frame with this body and one fragment, if its class has numbers; all else of its
    /// envelope is zero.
    #[inline]
    pub fn new<B: Body>(body: &B) -> Frame {
        let mut frame = Frame::new_zeroed();
        frame.begin(body);
        frame
    }

    /// Makes it what [`Frame::new`] returns.
    #[inline]
    pub fn begin<B: Body>(&mut self, body: &B) {
        const { assert!(size_of::<B>() <= BODY_BYTES) };
        self.zero();
        self.envelope.magic = FRAME_MAGIC.into();
        self.envelope.version = WIRE_VERSION;
        self.envelope.kind = B::KIND;
        self.envelope.fragments = Class::of(B::KIND).is_numbered().into();
        self.envelope.body_length = size_of::<B>() as u8;
        self.body[..size_of::<B>()].copy_from_slice(body.as_bytes());
    }

    /// Returns true if kind and length of the body are those of `B` and the body is valid.
    #[inline]
    pub fn is<B: Body>(&self) -> bool {
        self.envelope.kind == B::KIND
            && usize::from(self.envelope.body_length) == size_of::<B>()
            && self.body::<B>().is_valid()
    }

    /// The body, if its kind is that of `B`; else what its bytes would mean.
    #[inline]
    pub fn body<B: Body>(&self) -> B {
        const { assert!(size_of::<B>() <= BODY_BYTES) };
        match B::read_from_prefix(&self.body) {
            Ok((body, _)) => body,
            Err(_) => B::new_zeroed(),
        }
    }

    /// Replaces the body by another one of the same kind.
    #[inline]
    pub fn set_body<B: Body>(&mut self, body: &B) {
        self.body[..size_of::<B>()].copy_from_slice(body.as_bytes());
    }

    /// Envelope and body as they stand on a wire.
    pub fn header(&self) -> &[u8] {
        let length = usize::from(self.envelope.body_length).min(BODY_BYTES);
        &self.as_bytes()[..ENVELOPE_BYTES + length]
    }

    /// Splits what stood on a wire into a frame and its payload. Returns `None` if the
    /// lengths do not match.
    pub fn from_wire(bytes: &[u8]) -> Option<(Frame, &[u8])> {
        let (envelope, rest) = Envelope::read_from_prefix(bytes).ok()?;
        let length = usize::from(envelope.body_length);
        let (body, payload) = rest.split_at_checked(length)?;
        let mut frame = Frame {
            envelope,
            body: [0; BODY_BYTES],
        };
        frame.body.get_mut(..length)?.copy_from_slice(body);
        (usize::from(envelope.payload_length.get()) == payload.len()).then_some((frame, payload))
    }
}

bitflags! {
    /// Modifiers of an [`Ack`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AckFlags: u32 {
        /// Answer with an Ack at once.
        const PROBE = 1;
    }
}

layouts! {
    /// Body of [`kind::ACK`]: says how far things are, and which frames have arrived
    /// beyond the first that is missing.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | flags           | offset          |
    ///   8  | bitmap, 256 bits                  | … 40
    /// ```
    #[bytes(40)]
    pub struct Ack {
        /// [`AckFlags`].
        pub flags: U32,
        /// Where the bitmap begins: bit *i* stands for frame `acknowledge` + 2 + offset + *i*.
        pub offset: U32,
        /// Bit set: that frame has arrived. The lowest bit of the first word is bit 0.
        pub bitmap: [U64; 4],
    }
}

/// Body of [`kind::HELLO`] and [`kind::HELLO_REPLY`].
///
/// ```text
///      0                 4                 8
///   0  | window          | leaves          |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Hello<const KIND: u8> {
    /// The window that the sender grants: how many fragments may be on their way to it,
    /// or there and not delivered.
    pub window: U32,
    /// How often the node that says Hello has asked to leave in this session, which it does
    /// no more; the answer repeats it.
    pub leaves: U32,
}

/// Body of [`kind::WINDOW`] and [`kind::WINDOW_TAKEN`].
///
/// ```text
///      0                 4                 8
///   0  | window          | reserved        |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Window<const KIND: u8> {
    /// The window that is granted instead of the one before; not zero. What is under way
    /// beyond it stays; the answer comes when no more than that is.
    pub window: U32,
    /// Zero.
    pub reserved: U32,
}

layouts! {
    /// Body of [`kind::LEAVE`]: the sender has nothing under way. If the destination agrees, it
    /// says Goodbye.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | leaves          | reserved        |
    ///   8  | next                              |
    /// ```
    #[bytes(16)]
    pub struct Leave {
        /// How often the sender has asked in this session.
        pub leaves: U32,
        /// Zero.
        pub reserved: U32,
        /// The next sequence number of the sender: it has sent none from there on.
        pub next: U64,
    }
}

layouts! {
    /// Body of [`kind::NAK`]: the destination refuses a frame.
    ///
    /// ```text
    ///      0                 4    5            8
    ///   0  | status          |kind| reserved   |
    ///   8  | sequence                          |
    /// ```
    #[bytes(16)]
    pub struct Nak {
        /// A [`crate::Status`] code: why.
        pub status: U32,
        /// Kind of the frame that is refused.
        pub kind: u8,
        /// Zero.
        pub reserved: [u8; 3],
        /// Sequence number of the frame that is refused.
        pub sequence: U64,
    }

    /// Body of [`kind::PROCESS_GONE`]: the process on the source port has ended.
    #[bytes(8)]
    pub struct ProcessGone {
        /// No frame of the destination above this sequence number had arrived when it ended.
        pub last_received: U64,
    }
}

/// Body of the kinds that say everything in their envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Empty<const KIND: u8>;

/// Body of [`kind::GOODBYE`].
pub type Goodbye = Empty<{ kind::GOODBYE }>;

const _: () = assert!(core::mem::offset_of!(Ack, bitmap) == 8);
const _: () = assert!(size_of::<Hello<{ kind::HELLO }>>() == 8);
const _: () = assert!(size_of::<Window<{ kind::WINDOW }>>() == 8);
const _: () = assert!(core::mem::offset_of!(Leave, next) == 8);
const _: () = assert!(core::mem::offset_of!(Nak, sequence) == 8);

impl Body for Ack {
    const KIND: u8 = kind::ACK;

    fn is_valid(&self) -> bool {
        AckFlags::from_bits(self.flags.get()).is_some()
    }
}

impl<const KIND: u8> Body for Hello<KIND> {
    const KIND: u8 = KIND;
}

impl<const KIND: u8> Body for Window<KIND> {
    const KIND: u8 = KIND;

    fn is_valid(&self) -> bool {
        self.window.get() != 0 && self.reserved.get() == 0
    }
}

impl Body for Leave {
    const KIND: u8 = kind::LEAVE;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0
    }
}

impl Body for Nak {
    const KIND: u8 = kind::NAK;

    fn is_valid(&self) -> bool {
        self.reserved == [0; 3]
    }
}

impl Body for ProcessGone {
    const KIND: u8 = kind::PROCESS_GONE;
}

impl<const KIND: u8> Body for Empty<KIND> {
    const KIND: u8 = KIND;
}
