//! Tagged messages, matched by the NIC that receives them.
//!
//! A process has 16 message endpoints, each with a tagged and an untagged space. A message matches a
//! receive of its space if the receive takes its source, and if both tags are equal in all bits that
//! the receive does not ignore. Messages of one process to another do not overtake each other. The
//! bytes of Sends follow the rules of writes; those of receives lie in memory that the endpoint exports,
//! whatever access that grants.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use qnic::message::{
    Completion, Destination, Envelope, MessageEndpoint, MultiReceive, Pattern, Receive, Source, Tag,
};
use qnic::{NodeId, Part, Port};
use self_cell::self_cell;

use crate::border::{call, fixed, head, timeout, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open, open_if_wanted};
use crate::memory::{Bytes, Local};
use crate::owned::Base;
use crate::request::{qnic_completion, qnic_request, turn};

/// In the untagged space.
pub const QNIC_MESSAGE_UNTAGGED: u32 = 1;
/// Of every process: `node` and `port` say nothing.
pub const QNIC_MESSAGE_ANY_SOURCE: u32 = 2;

/// Where a message goes, or what a receive takes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_match {
    /// Size of this structure.
    pub size: usize,
    /// `QNIC_MESSAGE_…`.
    pub flags: u32,
    /// Node of the other process.
    pub node: u16,
    /// Port of the other process.
    pub port: u16,
    /// The tag; 0 in the untagged space.
    pub tag: u64,
    /// Of a receive: bits of the tag that it ignores.
    pub ignore: u64,
    /// Of a Send: 64 bits that the receiver gets with the message.
    pub immediate: u64,
    /// Message endpoint, 0 to 15.
    pub endpoint: u32,
    /// Zero.
    pub reserved: u32,
}

head!(qnic_match {
    flags,
    node,
    port,
    tag,
    ignore,
    immediate,
    endpoint,
    reserved
});

impl qnic_match {
    pub(crate) fn endpoint(&self) -> Result<MessageEndpoint> {
        let number = u16::try_from(self.endpoint).ok();
        let endpoint = number.and_then(MessageEndpoint::new);
        endpoint.ok_or_else(|| Failure::argument("no such message endpoint: they are 0 to 15"))
    }

    pub(crate) fn destination(&self) -> Result<Destination> {
        let (node, port) = (NodeId(self.node), Port(self.port));
        let to = match self.flags {
            0 => Destination::tagged(node, port, Tag(self.tag)),
            QNIC_MESSAGE_UNTAGGED => Destination::untagged(node, port),
            _ => return Err(Failure::argument("no such flags of a Send")),
        };
        Ok(to.at(self.endpoint()?).immediate(self.immediate))
    }

    pub(crate) fn pattern(&self) -> Result<Pattern> {
        let source = match self.flags & QNIC_MESSAGE_ANY_SOURCE {
            0 => Source::Process(NodeId(self.node), Port(self.port)),
            _ => Source::Any,
        };
        let pattern = match self.flags & !QNIC_MESSAGE_ANY_SOURCE {
            0 => Pattern::ignoring(source, Tag(self.tag), self.ignore),
            QNIC_MESSAGE_UNTAGGED => Pattern::untagged(source),
            _ => return Err(Failure::argument("no such flags of a receive")),
        };
        Ok(pattern.at(self.endpoint()?))
    }
}

/// Memory of a message that lies in several places.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_piece {
    /// Its first byte.
    pub address: Out<c_void>,
    /// Its bytes.
    pub length: usize,
}

fixed!(qnic_piece { address, length });

/// Sends a message, and waits until it has arrived at the other NIC, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`: it goes on, and may arrive; `QNIC_E_NO_SUCH_PORT`,
/// `QNIC_E_PEER_GONE`, `QNIC_E_TRUNCATED`, `QNIC_E_NOT_EXPORTED`.
#[no_mangle]
pub extern "C" fn qnic_send(
    endpoint: *mut qnic_endpoint,
    to: In<qnic_match>,
    bytes: In<c_void>,
    length: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let endpoint = &get(endpoint)?.0;
        let to = to.head()?.destination()?;
        let mut kept = Bytes::new();
        let source = kept.source(endpoint, bytes, length)?;
        endpoint
            .send(&to, source)
            .timeout(timeout(timeout_ns))
            .wait()?;
        Ok(())
    })
}

/// Begins to send; never waits for the receiver. `request` may be null: then nothing tells of its end.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: as many Sends wait as may, and it has not begun.
#[no_mangle]
pub extern "C" fn qnic_send_post(
    endpoint: *mut qnic_endpoint,
    to: In<qnic_match>,
    bytes: In<c_void>,
    length: usize,
    request: Out<*mut qnic_request>,
) -> c_int {
    open_if_wanted(request, || {
        let to = to.head()?.destination()?;
        qnic_request::new(Base::new(&get(endpoint)?.0), |base| {
            let mut kept = Bytes::new();
            let source = kept.source(&base.endpoint, bytes, length)?;
            Ok(base.endpoint.send(&to, source).post()?)
        })
    })
}

/// Begins to send up to 128 bytes that are stored in the NIC's memory; it needs a context, and does not
/// wait for one. `request` may be null: then its end is told to nothing, and a failure is counted.
///
/// Fails with `QNIC_E_NO_CONTEXT`, `QNIC_E_OUT_OF_RANGE`.
#[no_mangle]
pub extern "C" fn qnic_send_short(
    endpoint: *mut qnic_endpoint,
    to: In<qnic_match>,
    bytes: In<c_void>,
    length: usize,
    request: Out<*mut qnic_request>,
) -> c_int {
    if request.is_null() {
        return call(|| {
            let (endpoint, to) = (get(endpoint)?, to.head()?.destination()?);
            Ok(endpoint.0.send_short(&to, bytes.bytes(length)?).forget()?)
        });
    }
    open(request, || {
        let to = to.head()?.destination()?;
        let bytes = bytes.bytes(length)?;
        qnic_request::new(Base::new(&get(endpoint)?.0), |base| {
            Ok(base.endpoint.send_short(&to, bytes).post()?)
        })
    })
}

/// The memory of pieces.
fn locals(endpoint: *mut qnic_endpoint, pieces: In<qnic_piece>, count: usize) -> Result<Base> {
    let endpoint = &get(endpoint)?.0;
    let pieces = pieces.items(count)?.iter();
    let local = |piece: &qnic_piece| Local::new(endpoint, piece.address.address(), piece.length);
    Ok(Base {
        locals: pieces.map(local).collect::<Result<_>>()?,
        ..Base::new(endpoint)
    })
}

/// Begins to send pieces of one segment as one message. All but the first begin where a page begins,
/// all but the last end where one ends, and they lie in 256 pages at most.
///
/// Fails with `QNIC_E_ARGUMENT`: the pieces break that rule; `QNIC_E_NO_CONTEXT`, `QNIC_E_POOL_FULL`.
#[no_mangle]
pub extern "C" fn qnic_send_pieces(
    endpoint: *mut qnic_endpoint,
    to: In<qnic_match>,
    pieces: In<qnic_piece>,
    count: usize,
    request: Out<*mut qnic_request>,
) -> c_int {
    open_if_wanted(request, || {
        let to = to.head()?.destination()?;
        qnic_request::new(locals(endpoint, pieces, count)?, |base| {
            let parts: Vec<Part<'_>> = base.locals.iter().map(Local::part).collect();
            Ok(base.endpoint.send(&to, &parts[..]).post()?)
        })
    })
}

/// A receive into the memory of `base`; without memory one of no bytes, which takes no part of a segment.
fn receive<'s, 'a>(base: &'a Base, from: &'s Pattern) -> Receive<'s, 'a> {
    match base.locals.first() {
        Some(local) => base.endpoint.receive(from, local.part()),
        None => base.endpoint.receive(from, &[]),
    }
}

/// Receives a message, and waits for it, up to `timeout_ns` nanoseconds. `completion` may be null.
///
/// Memory of no bytes may be anywhere; the receive needs a context then.
///
/// Fails with `QNIC_E_TIMED_OUT`: no message came, and none is taken any more.
#[no_mangle]
pub extern "C" fn qnic_receive(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    room: Out<c_void>,
    length: usize,
    timeout_ns: i64,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let endpoint = &get(endpoint)?.0;
        let from = from.head()?.pattern()?;
        let base = Base::with(endpoint, room, length)?;
        let receive = receive(&base, &from).timeout(timeout(timeout_ns));
        completion.set_head(receive.wait()?.into())
    })
}

/// Posts a receive of one message.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: as many are posted as may; `QNIC_E_NOT_EXPORTED`.
#[no_mangle]
pub extern "C" fn qnic_receive_post(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    room: Out<c_void>,
    length: usize,
    request: Out<*mut qnic_request>,
) -> c_int {
    open(request, || {
        let endpoint = &get(endpoint)?.0;
        let from = from.head()?.pattern()?;
        let base = Base::with(endpoint, room, length)?;
        qnic_request::new(base, |base| Ok(receive(base, &from).post()?))
    })
}

/// Posts a receive of one message into pieces of one segment; their rules are those of
/// `qnic_send_pieces`.
#[no_mangle]
pub extern "C" fn qnic_receive_pieces(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    pieces: In<qnic_piece>,
    count: usize,
    request: Out<*mut qnic_request>,
) -> c_int {
    open(request, || {
        let from = from.head()?.pattern()?;
        qnic_request::new(locals(endpoint, pieces, count)?, |base| {
            let parts: Vec<Part<'_>> = base.locals.iter().map(Local::part).collect();
            Ok(base.endpoint.receive(&from, &parts[..]).post()?)
        })
    })
}

self_cell!(
    struct ManyCell {
        owner: Base,
        #[covariant]
        dependent: MultiReceive,
    }
);

/// A receive that takes many messages, one behind the other in its memory. Serves one call at a time.
pub struct qnic_many(Mutex<ManyCell>);

/// Posts a receive of many messages. It ends when its memory is full: the message that does not fit is
/// truncated, and the last.
///
/// Fails as `qnic_receive_post`.
#[no_mangle]
pub extern "C" fn qnic_many_open(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    room: Out<c_void>,
    length: usize,
    many: Out<*mut qnic_many>,
) -> c_int {
    open(many, || {
        let endpoint = &get(endpoint)?.0;
        let from = from.head()?.pattern()?;
        let base = Base::with(endpoint, room, length)?;
        let cell = ManyCell::try_new(base, |base| -> Result<_> {
            Ok(receive(base, &from).many()?)
        })?;
        Ok(qnic_many(Mutex::new(cell)))
    })
}

fn next(
    many: *mut qnic_many,
    completion: Out<qnic_completion>,
    take: impl for<'a> FnOnce(&mut MultiReceive<'a>) -> Result<Completion>,
) -> c_int {
    call(|| {
        let many = get(many)?;
        let taken = turn(&many.0)?.with_dependent_mut(|_, many| take(many))?;
        completion.set_head(taken.into())
    })
}

/// Takes the next message if one has come: `offset` of the completion says where it begins.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: none has; or with why that message failed.
#[no_mangle]
pub extern "C" fn qnic_many_test(many: *mut qnic_many, completion: Out<qnic_completion>) -> c_int {
    next(many, completion, |many| {
        many.test()?.ok_or_else(Failure::would_block)
    })
}

/// Waits for the next message, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`: it stays posted; `QNIC_E_CANCELLED`: it has ended, and all of its
/// messages are taken; or with why that message failed.
#[no_mangle]
pub extern "C" fn qnic_many_wait(
    many: *mut qnic_many,
    timeout_ns: i64,
    completion: Out<qnic_completion>,
) -> c_int {
    next(many, completion, |many| {
        many.next(timeout(timeout_ns))?.ok_or_else(Failure::ended)
    })
}

/// Takes the receive back. Messages that have come can be taken still.
#[no_mangle]
pub extern "C" fn qnic_many_cancel(many: *mut qnic_many) -> c_int {
    call(|| {
        let many = get(many)?;
        let outcome = turn(&many.0)?.with_dependent_mut(|_, many| many.cancel());
        Ok(outcome?)
    })
}

/// Closes the receive: it is cancelled, and this waits until the NIC is done with its memory.
#[no_mangle]
pub extern "C" fn qnic_many_close(many: *mut qnic_many) -> c_int {
    close(many)
}

/// What is said of a message before it is received.
pub(crate) fn completion_of(envelope: &Envelope) -> qnic_completion {
    qnic_completion {
        size: size_of::<qnic_completion>(),
        length: envelope.length,
        tag: envelope.tag.0,
        immediate: envelope.immediate,
        offset: 0,
        flags: 0,
        node: envelope.node.0,
        port: envelope.port.0,
    }
}
