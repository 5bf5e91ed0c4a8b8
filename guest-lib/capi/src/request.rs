//! Requests: operations with a completion of their own, of whatever kind. Messages, transfers and
//! atomic operations of one endpoint can be waited for together.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use qnic::message::Completion;

use crate::border::{call, head, timeout, In, Out};
use crate::failure::{Failure, Result};
use crate::handles::{close, get};
use crate::owned::{wait_all, wait_any, Base, Owned};

/// A message that is being sent, a receive that is posted, or a transfer with a completion of its own.
/// Serves one call at a time.
pub struct qnic_request(Mutex<Owned>);

impl qnic_request {
    /// Begins a request.
    pub(crate) fn new(
        base: Base,
        begin: impl for<'a> FnOnce(&'a Base) -> Result<qnic::message::Request<'a>>,
    ) -> Result<Self> {
        Ok(qnic_request(Mutex::new(Owned::new(base, begin)?)))
    }
}

/// The turn of a call at an object that serves one at a time.
///
/// # Errors
/// [`QNIC_E_BUSY`](crate::codes::QNIC_E_BUSY)
pub(crate) fn turn<T>(object: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    match object.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
        Err(TryLockError::WouldBlock) => Err(Failure::busy()),
    }
}

/// The message is longer than its receive: what fits has arrived.
pub const QNIC_COMPLETION_TRUNCATED: u32 = 1;

/// A message that was sent, or has arrived; or a transfer.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_completion {
    /// Size of this structure.
    pub size: usize,
    /// Bytes of the message as it was sent, or of the transfer.
    pub length: u64,
    /// Tag of the message; 0 in the untagged space.
    pub tag: u64,
    /// What its sender has given with it. Of an atomic operation what the word was, as
    /// `qnic_atomic` stores it.
    pub immediate: u64,
    /// Where the message begins in the memory of a receive of many messages. Of a transfer the offset
    /// in the remote segment.
    pub offset: u64,
    /// `QNIC_COMPLETION_…`.
    pub flags: u32,
    /// Node of the other process.
    pub node: u16,
    /// Port of the other process.
    pub port: u16,
}

head!(qnic_completion {
    length,
    tag,
    immediate,
    offset,
    flags,
    node,
    port
});

impl From<Completion> for qnic_completion {
    fn from(completion: Completion) -> Self {
        qnic_completion {
            size: size_of::<Self>(),
            length: completion.length,
            tag: completion.tag.0,
            immediate: completion.immediate,
            offset: completion.offset,
            flags: match completion.truncated {
                true => QNIC_COMPLETION_TRUNCATED,
                false => 0,
            },
            node: completion.node.0,
            port: completion.port.0,
        }
    }
}

/// Says what has become of a request, without waiting. `completion` may be null.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: it goes on; or with why the operation failed.
#[no_mangle]
pub extern "C" fn qnic_request_test(
    request: *mut qnic_request,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let request = get(request)?;
        let ended = turn(&request.0)?.with(|request| request.test())?;
        completion.set_head(ended.ok_or_else(Failure::would_block)?.into())
    })
}

/// Waits until a request has ended, up to `timeout_ns` nanoseconds. `completion` may be null.
///
/// Fails with `QNIC_E_TIMED_OUT`: it goes on, wait again; or with why the operation failed.
#[no_mangle]
pub extern "C" fn qnic_request_wait(
    request: *mut qnic_request,
    timeout_ns: i64,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let request = get(request)?;
        let ended = turn(&request.0)?.with(|request| request.wait(timeout(timeout_ns)))?;
        completion.set_head(ended.into())
    })
}

/// Takes a receive back: unless a message has come for it, it ends with `QNIC_E_CANCELLED`. Does not
/// wait for that. A Send and a transfer go on.
#[no_mangle]
pub extern "C" fn qnic_request_cancel(request: *mut qnic_request) -> c_int {
    call(|| {
        let request = get(request)?;
        let outcome = turn(&request.0)?.with(|request| request.cancel());
        outcome
    })
}

/// Closes a request. A receive is cancelled, and this waits until the NIC is done with its memory. A
/// Send goes on, and nothing tells of its failure. A transfer goes on, and its failure goes to the next
/// fence or flush.
#[no_mangle]
pub extern "C" fn qnic_request_close(request: *mut qnic_request) -> c_int {
    close(request)
}

fn all_of(requests: In<*mut qnic_request>, count: usize) -> Result<Vec<Arc<qnic_request>>> {
    let handles = requests.items(count)?.iter();
    handles.map(|handle| get(*handle)).collect()
}

/// Waits until one of several requests of one endpoint has ended, and stores its index;
/// `qnic_request_test` tells what has become of it. Of several that have ended, it is the first.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_FOREIGN_REQUEST`, `QNIC_E_ARGUMENT`: there are none.
#[no_mangle]
pub extern "C" fn qnic_request_wait_any(
    requests: In<*mut qnic_request>,
    count: usize,
    timeout_ns: i64,
    index: Out<usize>,
) -> c_int {
    call(|| {
        index.check()?;
        let all = all_of(requests, count)?;
        let guards: Result<Vec<_>> = all.iter().map(|one| turn(&one.0)).collect();
        let found = wait_any(&mut guards?, timeout(timeout_ns))?;
        index.set(found.ok_or_else(|| Failure::argument("no request to wait for"))?)
    })
}

/// Waits until all of several requests of one endpoint have ended. `completions` is null, or has room
/// for as many, each of which says its size.
///
/// Fails with `QNIC_E_TIMED_OUT`: some have not; `QNIC_E_FOREIGN_REQUEST`; or with why the first failed
/// that did: `qnic_request_test` tells of the others.
#[no_mangle]
pub extern "C" fn qnic_request_wait_all(
    requests: In<*mut qnic_request>,
    count: usize,
    timeout_ns: i64,
    completions: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let all = all_of(requests, count)?;
        let guards: Result<Vec<_>> = all.iter().map(|one| turn(&one.0)).collect();
        let ended = wait_all(&mut guards?, timeout(timeout_ns))?;
        completions.set_heads(ended.into_iter().map(Into::into))
    })
}
