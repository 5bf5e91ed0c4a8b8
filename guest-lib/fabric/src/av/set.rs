//! `fid_av_set`: some addresses of an address vector in an order: the members of a group, by rank.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Av;
use crate::address::Address;
use crate::errno::{status, Errno, Result, BAD_FLAGS, INVALID, UNSUPPORTED};
use crate::object::{self, Class};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    AvSetAttr, FidAv, FidAvSet, Head, Ops, OpsAvSet, ADDR_UNSPEC, CLASS_AV_SET, SET_COLLECTIVES,
    UNIVERSE,
};

/// Addresses of sets and groups have this bit; no number of an address vector has it.
pub(crate) const COLLECTIVE: u64 = 1 << 63;
/// Those of sets have this one, too.
const SET: u64 = 1 << 62;

/// What the provider keeps of a set.
#[derive(Debug)]
pub(crate) struct AvSet {
    av: Arc<Av>,
    /// Its address as a group that is to be joined.
    address: u64,
    members: Mutex<Vec<u64>>,
}

crate::object::object_class!(
    AvSet,
    FidAvSet,
    CLASS_AV_SET,
    Ops {
        close,
        ..Ops::STUBS
    }
);

static SET_OPS: OpsAvSet = OpsAvSet {
    set_union,
    intersect,
    diff,
    insert,
    remove,
    addr,
    ..OpsAvSet::STUBS
};

impl AvSet {
    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// It is one of this address vector.
    pub(crate) fn is_of(&self, av: &Arc<Av>) -> bool {
        Arc::ptr_eq(&self.av, av)
    }

    /// The addresses of its members, by rank.
    ///
    /// # Errors
    /// [`INVALID`]: one was removed from the address vector.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>> {
        let members = self.members();
        members.iter().map(|it| self.av.address(*it)).collect()
    }

    fn members(&self) -> MutexGuard<'_, Vec<u64>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The members that a set has at first.
fn initial(av: &Av, attributes: &AvSetAttr) -> Result<Vec<u64>> {
    let AvSetAttr {
        count,
        start_addr,
        end_addr,
        stride,
        flags,
        ..
    } = *attributes;
    let is_there = |number: &u64| av.address(*number).is_ok();
    if flags & UNIVERSE != 0 {
        return Ok((0..av.len()).filter(is_there).collect());
    }
    if (start_addr, end_addr) == (ADDR_UNSPEC, ADDR_UNSPEC) {
        return Ok(Vec::new());
    }
    let step = usize::try_from(stride).ok().filter(|step| *step > 0);
    let step = step.ok_or(INVALID)?;
    if start_addr > end_addr || end_addr >= av.len() {
        return Err(INVALID);
    }
    let members: Vec<u64> = (start_addr..=end_addr)
        .step_by(step)
        .filter(is_there)
        .collect();
    match count > 0 && members.len() > count {
        true => Err(INVALID),
        false => Ok(members),
    }
}

/// Opens a set.
///
/// # Errors
/// [`BAD_FLAGS`]; [`UNSUPPORTED`]: a key of a fabric's manager; [`INVALID`]: a range that the vector does not have.
fn new(
    av: Fid<FidAv>,
    attributes: In<AvSetAttr>,
    opened: Out<Fid<FidAvSet>>,
    context: Context,
) -> Result<()> {
    let av = object::state::<Av, _>(av)?;
    let attributes = attributes.get().ok_or(INVALID)?;
    if attributes.flags & !(UNIVERSE | SET_COLLECTIVES) != 0 {
        return Err(BAD_FLAGS);
    }
    if attributes.comm_key_size != 0 {
        return Err(UNSUPPORTED);
    }
    /// Sets that were opened.
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let members = Mutex::new(initial(&av, &attributes)?);
    // Relaxed: a number by itself.
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    let address = COLLECTIVE | SET | number;
    let head = Head {
        class: CLASS_AV_SET,
        context,
        ops: AvSet::OPS,
    };
    let fid = FidAvSet {
        head,
        ops: &SET_OPS,
    };
    let state = AvSet {
        av,
        address,
        members,
    };
    object::open_at(opened, fid, Arc::new(state))
}

pub(super) extern "C" fn open(
    av: Fid<FidAv>,
    attributes: In<AvSetAttr>,
    opened: Out<Fid<FidAvSet>>,
    context: Context,
) -> c_int {
    status(new(av, attributes, opened, context))
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<AvSet>(fid, object::unused))
}

/// Changes the members of a set by those of another one of the same vector.
fn combine(
    to: Fid<FidAvSet>,
    from: Fid<FidAvSet>,
    change: impl FnOnce(&mut Vec<u64>, &[u64]),
) -> c_int {
    let combine = || {
        let to = object::state::<AvSet, _>(to)?;
        let from = object::state::<AvSet, _>(from)?;
        if !to.is_of(&from.av) {
            return Err(INVALID);
        }
        // A copy: they may be one set.
        let others = from.members().clone();
        change(&mut to.members(), &others);
        Ok(())
    };
    status(combine())
}

extern "C" fn set_union(to: Fid<FidAvSet>, from: Fid<FidAvSet>) -> c_int {
    combine(to, from, |own, others| {
        for other in others {
            if !own.contains(other) {
                own.push(*other);
            }
        }
    })
}

extern "C" fn intersect(to: Fid<FidAvSet>, from: Fid<FidAvSet>) -> c_int {
    combine(to, from, |own, others| own.retain(|it| others.contains(it)))
}

extern "C" fn diff(to: Fid<FidAvSet>, from: Fid<FidAvSet>) -> c_int {
    combine(to, from, |own, others| {
        own.retain(|it| !others.contains(it))
    })
}

extern "C" fn insert(set: Fid<FidAvSet>, number: u64) -> c_int {
    let insert = || {
        let set = object::state::<AvSet, _>(set)?;
        set.av.address(number)?;
        let mut members = set.members();
        if members.contains(&number) {
            return Err(Errno(libc::EEXIST));
        }
        members.push(number);
        Ok(())
    };
    status(insert())
}

extern "C" fn remove(set: Fid<FidAvSet>, number: u64) -> c_int {
    let remove = || {
        let set = object::state::<AvSet, _>(set)?;
        let mut members = set.members();
        let place = members.iter().position(|it| *it == number);
        members.remove(place.ok_or(INVALID)?);
        Ok(())
    };
    status(remove())
}

extern "C" fn addr(set: Fid<FidAvSet>, address: Out<u64>) -> c_int {
    let tell = || {
        let set = object::state::<AvSet, _>(set)?;
        match address.set(set.address) {
            true => Ok(()),
            false => Err(INVALID),
        }
    };
    status(tell())
}
