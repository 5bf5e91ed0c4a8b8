//! `fid_domain`: a NIC. The domains of a process share it, as in host mode the process is its node.

mod registration;

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use qnic::Nic;

use crate::av;
use crate::base::Base;
use crate::cntr;
use crate::cq;
use crate::endpoint;
use crate::eq::Eq;
use crate::errno::{status, Errno, Result, BAD_FLAGS, NO_EQ};
use crate::info::exchange;
use crate::loader;
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, In, Out};
use crate::regions::Regions;
use crate::sys::{
    AvAttr, CntrAttr, CqAttr, FidAv, FidCntr, FidCq, FidDomain, FidEp, Head, Info, Ops, OpsDomain,
    CLASS_DOMAIN, LOG_WARN, MR_BASIC,
};

/// What the provider keeps of a domain.
#[derive(Debug)]
pub(crate) struct Domain {
    base: Arc<Base>,
    _fabric: Parent,
    /// Where its events go; none come yet.
    events: Mutex<Option<Arc<Eq>>>,
}

crate::object::object_class!(
    Domain,
    FidDomain,
    CLASS_DOMAIN,
    Ops {
        close,
        bind,
        ..Ops::STUBS
    }
);

static DOMAIN_OPS: OpsDomain = OpsDomain {
    av_open,
    cq_open,
    cntr_open,
    endpoint,
    endpoint2,
    query_atomic: endpoint::query_atomic,
    query_collective: endpoint::query_collective,
    ..OpsDomain::STUBS
};

/// The NIC that this process has open.
static NIC: Mutex<Weak<Nic>> = Mutex::new(Weak::new());

fn nic() -> Result<Arc<Nic>> {
    let mut open = NIC.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(nic) = open.upgrade() {
        return Ok(nic);
    }
    let nic = Nic::open().map_err(|error| {
        loader::log(LOG_WARN, || error.to_string());
        Errno::from(error)
    })?;
    let nic = Arc::new(nic);
    *open = Arc::downgrade(&nic);
    Ok(nic)
}

/// The service of a domain's memory.
#[cfg(test)]
pub(crate) fn service_of(domain: Fid<FidDomain>) -> Arc<crate::service::Service> {
    let base = of(domain).unwrap().base.clone();
    base.with_service(|running| running.service.clone())
        .unwrap()
}

/// Opens the NIC, if no domain has, and a domain on it.
///
/// # Errors
/// Those of [`Nic::open`]; there is no place for it.
pub(crate) fn open(
    fabric: Parent,
    info: In<Info>,
    opened: Out<Fid<FidDomain>>,
    context: Context,
) -> Result<()> {
    open_on(nic()?, fabric, info, opened, context)
}

/// Opens a domain on a NIC.
pub(crate) fn open_on(
    nic: Arc<Nic>,
    fabric: Parent,
    info: In<Info>,
    opened: Out<Fid<FidDomain>>,
    context: Context,
) -> Result<()> {
    let fid = FidDomain {
        head: Head {
            class: CLASS_DOMAIN,
            context,
            ops: Domain::OPS,
        },
        ops: &DOMAIN_OPS,
        mr: &registration::OPS,
    };
    let events = Mutex::new(None);
    let modes = exchange::hints(info).and_then(|info| info.domain);
    let is_basic = modes.is_some_and(|domain| domain.mr_mode & MR_BASIC != 0);
    let base = Arc::new(Base::new(nic, Regions::new(is_basic)));
    object::open_at(
        opened,
        fid,
        Arc::new(Domain {
            base,
            _fabric: fabric,
            events,
        }),
    )
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<Domain>(fid, object::unused))
}

extern "C" fn bind(fid: Fid<Head>, queue: Fid<Head>, flags: u64) -> c_int {
    let bind = || {
        let domain = object::state::<Domain, _>(fid)?;
        let queue = object::state::<Eq, _>(queue).map_err(|_| NO_EQ)?;
        // Registration of memory as an event.
        if flags != 0 {
            return Err(BAD_FLAGS);
        }
        *domain.events.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
        Ok(())
    };
    status(bind())
}

fn of(domain: Fid<FidDomain>) -> Result<Arc<Domain>> {
    object::state::<Domain, _>(domain)
}

extern "C" fn av_open(
    domain: Fid<FidDomain>,
    attributes: In<AvAttr>,
    opened: Out<Fid<FidAv>>,
    context: Context,
) -> c_int {
    status(of(domain).and_then(|domain| av::open(domain, attributes, opened, context)))
}

extern "C" fn cq_open(
    domain: Fid<FidDomain>,
    attributes: In<CqAttr>,
    opened: Out<Fid<FidCq>>,
    context: Context,
) -> c_int {
    status(of(domain).and_then(|domain| cq::open(domain, attributes, opened, context)))
}

extern "C" fn cntr_open(
    domain: Fid<FidDomain>,
    attributes: In<CntrAttr>,
    opened: Out<Fid<FidCntr>>,
    context: Context,
) -> c_int {
    status(of(domain).and_then(|domain| cntr::open(domain, attributes, opened, context)))
}

extern "C" fn endpoint(
    domain: Fid<FidDomain>,
    info: In<Info>,
    opened: Out<Fid<FidEp>>,
    context: Context,
) -> c_int {
    status(
        of(domain)
            .and_then(|domain| endpoint::open(domain.base.clone(), domain, info, opened, context)),
    )
}

extern "C" fn endpoint2(
    domain: Fid<FidDomain>,
    info: In<Info>,
    opened: Out<Fid<FidEp>>,
    flags: u64,
    context: Context,
) -> c_int {
    match flags {
        0 => endpoint(domain, info, opened, context),
        _ => status(Err(BAD_FLAGS)),
    }
}
