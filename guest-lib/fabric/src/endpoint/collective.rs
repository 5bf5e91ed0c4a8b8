//! Collectives: `fi_join_collective`, `fi_barrier` and its siblings.

use std::ffi::{c_int, c_void};

use qnic::group::MAX_MEMBERS;

use super::messages::is_told;
use super::Ep;
use crate::av::AvSet;
use crate::collective::{size_of_type, Ask, Kind, Reduction, NO_COLLECTIVE};
use crate::engine::Report;
use crate::errno::{count, status, Result, BAD_FLAGS, INVALID, NO_CQ, NO_EQ, UNSUPPORTED};
use crate::info::offer::MESSAGE_MAX;
use crate::mc;
use crate::object;
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    AtomicAttr, CollectiveAddr, CollectiveAttr, FidDomain, FidEp, FidMc, OpsCollective,
    ADDR_UNSPEC, ATOMIC_READ, ATOMIC_WRITE, COLLECTIVE, COMPLETION, DELIVERY_COMPLETE,
    INJECT_COMPLETE, MORE, NOOP, RECV, SEND, TRANSMIT_COMPLETE,
};

/// The table of these calls.
pub(super) static OPS: OpsCollective = OpsCollective {
    barrier,
    broadcast,
    alltoall,
    allreduce,
    allgather,
    reduce_scatter,
    reduce,
    scatter,
    gather,
    barrier2,
    ..OpsCollective::STUBS
};

/// Flags that collectives may have.
const FLAGS: u64 = COMPLETION | INJECT_COMPLETE | TRANSMIT_COMPLETE | DELIVERY_COMPLETE | MORE;

/// What a call says beside what it asks for.
struct Call {
    ep: Fid<FidEp>,
    group: u64,
    root: Option<u64>,
    /// `None`: those of the endpoint.
    flags: Option<u64>,
    context: Context,
}

fn begin(call: &Call, ask: &Ask) -> isize {
    let begin = || {
        let ep = object::state::<Ep, _>(call.ep)?;
        let running = ep.running()?;
        if !ep.collects {
            return Err(UNSUPPORTED);
        }
        let binding = &running.tx;
        if !binding.is_bound() {
            return Err(NO_CQ);
        }
        let flags = call.flags.unwrap_or(ep.tx_flags & FLAGS);
        if flags & !FLAGS != 0 {
            return Err(BAD_FLAGS);
        }
        let report = Report {
            context: call.context,
            flags: COLLECTIVE,
            told: is_told(binding, flags),
            queue: binding.queue.clone(),
            counter: binding.counter.clone(),
            ticket: None,
        };
        let group = mc::group_of(call.group)?;
        running.engine.collect(group, ask, call.root, report)?;
        Ok(0)
    };
    count(begin())
}

/// Joins the group of a set of addresses.
pub(super) extern "C" fn join(
    ep: Fid<FidEp>,
    address: In<CollectiveAddr>,
    flags: u64,
    opened: Out<Fid<FidMc>>,
    context: Context,
) -> c_int {
    let join = || {
        if flags & COLLECTIVE == 0 {
            return Err(UNSUPPORTED);
        }
        if flags & !(COLLECTIVE | SEND | RECV) != 0 {
            return Err(BAD_FLAGS);
        }
        let ep = object::state::<Ep, _>(ep)?;
        let running = ep.running()?;
        if !ep.collects {
            return Err(UNSUPPORTED);
        }
        let (events, av) = {
            let bound = ep.bound();
            (bound.events.clone(), bound.av.clone())
        };
        let (events, av) = (events.ok_or(NO_EQ)?, av.ok_or(INVALID)?);
        let named = address.get().ok_or(INVALID)?;
        let set = object::state::<AvSet, _>(named.set)?;
        let is_own_group =
            || mc::group_of(named.coll_addr).is_ok_and(|it| running.engine.is_member(it));
        let is_known = [ADDR_UNSPEC, set.address()].contains(&named.coll_addr) || is_own_group();
        if !set.is_of(&av) || !is_known {
            return Err(INVALID);
        }
        mc::open(&running.engine, events, &set.addresses()?, opened, context)
    };
    status(join())
}

/// What may be asked for of a collective.
pub(crate) extern "C" fn query(
    _domain: Fid<FidDomain>,
    collective: u32,
    attributes: Out<CollectiveAttr>,
    flags: u64,
) -> c_int {
    let query = || {
        let asked = attributes.get().ok_or(INVALID)?;
        let answer = answer(collective, asked, flags)?;
        match attributes.set(answer) {
            true => Ok(()),
            false => Err(INVALID),
        }
    };
    status(query())
}

fn answer(collective: u32, asked: CollectiveAttr, flags: u64) -> Result<CollectiveAttr> {
    let kind = Kind::new(collective).ok_or(NO_COLLECTIVE)?;
    if flags != 0 {
        return Err(BAD_FLAGS);
    }
    let size = match kind {
        Kind::Barrier => 0,
        kind if kind.reduces() => {
            Reduction::new(asked.datatype, asked.op)?;
            size_of_type(asked.datatype)?
        }
        _ if ![NOOP, ATOMIC_READ, ATOMIC_WRITE].contains(&asked.op) => return Err(NO_COLLECTIVE),
        _ => size_of_type(asked.datatype)?,
    };
    Ok(CollectiveAttr {
        datatype_attr: AtomicAttr {
            count: MESSAGE_MAX.checked_div(size).unwrap_or(0),
            size,
        },
        max_members: MAX_MEMBERS as usize,
        mode: 0,
        ..asked
    })
}

/// The memory of a call: what the program gives, and what it gets.
type Buffers = (In<c_void>, Out<c_void>);

fn ask(
    kind: Kind,
    (datatype, operation): (u32, u32),
    count: usize,
    (given, taken): Buffers,
) -> Ask {
    Ask {
        kind,
        datatype,
        operation,
        count,
        given: given.as_out(),
        taken,
    }
}

fn nothing() -> Ask {
    ask(Kind::Barrier, (0, NOOP), 0, (Out::NULL.as_in(), Out::NULL))
}

extern "C" fn barrier(ep: Fid<FidEp>, group: u64, context: Context) -> isize {
    let call = Call {
        ep,
        group,
        root: None,
        flags: None,
        context,
    };
    begin(&call, &nothing())
}

extern "C" fn barrier2(ep: Fid<FidEp>, group: u64, flags: u64, context: Context) -> isize {
    let call = Call {
        ep,
        group,
        root: None,
        flags: Some(flags),
        context,
    };
    begin(&call, &nothing())
}

extern "C" fn broadcast(
    ep: Fid<FidEp>,
    buffer: Out<c_void>,
    count: usize,
    _desc: Context,
    group: u64,
    root: u64,
    datatype: u32,
    flags: u64,
    context: Context,
) -> isize {
    let call = Call {
        ep,
        group,
        root: Some(root),
        flags: Some(flags),
        context,
    };
    let buffers = (buffer.as_in(), Out::NULL);
    begin(
        &call,
        &ask(Kind::Broadcast, (datatype, NOOP), count, buffers),
    )
}

/// A call of all members alike.
macro_rules! of_all {
    ($($name:ident: $kind:ident),*) => {$(
        extern "C" fn $name(
            ep: Fid<FidEp>,
            given: In<c_void>,
            count: usize,
            _desc: Context,
            taken: Out<c_void>,
            _result_desc: Context,
            group: u64,
            datatype: u32,
            flags: u64,
            context: Context,
        ) -> isize {
            let call = Call { ep, group, root: None, flags: Some(flags), context };
            begin(&call, &ask(Kind::$kind, (datatype, NOOP), count, (given, taken)))
        }
    )*};
}
of_all!(alltoall: Alltoall, allgather: Allgather);

/// A call that reduces for all members alike.
macro_rules! reductions {
    ($($name:ident: $kind:ident),*) => {$(
        extern "C" fn $name(
            ep: Fid<FidEp>,
            given: In<c_void>,
            count: usize,
            _desc: Context,
            taken: Out<c_void>,
            _result_desc: Context,
            group: u64,
            datatype: u32,
            operation: u32,
            flags: u64,
            context: Context,
        ) -> isize {
            let call = Call { ep, group, root: None, flags: Some(flags), context };
            begin(&call, &ask(Kind::$kind, (datatype, operation), count, (given, taken)))
        }
    )*};
}
reductions!(allreduce: Allreduce, reduce_scatter: ReduceScatter);

/// A call with a root.
macro_rules! rooted {
    ($($name:ident: $kind:ident),*) => {$(
        extern "C" fn $name(
            ep: Fid<FidEp>,
            given: In<c_void>,
            count: usize,
            _desc: Context,
            taken: Out<c_void>,
            _result_desc: Context,
            group: u64,
            root: u64,
            datatype: u32,
            flags: u64,
            context: Context,
        ) -> isize {
            let call = Call { ep, group, root: Some(root), flags: Some(flags), context };
            begin(&call, &ask(Kind::$kind, (datatype, NOOP), count, (given, taken)))
        }
    )*};
}
rooted!(scatter: Scatter, gather: Gather);

extern "C" fn reduce(
    ep: Fid<FidEp>,
    given: In<c_void>,
    count: usize,
    _desc: Context,
    taken: Out<c_void>,
    _result_desc: Context,
    group: u64,
    root: u64,
    datatype: u32,
    operation: u32,
    flags: u64,
    context: Context,
) -> isize {
    let call = Call {
        ep,
        group,
        root: Some(root),
        flags: Some(flags),
        context,
    };
    let kinds = (datatype, operation);
    begin(&call, &ask(Kind::Reduce, kinds, count, (given, taken)))
}
