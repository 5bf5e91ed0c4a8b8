//! Reads and writes of memory: `fi_read`, `fi_write` and their variants.

use std::ffi::c_void;

use super::messages::Flags;
use super::remote::{begin, Call, Place};
use crate::errno::{count, Result, INVALID};
use crate::memory::Memory;
use crate::pointers::{Context, Fid, In, Out};
use crate::service::{Action, Brought};
use crate::sys::{FidEp, Iov, MsgRma, OpsRma, REMOTE_CQ_DATA};

/// The table of these calls.
pub(super) static OPS: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

fn place(peer: u64, offset: u64, key: u64) -> Place {
    Place { peer, offset, key }
}

fn read_into(
    ep: Fid<FidEp>,
    memory: Result<Memory>,
    place: Place,
    context: Context,
    flags: Flags,
) -> Result<usize> {
    let result = memory?;
    let call = Call {
        action: Action::Read,
        place,
        length: result.len(),
        data: None,
        brought: Brought::Copied(Vec::new()),
        result,
        context,
        flags,
    };
    begin(ep, call)
}

fn write_from(
    ep: Fid<FidEp>,
    memory: Result<Memory>,
    place: Place,
    data: Option<u64>,
    context: Context,
    flags: Flags,
) -> Result<usize> {
    let memory = memory?;
    let call = Call {
        action: Action::Write,
        place,
        length: memory.len(),
        data,
        brought: Brought::Memory(memory),
        result: Memory::default(),
        context,
        flags,
    };
    begin(ep, call)
}

/// The memory of both sides that a structure names: of each as many bytes.
fn sides(message: &MsgRma) -> Result<(Memory, Place)> {
    let memory = Memory::of(message.iov, message.iov_count)?;
    let [remote] = message
        .rma_iov
        .items(message.rma_iov_count)
        .ok_or(INVALID)?
    else {
        return Err(INVALID);
    };
    match remote.length == memory.len() {
        true => Ok((memory, place(message.addr, remote.addr, remote.key))),
        false => Err(INVALID),
    }
}

extern "C" fn read(
    ep: Fid<FidEp>,
    room: Out<c_void>,
    length: usize,
    _desc: Context,
    peer: u64,
    offset: u64,
    key: u64,
    context: Context,
) -> isize {
    let memory = Memory::one(room, length);
    let place = place(peer, offset, key);
    count(read_into(ep, memory, place, context, Flags::Default))
}

extern "C" fn readv(
    ep: Fid<FidEp>,
    pieces: In<Iov>,
    _desc: In<Context>,
    number: usize,
    peer: u64,
    offset: u64,
    key: u64,
    context: Context,
) -> isize {
    let memory = Memory::of(pieces, number);
    let place = place(peer, offset, key);
    count(read_into(ep, memory, place, context, Flags::Default))
}

extern "C" fn readmsg(ep: Fid<FidEp>, message: In<MsgRma>, flags: u64) -> isize {
    let read = || {
        let message = message.get().ok_or(INVALID)?;
        let (memory, place) = sides(&message)?;
        let flags = Flags::These(flags);
        read_into(ep, Ok(memory), place, message.context, flags)
    };
    count(read())
}

extern "C" fn write(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    _desc: Context,
    peer: u64,
    offset: u64,
    key: u64,
    context: Context,
) -> isize {
    let memory = Memory::one(bytes.as_out(), length);
    let place = place(peer, offset, key);
    count(write_from(ep, memory, place, None, context, Flags::Default))
}

extern "C" fn writev(
    ep: Fid<FidEp>,
    pieces: In<Iov>,
    _desc: In<Context>,
    number: usize,
    peer: u64,
    offset: u64,
    key: u64,
    context: Context,
) -> isize {
    let memory = Memory::of(pieces, number);
    let place = place(peer, offset, key);
    count(write_from(ep, memory, place, None, context, Flags::Default))
}

extern "C" fn writemsg(ep: Fid<FidEp>, message: In<MsgRma>, flags: u64) -> isize {
    let write = || {
        let message = message.get().ok_or(INVALID)?;
        let (memory, place) = sides(&message)?;
        let data = (flags & REMOTE_CQ_DATA != 0).then_some(message.data);
        let flags = Flags::These(flags);
        write_from(ep, Ok(memory), place, data, message.context, flags)
    };
    count(write())
}

extern "C" fn inject(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    peer: u64,
    offset: u64,
    key: u64,
) -> isize {
    let memory = Memory::one(bytes.as_out(), length);
    let place = place(peer, offset, key);
    let (context, flags) = (Context::NULL, Flags::Inject);
    count(write_from(ep, memory, place, None, context, flags))
}

extern "C" fn writedata(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    _desc: Context,
    data: u64,
    peer: u64,
    offset: u64,
    key: u64,
    context: Context,
) -> isize {
    let memory = Memory::one(bytes.as_out(), length);
    let (place, data) = (place(peer, offset, key), Some(data));
    count(write_from(ep, memory, place, data, context, Flags::Default))
}

extern "C" fn injectdata(
    ep: Fid<FidEp>,
    bytes: In<c_void>,
    length: usize,
    data: u64,
    peer: u64,
    offset: u64,
    key: u64,
) -> isize {
    let memory = Memory::one(bytes.as_out(), length);
    let (place, data) = (place(peer, offset, key), Some(data));
    let (context, flags) = (Context::NULL, Flags::Inject);
    count(write_from(ep, memory, place, data, context, flags))
}
