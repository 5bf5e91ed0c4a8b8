//! Locks, wait queues and semaphores between processes of all nodes.
//!
//! An object is `QNIC_OBJECT_BYTES` of an imported segment that grants reading and writing, aligned to
//! that and zeroed at first. Its owner is the process that exports this memory. Participants of an
//! object trust each other; export its memory, and open participants, for a list or with a secret.
//!
//! A process that waits has a place in a queue, which it cannot leave before its turn. So when a time
//! limit is over (`QNIC_E_TIMED_OUT`), the handle keeps the place, and the next wait goes on there.
//! Closing the handle passes on a turn that has come; if none has, it breaks the object.
//!
//! A process that dies while it holds an object, or waits for it, breaks it: the others get
//! `QNIC_E_BROKEN`, until one of them recovers it.
//!
//! A monitor is a lock, and its conditions are wait queues: `qnic_lock_wait`, `qnic_wait_queue_remove`.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::c_int;
use std::sync::Mutex;

use qnic::sync::{
    Lock, LockGuard, LockWaiting, Participant, Semaphore, SemaphoreWaiting, WaitQueue, Waiting,
    OBJECT_BYTES,
};
use self_cell::self_cell;

use crate::border::{call, head, timeout, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open};
use crate::memory::{importers, qnic_process, qnic_remote};
use crate::request::turn;

/// Length and alignment of an object, in bytes.
pub const QNIC_OBJECT_BYTES: usize = 64;

const _: () = assert!(QNIC_OBJECT_BYTES == OBJECT_BYTES as usize);

/// What a process needs to use objects. It takes a notification of its own.
pub struct qnic_participant(pub(crate) Participant);

/// Which processes may wake a participant. Null or zeros: every process.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_participant_options {
    /// Size of this structure.
    pub size: usize,
    /// `QNIC_EXPORT_LISTED`, `QNIC_EXPORT_SECRET`.
    pub flags: u32,
    /// How many processes are listed, 32 at most.
    pub listed_count: u32,
    /// The list.
    pub listed: In<qnic_process>,
    /// The secret.
    pub secret: [u8; 16],
}

head!(qnic_participant_options {
    flags,
    listed_count,
    listed,
    secret
});

/// Makes this process a participant. `options` may be null.
#[no_mangle]
pub extern "C" fn qnic_participant_open(
    endpoint: *mut qnic_endpoint,
    options: In<qnic_participant_options>,
    participant: Out<*mut qnic_participant>,
) -> c_int {
    open(participant, || {
        let given = options.head()?;
        let others = importers(given.flags, given.listed, given.listed_count, given.secret)?;
        Ok(qnic_participant(Participant::among(
            &get(endpoint)?.0,
            others,
        )?))
    })
}

/// Closes the handle. Objects that were opened with it go on.
#[no_mangle]
pub extern "C" fn qnic_participant_close(participant: *mut qnic_participant) -> c_int {
    close(participant)
}

/// What a process has of a lock.
enum Hold<'a> {
    Nothing,
    Waits(LockWaiting<'a>),
    Holds(LockGuard<'a>),
}

self_cell!(
    struct LockCell {
        owner: Lock,
        #[covariant]
        dependent: Hold,
    }
);

/// A lock. Serves one call at a time; each thread opens one of its own.
pub struct qnic_lock(Mutex<LockCell>);

/// Opens the lock at `offset` of an imported segment.
///
/// Fails with `QNIC_E_OUT_OF_RANGE`, `QNIC_E_MISALIGNED`.
#[no_mangle]
pub extern "C" fn qnic_lock_open(
    participant: *mut qnic_participant,
    remote: *mut qnic_remote,
    offset: u64,
    lock: Out<*mut qnic_lock>,
) -> c_int {
    open(lock, || {
        let lock = Lock::new(&get(participant)?.0, &get(remote)?.0, offset)?;
        Ok(qnic_lock(Mutex::new(LockCell::new(lock, |_| {
            Hold::Nothing
        }))))
    })
}

fn with_lock<R>(
    lock: *mut qnic_lock,
    work: impl for<'a> FnOnce(&'a Lock, &mut Hold<'a>) -> Result<R>,
) -> Result<R> {
    let lock = get(lock)?;
    let outcome = turn(&lock.0)?.with_dependent_mut(work);
    outcome
}

fn acquire<'a>(lock: &'a Lock, hold: &mut Hold<'a>, timeout_ns: i64) -> Result<()> {
    if let Hold::Holds(_) = hold {
        return Err(Failure::argument(
            "this handle holds the lock already: release it first",
        ));
    }
    if let Hold::Nothing = hold {
        *hold = Hold::Waits(lock.waiting());
    }
    if let Hold::Waits(waiting) = hold {
        let guard = waiting.wait(timeout(timeout_ns))?;
        *hold = Hold::Holds(guard);
    }
    Ok(())
}

/// Waits for the lock, first come, first served, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`: the place in the queue stays, wait again; `QNIC_E_BROKEN`: this process
/// is not in the queue any more.
#[no_mangle]
pub extern "C" fn qnic_lock_acquire(lock: *mut qnic_lock, timeout_ns: i64) -> c_int {
    call(|| with_lock(lock, |lock, hold| acquire(lock, hold, timeout_ns)))
}

/// Takes the lock if it is free; waits for no holder.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: it is not.
#[no_mangle]
pub extern "C" fn qnic_lock_try(lock: *mut qnic_lock) -> c_int {
    call(|| {
        with_lock(lock, |lock, hold| {
            let Hold::Nothing = hold else {
                let text = "this handle holds the lock or waits for it already";
                return Err(Failure::argument(text));
            };
            let guard = lock.try_acquire()?.ok_or_else(Failure::would_block)?;
            *hold = Hold::Holds(guard);
            Ok(())
        })
    })
}

fn release(hold: &mut Hold<'_>) -> Result<()> {
    match std::mem::replace(hold, Hold::Nothing) {
        Hold::Holds(guard) => Ok(guard.release()?),
        other => {
            *hold = other;
            Err(Failure::argument("this handle does not hold the lock"))
        }
    }
}

/// Releases the lock. All that this process wrote through the same endpoint is there before the next
/// holder has it.
///
/// Fails with `QNIC_E_BROKEN`; in each case this process does not hold it any more.
#[no_mangle]
pub extern "C" fn qnic_lock_release(lock: *mut qnic_lock) -> c_int {
    call(|| with_lock(lock, |_, hold| release(hold)))
}

/// Stores the process that held the lock directly before, if this one had to wait for it.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: it did not wait, or does not hold the lock.
#[no_mangle]
pub extern "C" fn qnic_lock_predecessor(lock: *mut qnic_lock, process: Out<qnic_process>) -> c_int {
    call(|| {
        let before = with_lock(lock, |_, hold| match hold {
            Hold::Holds(guard) => Ok(guard.predecessor()),
            _ => Ok(None),
        })?;
        let (node, port) = before.ok_or_else(Failure::would_block)?;
        process.set(qnic_process {
            node: node.0,
            port: port.0,
        })
    })
}

/// Waits for a condition of a monitor: enters its queue, releases the lock, waits for the turn, up to
/// `timeout_ns` nanoseconds, and acquires the lock again. The lock is held.
///
/// Fails with `QNIC_E_TIMED_OUT`: the place in the queue stays and the lock is not held: call this again;
/// `QNIC_E_BROKEN`: it is not held either.
#[no_mangle]
pub extern "C" fn qnic_lock_wait(
    lock: *mut qnic_lock,
    queue: *mut qnic_wait_queue,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        with_lock(lock, |lock, hold| {
            let queue = get(queue)?;
            let mut cell = turn(&queue.0)?;
            cell.with_dependent_mut(|queue, place| {
                if place.is_none() {
                    let Hold::Holds(_) = hold else {
                        return Err(Failure::argument("this handle does not hold the lock"));
                    };
                    *place = Some(queue.insert()?);
                    release(hold)?;
                }
                wait_in(place, timeout_ns)
            })?;
            acquire(lock, hold, -1)
        })
    })
}

/// Stores 1 if a process has died in the queue of the lock, else 0.
#[no_mangle]
pub extern "C" fn qnic_lock_is_broken(lock: *mut qnic_lock, broken: Out<c_int>) -> c_int {
    call(|| broken.set(with_lock(lock, |lock, _| Ok(lock.is_broken()?))?.into()))
}

/// Makes a broken lock free. `recovered` may be null; it becomes 0 if another process does it.
///
/// Fails with `QNIC_E_HELD`: a process that lives holds it.
#[no_mangle]
pub extern "C" fn qnic_lock_recover(lock: *mut qnic_lock, recovered: Out<c_int>) -> c_int {
    call(|| recovered.set(with_lock(lock, |lock, _| Ok(lock.recover()?))?.into()))
}

/// Closes a lock; one that is held is released.
#[no_mangle]
pub extern "C" fn qnic_lock_close(lock: *mut qnic_lock) -> c_int {
    close(lock)
}

/// A place in a queue.
type Place<'a> = Option<Waiting<'a>>;

self_cell!(
    struct QueueCell {
        owner: WaitQueue,
        #[covariant]
        dependent: Place,
    }
);

/// A wait queue. Serves one call at a time; each thread opens one of its own.
pub struct qnic_wait_queue(Mutex<QueueCell>);

/// Opens the wait queue at `offset` of an imported segment.
///
/// Fails as `qnic_lock_open`.
#[no_mangle]
pub extern "C" fn qnic_wait_queue_open(
    participant: *mut qnic_participant,
    remote: *mut qnic_remote,
    offset: u64,
    queue: Out<*mut qnic_wait_queue>,
) -> c_int {
    open(queue, || {
        let queue = WaitQueue::new(&get(participant)?.0, &get(remote)?.0, offset)?;
        Ok(qnic_wait_queue(Mutex::new(QueueCell::new(queue, |_| None))))
    })
}

fn with_queue<R>(
    queue: *mut qnic_wait_queue,
    work: impl for<'a> FnOnce(&'a WaitQueue, &mut Place<'a>) -> Result<R>,
) -> Result<R> {
    let queue = get(queue)?;
    let outcome = turn(&queue.0)?.with_dependent_mut(work);
    outcome
}

fn wait_in(place: &mut Place<'_>, timeout_ns: i64) -> Result<()> {
    let Some(waiting) = place else {
        return Err(Failure::argument("this handle has no place in the queue"));
    };
    let outcome = waiting.wait(timeout(timeout_ns));
    if !matches!(outcome, Err(qnic::Error::TimedOut)) {
        *place = None;
    }
    Ok(outcome?)
}

/// Takes a place in the queue, without waiting for the turn.
///
/// Fails with `QNIC_E_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_wait_queue_insert(queue: *mut qnic_wait_queue) -> c_int {
    call(|| {
        with_queue(queue, |queue, place| {
            if place.is_some() {
                return Err(Failure::argument(
                    "this handle has a place in the queue already",
                ));
            }
            *place = Some(queue.insert()?);
            Ok(())
        })
    })
}

/// Waits for the turn of the place, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`: the place stays; `QNIC_E_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_wait_queue_wait(queue: *mut qnic_wait_queue, timeout_ns: i64) -> c_int {
    call(|| with_queue(queue, |_, place| wait_in(place, timeout_ns)))
}

/// Takes the first process out of the queue and wakes it. `woken` may be null; it becomes 0 if no process
/// waits, or, with `all`, as many as have been woken.
///
/// Fails with `QNIC_E_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_wait_queue_remove(
    queue: *mut qnic_wait_queue,
    all: c_int,
    woken: Out<u64>,
) -> c_int {
    call(|| {
        let count = with_queue(queue, |queue, _| {
            let mut count = u64::from(queue.remove()?);
            while all != 0 && count > 0 && queue.remove()? {
                count += 1;
            }
            Ok(count)
        })?;
        woken.set(count)
    })
}

/// Stores 1 if a process has died in the queue, else 0.
#[no_mangle]
pub extern "C" fn qnic_wait_queue_is_broken(
    queue: *mut qnic_wait_queue,
    broken: Out<c_int>,
) -> c_int {
    call(|| broken.set(with_queue(queue, |queue, _| Ok(queue.is_broken()?))?.into()))
}

/// Makes a broken queue empty. `recovered` may be null; it becomes 0 if another process does it.
#[no_mangle]
pub extern "C" fn qnic_wait_queue_recover(
    queue: *mut qnic_wait_queue,
    recovered: Out<c_int>,
) -> c_int {
    call(|| recovered.set(with_queue(queue, |queue, _| Ok(queue.recover()?))?.into()))
}

/// Closes a wait queue.
#[no_mangle]
pub extern "C" fn qnic_wait_queue_close(queue: *mut qnic_wait_queue) -> c_int {
    close(queue)
}

self_cell!(
    struct SemaphoreCell {
        owner: Semaphore,
        #[covariant]
        dependent: SemaphoreWaiting,
    }
);

/// A counting semaphore. Serves one call at a time; each thread opens one of its own.
pub struct qnic_semaphore(Mutex<SemaphoreCell>);

/// Opens the semaphore at `offset` of an imported segment. Zeroed memory is one without units.
///
/// Fails as `qnic_lock_open`.
#[no_mangle]
pub extern "C" fn qnic_semaphore_open(
    participant: *mut qnic_participant,
    remote: *mut qnic_remote,
    offset: u64,
    semaphore: Out<*mut qnic_semaphore>,
) -> c_int {
    open(semaphore, || {
        let semaphore = Semaphore::new(&get(participant)?.0, &get(remote)?.0, offset)?;
        let cell = SemaphoreCell::new(semaphore, Semaphore::waiting);
        Ok(qnic_semaphore(Mutex::new(cell)))
    })
}

fn with_semaphore<R>(
    semaphore: *mut qnic_semaphore,
    work: impl for<'a> FnOnce(&'a Semaphore, &mut SemaphoreWaiting<'a>) -> Result<R>,
) -> Result<R> {
    let semaphore = get(semaphore)?;
    let outcome = turn(&semaphore.0)?.with_dependent_mut(work);
    outcome
}

/// Sets the number of units, before processes use it. `before` may be null.
#[no_mangle]
pub extern "C" fn qnic_semaphore_initialize(
    semaphore: *mut qnic_semaphore,
    value: u32,
    before: Out<u32>,
) -> c_int {
    call(|| {
        before.set(with_semaphore(
            semaphore,
            |it, _| Ok(it.initialize(value)?),
        )?)
    })
}

/// Stores the number of free units.
#[no_mangle]
pub extern "C" fn qnic_semaphore_value(semaphore: *mut qnic_semaphore, value: Out<u32>) -> c_int {
    call(|| value.set(with_semaphore(semaphore, |it, _| Ok(it.value()?))?))
}

/// Takes a unit; waits for one, first come, first served, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`: the place in the queue stays, wait again; `QNIC_E_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_semaphore_wait(semaphore: *mut qnic_semaphore, timeout_ns: i64) -> c_int {
    call(|| {
        with_semaphore(semaphore, |_, waiting| {
            waiting.wait(timeout(timeout_ns))?.keep();
            Ok(())
        })
    })
}

/// Takes a unit if one is free.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: none is.
#[no_mangle]
pub extern "C" fn qnic_semaphore_try(semaphore: *mut qnic_semaphore) -> c_int {
    call(|| {
        with_semaphore(semaphore, |semaphore, _| match semaphore.try_wait()? {
            true => Ok(()),
            false => Err(Failure::would_block()),
        })
    })
}

/// Gives a unit back. All that this process wrote through the same endpoint is there before another
/// process has the unit.
///
/// Fails with `QNIC_E_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_semaphore_signal(semaphore: *mut qnic_semaphore) -> c_int {
    call(|| with_semaphore(semaphore, |it, _| Ok(it.signal().map(drop)?)))
}

/// Stores 1 if a process has died in the queue of the semaphore, else 0.
#[no_mangle]
pub extern "C" fn qnic_semaphore_is_broken(
    semaphore: *mut qnic_semaphore,
    broken: Out<c_int>,
) -> c_int {
    call(|| broken.set(with_semaphore(semaphore, |it, _| Ok(it.is_broken()?))?.into()))
}

/// Gives a broken semaphore so many units. `recovered` may be null; it becomes 0 if another process does
/// it.
#[no_mangle]
pub extern "C" fn qnic_semaphore_recover(
    semaphore: *mut qnic_semaphore,
    value: u32,
    recovered: Out<c_int>,
) -> c_int {
    call(|| recovered.set(with_semaphore(semaphore, |it, _| Ok(it.recover(value)?))?.into()))
}

/// Closes a semaphore.
#[no_mangle]
pub extern "C" fn qnic_semaphore_close(semaphore: *mut qnic_semaphore) -> c_int {
    close(semaphore)
}
