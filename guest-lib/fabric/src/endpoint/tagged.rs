//! Messages of the tagged space: `fi_tsend`, `fi_trecv` and their variants.

use std::ffi::c_void;

use super::messages::{receive, send as post, Flags, Receive, Send};
use crate::engine::Iovs;
use crate::errno::{count, INVALID};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{FidEp, Iov, MsgTagged, OpsTagged, REMOTE_CQ_DATA};

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

extern "C" fn recv(
    ep: Fid<FidEp>,
    room: Out<c_void>,
    length: usize,
    _desc: Context,
    from: u64,
    tag: u64,
    ignore: u64,
    context: Context,
) -> isize {
    let room = Iovs::one(room, length);
    count(receive(
        ep,
        Receive {
            from,
            tag: Some((tag, ignore)),
            room,
            context,
        },
        Flags::Default,
    ))
}

extern "C" fn recvv(
    ep: Fid<FidEp>,
    pieces: In<Iov>,
    _desc: In<Context>,
    number: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: Context,
) -> isize {
    count(Iovs::of(pieces, number).and_then(|room| {
        receive(
            ep,
            Receive {
                from,
                tag: Some((tag, ignore)),
                room,
                context,
            },
            Flags::Default,
        )
    }))
}

extern "C" fn recvmsg(ep: Fid<FidEp>, message: In<MsgTagged>, flags: u64) -> isize {
    let post = || {
        let message = message.get().ok_or(INVALID)?;
        let room = Iovs::of(message.iov, message.iov_count)?;
        let (from, context) = (message.addr, message.context);
        receive(
            ep,
            Receive {
                from,
                tag: Some((message.tag, message.ignore)),
                room,
                context,
            },
            Flags::These(flags),
        )
    };
    count(post())
}

extern "C" fn send(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    _desc: Context,
    to: u64,
    tag: u64,
    context: Context,
) -> isize {
    let from = Iovs::one(bytes.as_out(), length);
    count(post(
        ep,
        Send {
            to,
            tag: Some(tag),
            data: 0,
            from,
            context,
        },
        Flags::Default,
    ))
}

extern "C" fn sendv(
    ep: Fid<FidEp>,
    pieces: In<Iov>,
    _desc: In<Context>,
    number: usize,
    to: u64,
    tag: u64,
    context: Context,
) -> isize {
    count(Iovs::of(pieces, number).and_then(|from| {
        post(
            ep,
            Send {
                to,
                tag: Some(tag),
                data: 0,
                from,
                context,
            },
            Flags::Default,
        )
    }))
}

extern "C" fn sendmsg(ep: Fid<FidEp>, message: In<MsgTagged>, flags: u64) -> isize {
    let send = || {
        let message = message.get().ok_or(INVALID)?;
        let from = Iovs::of(message.iov, message.iov_count)?;
        let data = match flags & REMOTE_CQ_DATA {
            0 => 0,
            _ => message.data,
        };
        let (to, context) = (message.addr, message.context);
        post(
            ep,
            Send {
                to,
                tag: Some(message.tag),
                data,
                from,
                context,
            },
            Flags::These(flags),
        )
    };
    count(send())
}

extern "C" fn inject(ep: Fid<FidEp>, bytes: In<c_void>, length: usize, to: u64, tag: u64) -> isize {
    let (from, context) = (Iovs::one(bytes.as_out(), length), Context::NULL);
    count(post(
        ep,
        Send {
            to,
            tag: Some(tag),
            data: 0,
            from,
            context,
        },
        Flags::Inject,
    ))
}

extern "C" fn senddata(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    _desc: Context,
    data: u64,
    to: u64,
    tag: u64,
    context: Context,
) -> isize {
    let from = Iovs::one(bytes.as_out(), length);
    count(post(
        ep,
        Send {
            to,
            tag: Some(tag),
            data,
            from,
            context,
        },
        Flags::Default,
    ))
}

extern "C" fn injectdata(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    let (from, context) = (Iovs::one(bytes.as_out(), length), Context::NULL);
    count(post(
        ep,
        Send {
            to,
            tag: Some(tag),
            data,
            from,
            context,
        },
        Flags::Inject,
    ))
}
