//! Messages of the tagged space: `fi_tsend`, `fi_trecv` and their variants.

use std::ffi::c_void;

use super::messages::{
    data_of, receive_bytes, receive_pieces, send_bytes, send_pieces, Flags, From, To,
};
use crate::errno::{count, INVALID};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{FidEp, Iov, MsgTagged, OpsTagged};

/// The table of these calls.
pub(super) static OPS: OpsTagged = OpsTagged {
    size: size_of::<OpsTagged>(),
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

fn from(address: u64, tag: (u64, u64)) -> From {
    From {
        address,
        tag: Some(tag),
    }
}

fn to(address: u64, tag: u64, data: Option<u64>) -> To {
    To {
        address,
        tag: Some(tag),
        data,
    }
}

extern "C" fn recv(
    ep: Fid<FidEp>,
    room: Out<c_void>,
    length: usize,
    _desc: Context,
    source: u64,
    tag: u64,
    ignore: u64,
    context: Context,
) -> isize {
    receive_bytes(ep, (room, length), from(source, (tag, ignore)), context)
}

extern "C" fn recvv(
    ep: Fid<FidEp>,
    pieces: In<Iov>,
    _desc: In<Context>,
    number: usize,
    source: u64,
    tag: u64,
    ignore: u64,
    context: Context,
) -> isize {
    receive_pieces(
        ep,
        (pieces, number),
        from(source, (tag, ignore)),
        context,
        Flags::Default,
    )
}

extern "C" fn recvmsg(ep: Fid<FidEp>, message: In<MsgTagged>, flags: u64) -> isize {
    let Some(message) = message.get() else {
        return count(Err(INVALID));
    };
    let pieces = (message.iov, message.iov_count);
    let from = from(message.addr, (message.tag, message.ignore));
    receive_pieces(ep, pieces, from, message.context, Flags::These(flags))
}

extern "C" fn send(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    _desc: Context,
    address: u64,
    tag: u64,
    context: Context,
) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, tag, None),
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
    tag: u64,
    context: Context,
) -> isize {
    send_pieces(
        ep,
        (pieces, number),
        to(address, tag, None),
        context,
        Flags::Default,
    )
}

extern "C" fn sendmsg(ep: Fid<FidEp>, message: In<MsgTagged>, flags: u64) -> isize {
    let Some(message) = message.get() else {
        return count(Err(INVALID));
    };
    let pieces = (message.iov, message.iov_count);
    let to = to(message.addr, message.tag, data_of(flags, message.data));
    send_pieces(ep, pieces, to, message.context, Flags::These(flags))
}

extern "C" fn inject(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    address: u64,
    tag: u64,
) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, tag, None),
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
    tag: u64,
    context: Context,
) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, tag, Some(data)),
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
    tag: u64,
) -> isize {
    send_bytes(
        ep,
        (bytes, length),
        to(address, tag, Some(data)),
        Context::NULL,
        Flags::Inject,
    )
}
