//! Messages of the untagged space: `fi_send`, `fi_recv` and their variants.

use std::ffi::c_void;

use super::messages::{
    data_of, receive_bytes, receive_pieces, send_bytes, send_pieces, Flags, From, To,
};
use crate::errno::{count, INVALID};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{FidEp, Iov, Msg, OpsMsg};

/// The table of these calls.
pub(super) static OPS: OpsMsg = OpsMsg {
    size: size_of::<OpsMsg>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

fn from(address: u64) -> From {
    From { address, tag: None }
}

fn to(address: u64, data: Option<u64>) -> To {
    To {
        address,
        tag: None,
        data,
    }
}

extern "C" fn recv(
    ep: Fid<FidEp>,
    room: Out<c_void>,
    length: usize,
    _desc: Context,
    source: u64,
    context: Context,
) -> isize {
    receive_bytes(ep, (room, length), from(source), context)
}

extern "C" fn recvv(
    ep: Fid<FidEp>,
    pieces: In<Iov>,
    _desc: In<Context>,
    number: usize,
    source: u64,
    context: Context,
) -> isize {
    receive_pieces(ep, (pieces, number), from(source), context, Flags::Default)
}

extern "C" fn recvmsg(ep: Fid<FidEp>, message: In<Msg>, flags: u64) -> isize {
    let Some(message) = message.get() else {
        return count(Err(INVALID));
    };
    let pieces = (message.iov, message.iov_count);
    let from = from(message.addr);
    receive_pieces(ep, pieces, from, message.context, Flags::These(flags))
}

extern "C" fn send(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    _desc: Context,
    address: u64,
    context: Context,
) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, None),
        context,
        Flags::Default,
    )
}

extern "C" fn sendv(
    ep: Fid<FidEp>,
    pieces: In<Iov>,
    _desc: In<Context>,
    number: usize,
    address: u64,
    context: Context,
) -> isize {
    send_pieces(
        ep,
        (pieces, number),
        to(address, None),
        context,
        Flags::Default,
    )
}

extern "C" fn sendmsg(ep: Fid<FidEp>, message: In<Msg>, flags: u64) -> isize {
    let Some(message) = message.get() else {
        return count(Err(INVALID));
    };
    let pieces = (message.iov, message.iov_count);
    let to = to(message.addr, data_of(flags, message.data));
    send_pieces(ep, pieces, to, message.context, Flags::These(flags))
}

extern "C" fn inject(ep: Fid<FidEp>, bytes: In<c_void>, length: usize, address: u64) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, None),
        Context::NULL,
        Flags::Inject,
    )
}

extern "C" fn senddata(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    _desc: Context,
    data: u64,
    address: u64,
    context: Context,
) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, Some(data)),
        context,
        Flags::Default,
    )
}

extern "C" fn injectdata(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    data: u64,
    address: u64,
) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, Some(data)),
        Context::NULL,
        Flags::Inject,
    )
}
