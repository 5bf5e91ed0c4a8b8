//! What Sends and receives of both spaces have in common.

use crate::engine::{Iovs, Report, Search};
use crate::errno::{Result, BAD_FLAGS, NO_CQ, TOO_LONG};
use crate::info::offer::INJECT_MAX;
use crate::object;
use crate::pointers::{Context, Fid};
use crate::sys::{
    FidEp, ADDR_UNSPEC, CLAIM, COMPLETION, DISCARD, INJECT, INJECT_COMPLETE, MORE, MSG, PEEK, RECV,
    REMOTE_CQ_DATA, SEND, TAGGED, TRANSMIT_COMPLETE,
};

use super::{Binding, Ep};

/// Flags that Sends and receives may have.
const SEND_FLAGS: u64 =
    COMPLETION | INJECT | INJECT_COMPLETE | TRANSMIT_COMPLETE | MORE | REMOTE_CQ_DATA;
const RECEIVE_FLAGS: u64 = COMPLETION | MORE;
/// Flags of receives that look for a message, or take one that was claimed.
const SEARCH_FLAGS: u64 = PEEK | CLAIM | DISCARD;

/// A Send.
pub(super) struct Send {
    pub(super) to: u64,
    /// `None`: of the untagged space.
    pub(super) tag: Option<u64>,
    pub(super) data: u64,
    pub(super) from: Iovs,
    pub(super) context: Context,
}

/// A receive.
pub(super) struct Receive {
    pub(super) from: u64,
    /// The tag and its bits that are ignored; `None`: of the untagged space.
    pub(super) tag: Option<(u64, u64)>,
    pub(super) room: Iovs,
    pub(super) context: Context,
}

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

fn is_told(binding: &Binding, flags: u64) -> bool {
    !binding.selective || flags & COMPLETION != 0
}

fn space(tagged: bool) -> u64 {
    match tagged {
        true => TAGGED,
        false => MSG,
    }
}

/// Posts a Send.
pub(super) fn send(ep: Fid<FidEp>, send: Send, flags: Flags) -> Result<usize> {
    let ep = object::state::<Ep, _>(ep)?;
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
    if flags & INJECT != 0 && send.from.len() > INJECT_MAX {
        return Err(TOO_LONG);
    }
    let report = Report {
        context: send.context,
        flags: SEND | space(send.tag.is_some()),
        told,
        queue: binding.queue.clone(),
        counter: binding.counter.clone(),
    };
    running
        .engine
        .send(send.to, send.tag, send.data, &send.from, report)?;
    Ok(0)
}

/// Posts a receive.
pub(super) fn receive(ep: Fid<FidEp>, receive: Receive, flags: Flags) -> Result<usize> {
    let ep = object::state::<Ep, _>(ep)?;
    let running = ep.running()?;
    let binding = &running.rx;
    if !binding.is_bound() {
        return Err(NO_CQ);
    }
    let flags = match flags {
        Flags::These(flags) => flags,
        Flags::Default | Flags::Inject => ep.rx_flags,
    };
    if flags & !(RECEIVE_FLAGS | SEARCH_FLAGS) != 0 {
        return Err(BAD_FLAGS);
    }
    let report = Report {
        context: receive.context,
        flags: RECV | space(receive.tag.is_some()),
        told: is_told(binding, flags),
        queue: binding.queue.clone(),
        counter: binding.counter.clone(),
    };
    let from = Some(receive.from).filter(|from| ep.directed && *from != ADDR_UNSPEC);
    let (engine, tag) = (&running.engine, receive.tag);
    let (claims, discards) = (flags & CLAIM != 0, flags & DISCARD != 0);
    match flags & PEEK {
        0 if claims => engine.take_claimed(discards, receive.room, report)?,
        0 if discards => return Err(BAD_FLAGS),
        0 => engine.receive(from, tag, receive.room, report)?,
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
