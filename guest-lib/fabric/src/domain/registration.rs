//! `fi_mr_reg` and its variants.

use std::ffi::{c_int, c_void};

use super::Domain;
use crate::errno::{status, INVALID, UNSUPPORTED};
use crate::mr::{self, Wanted};
use crate::object;
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{FidMr, Head, Iov, MrAttr, OpsMr};

/// The table of these calls.
pub(super) static OPS: OpsMr = OpsMr {
    size: size_of::<OpsMr>(),
    reg,
    regv,
    regattr,
};

fn register(domain: Fid<Head>, wanted: &Wanted<'_>, opened: Out<Fid<FidMr>>) -> c_int {
    status(object::state::<Domain, _>(domain).and_then(|domain| {
        let regions = domain.base.regions().clone();
        mr::register(domain, regions, wanted, opened)
    }))
}

extern "C" fn reg(
    domain: Fid<Head>,
    base: In<c_void>,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    opened: Out<Fid<FidMr>>,
    context: Context,
) -> c_int {
    let base = base.as_out();
    let wanted = Wanted {
        pieces: &[Iov { base, length }],
        access,
        offset,
        key,
        flags,
        context,
    };
    register(domain, &wanted, opened)
}

extern "C" fn regv(
    domain: Fid<Head>,
    pieces: In<Iov>,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    opened: Out<Fid<FidMr>>,
    context: Context,
) -> c_int {
    let Some(pieces) = pieces.items(count) else {
        return status(Err(INVALID));
    };
    let wanted = Wanted {
        pieces,
        access,
        offset,
        key,
        flags,
        context,
    };
    register(domain, &wanted, opened)
}

extern "C" fn regattr(
    domain: Fid<Head>,
    attributes: In<MrAttr>,
    flags: u64,
    opened: Out<Fid<FidMr>>,
) -> c_int {
    let Some(attributes) = attributes.get() else {
        return status(Err(INVALID));
    };
    if attributes.auth_key_size != 0 {
        return status(Err(UNSUPPORTED));
    }
    regv(
        domain,
        attributes.iov,
        attributes.iov_count,
        attributes.access,
        attributes.offset,
        attributes.requested_key,
        flags,
        opened,
        attributes.context,
    )
}
