//! The provider's entry: what the loader calls first, and its three calls.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use crate::errno::{status, Result, INVALID, NO_DATA};
use crate::fabric;
use crate::info::offer::VERSION;
use crate::info::select::{select, Named, Refused};
use crate::info::{exchange, nics};
use crate::loader;
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{self, FabricAttr, FidFabric, Info, Provider};

struct Shared(UnsafeCell<Provider>);

// SAFETY: only the loader writes to it, and it does so before any other thread uses the provider.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

static PROVIDER: OnceLock<Shared> = OnceLock::new();

/// Where the loader finds this provider, in memory that it may write to.
fn address() -> *mut Provider {
    let provider = PROVIDER.get_or_init(provider).0.get();
    loader::knows(provider);
    provider
}

fn provider() -> Shared {
    Shared(UnsafeCell::new(Provider {
        version: VERSION,
        // Loaders skip a provider that is newer than themselves, or too old for the program.
        fi_version: loader::version(),
        context: [std::ptr::null_mut(); 4],
        name: c"qnic".as_ptr(),
        getinfo,
        fabric,
        cleanup,
    }))
}

/// The entry of libfabric's providers.
#[no_mangle]
pub extern "C" fn fi_prov_ini() -> *mut Provider {
    address()
}

extern "C" fn getinfo(
    version: u32,
    node: In<c_char>,
    service: In<c_char>,
    flags: u64,
    hints: In<Info>,
    infos: Out<*mut Info>,
) -> c_int {
    let named = Named {
        node: node.text(),
        service: service.text(),
        // The flag has the bit of the capability.
        is_source: flags & sys::SOURCE != 0,
    };
    status(
        find(version, named, flags, hints).and_then(|info| match infos.set(info) {
            true => Ok(()),
            false => Err(INVALID),
        }),
    )
}

fn find(version: u32, named: Named<'_>, flags: u64, hints: In<Info>) -> Result<*mut Info> {
    let hints = exchange::hints(hints);
    let found = nics::find().or_else(|| (flags & sys::PROV_ATTR_ONLY != 0).then(String::new));
    let Some(domain) = found else {
        loader::log(sys::LOG_INFO, || {
            "no NIC: load the module qnic, or set QNIC_HOST_SOCKET to a device process's socket"
                .to_owned()
        });
        return Err(NO_DATA);
    };
    match select(&domain, version, named, hints.as_ref()) {
        Ok(offer) => exchange::info(&offer),
        Err(Refused(hint)) => {
            loader::log(sys::LOG_INFO, || format!("cannot meet the hint {hint}"));
            Err(NO_DATA)
        }
    }
}

extern "C" fn fabric(
    _attributes: In<FabricAttr>,
    opened: Out<Fid<FidFabric>>,
    context: Context,
) -> c_int {
    status(fabric::open(opened, context))
}

/// The loader closes this library behind it. All objects are closed by then, and nothing of the provider runs.
extern "C" fn cleanup() {}
