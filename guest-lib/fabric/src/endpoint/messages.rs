//! What Sends and receives of both spaces have in common.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::engine::{Engine, Iovs, Letter, Report, Search};
use crate::errno::{count, Errno, Result, BAD_FLAGS, NO_CQ, TOO_LONG};
use crate::fence::{Deferred, Ticket};
use crate::info::offer::INJECT_MAX;
use crate::object;
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    FidEp, Iov, ADDR_UNSPEC, CLAIM, COMPLETION, DELIVERY_COMPLETE, DISCARD, FENCE, INJECT,
    INJECT_COMPLETE, MORE, MSG, MULTI_RECV, PEEK, RECV, REMOTE_CQ_DATA, SEND, TAGGED,
    TRANSMIT_COMPLETE,
};

use super::{Binding, Ep};

/// Flags that Sends and receives may have.
const SEND_FLAGS: u64 = COMPLETION
    | INJECT
    | INJECT_COMPLETE
    | TRANSMIT_COMPLETE
    | DELIVERY_COMPLETE
    | MORE
    | FENCE
    | REMOTE_CQ_DATA;
const RECEIVE_FLAGS: u64 = COMPLETION | MORE | MULTI_RECV;
/// Flags of receives that look for a message, or take one that was claimed.
const SEARCH_FLAGS: u64 = PEEK | CLAIM | DISCARD;

/// Where a Send goes.
pub(super) struct To {
    pub(super) address: u64,
    /// `None`: of the untagged space.
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
}

/// What a receive takes.
pub(super) struct From {
    pub(super) address: u64,
    /// The tag and its bits that are ignored; `None`: of the untagged space.
    pub(super) tag: Option<(u64, u64)>,
}

/// The pieces of memory of a call: their place, and how many there are.
pub(super) type Pieces = (In<Iov>, usize);

/// How a call names its flags.
#[derive(Clone, Copy)]
pub(super) enum Flags {
    /// Those of the endpoint.
    Default,
    /// Its own.
    These(u64),
    /// It is an inject: its end is not told.
    Inject,
}

pub(super) fn is_told(binding: &Binding, flags: u64) -> bool {
    !binding.selective || flags & COMPLETION != 0
}

fn space(tagged: bool) -> u64 {
    match tagged {
        true => TAGGED,
        false => MSG,
    }
}

/// Sends bytes.
pub(super) fn send_bytes(
    ep: Fid<FidEp>,
    (bytes, length): (In<c_void>, usize),
    to: To,
    context: Context,
    flags: Flags,
) -> isize {
    count(send(
        ep,
        &Iovs::one(bytes.as_out(), length),
        to,
        context,
        flags,
    ))
}

/// Sends the bytes of several pieces of memory.
pub(super) fn send_pieces(
    ep: Fid<FidEp>,
    (pieces, number): Pieces,
    to: To,
    context: Context,
    flags: Flags,
) -> isize {
    let from = Iovs::of(pieces, number);
    count(from.and_then(|from| send(ep, &from, to, context, flags)))
}

/// The data that a Send by a structure has.
pub(super) fn data_of(flags: u64, data: u64) -> Option<u64> {
    (flags & REMOTE_CQ_DATA != 0).then_some(data)
}

/// Receives bytes.
pub(super) fn receive_bytes(
    ep: Fid<FidEp>,
    (room, length): (Out<c_void>, usize),
    from: From,
    context: Context,
) -> isize {
    let room = Iovs::one(room, length);
    count(receive(ep, room, from, context, Flags::Default))
}

/// Receives bytes into several pieces of memory.
pub(super) fn receive_pieces(
    ep: Fid<FidEp>,
    (pieces, number): Pieces,
    from: From,
    context: Context,
    flags: Flags,
) -> isize {
    let room = Iovs::of(pieces, number);
    count(room.and_then(|room| receive(ep, room, from, context, flags)))
}

fn send(ep: Fid<FidEp>, from: &Iovs, to: To, context: Context, flags: Flags) -> Result<usize> {
    let ep = object::borrow::<Ep, _>(ep)?;
    let running = ep.running()?;
    let binding = &running.tx;
    if !binding.is_bound() {
        return Err(NO_CQ);
    }
    let (flags, told) = match flags {
        Flags::Default => (ep.tx_flags, is_told(binding, ep.tx_flags)),
        Flags::These(flags) => (flags, is_told(binding, flags)),
        Flags::Inject => (INJECT, false),
    };
    if flags & !SEND_FLAGS != 0 {
        return Err(BAD_FLAGS);
    }
    if flags & INJECT != 0 && from.len() > INJECT_MAX {
        return Err(TOO_LONG);
    }
    let report = Report {
        context,
        flags: SEND | space(to.tag.is_some()),
        told,
        queue: binding.queue.clone(),
        counter: binding.counter.clone(),
        ticket: None,
    };
    if !ep.has_fences {
        if flags & FENCE != 0 {
            return Err(BAD_FLAGS);
        }
        running.engine.send(letter(&to, from, flags), report)?;
        return Ok(0);
    }
    let message = Message {
        engine: running.engine.clone(),
        to,
        from: from.clone(),
        flags,
        report,
    };
    let peer = message.to.address;
    ep.defer(running, peer, flags, message)?;
    Ok(0)
}

fn letter<'f>(to: &To, from: &'f Iovs, flags: u64) -> Letter<'f> {
    Letter {
        to: to.address,
        tag: to.tag,
        data: to.data,
        from,
        delivered: flags & DELIVERY_COMPLETE != 0,
    }
}

/// A Send that may have to wait for earlier operations.
struct Message {
    engine: Arc<Engine>,
    to: To,
    from: Iovs,
    flags: u64,
    report: Report,
}

impl Deferred for Message {
    fn begin(&self, ticket: Option<Arc<Ticket>>) -> Result<()> {
        let letter = letter(&self.to, &self.from, self.flags);
        let mut report = self.report.clone();
        report.ticket = ticket;
        self.engine.send(letter, report)
    }

    fn fail(&self, Errno(number): Errno) {
        self.report.fail(None, (number, 0));
    }

    fn is_inject(&self) -> bool {
        self.flags & INJECT != 0
    }
}

fn receive(
    ep: Fid<FidEp>,
    room: Iovs,
    From { address, tag }: From,
    context: Context,
    flags: Flags,
) -> Result<usize> {
    let ep = object::borrow::<Ep, _>(ep)?;
    let running = ep.running()?;
    let binding = &running.rx;
    if !binding.is_bound() {
        return Err(NO_CQ);
    }
    let flags = match flags {
        Flags::These(flags) => flags,
        // There are no receives of many tagged messages.
        Flags::Default | Flags::Inject if tag.is_some() => ep.rx_flags & !MULTI_RECV,
        Flags::Default | Flags::Inject => ep.rx_flags,
    };
    let many = flags & MULTI_RECV != 0;
    if many && (tag.is_some() || flags & SEARCH_FLAGS != 0) {
        return Err(BAD_FLAGS);
    }
    if flags & !(RECEIVE_FLAGS | SEARCH_FLAGS) != 0 {
        return Err(BAD_FLAGS);
    }
    let report = Report {
        context,
        flags: RECV | space(tag.is_some()),
        told: is_told(binding, flags),
        queue: binding.queue.clone(),
        counter: binding.counter.clone(),
        ticket: None,
    };
    let from = Some(address).filter(|from| ep.directed && *from != ADDR_UNSPEC);
    let engine = &running.engine;
    let (claims, discards) = (flags & CLAIM != 0, flags & DISCARD != 0);
    match flags & PEEK {
        0 if claims => engine.take_claimed(discards, room, report)?,
        0 if discards => return Err(BAD_FLAGS),
        0 if many => {
            // Relaxed: a number by itself.
            let least = ep.least.load(Ordering::Relaxed);
            engine.receive_many(from, room, least, report)?;
        }
        0 => engine.receive(from, tag, room, report)?,
        _ => {
            let search = match (claims, discards) {
                (false, false) => Search::Look,
                (true, false) => Search::Claim,
                (false, true) => Search::Discard,
                (true, true) => return Err(BAD_FLAGS),
            };
            engine.peek(search, from, tag, &report)?;
        }
    }
    Ok(0)
}
