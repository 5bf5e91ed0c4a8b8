//! `fid_mr`: memory that peers may read and write, by a key.
//!
//! ```text
//!   fi_mr_reg ─► Regions: key ─► Region: pieces of memory, access, counter ◄─ requests of peers (service)
//!   fi_close  ─► the key is free at once; it waits while bytes are copied
//! ```
//! Keys are the program's, all 64 bits, and peers name bytes by their offset. For programs that ask for
//! FI_MR_BASIC, keys are the provider's, and peers name bytes by their addresses. Nothing is pinned, exported or looked
//! at when memory is registered: regions may overlap, and hold addresses that nothing backs.
//!
//! # Invariants
//! - When a close has returned, no byte of the region is read or written for a peer any more.
//! - Two regions never have the same key.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::cntr::Cntr;
use crate::errno::{status, Result, BAD_FLAGS, INVALID, UNSUPPORTED};
use crate::memory::Memory;
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, Out};
use crate::regions::{Region, Regions};
use crate::sys::{
    FidMr, Head, Iov, Ops, CLASS_CNTR, CLASS_EP, CLASS_MR, CONTROL_ENABLE, CONTROL_REFRESH, READ,
    RECV, REMOTE_READ, REMOTE_WRITE, RMA_EVENT, SEND, WRITE,
};

/// What memory may be used for.
const ACCESS: u64 = SEND | RECV | READ | WRITE | REMOTE_READ | REMOTE_WRITE;

/// What the provider keeps of a registration.
#[derive(Debug)]
pub(crate) struct Mr {
    region: Arc<Region>,
    regions: Arc<Regions>,
    key: u64,
    _domain: Parent,
}

crate::object::object_class!(
    Mr,
    FidMr,
    CLASS_MR,
    Ops {
        close,
        bind,
        control,
        ..Ops::STUBS
    }
);

/// What a program registers.
pub(crate) struct Wanted<'a> {
    pub(crate) pieces: &'a [Iov],
    pub(crate) access: u64,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) flags: u64,
    pub(crate) context: Context,
}

/// Registers memory.
///
/// # Errors
/// [`BAD_FLAGS`], [`INVALID`]; -FI_ENOKEY: another region has the key.
pub(crate) fn register(
    domain: Parent,
    regions: Arc<Regions>,
    wanted: &Wanted<'_>,
    opened: Out<Fid<FidMr>>,
) -> Result<()> {
    if wanted.flags & !RMA_EVENT != 0 {
        return Err(BAD_FLAGS);
    }
    // The offset is reserved.
    if wanted.access & !ACCESS != 0 || wanted.offset != 0 || opened.is_null() {
        return Err(INVALID);
    }
    let memory = Memory::registered(wanted.pieces)?;
    let first = match regions.is_basic() {
        // One address can name the bytes of one piece only.
        true if memory.pieces() > 1 => return Err(INVALID),
        true => memory.base().address() as u64,
        false => 0,
    };
    let region = Arc::new(Region::new(memory, first, wanted.access));
    let key = regions.insert(wanted.key, region.clone())?;
    let fid = FidMr {
        head: Head {
            class: CLASS_MR,
            context: wanted.context,
            ops: Mr::OPS,
        },
        mem_desc: Context::NULL,
        key,
    };
    let state = Mr {
        region,
        regions,
        key,
        _domain: domain,
    };
    object::open_at(opened, fid, Arc::new(state))
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    let end = |mr: &Arc<Mr>| {
        mr.regions.close(mr.key);
        Ok(())
    };
    status(object::close::<Mr>(fid, end))
}

/// Binds a counter of peers' writes. An endpoint needs no binding: each of the domain reaches the region.
extern "C" fn bind(fid: Fid<Head>, other: Fid<Head>, flags: u64) -> c_int {
    let bind = || {
        let mr = object::state::<Mr, _>(fid)?;
        match object::class(other)? {
            CLASS_EP => Ok(()),
            CLASS_CNTR if flags & !(REMOTE_WRITE | REMOTE_READ) != 0 => Err(BAD_FLAGS),
            CLASS_CNTR => {
                let counter: Arc<Cntr> = object::state(other)?;
                mr.region.bind(&counter);
                Ok(())
            }
            _ => Err(INVALID),
        }
    };
    status(bind())
}

/// A region is enabled from its registration on, and nothing is kept of its pages that could become stale.
extern "C" fn control(fid: Fid<Head>, command: c_int, _argument: Out<c_void>) -> c_int {
    let known = match command {
        CONTROL_ENABLE | CONTROL_REFRESH => Ok(()),
        _ => Err(UNSUPPORTED),
    };
    status(object::state::<Mr, _>(fid).and(known))
}
