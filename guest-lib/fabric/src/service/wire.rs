//! What services send each other: requests, and a reply for each.
//!
//! ```text
//!   request  0          8          16         24         32
//!           ┌──────────┬──────────┬──────────┬──────────┐
//!           │ stream   │ sequence │ reply    │ key      │
//!           ├──────────┼──────────┼──────────┼──────────┤  32
//!           │ offset   │ length   │ data     │ inc.│src.│
//!           ├──────────┼────┬────┬┴─┬─┬─┬─┬──┴──────────┘  64
//!           │ total    │from│ to │ k│f│o│t│ bytes …           from, to: 16 bits; then 8 bits each
//!           └──────────┴────┴────┴──┴─┴─┴─┘  80
//!   reply   ┌──────────┬──────────┐
//!           │ status   │ bytes …  │     its tag is `reply` of the request
//!           └──────────┴──────────┘
//! ```
//! All numbers are little-endian; elements of atomic operations are as the machine has them.
//!
//! | field | what |
//! |---|---|
//! | stream, sequence | the order of the requests from one service to another |
//! | key, offset, length | the registered memory, and which of its bytes |
//! | from, to | ports of the endpoints: that which asks, and that which is asked |
//! | inc., src. | incarnations, of 32 bits: of that which is asked, and of that which asks |
//! | total | bytes of the operation of which this request is a piece |
//! | k, f, o, t | kind, flags, atomic operation and type of its elements |
//!
//! # Invariants
//! - A request that is parsed has as many bytes as its kind and length say, and asks for no more than a reply holds.

use qnic::Port;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::atomics::{self, Datatype, Form, Operation};
use crate::errno::{Errno, Result};

/// Longest request and longest reply in bytes.
pub(super) const MESSAGE_MAX: usize = 64 << 10;

/// Most bytes of memory that one request reads or writes.
pub(crate) const PIECE_MAX: usize = MESSAGE_MAX - REQUEST_BYTES;

/// Bytes of a request in front of those that it brings.
pub(super) const REQUEST_BYTES: usize = 80;

/// Bytes of a reply in front of those that it brings.
pub(super) const REPLY_BYTES: usize = 8;

const READ: u8 = 1;
const WRITE: u8 = 2;
const ATOMIC: u8 = 3;
const FETCH: u8 = 4;
const COMPARE: u8 = 5;

/// It is the last piece of its operation.
const LAST: u8 = 1;
/// The program has given data for the peer's completion.
const DATA: u8 = 2;
/// It is the first piece of its operation.
const FIRST: u8 = 4;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    stream: U64,
    sequence: U64,
    reply: U64,
    key: U64,
    offset: U64,
    length: U64,
    data: U64,
    incarnation: U32,
    source: U32,
    total: U64,
    from: U16,
    to: U16,
    kind: u8,
    flags: u8,
    operation: u8,
    datatype: u8,
}
const _: () = assert!(size_of::<Head>() == REQUEST_BYTES);
const _: () = assert!(std::mem::offset_of!(Head, total) == 64);
const _: () = assert!(std::mem::offset_of!(Head, kind) == 76);

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
    Atomic(Form, Operation, Datatype),
}

/// A request, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) stream: u64,
    pub(super) sequence: u64,
    /// Tag of its reply.
    pub(super) reply: u64,
    pub(super) key: u64,
    pub(super) offset: u64,
    /// Bytes of memory that it reads or changes.
    pub(super) length: usize,
    pub(super) data: Option<u64>,
    /// Of the endpoint that is asked.
    pub(super) incarnation: u32,
    /// Of the endpoint that asks.
    pub(super) source: u32,
    pub(super) total: u64,
    pub(super) from: Port,
    pub(super) to: Port,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
    pub(super) action: Action,
}

impl Action {
    /// Bytes that a request brings for so many bytes of memory.
    pub(super) fn brought(self, length: usize) -> usize {
        match self {
            Action::Read => 0,
            Action::Write => length,
            Action::Atomic(_, operation, _) if operation.is_read() => 0,
            Action::Atomic(Form::Compare, ..) => 2 * length,
            Action::Atomic(..) => length,
        }
    }

    /// Bytes that its reply brings.
    pub(super) fn answered(self, length: usize) -> usize {
        match self {
            Action::Write | Action::Atomic(Form::Base, ..) => 0,
            Action::Read | Action::Atomic(..) => length,
        }
    }

    fn fields(self) -> (u8, u8, u8) {
        match self {
            Action::Read => (READ, 0, 0),
            Action::Write => (WRITE, 0, 0),
            Action::Atomic(form, operation, datatype) => {
                let kind = match form {
                    Form::Base => ATOMIC,
                    Form::Fetch => FETCH,
                    Form::Compare => COMPARE,
                };
                (kind, operation.number(), datatype.number())
            }
        }
    }

    fn of(kind: u8, operation: u8, datatype: u8) -> Option<Self> {
        let form = match kind {
            READ => return Some(Action::Read),
            WRITE => return Some(Action::Write),
            ATOMIC => Form::Base,
            FETCH => Form::Fetch,
            COMPARE => Form::Compare,
            _ => return None,
        };
        let datatype = Datatype::new(datatype.into())?;
        let operation = Operation::new(operation.into(), form, datatype)?;
        Some(Action::Atomic(form, operation, datatype))
    }

    /// Whether a request may ask for so many bytes.
    fn fits(self, length: usize) -> bool {
        match self {
            Action::Read | Action::Write => length <= PIECE_MAX,
            Action::Atomic(_, _, datatype) => {
                length <= atomics::BYTES_MAX && length % datatype.size() == 0
            }
        }
    }
}

impl Request {
    /// Its bytes, in front of those that it brings.
    pub(super) fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let (kind, operation, datatype) = self.action.fields();
        let mut flags = if self.is_last { LAST } else { 0 };
        if self.data.is_some() {
            flags |= DATA;
        }
        if self.is_first {
            flags |= FIRST;
        }
        let head = Head {
            stream: self.stream.into(),
            sequence: self.sequence.into(),
            reply: self.reply.into(),
            key: self.key.into(),
            offset: self.offset.into(),
            length: (self.length as u64).into(),
            data: self.data.unwrap_or(0).into(),
            incarnation: self.incarnation.into(),
            source: self.source.into(),
            total: self.total.into(),
            from: self.from.0.into(),
            to: self.to.0.into(),
            kind,
            flags,
            operation,
            datatype,
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes.copy_from_slice(head.as_bytes());
        bytes
    }

    /// The request of a message, and the bytes that it brings; `None` if it is none.
    pub(super) fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, bytes) = Head::ref_from_prefix(message).ok()?;
        let action = Action::of(head.kind, head.operation, head.datatype)?;
        let length = usize::try_from(head.length.get()).ok()?;
        let is_known = head.flags & !(LAST | DATA | FIRST) == 0;
        if !is_known || !action.fits(length) || bytes.len() != action.brought(length) {
            return None;
        }
        let request = Request {
            stream: head.stream.get(),
            sequence: head.sequence.get(),
            reply: head.reply.get(),
            key: head.key.get(),
            offset: head.offset.get(),
            length,
            data: (head.flags & DATA != 0).then(|| head.data.get()),
            incarnation: head.incarnation.get(),
            source: head.source.get(),
            total: head.total.get(),
            from: Port(head.from.get()),
            to: Port(head.to.get()),
            is_first: head.flags & FIRST != 0,
            is_last: head.flags & LAST != 0,
            action,
        };
        Some((request, bytes))
    }
}

/// The first bytes of a reply: how its request has ended.
pub(super) fn reply_head(end: Result<()>) -> [u8; REPLY_BYTES] {
    let number = end.map_or_else(|Errno(number)| number, |()| 0);
    let mut bytes = [0; REPLY_BYTES];
    bytes[..4].copy_from_slice(U32::from(number.unsigned_abs()).as_bytes());
    bytes
}

/// How a request has ended, and the bytes that its reply brings; `None` if this is no reply.
pub(super) fn parse_reply(message: &[u8]) -> Option<(Result<()>, &[u8])> {
    let (head, bytes) = message.split_at_checked(REPLY_BYTES)?;
    let (number, _) = U32::read_from_prefix(head).ok()?;
    let end = match i32::try_from(number.get()).ok()? {
        0 => Ok(()),
        number => Err(Errno(number)),
    };
    Some((end, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use proptest::prelude::*;

    const WRITTEN: Request = Request {
        stream: 0x0807_0605_0403_0201,
        sequence: 0x09,
        reply: 0x0a,
        key: 0x0b,
        offset: 0x0c,
        length: 3,
        data: Some(0x0d),
        incarnation: 0x0e,
        source: 0x14,
        total: 0x0f,
        from: Port(0x1110),
        to: Port(0x1312),
        is_first: true,
        is_last: true,
        action: Action::Write,
    };

    #[test]
    fn bytes_stay_as_they_are() {
        let mut golden = [0; REQUEST_BYTES];
        for (at, byte) in (1..9).enumerate() {
            golden[at] = byte;
        }
        for (word, value) in [9, 10, 11, 12, 3, 13, 14, 15].into_iter().enumerate() {
            golden[8 + 8 * word] = value;
        }
        golden[60] = 0x14;
        golden[72..].copy_from_slice(&[0x10, 0x11, 0x12, 0x13, 2, 7, 0, 0]);
        assert_eq!(WRITTEN.to_bytes(), golden);
        assert_eq!(
            reply_head(Err(Errno(0x1234))),
            [0x34, 0x12, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn replies_are_read_back() {
        let mut message = reply_head(Ok(())).to_vec();
        assert_eq!(parse_reply(&message), Some((Ok(()), &[][..])));
        message.extend([1, 2]);
        assert_eq!(parse_reply(&message), Some((Ok(()), &[1, 2][..])));
        let refused = reply_head(Err(Errno(libc::EACCES)));
        assert_eq!(
            parse_reply(&refused),
            Some((Err(Errno(libc::EACCES)), &[][..]))
        );
        assert_eq!(parse_reply(&refused[..7]), None);
        assert_eq!(parse_reply(&[0xff; 8]), None);
    }

    fn action() -> impl Strategy<Value = Action> {
        let forms = prop_oneof![Just(Form::Base), Just(Form::Fetch), Just(Form::Compare)];
        let atomic = (forms, 0..=sys::MSWAP, 0..10u32);
        let atomic = atomic.prop_filter_map("no such operation", |(form, operation, datatype)| {
            let datatype = Datatype::new(datatype)?;
            let operation = Operation::new(operation, form, datatype)?;
            Some(Action::Atomic(form, operation, datatype))
        });
        prop_oneof![Just(Action::Read), Just(Action::Write), atomic]
    }

    fn request() -> impl Strategy<Value = Request> {
        let words = (any::<[u64; 6]>(), any::<[u32; 2]>());
        let rest = (any::<Option<u64>>(), any::<[u16; 2]>(), any::<[bool; 2]>());
        (words, rest, action(), 0..100usize).prop_map(
            |(words, (data, ports, [is_first, is_last]), action, count)| {
                let ([stream, sequence, reply, key, offset, total], [incarnation, source]) = words;
                let [from, to] = ports.map(Port);
                let size = match action {
                    Action::Atomic(_, _, datatype) => datatype.size(),
                    Action::Read | Action::Write => 1,
                };
                Request {
                    stream,
                    sequence,
                    reply,
                    key,
                    offset,
                    length: count * size,
                    data,
                    incarnation,
                    source,
                    total,
                    from,
                    to,
                    is_first,
                    is_last,
                    action,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn requests_are_read_back(request in request(), extra in 1..3usize) {
            let brought = request.action.brought(request.length);
            let mut message = request.to_bytes().to_vec();
            message.extend((0..brought).map(|at| at as u8));
            let (read, bytes) = Request::parse(&message).unwrap();
            prop_assert_eq!(read, request);
            prop_assert_eq!(bytes, &message[REQUEST_BYTES..]);
            // With other bytes than it says it is none.
            message.extend(vec![0; extra]);
            prop_assert_eq!(Request::parse(&message), None);
        }

        #[test]
        fn any_bytes_are_a_request_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some((request, brought)) = Request::parse(&bytes) {
                prop_assert!(request.action.fits(request.length));
                prop_assert_eq!(brought.len(), request.action.brought(request.length));
            }
            parse_reply(&bytes);
        }
    }
}
