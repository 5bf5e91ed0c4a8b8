//! Function tables, and the stubs that stand in slots that the provider does not serve.

use std::ffi::{c_char, c_int, c_void};

use super::{
    AtomicAttr, AvAttr, AvSetAttr, CntrAttr, CollectiveAddr, CollectiveAttr, CqAttr, CqErrEntry,
    EqAttr, EqErrEntry, FidAv, FidAvSet, FidCntr, FidCq, FidDomain, FidEp, FidEq, FidFabric, FidMc,
    FidMr, Head, Info, Ioc, Iov, MrAttr, Msg, MsgAtomic, MsgRma, MsgTagged,
};
use crate::pointers::{Context, Fid, In, Out};

/// What a stub returns: that it is one.
trait Unsupported {
    const VALUE: Self;
}

impl Unsupported for c_int {
    const VALUE: Self = -libc::ENOSYS;
}

impl Unsupported for isize {
    const VALUE: Self = -(libc::ENOSYS as isize);
}

impl Unsupported for u64 {
    const VALUE: Self = 0;
}

impl Unsupported for *const c_char {
    const VALUE: Self = std::ptr::null();
}

/// Declares a table, and `STUBS`, a value of it in which each slot is a stub.
macro_rules! table {
    ($c:literal $name:ident = $size:literal {
        $($slot:ident($($type:ty),* $(,)?) -> $return:ty;)*
    }) => {
        #[doc = concat!("`struct ", $c, "`")]
        #[derive(Debug)]
        #[repr(C)]
        pub(crate) struct $name {
            pub size: usize,
            $(pub $slot: extern "C" fn($($type),*) -> $return,)*
        }

        impl $name {
            #[allow(dead_code, reason = "of a table that is served whole")]
            #[doc = concat!("A `", stringify!($name), "` that serves nothing.")]
            pub(crate) const STUBS: Self = {
                $(extern "C" fn $slot($(_: $type),*) -> $return {
                    <$return as Unsupported>::VALUE
                })*
                $name { size: size_of::<Self>(), $($slot,)* }
            };
        }

        const _: () = assert!(size_of::<$name>() == $size);
    };
}

type Ep = Fid<FidEp>;
type Descriptor = Context;
/// Arguments of calls that nothing here serves: pointers, of whatever type they are.
type Any = *mut c_void;

table!("fi_ops" Ops = 56 {
    close(Fid<Head>) -> c_int;
    bind(Fid<Head>, Fid<Head>, u64) -> c_int;
    control(Fid<Head>, c_int, Out<c_void>) -> c_int;
    ops_open(Fid<Head>, In<c_char>, u64, Any, Context) -> c_int;
    tostr(Fid<Head>, Out<c_char>, usize) -> c_int;
    ops_set(Fid<Head>, In<c_char>, u64, Any, Context) -> c_int;
});

table!("fi_ops_fabric" OpsFabric = 56 {
    domain(Fid<FidFabric>, In<Info>, Out<Fid<FidDomain>>, Context) -> c_int;
    passive_ep(Fid<FidFabric>, In<Info>, Any, Context) -> c_int;
    eq_open(Fid<FidFabric>, In<EqAttr>, Out<Fid<FidEq>>, Context) -> c_int;
    wait_open(Fid<FidFabric>, Any, Any) -> c_int;
    trywait(Fid<FidFabric>, In<Fid<Head>>, c_int) -> c_int;
    domain2(Fid<FidFabric>, In<Info>, Out<Fid<FidDomain>>, u64, Context) -> c_int;
});

table!("fi_ops_domain" OpsDomain = 96 {
    av_open(Fid<FidDomain>, In<AvAttr>, Out<Fid<FidAv>>, Context) -> c_int;
    cq_open(Fid<FidDomain>, In<CqAttr>, Out<Fid<FidCq>>, Context) -> c_int;
    endpoint(Fid<FidDomain>, In<Info>, Out<Fid<FidEp>>, Context) -> c_int;
    scalable_ep(Fid<FidDomain>, In<Info>, Any, Context) -> c_int;
    cntr_open(Fid<FidDomain>, In<CntrAttr>, Out<Fid<FidCntr>>, Context) -> c_int;
    poll_open(Fid<FidDomain>, Any, Any) -> c_int;
    stx_ctx(Fid<FidDomain>, Any, Any, Context) -> c_int;
    srx_ctx(Fid<FidDomain>, Any, Any, Context) -> c_int;
    query_atomic(Fid<FidDomain>, u32, u32, Out<AtomicAttr>, u64) -> c_int;
    query_collective(Fid<FidDomain>, u32, Out<CollectiveAttr>, u64) -> c_int;
    endpoint2(Fid<FidDomain>, In<Info>, Out<Fid<FidEp>>, u64, Context) -> c_int;
});

table!("fi_ops_mr" OpsMr = 32 {
    reg(Fid<Head>, In<c_void>, usize, u64, u64, u64, u64, Out<Fid<FidMr>>, Context) -> c_int;
    regv(Fid<Head>, In<Iov>, usize, u64, u64, u64, u64, Out<Fid<FidMr>>, Context) -> c_int;
    regattr(Fid<Head>, In<MrAttr>, u64, Out<Fid<FidMr>>) -> c_int;
});

table!("fi_ops_av" OpsAv = 88 {
    insert(Fid<FidAv>, In<c_void>, usize, Out<u64>, u64, Out<c_int>) -> c_int;
    insertsvc(Fid<FidAv>, In<c_char>, In<c_char>, Out<u64>, u64, Context) -> c_int;
    insertsym(Fid<FidAv>, In<c_char>, usize, In<c_char>, usize, Out<u64>, u64, Context) -> c_int;
    remove(Fid<FidAv>, In<u64>, usize, u64) -> c_int;
    lookup(Fid<FidAv>, u64, Out<c_void>, Out<usize>) -> c_int;
    straddr(Fid<FidAv>, In<c_void>, Out<c_void>, Out<usize>) -> *const c_char;
    av_set(Fid<FidAv>, In<AvSetAttr>, Out<Fid<FidAvSet>>, Context) -> c_int;
    insert_auth_key(Fid<FidAv>, In<c_void>, usize, Out<u64>, u64) -> c_int;
    lookup_auth_key(Fid<FidAv>, u64, Any, Out<usize>) -> c_int;
    set_user_id(Fid<FidAv>, u64, u64, u64) -> c_int;
});

table!("fi_ops_cq" OpsCq = 64 {
    read(Fid<FidCq>, Out<c_void>, usize) -> isize;
    readfrom(Fid<FidCq>, Out<c_void>, usize, Out<u64>) -> isize;
    readerr(Fid<FidCq>, Out<CqErrEntry>, u64) -> isize;
    sread(Fid<FidCq>, Out<c_void>, usize, In<c_void>, c_int) -> isize;
    sreadfrom(Fid<FidCq>, Out<c_void>, usize, Out<u64>, In<c_void>, c_int) -> isize;
    signal(Fid<FidCq>) -> c_int;
    strerror(Fid<FidCq>, c_int, In<c_void>, Out<c_void>, usize) -> *const c_char;
});

table!("fi_ops_cntr" OpsCntr = 64 {
    read(Fid<FidCntr>) -> u64;
    readerr(Fid<FidCntr>) -> u64;
    add(Fid<FidCntr>, u64) -> c_int;
    set(Fid<FidCntr>, u64) -> c_int;
    wait(Fid<FidCntr>, u64, c_int) -> c_int;
    adderr(Fid<FidCntr>, u64) -> c_int;
    seterr(Fid<FidCntr>, u64) -> c_int;
});

table!("fi_ops_eq" OpsEq = 48 {
    read(Fid<FidEq>, Out<u32>, Out<c_void>, usize, u64) -> isize;
    readerr(Fid<FidEq>, Out<EqErrEntry>, u64) -> isize;
    write(Fid<FidEq>, u32, In<c_void>, usize, u64) -> isize;
    sread(Fid<FidEq>, Out<u32>, Out<c_void>, usize, c_int, u64) -> isize;
    strerror(Fid<FidEq>, c_int, In<c_void>, Out<c_void>, usize) -> *const c_char;
});

table!("fi_ops_ep" OpsEp = 64 {
    cancel(Fid<Head>, Context) -> isize;
    getopt(Fid<Head>, c_int, c_int, Out<c_void>, Out<usize>) -> c_int;
    setopt(Fid<Head>, c_int, c_int, In<c_void>, usize) -> c_int;
    tx_ctx(Ep, c_int, Any, Any, Context) -> c_int;
    rx_ctx(Ep, c_int, Any, Any, Context) -> c_int;
    rx_size_left(Ep) -> isize;
    tx_size_left(Ep) -> isize;
});

table!("fi_ops_cm" OpsCm = 80 {
    setname(Fid<Head>, Any, usize) -> c_int;
    getname(Fid<Head>, Out<c_void>, Out<usize>) -> c_int;
    getpeer(Ep, Any, Out<usize>) -> c_int;
    connect(Ep, Any, Any, usize) -> c_int;
    listen(Any) -> c_int;
    accept(Ep, Any, usize) -> c_int;
    reject(Any, Any, Any, usize) -> c_int;
    shutdown(Ep, u64) -> c_int;
    join(Ep, In<CollectiveAddr>, u64, Out<Fid<FidMc>>, Context) -> c_int;
});

table!("fi_ops_msg" OpsMsg = 80 {
    recv(Ep, Out<c_void>, usize, Descriptor, u64, Context) -> isize;
    recvv(Ep, In<Iov>, In<Descriptor>, usize, u64, Context) -> isize;
    recvmsg(Ep, In<Msg>, u64) -> isize;
    send(Ep, In<c_void>, usize, Descriptor, u64, Context) -> isize;
    sendv(Ep, In<Iov>, In<Descriptor>, usize, u64, Context) -> isize;
    sendmsg(Ep, In<Msg>, u64) -> isize;
    inject(Ep, In<c_void>, usize, u64) -> isize;
    senddata(Ep, In<c_void>, usize, Descriptor, u64, u64, Context) -> isize;
    injectdata(Ep, In<c_void>, usize, u64, u64) -> isize;
});

table!("fi_ops_tagged" OpsTagged = 80 {
    recv(Ep, Out<c_void>, usize, Descriptor, u64, u64, u64, Context) -> isize;
    recvv(Ep, In<Iov>, In<Descriptor>, usize, u64, u64, u64, Context) -> isize;
    recvmsg(Ep, In<MsgTagged>, u64) -> isize;
    send(Ep, In<c_void>, usize, Descriptor, u64, u64, Context) -> isize;
    sendv(Ep, In<Iov>, In<Descriptor>, usize, u64, u64, Context) -> isize;
    sendmsg(Ep, In<MsgTagged>, u64) -> isize;
    inject(Ep, In<c_void>, usize, u64, u64) -> isize;
    senddata(Ep, In<c_void>, usize, Descriptor, u64, u64, u64, Context) -> isize;
    injectdata(Ep, In<c_void>, usize, u64, u64, u64) -> isize;
});

table!("fi_ops_rma" OpsRma = 80 {
    read(Ep, Out<c_void>, usize, Descriptor, u64, u64, u64, Context) -> isize;
    readv(Ep, In<Iov>, In<Descriptor>, usize, u64, u64, u64, Context) -> isize;
    readmsg(Ep, In<MsgRma>, u64) -> isize;
    write(Ep, In<c_void>, usize, Descriptor, u64, u64, u64, Context) -> isize;
    writev(Ep, In<Iov>, In<Descriptor>, usize, u64, u64, u64, Context) -> isize;
    writemsg(Ep, In<MsgRma>, u64) -> isize;
    inject(Ep, In<c_void>, usize, u64, u64, u64) -> isize;
    writedata(Ep, In<c_void>, usize, Descriptor, u64, u64, u64, u64, Context) -> isize;
    injectdata(Ep, In<c_void>, usize, u64, u64, u64, u64) -> isize;
});

/// Descriptors of pieces of memory.
type Descriptors = In<Descriptor>;

table!("fi_ops_atomic" OpsAtomic = 112 {
    write(Ep, In<c_void>, usize, Descriptor, u64, u64, u64, u32, u32, Context) -> isize;
    writev(Ep, In<Ioc>, Descriptors, usize, u64, u64, u64, u32, u32, Context) -> isize;
    writemsg(Ep, In<MsgAtomic>, u64) -> isize;
    inject(Ep, In<c_void>, usize, u64, u64, u64, u32, u32) -> isize;
    readwrite(
        Ep, In<c_void>, usize, Descriptor, Out<c_void>, Descriptor, u64, u64, u64, u32, u32, Context,
    ) -> isize;
    readwritev(
        Ep, In<Ioc>, Descriptors, usize, In<Ioc>, Descriptors, usize, u64, u64, u64, u32, u32,
        Context,
    ) -> isize;
    readwritemsg(Ep, In<MsgAtomic>, In<Ioc>, Descriptors, usize, u64) -> isize;
    compwrite(
        Ep, In<c_void>, usize, Descriptor, In<c_void>, Descriptor, Out<c_void>, Descriptor, u64,
        u64, u64, u32, u32, Context,
    ) -> isize;
    compwritev(
        Ep, In<Ioc>, Descriptors, usize, In<Ioc>, Descriptors, usize, In<Ioc>, Descriptors, usize,
        u64, u64, u64, u32, u32, Context,
    ) -> isize;
    compwritemsg(
        Ep, In<MsgAtomic>, In<Ioc>, Descriptors, usize, In<Ioc>, Descriptors, usize, u64,
    ) -> isize;
    writevalid(Ep, u32, u32, Out<usize>) -> c_int;
    readwritevalid(Ep, u32, u32, Out<usize>) -> c_int;
    compwritevalid(Ep, u32, u32, Out<usize>) -> c_int;
});

table!("fi_ops_av_set" OpsAvSet = 56 {
    set_union(Fid<FidAvSet>, Fid<FidAvSet>) -> c_int;
    intersect(Fid<FidAvSet>, Fid<FidAvSet>) -> c_int;
    diff(Fid<FidAvSet>, Fid<FidAvSet>) -> c_int;
    insert(Fid<FidAvSet>, u64) -> c_int;
    remove(Fid<FidAvSet>, u64) -> c_int;
    addr(Fid<FidAvSet>, Out<u64>) -> c_int;
});

type Bytes = In<c_void>;
type Room = Out<c_void>;

table!("fi_ops_collective" OpsCollective = 96 {
    barrier(Ep, u64, Context) -> isize;
    broadcast(Ep, Room, usize, Descriptor, u64, u64, u32, u64, Context) -> isize;
    alltoall(Ep, Bytes, usize, Descriptor, Room, Descriptor, u64, u32, u64, Context) -> isize;
    allreduce(
        Ep, Bytes, usize, Descriptor, Room, Descriptor, u64, u32, u32, u64, Context,
    ) -> isize;
    allgather(Ep, Bytes, usize, Descriptor, Room, Descriptor, u64, u32, u64, Context) -> isize;
    reduce_scatter(
        Ep, Bytes, usize, Descriptor, Room, Descriptor, u64, u32, u32, u64, Context,
    ) -> isize;
    reduce(
        Ep, Bytes, usize, Descriptor, Room, Descriptor, u64, u64, u32, u32, u64, Context,
    ) -> isize;
    scatter(
        Ep, Bytes, usize, Descriptor, Room, Descriptor, u64, u64, u32, u64, Context,
    ) -> isize;
    gather(Ep, Bytes, usize, Descriptor, Room, Descriptor, u64, u64, u32, u64, Context) -> isize;
    msg(Ep, Any, Any, u64) -> isize;
    barrier2(Ep, u64, u64, Context) -> isize;
});
