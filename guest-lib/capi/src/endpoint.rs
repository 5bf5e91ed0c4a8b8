//! An endpoint: this process on a port of its node. (node, port) names it in the network.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use qnic::{Endpoint, NodeId, Port};

use crate::border::{call, head, Context, Out, Text};
use crate::failure::Failure;
use crate::handles::{close, get, open};
use crate::nic::{qnic_nic, qnic_path};

/// A registered process. Serves many threads at once.
pub struct qnic_endpoint(pub(crate) Arc<Endpoint>);

/// Registers this process on a port; 0 asks for any free one. `application`, if it is not null, gives
/// it the name (`application`, `process`) as long as it lives; otherwise it has the place of
/// `qnic_open`.
///
/// Fails with `QNIC_E_PORT_IN_USE`, `QNIC_E_EXHAUSTED`, `QNIC_E_NAME_TAKEN`, `QNIC_E_ARGUMENT`.
#[no_mangle]
pub extern "C" fn qnic_register(
    nic: *mut qnic_nic,
    port: u16,
    application: Text,
    process: u32,
    endpoint: Out<*mut qnic_endpoint>,
) -> c_int {
    open(endpoint, || {
        let nic = &get(nic)?.0;
        let registered = match application.optional()? {
            None => nic.register(Port(port))?,
            Some(application) => nic.register_as(Port(port), application, process)?,
        };
        Ok(qnic_endpoint(Arc::new(registered)))
    })
}

/// Closes the handle. The endpoint ends when all that was made from it is closed, too.
#[no_mangle]
pub extern "C" fn qnic_endpoint_close(endpoint: *mut qnic_endpoint) -> c_int {
    close(endpoint)
}

/// An endpoint, and what the library has counted for it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_endpoint_info {
    /// Size of this structure.
    pub size: usize,
    /// Node number.
    pub node: u16,
    /// Port.
    pub port: u16,
    /// Most bytes of a segment that travel in the command.
    pub inline_max: u32,
    /// After what silence its NIC gives up another one, in nanoseconds.
    pub peer_timeout_ns: u64,
    /// Sends that have failed and whose end was not to be reported.
    pub failed_sends: u64,
    /// Commands that its queue has room for.
    pub command_entries: u32,
    /// Contexts for Sends, and as many for receives.
    pub contexts: u32,
    /// Pages of its buffer pool.
    pub pool_pages: u32,
    /// Pages of its buffer pool that are free, not necessarily in one run.
    pub free_pool_pages: u32,
}

head!(qnic_endpoint_info {
    node,
    port,
    inline_max,
    peer_timeout_ns,
    failed_sends,
    command_entries,
    contexts,
    pool_pages,
    free_pool_pages
});

/// Describes an endpoint.
#[no_mangle]
pub extern "C" fn qnic_endpoint_get_info(
    endpoint: *mut qnic_endpoint,
    info: Out<qnic_endpoint_info>,
) -> c_int {
    call(|| {
        let endpoint = &get(endpoint)?.0;
        let counts = endpoint.pool().counts();
        info.set_head(qnic_endpoint_info {
            size: size_of::<qnic_endpoint_info>(),
            node: endpoint.node().0,
            port: endpoint.port().0,
            inline_max: endpoint.inline_max() as u32,
            peer_timeout_ns: endpoint.peer_timeout().as_nanos() as u64,
            failed_sends: endpoint.statistics().failed_sends,
            command_entries: counts.command_entries,
            contexts: counts.contexts,
            pool_pages: counts.pool_pages,
            free_pool_pages: endpoint.pool().free() as u32,
        })
    })
}

/// Tells how long transfers took from their post until a wait saw them complete: calls `each` for every
/// range of times, with the longest of it in nanoseconds (`UINT64_MAX` of the last one) and their number,
/// on this thread before this function returns. The first transfer and every 61st after it are timed, if
/// the program waits for them.
#[no_mangle]
pub extern "C" fn qnic_endpoint_times(
    endpoint: *mut qnic_endpoint,
    each: Option<extern "C" fn(context: *mut c_void, longest_ns: u64, count: u64)>,
    context: Context,
) -> c_int {
    call(|| {
        let each = each.ok_or_else(|| Failure::argument("the function of a histogram is null"))?;
        for (longest, count) in get(endpoint)?.0.statistics().times_to_seen.buckets() {
            each(context.get(), longest.unwrap_or(u64::MAX), count);
        }
        Ok(())
    })
}

/// What the route to a node is like. Without a session of the two NICs, the other one is asked, for
/// five seconds at most.
///
/// Fails with `QNIC_E_NO_PATH`.
#[no_mangle]
pub extern "C" fn qnic_endpoint_path(
    endpoint: *mut qnic_endpoint,
    node: u16,
    path: Out<qnic_path>,
) -> c_int {
    call(|| path.set_head(get(endpoint)?.0.path(NodeId(node))?.into()))
}

/// Bounds the Sends that wait in the library because the NIC has no place for them: `most` in all.
#[no_mangle]
pub extern "C" fn qnic_endpoint_hold_sends(endpoint: *mut qnic_endpoint, most: usize) -> c_int {
    call(|| {
        get(endpoint)?.0.hold_sends(most);
        Ok(())
    })
}

/// Starts the command queue again after `QNIC_E_QUEUE_FAILED`. Commands in it are dropped.
///
/// Fails with `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_endpoint_reset_queue(endpoint: *mut qnic_endpoint) -> c_int {
    call(|| Ok(get(endpoint)?.0.reset_queue()?))
}

/// Calls `post` on this thread, and tells the NIC of all commands that it has posted at once, when it
/// has returned.
#[no_mangle]
pub extern "C" fn qnic_endpoint_batch(
    endpoint: *mut qnic_endpoint,
    post: Option<extern "C" fn(context: *mut c_void)>,
    context: Context,
) -> c_int {
    call(|| {
        let post = post.ok_or_else(|| Failure::argument("the function of a batch is null"))?;
        get(endpoint)?.0.batch(|| post(context.get()));
        Ok(())
    })
}
