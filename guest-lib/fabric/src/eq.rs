//! `fid_eq`: events of control: joins of groups, and what a program writes itself.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::errno::{count, status, Errno, Result, AGAIN, INVALID, UNSUPPORTED};
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    EqAttr, EqEntry, EqErrEntry, FidEq, Head, Ops, OpsEq, CLASS_EQ, FI_EAVAIL, FI_ETOOSMALL,
    WAIT_NONE, WAIT_UNSPEC,
};

/// Most events that a program may write before it reads them.
const EVENTS_MAX: usize = 4096;

/// Longest event that a program may write, in bytes.
const EVENT_BYTES_MAX: usize = 4096;

/// A flag of reads: the event stays.
const PEEK: u64 = crate::sys::PEEK;

/// What the provider keeps of an event queue.
#[derive(Debug)]
pub(crate) struct Eq {
    events: Mutex<VecDeque<Event>>,
    written: Condvar,
    _fabric: Parent,
}

/// What a program is told.
#[derive(Debug)]
enum Event {
    /// An event of this kind, and its bytes.
    Told(u32, Vec<u8>),
    /// Something has failed: error, and status of the NIC.
    Failed(EqEntry, (c_int, c_int)),
}

crate::object::object_class!(
    Eq,
    FidEq,
    CLASS_EQ,
    Ops {
        close,
        ..Ops::STUBS
    }
);

static EQ_OPS: OpsEq = OpsEq {
    read,
    readerr,
    write,
    sread,
    ..OpsEq::STUBS
};

/// Opens an event queue.
///
/// # Errors
/// [`UNSUPPORTED`]: it has no descriptor to wait with. There is no place for it.
pub(crate) fn open(
    fabric: Parent,
    attributes: In<EqAttr>,
    opened: Out<Fid<FidEq>>,
    context: Context,
) -> Result<()> {
    let wait = attributes.get().map_or(WAIT_NONE, |it| it.wait_obj);
    if ![WAIT_NONE, WAIT_UNSPEC].contains(&wait) {
        return Err(UNSUPPORTED);
    }
    let head = Head {
        class: CLASS_EQ,
        context,
        ops: Eq::OPS,
    };
    let state = Eq {
        events: Mutex::default(),
        written: Condvar::new(),
        _fabric: fabric,
    };
    object::open_at(opened, FidEq { head, ops: &EQ_OPS }, Arc::new(state))
}

impl Eq {
    /// Returns [`AGAIN`] if there is an event to read.
    pub(crate) fn prepare_to_wait(&self) -> Result<()> {
        match self.lock().is_empty() {
            true => Ok(()),
            false => Err(AGAIN),
        }
    }

    /// Tells of an event of this kind, or that it has failed with an error and a status of the NIC.
    pub(crate) fn tell(&self, kind: u32, entry: EqEntry, failed: Option<(c_int, c_int)>) {
        let event = match failed {
            None => Event::Told(kind, entry.bytes().to_vec()),
            Some(reason) => Event::Failed(entry, reason),
        };
        self.lock().push_back(event);
        self.written.notify_all();
    }

    fn take_error(&self, room: Out<EqErrEntry>, flags: u64) -> Result<usize> {
        let given = room.get().ok_or(INVALID)?;
        let mut events = self.lock();
        let Some(Event::Failed(entry, (err, prov_errno))) = events.front() else {
            return Err(AGAIN);
        };
        room.set(EqErrEntry {
            entry: *entry,
            err: *err,
            prov_errno: *prov_errno,
            err_data: given.err_data,
            err_data_size: 0,
        });
        if flags & PEEK == 0 {
            events.pop_front();
        }
        Ok(size_of::<EqErrEntry>())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<Eq>(fid, object::unused))
}

extern "C" fn write(
    queue: Fid<FidEq>,
    event: u32,
    bytes: In<c_void>,
    length: usize,
    flags: u64,
) -> isize {
    let write = || {
        let queue = object::state::<Eq, _>(queue)?;
        if flags != 0 || length > EVENT_BYTES_MAX {
            return Err(INVALID);
        }
        let bytes = bytes.bytes(length).ok_or(INVALID)?;
        let mut events = queue.lock();
        if events.len() >= EVENTS_MAX {
            return Err(AGAIN);
        }
        events.push_back(Event::Told(event, bytes.to_vec()));
        queue.written.notify_all();
        Ok(length)
    };
    count(write())
}

extern "C" fn read(
    queue: Fid<FidEq>,
    event: Out<u32>,
    room: Out<c_void>,
    length: usize,
    flags: u64,
) -> isize {
    let take = || {
        let queue = object::state::<Eq, _>(queue)?;
        let mut events = queue.lock();
        take(&mut events, event, (room, length), flags)
    };
    count(take())
}

extern "C" fn readerr(queue: Fid<FidEq>, room: Out<EqErrEntry>, flags: u64) -> isize {
    count(object::state::<Eq, _>(queue).and_then(|queue| queue.take_error(room, flags)))
}

extern "C" fn sread(
    queue: Fid<FidEq>,
    event: Out<u32>,
    room: Out<c_void>,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let wait = || {
        let queue = object::state::<Eq, _>(queue)?;
        let deadline = deadline(timeout);
        let mut events = queue.lock();
        while events.is_empty() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            events = match left {
                Some(Duration::ZERO) => return Err(AGAIN),
                Some(left) => {
                    queue
                        .written
                        .wait_timeout(events, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => queue
                    .written
                    .wait(events)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
        take(&mut events, event, (room, length), flags)
    };
    count(wait())
}

/// When a timeout in milliseconds is over; negative: never.
pub(crate) fn deadline(timeout: c_int) -> Option<Instant> {
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

fn take(
    events: &mut VecDeque<Event>,
    event: Out<u32>,
    (room, length): (Out<c_void>, usize),
    flags: u64,
) -> Result<usize> {
    let Event::Told(kind, bytes) = events.front().ok_or(AGAIN)? else {
        return Err(Errno(FI_EAVAIL));
    };
    // Without any room, the kind alone is asked for.
    let bytes = if room.is_null() && length == 0 {
        &[][..]
    } else {
        bytes
    };
    if bytes.len() > length {
        return Err(Errno(FI_ETOOSMALL));
    }
    if !event.set(*kind) || !room.copy_in(0, bytes) {
        return Err(INVALID);
    }
    let taken = bytes.len();
    if flags & PEEK == 0 {
        events.pop_front();
    }
    Ok(taken)
}
