//! Notifications: a peer signals with a write, and this process learns of it.
//!
//! Counted notifications have the numbers 1 to 1,023: each counts its signals, and how many of them are
//! acknowledged. One-shot notifications have the numbers from 1,024 on, and arrive in the queue only. A
//! process that has seen a signal sees all data that its sender wrote to this node before it.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use qnic::{Armed, NotificationId, Poller};

use crate::border::{call, limit, timeout, Context, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open};

/// A handler that is armed.
pub struct qnic_armed(#[allow(dead_code)] pub(crate) Armed);

/// A descriptor for event loops.
pub struct qnic_poller(Poller);

pub(crate) fn id(number: u32) -> Result<NotificationId> {
    Ok(NotificationId::try_from(number)?)
}

/// Stores how often a counted notification was signalled since this process registered, and how many
/// of these signals are not acknowledged. Never waits. Both pointers may be null.
///
/// Fails with `QNIC_E_BAD_NOTIFICATION`.
#[no_mangle]
pub extern "C" fn qnic_notification_test(
    endpoint: *mut qnic_endpoint,
    number: u32,
    signals: Out<u64>,
    pending: Out<u64>,
) -> c_int {
    call(|| {
        let endpoint = get(endpoint)?;
        let notification = endpoint.0.notification(id(number)?);
        signals.set(notification.signals())?;
        pending.set(notification.pending())
    })
}

/// Waits until a signal of a counted notification is pending, up to `timeout_ns` nanoseconds.
/// Acknowledges nothing; `pending` may be null.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_BAD_NOTIFICATION`, `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_notification_wait(
    endpoint: *mut qnic_endpoint,
    number: u32,
    timeout_ns: i64,
    pending: Out<u64>,
) -> c_int {
    call(|| {
        let endpoint = get(endpoint)?;
        pending.set(
            endpoint
                .0
                .notification(id(number)?)
                .wait(timeout(timeout_ns))?,
        )
    })
}

/// The same, and never sleeps: for waits of microseconds.
#[no_mangle]
pub extern "C" fn qnic_notification_spin(
    endpoint: *mut qnic_endpoint,
    number: u32,
    timeout_ns: i64,
    pending: Out<u64>,
) -> c_int {
    call(|| {
        let endpoint = get(endpoint)?;
        pending.set(
            endpoint
                .0
                .notification(id(number)?)
                .spin(limit(timeout_ns))?,
        )
    })
}

/// Acknowledges one pending signal of a counted notification. Of several threads, each gets signals of
/// its own.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: none is pending.
#[no_mangle]
pub extern "C" fn qnic_notification_acknowledge(
    endpoint: *mut qnic_endpoint,
    number: u32,
) -> c_int {
    call(
        || match get(endpoint)?.0.notification(id(number)?).acknowledge() {
            true => Ok(()),
            false => Err(Failure::would_block()),
        },
    )
}

/// Waits for a signal of a counted notification and acknowledges it, in one step.
///
/// Fails as `qnic_notification_wait`.
#[no_mangle]
pub extern "C" fn qnic_notification_take(
    endpoint: *mut qnic_endpoint,
    number: u32,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let endpoint = get(endpoint)?;
        Ok(endpoint
            .0
            .notification(id(number)?)
            .take(timeout(timeout_ns))?)
    })
}

/// Waits until a signal of one of several counted notifications is pending, and stores its number. If
/// several are pending, they take turns. Acknowledges nothing.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_ARGUMENT`: there are none.
#[no_mangle]
pub extern "C" fn qnic_notification_wait_any(
    endpoint: *mut qnic_endpoint,
    numbers: In<u32>,
    count: usize,
    timeout_ns: i64,
    number: Out<u32>,
) -> c_int {
    call(|| {
        let numbers = numbers.items(count)?.iter();
        let ids: Result<Vec<_>> = numbers.map(|number| id(*number)).collect();
        let ids = ids?;
        if ids.is_empty() {
            return Err(Failure::argument("no notification to wait for"));
        }
        let found = get(endpoint)?.0.wait_any(&ids, timeout(timeout_ns))?;
        number.set(found.number())
    })
}

/// Calls `handler` once for each signal of a counted notification, beginning with those that are
/// pending, until the handle is closed. One thread of the library calls all handlers of an endpoint, one
/// at a time. It has acknowledged the signal. A handler may call this library, and arm and close others.
///
/// Fails with `QNIC_E_ARMED`: it has a handler, or the queue watches it.
#[no_mangle]
pub extern "C" fn qnic_notification_arm(
    endpoint: *mut qnic_endpoint,
    number: u32,
    handler: Option<extern "C" fn(context: *mut c_void, number: u32)>,
    context: Context,
    armed: Out<*mut qnic_armed>,
) -> c_int {
    open(armed, || {
        let handler = handler.ok_or_else(|| Failure::argument("the handler is null"))?;
        let endpoint = get(endpoint)?;
        let armed = endpoint.0.notification(id(number)?);
        let armed = armed.arm(move |id| {
            // The whole of it, not its pointer, moves to the thread.
            let context: Context = context;
            handler(context.get(), id.number());
        })?;
        Ok(qnic_armed(armed))
    })
}

/// Disarms a handler. When this returns, it is not called any more; called by the handler itself, it
/// runs to its end.
#[no_mangle]
pub extern "C" fn qnic_armed_close(armed: *mut qnic_armed) -> c_int {
    close(armed)
}

/// Lets a counted notification arrive in the queue, with the signals that are pending.
///
/// Fails with `QNIC_E_ARMED`.
#[no_mangle]
pub extern "C" fn qnic_queue_watch(endpoint: *mut qnic_endpoint, number: u32) -> c_int {
    call(|| Ok(get(endpoint)?.0.queue().watch(id(number)?)?))
}

/// Ends that; signals that are pending stay pending.
#[no_mangle]
pub extern "C" fn qnic_queue_unwatch(endpoint: *mut qnic_endpoint, number: u32) -> c_int {
    call(|| {
        get(endpoint)?.0.queue().unwatch(id(number)?);
        Ok(())
    })
}

/// Takes the next notification of the queue, without waiting: its number, below 1,024 if it is a
/// counted one, whose signals the program acknowledges.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: there is none; `QNIC_E_NOTIFICATIONS_LOST`.
#[no_mangle]
pub extern "C" fn qnic_queue_test(endpoint: *mut qnic_endpoint, number: Out<u32>) -> c_int {
    call(|| {
        number.check()?;
        let found = get(endpoint)?.0.queue().remove()?;
        number.set(found.ok_or_else(Failure::would_block)?.number())
    })
}

/// Waits for the next notification of the queue and takes it, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_NOTIFICATIONS_LOST`, `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_queue_wait(
    endpoint: *mut qnic_endpoint,
    timeout_ns: i64,
    number: Out<u32>,
) -> c_int {
    call(|| {
        number.check()?;
        number.set(get(endpoint)?.0.queue().wait(timeout(timeout_ns))?.number())
    })
}

/// Makes a descriptor for poll and epoll that becomes readable when a notification arrives for the
/// endpoint, or the device is gone. An endpoint has one at a time.
///
/// Fails with `QNIC_E_POLLED`.
#[no_mangle]
pub extern "C" fn qnic_poller_open(
    endpoint: *mut qnic_endpoint,
    poller: Out<*mut qnic_poller>,
) -> c_int {
    open(poller, || Ok(qnic_poller(get(endpoint)?.0.poller()?)))
}

/// Stores the descriptor, which is the library's and lives as long as the handle.
#[no_mangle]
pub extern "C" fn qnic_poller_descriptor(
    poller: *mut qnic_poller,
    descriptor: Out<c_int>,
) -> c_int {
    call(|| descriptor.set(get(poller)?.0.as_raw_fd()))
}

/// Ends readability. An event loop calls this, looks at what it waits for, and polls only if it finds
/// nothing. `happened` may be null; otherwise it becomes 1 if there was an event since the last call.
///
/// Fails with `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_poller_prepare(poller: *mut qnic_poller, happened: Out<c_int>) -> c_int {
    call(|| happened.set(get(poller)?.0.prepare()?.into()))
}

/// Closes the descriptor.
#[no_mangle]
pub extern "C" fn qnic_poller_close(poller: *mut qnic_poller) -> c_int {
    close(poller)
}
