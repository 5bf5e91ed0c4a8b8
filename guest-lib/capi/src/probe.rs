//! Messages that are looked for before they are received, and the buffer pool.
//!
//! A message that was only probed may go to a receive of another thread. One that was claimed goes only
//! to a receive of its claim. What is said of a message stands in a `qnic_completion`.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use qnic::message::{Claim, Claimed, PoolBuffer, Pooled};
use qnic::Endpoint;
use self_cell::self_cell;

use crate::border::{call, limit, timeout, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open};
use crate::memory::Local;
use crate::message::{completion_of, qnic_match};
use crate::request::{qnic_completion, turn, QNIC_COMPLETION_TRUNCATED};

/// Waits until a message has arrived that a receive would take, up to `timeout_ns` nanoseconds, and
/// says what it is. It stays. A timeout of 0 looks once.
///
/// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: there is none.
#[no_mangle]
pub extern "C" fn qnic_probe(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    timeout_ns: i64,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let (endpoint, from) = (get(endpoint)?, from.head()?.pattern()?);
        let probe = endpoint.0.probe(&from);
        let found = match timeout_ns {
            0 => probe.test()?.ok_or_else(Failure::would_block)?,
            _ => probe.timeout(timeout(timeout_ns)).wait()?,
        };
        completion.set_head(completion_of(&found))
    })
}

/// Drops a message that has arrived, and says what it was.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: there is none.
#[no_mangle]
pub extern "C" fn qnic_discard(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let (endpoint, from) = (get(endpoint)?, from.head()?.pattern()?);
        let found = endpoint.0.probe(&from).discard()?;
        completion.set_head(completion_of(&found.ok_or_else(Failure::would_block)?))
    })
}

/// A claim: it waits for a message, then has one, then that is received.
enum State<'a> {
    Waits(Claim<'a>),
    Has(Claimed<'a>),
    Received,
}

self_cell!(
    struct ClaimCell {
        owner: Arc<Endpoint>,
        #[covariant]
        dependent: State,
    }
);

/// A claim. Serves one call at a time.
pub struct qnic_claim(Mutex<ClaimCell>);

/// Posts a claim: the next message that a receive would take goes to it, and to nothing else.
#[no_mangle]
pub extern "C" fn qnic_claim_open(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    claim: Out<*mut qnic_claim>,
) -> c_int {
    open(claim, || {
        let (endpoint, from) = (get(endpoint)?, from.head()?.pattern()?);
        let cell = ClaimCell::try_new(endpoint.0.clone(), |endpoint| -> Result<_> {
            Ok(State::Waits(endpoint.probe(&from).post_claim()?))
        })?;
        Ok(qnic_claim(Mutex::new(cell)))
    })
}

/// Claims a message that has arrived already.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: there is none.
#[no_mangle]
pub extern "C" fn qnic_claim_now(
    endpoint: *mut qnic_endpoint,
    from: In<qnic_match>,
    claim: Out<*mut qnic_claim>,
) -> c_int {
    open(claim, || {
        let (endpoint, from) = (get(endpoint)?, from.head()?.pattern()?);
        let cell = ClaimCell::try_new(endpoint.0.clone(), |endpoint| -> Result<_> {
            let found = endpoint.probe(&from).try_claim()?;
            Ok(State::Has(found.ok_or_else(Failure::would_block)?))
        })?;
        Ok(qnic_claim(Mutex::new(cell)))
    })
}

/// Waits until a claim has its message, up to `timeout_ns` nanoseconds, and says what it is; 0 looks
/// once.
///
/// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: it has none yet;
/// `QNIC_E_NO_MESSAGE`: it was received.
#[no_mangle]
pub extern "C" fn qnic_claim_wait(
    claim: *mut qnic_claim,
    timeout_ns: i64,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let claim = get(claim)?;
        let found = turn(&claim.0)?.with_dependent_mut(|_, state| -> Result<_> {
            if let State::Waits(claim) = state {
                let claimed = match timeout_ns {
                    0 => claim.test()?.ok_or_else(Failure::would_block)?,
                    _ => claim.wait(timeout(timeout_ns))?,
                };
                *state = State::Has(claimed);
            }
            match state {
                State::Has(claimed) => Ok(completion_of(claimed.envelope())),
                _ => Err(Failure::no_message()),
            }
        })?;
        completion.set_head(found)
    })
}

/// Receives the message of a claim that has one into memory that the endpoint exports, and waits until
/// it is there: at the latest when its sender is given up.
///
/// Fails with `QNIC_E_NO_MESSAGE`: it has none; its sender has ended before all of it was here; it was
/// received. In each case but the first the message is gone.
#[no_mangle]
pub extern "C" fn qnic_claim_receive(
    claim: *mut qnic_claim,
    room: Out<c_void>,
    length: usize,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let claim = get(claim)?;
        let received = turn(&claim.0)?.with_dependent_mut(|endpoint, state| -> Result<_> {
            let local = match length {
                0 => None,
                _ => Some(Local::new(endpoint, room.address(), length)?),
            };
            match std::mem::replace(state, State::Received) {
                State::Has(claimed) => receive(claimed, local.as_ref()),
                other => {
                    *state = other;
                    Err(Failure::no_message())
                }
            }
        })?;
        completion.set_head(received)
    })
}

/// Receives a claimed message; without memory, nothing of it.
fn receive(claimed: Claimed<'_>, local: Option<&Local>) -> Result<qnic_completion> {
    if let Some(local) = local {
        return Ok(claimed.receive(local.part())?.into());
    }
    let mut completion = completion_of(claimed.envelope());
    if completion.length > 0 {
        completion.flags |= QNIC_COMPLETION_TRUNCATED;
    }
    claimed.discard();
    Ok(completion)
}

/// Takes a claim back: unless a message has come for it, it ends with `QNIC_E_CANCELLED`.
#[no_mangle]
pub extern "C" fn qnic_claim_cancel(claim: *mut qnic_claim) -> c_int {
    call(|| {
        let claim = get(claim)?;
        let outcome = turn(&claim.0)?.with_dependent_mut(|_, state| match state {
            State::Waits(claim) => claim.cancel(),
            _ => Ok(()),
        });
        Ok(outcome?)
    })
}

/// Closes a claim. Its message, if it has one that was not received, is discarded.
#[no_mangle]
pub extern "C" fn qnic_claim_close(claim: *mut qnic_claim) -> c_int {
    close(claim)
}

/// Pages of the pool, which the program has or the NIC.
enum Pages<'a> {
    Ours(PoolBuffer<'a>),
    Under(Box<Pooled<'a>>),
    /// Gone with an operation that has failed.
    Gone,
}

self_cell!(
    struct PoolCell {
        owner: Arc<Endpoint>,
        #[covariant]
        dependent: Pages,
    }
);

/// Pages that the process shares with its NIC, so that no message in them waits for a page. They have
/// one operation at a time. Serves one call at a time.
pub struct qnic_pool_buffer(Mutex<PoolCell>);

/// Takes so many pages of 4,096 bytes from the pool of an endpoint; never waits. What stood in them
/// before is still there.
///
/// Fails with `QNIC_E_POOL_FULL`.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_open(
    endpoint: *mut qnic_endpoint,
    pages: usize,
    buffer: Out<*mut qnic_pool_buffer>,
) -> c_int {
    open(buffer, || {
        let cell = PoolCell::try_new(get(endpoint)?.0.clone(), |endpoint| -> Result<_> {
            Ok(Pages::Ours(endpoint.pool().take(pages)?))
        })?;
        Ok(qnic_pool_buffer(Mutex::new(cell)))
    })
}

fn ours<R>(
    buffer: *mut qnic_pool_buffer,
    work: impl for<'a> FnOnce(&PoolBuffer<'a>) -> Result<R>,
) -> Result<R> {
    let buffer = get(buffer)?;
    let outcome = turn(&buffer.0)?.with_dependent_mut(|_, pages| match pages {
        Pages::Ours(buffer) => work(buffer),
        _ => Err(Failure::busy()),
    });
    outcome
}

/// Copies bytes into pages.
///
/// Fails with `QNIC_E_OUT_OF_RANGE`, `QNIC_E_BUSY`: an operation has them.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_write(
    buffer: *mut qnic_pool_buffer,
    offset: usize,
    bytes: In<c_void>,
    length: usize,
) -> c_int {
    call(|| {
        ours(buffer, |buffer| {
            Ok(buffer.write(offset, bytes.bytes(length)?)?)
        })
    })
}

/// Copies bytes out of pages.
///
/// Fails as `qnic_pool_buffer_write`.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_read(
    buffer: *mut qnic_pool_buffer,
    offset: usize,
    bytes: Out<c_void>,
    length: usize,
) -> c_int {
    call(|| {
        ours(buffer, |buffer| {
            Ok(buffer.read(offset, bytes.bytes(length)?)?)
        })
    })
}

fn begin<P>(
    buffer: *mut qnic_pool_buffer,
    peer: impl FnOnce() -> Result<P>,
    work: impl for<'a> FnOnce(PoolBuffer<'a>, &P) -> qnic::Result<Pooled<'a>>,
) -> c_int {
    call(|| {
        let (buffer, peer) = (get(buffer)?, peer()?);
        let mut cell = turn(&buffer.0)?;
        cell.with_dependent_mut(|_, pages| match std::mem::replace(pages, Pages::Gone) {
            Pages::Ours(buffer) => {
                *pages = Pages::Under(Box::new(work(buffer, &peer)?));
                Ok(())
            }
            other => {
                *pages = other;
                Err(Failure::busy())
            }
        })
    })
}

/// Begins to send the first `length` bytes of pages. It needs a context, and does not wait for one.
///
/// Fails with `QNIC_E_NO_CONTEXT`, `QNIC_E_OUT_OF_RANGE`: the pages go back to the pool;
/// `QNIC_E_BUSY`: an operation has them.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_send(
    buffer: *mut qnic_pool_buffer,
    to: In<qnic_match>,
    length: usize,
) -> c_int {
    begin(
        buffer,
        || to.head()?.destination(),
        |buffer, to| buffer.post_send(to, length),
    )
}

/// Posts a receive of one message into pages.
///
/// Fails as `qnic_pool_buffer_send`.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_receive(
    buffer: *mut qnic_pool_buffer,
    from: In<qnic_match>,
) -> c_int {
    begin(
        buffer,
        || from.head()?.pattern(),
        |buffer, from| buffer.post_receive(from),
    )
}

/// Waits until the operation of pages has ended, up to `timeout_ns` nanoseconds: the program has them
/// again. `completion` may be null.
///
/// Fails with `QNIC_E_TIMED_OUT`: it goes on; `QNIC_E_WOULD_BLOCK`: there is none; or with why it failed:
/// then the pages have gone back to the pool.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_wait(
    buffer: *mut qnic_pool_buffer,
    timeout_ns: i64,
    completion: Out<qnic_completion>,
) -> c_int {
    call(|| {
        let buffer = get(buffer)?;
        let ended = turn(&buffer.0)?.with_dependent_mut(|_, pages| -> Result<_> {
            let Pages::Under(pooled) = pages else {
                return Err(Failure::would_block());
            };
            // It keeps its pages if the time is over.
            pooled.wait_end(Some(limit(timeout_ns)))?;
            let Pages::Under(pooled) = std::mem::replace(pages, Pages::Gone) else {
                return Err(Failure::would_block());
            };
            let (completion, buffer) = pooled.wait(None)?;
            *pages = Pages::Ours(buffer);
            Ok(completion)
        })?;
        completion.set_head(ended.into())
    })
}

/// Takes the receive of pages back, as `qnic_request_cancel` does.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_cancel(buffer: *mut qnic_pool_buffer) -> c_int {
    call(|| {
        let buffer = get(buffer)?;
        let outcome = turn(&buffer.0)?.with_dependent_mut(|_, pages| match pages {
            Pages::Under(pooled) => pooled.cancel(),
            _ => Ok(()),
        });
        Ok(outcome?)
    })
}

/// Gives pages back to the pool. A receive is cancelled; a Send goes on, and has them until its end.
#[no_mangle]
pub extern "C" fn qnic_pool_buffer_close(buffer: *mut qnic_pool_buffer) -> c_int {
    close(buffer)
}
