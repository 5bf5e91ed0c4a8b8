//! Atomic operations: `fi_atomic`, `fi_fetch_atomic`, `fi_compare_atomic` and their variants.

use std::ffi::{c_int, c_void};

use super::messages::Flags;
use super::remote::{begin, Call, Place};
use crate::errno::{count, status, Errno, Result, INVALID, TOO_LONG};
use crate::memory::Memory;
use crate::pointers::{Context, Fid, In, Out};
use crate::service::{Action, AtomicOperation, Brought, Datatype, Form, ATOMIC_MAX};
use crate::sys::{
    AtomicAttr, FidDomain, FidEp, Ioc, MsgAtomic, OpsAtomic, COMPARE_ATOMIC, FETCH_ATOMIC,
    REMOTE_CQ_DATA,
};

/// The table of these calls.
pub(super) static OPS: OpsAtomic = OpsAtomic {
    size: size_of::<OpsAtomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// There is no such operation.
const NO_OPERATION: Errno = Errno(libc::EOPNOTSUPP);

/// An operation, and the type of its elements.
#[derive(Clone, Copy)]
struct Kind {
    form: Form,
    operation: AtomicOperation,
    datatype: Datatype,
}

/// Elements of the program, as calls name them: so many behind a pointer, or in pieces.
#[derive(Clone, Copy)]
enum Elements {
    None,
    One(Out<c_void>, usize),
    Pieces(In<Ioc>, usize),
}

/// What an operation takes, compares and returns.
struct Local {
    operands: Elements,
    compared: Elements,
    result: Elements,
}

/// What is said of an operation beside its elements.
struct Told {
    data: Option<u64>,
    context: Context,
    flags: Flags,
}

impl Kind {
    fn new(form: Form, datatype: u32, operation: u32) -> Result<Self> {
        let datatype = Datatype::new(datatype).ok_or(NO_OPERATION)?;
        let operation = AtomicOperation::new(operation, form, datatype);
        Ok(Kind {
            form,
            operation: operation.ok_or(NO_OPERATION)?,
            datatype,
        })
    }

    /// Most elements of an operation.
    fn most(self) -> usize {
        ATOMIC_MAX / self.datatype.size()
    }
}

impl Elements {
    fn memory(self, size: usize) -> Result<Memory> {
        match self {
            Elements::None => Ok(Memory::default()),
            Elements::One(base, count) => {
                let length = count.checked_mul(size).ok_or(INVALID)?;
                Memory::one(base, length)
            }
            Elements::Pieces(pieces, count) => Memory::of_elements(pieces, count, size),
        }
    }
}

impl Told {
    /// Of a call without flags.
    fn default(context: Context) -> Self {
        Told {
            data: None,
            context,
            flags: Flags::Default,
        }
    }
}

fn place(peer: u64, offset: u64, key: u64) -> Place {
    Place { peer, offset, key }
}

/// Begins an operation: all sides have as many elements.
fn start(
    ep: Fid<FidEp>,
    kind: Result<Kind>,
    place: Place,
    local: &Local,
    told: Told,
) -> Result<usize> {
    let kind = kind?;
    let size = kind.datatype.size();
    // A read has no operand.
    let operands = match kind.operation.is_read() {
        true => Memory::default(),
        false => local.operands.memory(size)?,
    };
    let compared = local.compared.memory(size)?;
    let result = local.result.memory(size)?;
    let length = match kind.form {
        Form::Base => operands.len(),
        Form::Fetch | Form::Compare => result.len(),
    };
    if length > ATOMIC_MAX {
        return Err(TOO_LONG);
    }
    let are_equal = (kind.operation.is_read() || operands.len() == length)
        && (kind.form != Form::Compare || compared.len() == length);
    if length == 0 || !are_equal {
        return Err(INVALID);
    }
    let mut brought = vec![0; operands.len() + compared.len()];
    let (first, second) = brought.split_at_mut(operands.len());
    operands.read(0, first)?;
    compared.read(0, second)?;
    let call = Call {
        action: Action::Atomic(kind.form, kind.operation, kind.datatype),
        place,
        length,
        data: told.data,
        brought: Brought::Copied(brought),
        result,
        context: told.context,
        flags: told.flags,
    };
    begin(ep, call)
}

/// Begins an operation that a structure describes.
fn start_message(
    ep: Fid<FidEp>,
    form: Form,
    message: In<MsgAtomic>,
    (compared, result): (Elements, Elements),
    flags: u64,
) -> isize {
    let start = || {
        let message = message.get().ok_or(INVALID)?;
        let kind = Kind::new(form, message.datatype, message.op)?;
        let remote = message.rma_iov.items(message.rma_iov_count);
        let [remote] = remote.ok_or(INVALID)? else {
            return Err(INVALID);
        };
        let operands = Elements::Pieces(message.iov, message.iov_count);
        let own = match form {
            Form::Base => operands,
            Form::Fetch | Form::Compare => result,
        };
        let size = kind.datatype.size();
        if remote.count.checked_mul(size) != Some(own.memory(size)?.len()) {
            return Err(INVALID);
        }
        let told = Told {
            data: (flags & REMOTE_CQ_DATA != 0).then_some(message.data),
            context: message.context,
            flags: Flags::These(flags),
        };
        let local = Local {
            operands,
            compared,
            result,
        };
        let place = place(message.addr, remote.addr, remote.key);
        start(ep, Ok(kind), place, &local, told)
    };
    count(start())
}

extern "C" fn write(
    ep: Fid<FidEp>,
    operands: In<c_void>,
    number: usize,
    _desc: Context,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: Context,
) -> isize {
    let kind = Kind::new(Form::Base, datatype, operation);
    let local = base(Elements::One(operands.as_out(), number));
    let place = place(peer, offset, key);
    count(start(ep, kind, place, &local, Told::default(context)))
}

/// Elements of an operation that returns nothing.
fn base(operands: Elements) -> Local {
    let (compared, result) = (Elements::None, Elements::None);
    Local {
        operands,
        compared,
        result,
    }
}

extern "C" fn writev(
    ep: Fid<FidEp>,
    operands: In<Ioc>,
    _desc: In<Context>,
    number: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: Context,
) -> isize {
    let kind = Kind::new(Form::Base, datatype, operation);
    let local = base(Elements::Pieces(operands, number));
    let place = place(peer, offset, key);
    count(start(ep, kind, place, &local, Told::default(context)))
}

extern "C" fn writemsg(ep: Fid<FidEp>, message: In<MsgAtomic>, flags: u64) -> isize {
    let none = (Elements::None, Elements::None);
    start_message(ep, Form::Base, message, none, flags)
}

extern "C" fn inject(
    ep: Fid<FidEp>,
    operands: In<c_void>,
    number: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: u32,
    operation: u32,
) -> isize {
    let kind = Kind::new(Form::Base, datatype, operation);
    let local = base(Elements::One(operands.as_out(), number));
    let told = Told {
        flags: Flags::Inject,
        ..Told::default(Context::NULL)
    };
    count(start(ep, kind, place(peer, offset, key), &local, told))
}

extern "C" fn readwrite(
    ep: Fid<FidEp>,
    operands: In<c_void>,
    number: usize,
    _desc: Context,
    result: Out<c_void>,
    _result_desc: Context,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: Context,
) -> isize {
    let kind = Kind::new(Form::Fetch, datatype, operation);
    let local = Local {
        operands: Elements::One(operands.as_out(), number),
        compared: Elements::None,
        result: Elements::One(result, number),
    };
    let place = place(peer, offset, key);
    count(start(ep, kind, place, &local, Told::default(context)))
}

extern "C" fn readwritev(
    ep: Fid<FidEp>,
    operands: In<Ioc>,
    _desc: In<Context>,
    number: usize,
    results: In<Ioc>,
    _result_desc: In<Context>,
    result_number: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: Context,
) -> isize {
    let kind = Kind::new(Form::Fetch, datatype, operation);
    let local = Local {
        operands: Elements::Pieces(operands, number),
        compared: Elements::None,
        result: Elements::Pieces(results, result_number),
    };
    let place = place(peer, offset, key);
    count(start(ep, kind, place, &local, Told::default(context)))
}

extern "C" fn readwritemsg(
    ep: Fid<FidEp>,
    message: In<MsgAtomic>,
    results: In<Ioc>,
    _result_desc: In<Context>,
    result_number: usize,
    flags: u64,
) -> isize {
    let result = Elements::Pieces(results, result_number);
    start_message(ep, Form::Fetch, message, (Elements::None, result), flags)
}

extern "C" fn compwrite(
    ep: Fid<FidEp>,
    operands: In<c_void>,
    number: usize,
    _desc: Context,
    compared: In<c_void>,
    _compare_desc: Context,
    result: Out<c_void>,
    _result_desc: Context,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: Context,
) -> isize {
    let kind = Kind::new(Form::Compare, datatype, operation);
    let local = Local {
        operands: Elements::One(operands.as_out(), number),
        compared: Elements::One(compared.as_out(), number),
        result: Elements::One(result, number),
    };
    let place = place(peer, offset, key);
    count(start(ep, kind, place, &local, Told::default(context)))
}

extern "C" fn compwritev(
    ep: Fid<FidEp>,
    operands: In<Ioc>,
    _desc: In<Context>,
    number: usize,
    compared: In<Ioc>,
    _compare_desc: In<Context>,
    compare_number: usize,
    results: In<Ioc>,
    _result_desc: In<Context>,
    result_number: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: Context,
) -> isize {
    let kind = Kind::new(Form::Compare, datatype, operation);
    let local = Local {
        operands: Elements::Pieces(operands, number),
        compared: Elements::Pieces(compared, compare_number),
        result: Elements::Pieces(results, result_number),
    };
    let place = place(peer, offset, key);
    count(start(ep, kind, place, &local, Told::default(context)))
}

extern "C" fn compwritemsg(
    ep: Fid<FidEp>,
    message: In<MsgAtomic>,
    compared: In<Ioc>,
    _compare_desc: In<Context>,
    compare_number: usize,
    results: In<Ioc>,
    _result_desc: In<Context>,
    result_number: usize,
    flags: u64,
) -> isize {
    let compared = Elements::Pieces(compared, compare_number);
    let result = Elements::Pieces(results, result_number);
    start_message(ep, Form::Compare, message, (compared, result), flags)
}

/// Tells most elements of an operation, if there is such a one.
fn valid(form: Form, datatype: u32, operation: u32, most: Out<usize>) -> c_int {
    let kind = Kind::new(form, datatype, operation);
    status(kind.and_then(|kind| match most.set(kind.most()) {
        true => Ok(()),
        false => Err(INVALID),
    }))
}

extern "C" fn writevalid(
    _ep: Fid<FidEp>,
    datatype: u32,
    operation: u32,
    most: Out<usize>,
) -> c_int {
    valid(Form::Base, datatype, operation, most)
}

extern "C" fn readwritevalid(
    _ep: Fid<FidEp>,
    datatype: u32,
    operation: u32,
    most: Out<usize>,
) -> c_int {
    valid(Form::Fetch, datatype, operation, most)
}

extern "C" fn compwritevalid(
    _ep: Fid<FidEp>,
    datatype: u32,
    operation: u32,
    most: Out<usize>,
) -> c_int {
    valid(Form::Compare, datatype, operation, most)
}

/// Tells most elements of an operation of any endpoint of a domain, and their size.
pub(crate) extern "C" fn query(
    _domain: Fid<FidDomain>,
    datatype: u32,
    operation: u32,
    attributes: Out<AtomicAttr>,
    flags: u64,
) -> c_int {
    let form = match flags {
        0 => Ok(Form::Base),
        FETCH_ATOMIC => Ok(Form::Fetch),
        COMPARE_ATOMIC => Ok(Form::Compare),
        _ => Err(NO_OPERATION),
    };
    let kind = form.and_then(|form| Kind::new(form, datatype, operation));
    status(kind.and_then(|kind| {
        let attr = AtomicAttr {
            count: kind.most(),
            size: kind.datatype.size(),
        };
        match attributes.set(attr) {
            true => Ok(()),
            false => Err(INVALID),
        }
    }))
}
