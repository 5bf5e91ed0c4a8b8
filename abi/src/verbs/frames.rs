//! Frames of verbs between NICs.
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::VERBS_MESSAGE`] | Windowed, in order | requester | [`VerbsMessage`] | a piece of a Send or a write; or none |
//! | [`kind::VERBS_READ`] | Control, in order | requester | [`VerbsRead`] | none |
//! | [`kind::VERBS_ATOMIC`] | Control, in order | requester | [`VerbsAtomic`] | none |
//! | [`kind::VERBS_PROBE`] | Control, in order | requester | [`VerbsProbe`] | none |
//! | [`kind::VERBS_REPLY`] | Control, in order | responder | [`VerbsReply`] | none |
//! | [`kind::VERBS_READ_DATA`] | Windowed | responder | [`VerbsReadData`] | a piece of what was read |
//! | [`kind::VERBS_UNRELIABLE`] | Unreliable | requester | [`VerbsUnreliable`] | a piece of a Send or a write |
//! | [`kind::VERBS_DATAGRAM`] | Unreliable | requester | [`VerbsDatagram`] | the datagram |
//!
//! The envelope has the port of the process that sends; the port of the destination is zero, as the
//! number of the queue pair names the process. A queue pair takes frames of its peer only: of the node
//! of its path, from the queue pair that it is connected with.
//!
//! # Reliable connections
//! The transport delivers each frame once, in order, or ends the session. So a queue pair has neither a window
//! nor copies of its own. Its messages, reads and atomic operations are numbered from `send_psn`, modulo
//! 2^24, one number each, whatever their length. The responder expects one *position*: a number and an
//! offset in that message. What it does with a frame of its peer:
//!
//! | the frame is | it |
//! |---|---|
//! | at the expected position | takes it. With the last piece the message is done: a receive ends, [`ReplyKind::Done`] |
//! | the same, a receive is needed, and none is posted | replies [`ReplyKind::ReceiverNotReady`], and *rewinds* |
//! | the same, a page of its memory is absent | replies [`ReplyKind::PageAbsent`], has the driver bring it in, and rewinds; when the page is there, [`ReplyKind::GoOn`]. What it has stored already counts: the position is behind that |
//! | the same, and wrong: key, rights, range, length | replies why; its queue pair fails |
//! | the same, and the page cannot be brought in | replies [`ReplyKind::Failed`]; its queue pair fails |
//! | behind the position, and it has rewound | drops it: the peer sends all from the position on again |
//! | elsewhere, and it has not rewound | replies [`ReplyKind::OutOfSequence`]: the numbers never agreed, or the frame is for an earlier queue pair of that number |
//! | for a queue pair that is not there, not ready, or not of this peer | replies [`ReplyKind::NoQueuePair`] |
//!
//! A queue pair that has rewound takes frames again with the next one at the expected position. What the peer
//! had sent before it heard of it comes before that, as frames come in order.
//!
//! The requester, when it hears:
//!
//! | reply | it |
//! |---|---|
//! | Done | all Sends and writes up to that number are done |
//! | ReceiverNotReady | sends from that position on again when the timer of the reply is over; fails after `not_ready_retries` in a row |
//! | PageAbsent | stops |
//! | GoOn | sends from that position on again |
//! | NoQueuePair | sends from its oldest message on again when its own timer is over; fails after `retries` in a row |
//! | another | that work request fails, its queue pair too |
//! | none, for its own timer, or half of the peer timeout if that is longer | sends [`VerbsProbe`], which is answered with Done, PageAbsent or NoQueuePair |
//!
//! Sending again reads the ring again: an entry is the program's until its completion only by its own
//! honesty, so everything is checked again; an entry with another opcode or length fails.
//!
//! Reads are answered by their data, and atomic operations by [`ReplyKind::Word`]. The responder takes both in their
//! order; nothing waits at the responder for the answer of a read, so data of a read may come behind
//! the Done of a later Send. Completions stay in the order of the send queue. The data of a read goes to bounce
//! memory if a page of the requester is absent (N14). An atomic operation is executed once, because it is answered
//! PageAbsent before it is executed and Word after it, and nothing is sent again that was taken.
//!
//! The end of the session fails queue pairs with work under way (RetriesExceeded). One without any goes on in
//! the next session: neither side has lost anything.
//!
//! # Unreliable connections, and datagrams
//! A message of an unreliable connection has the same body, and at most a page of payload. A piece that is not at the
//! expected position ends what has come of its message without a completion; offset zero begins a new
//! one, whatever its number. A datagram is one frame. Both are dropped and counted where no receive is
//! posted, or the key differs. Where a page is absent, they are kept in their order until it is there, up to a
//! bound of the queue pair; others are dropped.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

use super::{Request, NUMBERS};
use crate::wire::{Body, BODY_BYTES};

/// Kinds of frames of verbs.
pub mod kind {
    /// [`super::VerbsMessage`].
    pub const VERBS_MESSAGE: u8 = 0x60;
    /// [`super::VerbsReadData`].
    pub const VERBS_READ_DATA: u8 = 0x61;
    /// [`super::VerbsRead`].
    pub const VERBS_READ: u8 = 0x88;
    /// [`super::VerbsAtomic`].
    pub const VERBS_ATOMIC: u8 = 0x89;
    /// [`super::VerbsReply`].
    pub const VERBS_REPLY: u8 = 0x8a;
    /// [`super::VerbsProbe`].
    pub const VERBS_PROBE: u8 = 0x8b;
    /// [`super::VerbsDatagram`].
    pub const VERBS_DATAGRAM: u8 = 0xc8;
    /// [`super::VerbsUnreliable`].
    pub const VERBS_UNRELIABLE: u8 = 0xc9;
}

bitflags! {
    /// Modifiers of a message or a datagram.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct MessageFlags: u8 {
        /// Its completion is one that the program waits for.
        const SOLICITED = 1;
        /// It has a global route header; of datagrams only.
        const ROUTE_HEADER = 2;
    }
}

numbered! {
    /// What a responder replies.
    pub enum ReplyKind: u8 {
        /// All up to this number is done.
        Done = 0,
        /// No receive is posted.
        ReceiverNotReady = 1,
        /// A page is being brought in.
        PageAbsent = 2,
        /// It is there.
        GoOn = 3,
        /// There is no such queue pair, or it takes nothing from this peer now.
        NoQueuePair = 4,
        /// The number is not the expected one.
        OutOfSequence = 5,
        /// The message is too long, or cannot be.
        InvalidRequest = 6,
        /// Key, rights or range are wrong.
        AccessDenied = 7,
        /// The responder has failed.
        Failed = 8,
        /// The word that an atomic operation has found.
        Word = 9,
    }
}

layouts! {
    /// Body of [`kind::VERBS_MESSAGE`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | qp              | peer_qp         |
    ///   8  | psn             | immediate       |
    ///  16  | offset                            |
    ///  24  | remaining                         |
    ///  32  | address                           |
    ///  40  | key             |req |flg| res.   |
    /// ```
    #[bytes(48)]
    pub struct VerbsMessage {
        /// Queue pair that it is for.
        pub qp: U32,
        /// Queue pair that sends.
        pub peer_qp: U32,
        /// Number of the message.
        pub psn: U32,
        /// For its completion.
        pub immediate: U32,
        /// Offset of the payload in the message, in bytes.
        pub offset: U64,
        /// Bytes from here to the end of the message.
        pub remaining: U64,
        /// Of a write, where the payload goes, as the key names it; else zero. The frame has as many
        /// fragments as the payload touches pages from there on.
        pub address: U64,
        /// Of a write, the key; else zero.
        pub key: U32,
        /// A [`Request`]: Send or Write, with an immediate or not.
        pub request: u8,
        /// [`MessageFlags`] but ROUTE_HEADER.
        pub flags: u8,
        /// Zero.
        pub reserved: U16,
    }

    /// Body of [`kind::VERBS_READ`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | qp              | peer_qp         |
    ///   8  | psn             | key             |
    ///  16  | address                           |
    ///  24  | length                            |
    /// ```
    #[bytes(32)]
    pub struct VerbsRead {
        /// Queue pair that it is for.
        pub qp: U32,
        /// Queue pair that reads.
        pub peer_qp: U32,
        /// Number of the read.
        pub psn: U32,
        /// Key of the memory.
        pub key: U32,
        /// Address of the first byte, as the key names it.
        pub address: U64,
        /// Bytes wanted.
        pub length: U64,
    }

    /// Body of [`kind::VERBS_READ_DATA`].
    ///
    /// ```text
    ///      0                 4        6        8
    ///   0  | qp              | peer_qp         |
    ///   8  | psn             | reserved        |
    ///  16  | offset                            |
    /// ```
    #[bytes(24)]
    pub struct VerbsReadData {
        /// Queue pair that has asked.
        pub qp: U32,
        /// Queue pair that was asked.
        pub peer_qp: U32,
        /// Number of the read.
        pub psn: U32,
        /// Zero.
        pub reserved: U32,
        /// Offset of the payload in what was asked for, in bytes.
        pub offset: U64,
    }

    /// Body of [`kind::VERBS_ATOMIC`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | qp              | peer_qp         |
    ///   8  | psn             | key             |
    ///  16  | address                           |
    ///  24  | operand                           |
    ///  32  | swap                              |
    ///  40  |req | reserved                     |
    /// ```
    #[bytes(48)]
    pub struct VerbsAtomic {
        /// Queue pair that it is for.
        pub qp: U32,
        /// Queue pair that asks.
        pub peer_qp: U32,
        /// Number of the operation.
        pub psn: U32,
        /// Key of the memory.
        pub key: U32,
        /// Address of the word, as the key names it.
        pub address: U64,
        /// What is compared, or added.
        pub operand: U64,
        /// What replaces the word.
        pub swap: U64,
        /// A [`Request`]: CompareSwap or FetchAdd.
        pub request: u8,
        /// Zero.
        pub reserved: [u8; 7],
    }

    /// Body of [`kind::VERBS_REPLY`].
    ///
    /// ```text
    ///      0                 4    5            8
    ///   0  | qp              | peer_qp         |
    ///   8  | psn             |kind|tmr| res.   |
    ///  16  | offset                            |
    ///  24  | value                             |
    /// ```
    #[bytes(32)]
    pub struct VerbsReply {
        /// Queue pair that has asked.
        pub qp: U32,
        /// Queue pair that was asked.
        pub peer_qp: U32,
        /// The number that it is about.
        pub psn: U32,
        /// A [`ReplyKind`].
        pub kind: u8,
        /// Of ReceiverNotReady, the code of the time to wait ([`super::receiver_not_ready_ns`]); else zero.
        pub timer: u8,
        /// Zero.
        pub reserved: U16,
        /// Of ReceiverNotReady, PageAbsent and GoOn, the offset of the position; else zero.
        pub offset: U64,
        /// Of Word, the word; else zero.
        pub value: U64,
    }

    /// Body of [`kind::VERBS_PROBE`]: asks for a reply. Neither side changes by it.
    #[bytes(16)]
    pub struct VerbsProbe {
        /// Queue pair that it is for.
        pub qp: U32,
        /// Queue pair that asks.
        pub peer_qp: U32,
        /// Number of its oldest message that is not done.
        pub psn: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Body of [`kind::VERBS_UNRELIABLE`].
    #[bytes(48)]
    pub struct VerbsUnreliable {
        /// As of a reliable one.
        pub message: VerbsMessage,
    }

    /// Body of [`kind::VERBS_DATAGRAM`].
    ///
    /// ```text
    ///      0                 4    5   6        8
    ///   0  | qp              | peer_qp         |
    ///   8  | qkey            | immediate       |
    ///  16  |req |flg|sl |res.| reserved        |
    /// ```
    #[bytes(24)]
    pub struct VerbsDatagram {
        /// Queue pair that it is for.
        pub qp: U32,
        /// Queue pair that sends.
        pub peer_qp: U32,
        /// The key that the queue pair must have.
        pub qkey: U32,
        /// For its completion.
        pub immediate: U32,
        /// A [`Request`]: Send or SendImmediate.
        pub request: u8,
        /// [`MessageFlags`].
        pub flags: u8,
        /// Service level, below 16.
        pub service_level: u8,
        /// Zero.
        pub reserved0: u8,
        /// Zero.
        pub reserved1: U32,
    }
}

const _: () = assert!(size_of::<VerbsMessage>() <= BODY_BYTES);
const _: () = assert!(core::mem::offset_of!(VerbsMessage, request) == 44);
const _: () = assert!(core::mem::offset_of!(VerbsReply, kind) == 12);
const _: () = assert!(core::mem::offset_of!(VerbsAtomic, request) == 40);

/// Returns true if both can be numbers of queue pairs, and `psn` that of a message.
fn are_numbers(qp: U32, peer_qp: U32, psn: U32) -> bool {
    [qp, peer_qp, psn]
        .iter()
        .all(|number| number.get() < NUMBERS)
}

impl VerbsMessage {
    fn is_well_formed(&self) -> bool {
        let flags = MessageFlags::from_bits(self.flags);
        let request = Request::try_from(self.request);
        let of_kind = match request {
            Ok(Request::Write | Request::WriteImmediate) => self.reserved.get() == 0,
            Ok(Request::Send | Request::SendImmediate) => {
                (self.reserved.get(), self.address.get(), self.key.get()) == (0, 0, 0)
            }
            _ => false,
        };
        let flagged = flags.is_some_and(|flags| !flags.contains(MessageFlags::ROUTE_HEADER));
        of_kind && flagged && are_numbers(self.qp, self.peer_qp, self.psn)
    }
}

impl Body for VerbsMessage {
    const KIND: u8 = kind::VERBS_MESSAGE;

    fn is_valid(&self) -> bool {
        self.is_well_formed()
    }
}

impl Body for VerbsUnreliable {
    const KIND: u8 = kind::VERBS_UNRELIABLE;

    fn is_valid(&self) -> bool {
        self.message.is_well_formed()
    }
}

impl Body for VerbsRead {
    const KIND: u8 = kind::VERBS_READ;

    fn is_valid(&self) -> bool {
        are_numbers(self.qp, self.peer_qp, self.psn)
    }
}

impl Body for VerbsReadData {
    const KIND: u8 = kind::VERBS_READ_DATA;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0 && are_numbers(self.qp, self.peer_qp, self.psn)
    }
}

impl Body for VerbsAtomic {
    const KIND: u8 = kind::VERBS_ATOMIC;

    fn is_valid(&self) -> bool {
        let request = Request::try_from(self.request);
        matches!(request, Ok(Request::CompareSwap | Request::FetchAdd))
            && self.reserved == [0; 7]
            && are_numbers(self.qp, self.peer_qp, self.psn)
    }
}

impl Body for VerbsReply {
    const KIND: u8 = kind::VERBS_REPLY;

    fn is_valid(&self) -> bool {
        ReplyKind::try_from(self.kind).is_ok()
            && self.timer < 32
            && self.reserved.get() == 0
            && are_numbers(self.qp, self.peer_qp, self.psn)
    }
}

impl Body for VerbsProbe {
    const KIND: u8 = kind::VERBS_PROBE;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0 && are_numbers(self.qp, self.peer_qp, self.psn)
    }
}

impl Body for VerbsDatagram {
    const KIND: u8 = kind::VERBS_DATAGRAM;

    fn is_valid(&self) -> bool {
        let request = Request::try_from(self.request);
        matches!(request, Ok(Request::Send | Request::SendImmediate))
            && MessageFlags::from_bits(self.flags).is_some()
            && self.service_level < 16
            && (self.reserved0, self.reserved1.get()) == (0, 0)
            && are_numbers(self.qp, self.peer_qp, 0.into())
    }
}
