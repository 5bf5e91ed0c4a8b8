//! Names of processes: pairs of an application and a number, which every NIC knows once they are
//! registered. They prove nothing: any process can register one that is free.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::c_int;
use std::sync::Arc;

use qnic::names::Name;
use qnic::Endpoint;
use self_cell::self_cell;

use crate::border::{call, limit, Out, Text};
use crate::endpoint::qnic_endpoint;
use crate::failure::Result;
use crate::handles::{close, get, open};

self_cell!(
    struct NameCell {
        owner: Arc<Endpoint>,
        #[covariant]
        dependent: Name,
    }
);

/// A name that this process has.
pub struct qnic_name(#[allow(dead_code)] NameCell);

/// Gives this process a name: the application, of 1 to 16 bytes, and a number in it. While another
/// process has the name, this waits up to `timeout_ns` nanoseconds. `name` may be null: then the
/// endpoint has the name until it ends.
///
/// Fails with `QNIC_E_NAME_TAKEN`, `QNIC_E_EXHAUSTED`: this process has eight; `QNIC_E_ARGUMENT`.
#[no_mangle]
pub extern "C" fn qnic_name_register(
    endpoint: *mut qnic_endpoint,
    application: Text,
    process: u32,
    timeout_ns: i64,
    name: Out<*mut qnic_name>,
) -> c_int {
    if name.is_null() {
        return call(|| {
            let (endpoint, application) = (get(endpoint)?, application.get()?);
            let names = endpoint.0.names().timeout(limit(timeout_ns));
            names.register(application, process)?.keep();
            Ok(())
        });
    }
    open(name, || {
        let application = application.get()?;
        let cell = NameCell::try_new(get(endpoint)?.0.clone(), |endpoint| -> Result<_> {
            let names = endpoint.names().timeout(limit(timeout_ns));
            Ok(names.register(application, process)?)
        })?;
        Ok(qnic_name(cell))
    })
}

/// Withdraws a name, unless another handle of this process is of the same one.
#[no_mangle]
pub extern "C" fn qnic_name_close(name: *mut qnic_name) -> c_int {
    close(name)
}

/// Finds the process of a name: stores its node and port. Waits up to `timeout_ns` nanoseconds, 10
/// minutes at most, until it is registered.
///
/// Fails with `QNIC_E_NAME_NOT_FOUND`.
#[no_mangle]
pub extern "C" fn qnic_name_find(
    endpoint: *mut qnic_endpoint,
    application: Text,
    process: u32,
    timeout_ns: i64,
    node: Out<u16>,
    port: Out<u16>,
) -> c_int {
    call(|| {
        let endpoint = get(endpoint)?;
        let names = endpoint.0.names();
        let found = names.find(application.get()?, process, limit(timeout_ns))?;
        node.set(found.0 .0)?;
        port.set(found.1 .0)
    })
}
