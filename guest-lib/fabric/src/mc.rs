//! `fid_mc`: the membership of an endpoint in a group.

use std::ffi::c_int;
use std::sync::Arc;

use crate::address::Address;
use crate::av::COLLECTIVE;
use crate::engine::{Engine, Told};
use crate::eq::Eq;
use crate::errno::{status, Errno, Result, INVALID};
use crate::object::{self, Class};
use crate::pointers::{Context, Fid, Out};
use crate::sys::{FidMc, Head, Ops, CLASS_MC};

/// What the provider keeps of it.
#[derive(Debug)]
pub(crate) struct Mc {
    engine: Arc<Engine>,
    group: u64,
}

crate::object::object_class!(
    Mc,
    FidMc,
    CLASS_MC,
    Ops {
        close,
        ..Ops::STUBS
    }
);

/// Begins to join the group of some members. The event queue is told of its end.
///
/// # Errors
/// Those of [`Engine::join`]; there is no place for it.
pub(crate) fn open(
    engine: &Arc<Engine>,
    events: Arc<Eq>,
    members: &[Address],
    opened: Out<Fid<FidMc>>,
    context: Context,
) -> Result<()> {
    let group = engine.new_group();
    let head = Head {
        class: CLASS_MC,
        context,
        ops: Mc::OPS,
    };
    let address = COLLECTIVE | group;
    let state = Arc::new(Mc {
        engine: engine.clone(),
        group,
    });
    object::open_at(opened, FidMc { head, address }, state)?;
    let fid = opened.get().ok_or(INVALID)?;
    let told = Told {
        events,
        fid: Context::of_object(fid),
        context,
    };
    let joined = engine.join(group, members, told);
    if joined.is_err() {
        object::close::<Mc>(Fid::new(fid.pointer().cast()), |_| Ok(()))?;
    }
    joined
}

/// The group that an address of a collective names.
///
/// # Errors
/// [`INVALID`]: it is none.
pub(crate) fn group_of(address: u64) -> Result<u64> {
    match address & COLLECTIVE {
        0 => Err(INVALID),
        _ => Ok(address & !COLLECTIVE),
    }
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    let leave = |mc: &Arc<Mc>| {
        mc.engine.leave(mc.group);
        Ok::<(), Errno>(())
    };
    status(object::close::<Mc>(fid, leave))
}
