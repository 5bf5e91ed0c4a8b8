//! `fid_fabric`: the network of a NIC. It keeps nothing but how many use it.

use std::ffi::c_int;
use std::sync::Arc;

use crate::cq::Cq;
use crate::domain;
use crate::eq::{self, Eq};
use crate::errno::{status, Result, INVALID};
use crate::loader;
use crate::object::{self, Class};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    EqAttr, FidDomain, FidEq, FidFabric, Head, Info, Ops, OpsFabric, CLASS_CQ, CLASS_EQ,
    CLASS_FABRIC,
};

/// What the provider keeps of a fabric.
#[derive(Debug)]
pub(crate) struct Fabric;

crate::object::object_class!(
    Fabric,
    FidFabric,
    CLASS_FABRIC,
    Ops {
        close,
        ..Ops::STUBS
    }
);

static FABRIC_OPS: OpsFabric = OpsFabric {
    domain,
    eq_open,
    trywait,
    domain2,
    ..OpsFabric::STUBS
};

/// Opens the fabric.
///
/// # Errors
/// [`INVALID`]: there is no place for it.
pub(crate) fn open(opened: Out<Fid<FidFabric>>, context: Context) -> Result<()> {
    let fid = FidFabric {
        head: Head {
            class: CLASS_FABRIC,
            context,
            ops: Fabric::OPS,
        },
        ops: &FABRIC_OPS,
        api_version: loader::version(),
    };
    object::open_at(opened, fid, Arc::new(Fabric))
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<Fabric>(fid, object::unused))
}

extern "C" fn domain(
    fabric: Fid<FidFabric>,
    info: In<Info>,
    opened: Out<Fid<FidDomain>>,
    context: Context,
) -> c_int {
    domain2(fabric, info, opened, 0, context)
}

extern "C" fn domain2(
    fabric: Fid<FidFabric>,
    info: In<Info>,
    opened: Out<Fid<FidDomain>>,
    flags: u64,
    context: Context,
) -> c_int {
    status(
        object::state::<Fabric, _>(fabric).and_then(|fabric| match flags {
            0 => domain::open(fabric, info, opened, context),
            _ => Err(crate::errno::BAD_FLAGS),
        }),
    )
}

extern "C" fn eq_open(
    fabric: Fid<FidFabric>,
    attributes: In<EqAttr>,
    opened: Out<Fid<FidEq>>,
    context: Context,
) -> c_int {
    status(
        object::state::<Fabric, _>(fabric)
            .and_then(|fabric| eq::open(fabric, attributes, opened, context)),
    )
}

/// Tells whether a thread may sleep on the descriptors of these objects: not if there is something to read.
extern "C" fn trywait(fabric: Fid<FidFabric>, fids: In<Fid<Head>>, count: c_int) -> c_int {
    let look = || {
        object::state::<Fabric, _>(fabric)?;
        let fids = usize::try_from(count)
            .ok()
            .and_then(|count| fids.items(count))
            .ok_or(INVALID)?;
        for fid in fids {
            match object::class(*fid)? {
                CLASS_CQ => object::state::<Cq, _>(*fid)?.prepare_to_wait()?,
                CLASS_EQ => object::state::<Eq, _>(*fid)?.prepare_to_wait()?,
                _ => return Err(INVALID),
            }
        }
        Ok(())
    };
    status(look())
}
