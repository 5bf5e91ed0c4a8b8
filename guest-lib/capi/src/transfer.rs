//! Writes and reads of remote memory, and what waits for them.
//!
//! A transfer is begun in one of three ways:
//!
//! | call | waits for | failures |
//! |---|---|---|
//! | `qnic_write` | this and all earlier writes to the same process (a fence) | of all of them that have no ticket |
//! | `qnic_write_post` | room in the command queue | its ticket's; without one, the next fence's or flush's |
//! | `qnic_write_begin` | room in the command queue | its request's: it ends by itself |
//!
//! Reads have the same three. Up to the inline limit, source bytes are copied and may lie anywhere;
//! longer ones lie in memory that the endpoint exports, and must not change before the write is
//! complete. A timeout ends the wait only: what was issued goes on.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use qnic::message::Request;
use qnic::rdma::{Read, Write};
use qnic::{Endpoint, NodeId, Port, Signal, Ticket};
use self_cell::self_cell;

use crate::border::{call, limit, timeout, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open, open_if_wanted};
use crate::memory::{qnic_remote, Bytes, Local};
use crate::owned::Base;
use crate::request::{qnic_request, turn};

self_cell!(
    struct TicketCell {
        owner: Arc<Endpoint>,
        #[covariant]
        dependent: Ticket,
    }
);

/// A transfer that was posted. Serves one call at a time.
pub struct qnic_ticket(Mutex<TicketCell>);

/// Posts a transfer; without a place for its ticket, its failure goes to the next fence or flush.
fn posted(
    endpoint: *mut qnic_endpoint,
    ticket: Out<*mut qnic_ticket>,
    post: impl for<'e> FnOnce(&'e Endpoint) -> Result<Ticket<'e>>,
) -> c_int {
    if ticket.is_null() {
        return call(|| post(&get(endpoint)?.0).map(drop));
    }
    open(ticket, || {
        let cell = TicketCell::try_new(get(endpoint)?.0.clone(), |endpoint| post(endpoint))?;
        Ok(qnic_ticket(Mutex::new(cell)))
    })
}

/// Begins a transfer with a completion of its own.
fn begun(
    endpoint: *mut qnic_endpoint,
    request: Out<*mut qnic_request>,
    begin: impl for<'e> FnOnce(&'e Endpoint) -> Result<Request<'e>>,
) -> c_int {
    open_if_wanted(request, || {
        let base = Base::new(&get(endpoint)?.0);
        qnic_request::new(base, |base| begin(&base.endpoint))
    })
}

/// A write as C describes it.
#[derive(Clone, Copy)]
struct WriteCall {
    to: *mut qnic_remote,
    offset: u64,
    source: In<c_void>,
    length: usize,
    notification: u32,
    timeout: Option<Duration>,
}

impl WriteCall {
    /// Describes it to the library, which begins it.
    fn begin<'e, R>(
        self,
        endpoint: &'e Endpoint,
        begin: impl FnOnce(Write<'e, '_>) -> qnic::Result<R>,
    ) -> Result<R> {
        let to = get(self.to)?;
        let mut bytes = Bytes::new();
        let source = bytes.source(endpoint, self.source, self.length)?;
        let mut write = endpoint
            .write(&to.0, self.offset, source)
            .timeout(self.timeout);
        if let Some(signal) = Signal::new(self.notification) {
            write = write.notify(signal);
        }
        Ok(begin(write)?)
    }
}

/// Writes `length` bytes to a remote segment at `offset`, and waits for this and all earlier writes to
/// the same process, up to `timeout_ns` nanoseconds. If `notification` is not 0, it signals that
/// notification of the remote process when all of it is there.
///
/// Fails with `QNIC_E_TIMED_OUT`: the writes go on; `QNIC_E_NOT_EXPORTED`, `QNIC_E_OUT_OF_RANGE`,
/// `QNIC_E_ACCESS_DENIED`, `QNIC_E_PEER_GONE`, …
#[no_mangle]
pub extern "C" fn qnic_write(
    endpoint: *mut qnic_endpoint,
    to: *mut qnic_remote,
    offset: u64,
    source: In<c_void>,
    length: usize,
    notification: u32,
    timeout_ns: i64,
) -> c_int {
    let timeout = timeout(timeout_ns);
    let write = WriteCall {
        to,
        offset,
        source,
        length,
        notification,
        timeout,
    };
    call(|| write.begin(&get(endpoint)?.0, |write| write.fenced()))
}

/// Posts a write; waits only for room in the command queue. `ticket` may be null: then a failure goes
/// to the next fence or flush.
///
/// Fails with `QNIC_E_QUEUE_FULL`: nothing was issued; and as `qnic_write` before it is issued.
#[no_mangle]
pub extern "C" fn qnic_write_post(
    endpoint: *mut qnic_endpoint,
    to: *mut qnic_remote,
    offset: u64,
    source: In<c_void>,
    length: usize,
    notification: u32,
    timeout_ns: i64,
    ticket: Out<*mut qnic_ticket>,
) -> c_int {
    let timeout = timeout(timeout_ns);
    let write = WriteCall {
        to,
        offset,
        source,
        length,
        notification,
        timeout,
    };
    posted(endpoint, ticket, |endpoint| {
        write.begin(endpoint, |write| write.post())
    })
}

/// Begins a write with a completion of its own. `request` may be null: then a failure goes to the next
/// fence or flush.
///
/// Fails as `qnic_write_post`.
#[no_mangle]
pub extern "C" fn qnic_write_begin(
    endpoint: *mut qnic_endpoint,
    to: *mut qnic_remote,
    offset: u64,
    source: In<c_void>,
    length: usize,
    notification: u32,
    timeout_ns: i64,
    request: Out<*mut qnic_request>,
) -> c_int {
    let timeout = timeout(timeout_ns);
    let write = WriteCall {
        to,
        offset,
        source,
        length,
        notification,
        timeout,
    };
    begun(endpoint, request, |endpoint| {
        write.begin(endpoint, |write| write.begin())
    })
}

/// A read as C describes it.
#[derive(Clone, Copy)]
struct ReadCall {
    from: *mut qnic_remote,
    offset: u64,
    destination: Out<c_void>,
    length: usize,
    timeout: Option<Duration>,
}

impl ReadCall {
    fn local(&self, endpoint: &Endpoint) -> Result<Local> {
        Local::new(endpoint, self.destination.address(), self.length)
    }

    fn begin<'e, R>(
        self,
        endpoint: &'e Endpoint,
        begin: impl FnOnce(Read<'e, '_>) -> qnic::Result<R>,
    ) -> Result<R> {
        let (from, local) = (get(self.from)?, self.local(endpoint)?);
        let read = endpoint.read(&from.0, self.offset, local.part());
        Ok(begin(read.timeout(self.timeout))?)
    }
}

/// Reads `length` bytes from a remote segment at `offset` into memory that the endpoint exports, and
/// waits for this and all earlier reads from the same process, up to `timeout_ns` nanoseconds.
///
/// Fails as `qnic_write`.
#[no_mangle]
pub extern "C" fn qnic_read(
    endpoint: *mut qnic_endpoint,
    from: *mut qnic_remote,
    offset: u64,
    destination: Out<c_void>,
    length: usize,
    timeout_ns: i64,
) -> c_int {
    let timeout = timeout(timeout_ns);
    let read = ReadCall {
        from,
        offset,
        destination,
        length,
        timeout,
    };
    call(|| read.begin(&get(endpoint)?.0, |read| read.fenced()))
}

/// Posts a read; waits only for room in the command queue. `ticket` may be null.
///
/// Fails as `qnic_write_post`.
#[no_mangle]
pub extern "C" fn qnic_read_post(
    endpoint: *mut qnic_endpoint,
    from: *mut qnic_remote,
    offset: u64,
    destination: Out<c_void>,
    length: usize,
    timeout_ns: i64,
    ticket: Out<*mut qnic_ticket>,
) -> c_int {
    let timeout = timeout(timeout_ns);
    let read = ReadCall {
        from,
        offset,
        destination,
        length,
        timeout,
    };
    posted(endpoint, ticket, |endpoint| {
        read.begin(endpoint, |read| read.post())
    })
}

/// Begins a read with a completion of its own. `request` may be null.
///
/// Fails as `qnic_write_post`.
#[no_mangle]
pub extern "C" fn qnic_read_begin(
    endpoint: *mut qnic_endpoint,
    from: *mut qnic_remote,
    offset: u64,
    destination: Out<c_void>,
    length: usize,
    timeout_ns: i64,
    request: Out<*mut qnic_request>,
) -> c_int {
    let timeout = timeout(timeout_ns);
    let read = ReadCall {
        from,
        offset,
        destination,
        length,
        timeout,
    };
    begun(endpoint, request, |endpoint| {
        read.begin(endpoint, |read| read.begin())
    })
}

/// Stores the number of a ticket's command among all of its endpoint, from 0 on.
#[no_mangle]
pub extern "C" fn qnic_ticket_number(ticket: *mut qnic_ticket, number: Out<u64>) -> c_int {
    call(|| {
        let ticket = get(ticket)?;
        let value = turn(&ticket.0)?.borrow_dependent().number();
        number.set(value)
    })
}

/// Returns 0 if the transfer and all earlier ones of its kind to the same process have ended, with
/// success or not; `qnic_ticket_wait` says which.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: they go on.
#[no_mangle]
pub extern "C" fn qnic_ticket_test(ticket: *mut qnic_ticket) -> c_int {
    call(|| {
        let ticket = get(ticket)?;
        let has_ended = turn(&ticket.0)?.borrow_dependent().has_ended();
        match has_ended {
            true => Ok(()),
            false => Err(Failure::would_block()),
        }
    })
}

/// Waits until the transfer and all earlier ones of its kind to the same process have ended, up to
/// `timeout_ns` nanoseconds. Its failure is reported once.
///
/// Fails with `QNIC_E_TIMED_OUT`: it goes on, wait again; or with why this transfer failed.
#[no_mangle]
pub extern "C" fn qnic_ticket_wait(ticket: *mut qnic_ticket, timeout_ns: i64) -> c_int {
    call(|| {
        let ticket = get(ticket)?;
        let mut ticket = turn(&ticket.0)?;
        Ok(ticket.with_dependent_mut(|_, ticket| ticket.wait_timeout(limit(timeout_ns)))?)
    })
}

/// Closes a ticket. The transfer goes on, and its failure goes to the next fence or flush.
#[no_mangle]
pub extern "C" fn qnic_ticket_close(ticket: *mut qnic_ticket) -> c_int {
    close(ticket)
}

/// Reads and atomic operations.
pub const QNIC_FLUSH_READS: u32 = 1;
/// Writes.
pub const QNIC_FLUSH_WRITES: u32 = 2;
/// Only the sources of writes: they may be changed afterwards. Reports no failure.
pub const QNIC_FLUSH_SOURCES: u32 = 4;
/// Only transfers to the process of `node` and `port`.
pub const QNIC_FLUSH_PROCESS: u32 = 8;

/// Waits for reads and writes that were issued before, up to `timeout_ns` nanoseconds: those that
/// `flags` name (`QNIC_FLUSH_…`), all with 0.
///
/// Fails with `QNIC_E_TIMED_OUT`: they go on; or with the failures that no ticket and no request tells.
#[no_mangle]
pub extern "C" fn qnic_flush(
    endpoint: *mut qnic_endpoint,
    flags: u32,
    node: u16,
    port: u16,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let endpoint = get(endpoint)?;
        let flush = endpoint.0.flush().timeout(timeout(timeout_ns));
        let kinds = flags & !QNIC_FLUSH_PROCESS;
        let both = QNIC_FLUSH_READS | QNIC_FLUSH_WRITES;
        let flush = match kinds {
            0 => flush,
            QNIC_FLUSH_READS => flush.reads(),
            QNIC_FLUSH_WRITES => flush.writes(),
            QNIC_FLUSH_SOURCES => flush.sources(),
            kinds if kinds == both => flush,
            _ => return Err(Failure::argument("no such flags of a flush")),
        };
        let flush = match flags & QNIC_FLUSH_PROCESS {
            0 => flush,
            _ => flush.to((NodeId(node), Port(port))),
        };
        Ok(flush.wait()?)
    })
}
