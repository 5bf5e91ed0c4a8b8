//! `fid_cq`: the ends of operations, in the order in which they are seen.
//!
//! # Invariants
//! - It holds as many entries as operations can end, whatever size the program has asked for: it is never overrun.
//! - An entry has the context of its operation, if that had one.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::eq::deadline;
use crate::errno::{count, status, Errno, Result, AGAIN, INVALID, UNSUPPORTED};
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    CqAttr, CqEntry, CqErrEntry, FidCq, Head, Ops, OpsCq, ADDR_UNSPEC, CLASS_CQ, CQ_FORMAT_CONTEXT,
    CQ_FORMAT_DATA, CQ_FORMAT_MSG, CQ_FORMAT_TAGGED, CQ_FORMAT_UNSPEC, FI_EAVAIL, WAIT_NONE,
};
use crate::waiting::Waiting;

/// The end of an operation.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) entry: CqEntry,
    /// The number of the sender.
    pub(crate) source: u64,
    /// The error, and the NIC's status.
    pub(crate) error: Option<(c_int, c_int)>,
    /// Bytes that did not fit.
    pub(crate) beyond: usize,
}

/// What the provider keeps of a completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    queue: Mutex<VecDeque<Event>>,
    /// How many entries it has, for looks without the lock; stored with it locked.
    length: AtomicUsize,
    /// Bytes of an entry.
    entry_bytes: usize,
    waiting: Waiting,
    _domain: Parent,
}

crate::object::object_class!(
    Cq,
    FidCq,
    CLASS_CQ,
    Ops {
        close,
        control,
        ..Ops::STUBS
    }
);

static CQ_OPS: OpsCq = OpsCq {
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror,
    ..OpsCq::STUBS
};

/// Opens a completion queue.
///
/// # Errors
/// [`INVALID`]: there is no such format; [`UNSUPPORTED`]: nor such an object to wait with.
pub(crate) fn open(
    domain: Parent,
    attributes: In<CqAttr>,
    opened: Out<Fid<FidCq>>,
    context: Context,
) -> Result<()> {
    let attributes = attributes.get().ok_or(INVALID)?;
    let entry_bytes = match attributes.format {
        CQ_FORMAT_UNSPEC | CQ_FORMAT_CONTEXT => std::mem::offset_of!(CqEntry, flags),
        CQ_FORMAT_MSG => std::mem::offset_of!(CqEntry, buf),
        CQ_FORMAT_DATA => std::mem::offset_of!(CqEntry, tag),
        CQ_FORMAT_TAGGED => size_of::<CqEntry>(),
        _ => return Err(INVALID),
    };
    let waiting = Waiting::new(attributes.wait_obj)?;
    let queue = Mutex::default();
    let state = Arc::new(Cq {
        queue,
        length: AtomicUsize::new(0),
        entry_bytes,
        waiting,
        _domain: domain,
    });
    let head = Head {
        class: CLASS_CQ,
        context,
        ops: Cq::OPS,
    };
    object::open_at(opened, FidCq { head, ops: &CQ_OPS }, state)
}

impl Event {
    /// The end of an operation without bytes.
    pub(crate) fn of(context: Context, flags: u64) -> Self {
        let entry = CqEntry {
            context,
            flags,
            len: 0,
            buf: Out::NULL,
            data: 0,
            tag: 0,
        };
        Event {
            entry,
            source: ADDR_UNSPEC,
            error: None,
            beyond: 0,
        }
    }
}

impl Cq {
    /// The endpoints that put entries in.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Puts an entry in.
    pub(crate) fn push(&self, event: Event) {
        let mut queue = lock(&self.queue);
        queue.push_back(event);
        self.note_length(&queue);
        drop(queue);
        self.waiting.wake();
    }

    fn note_length(&self, queue: &VecDeque<Event>) {
        // Relaxed: what it counts is behind the lock.
        self.length.store(queue.len(), Ordering::Relaxed);
    }

    /// Makes sure that what comes from now on wakes a thread that polls the descriptor.
    ///
    /// # Errors
    /// [`AGAIN`]: there is something to read.
    pub(crate) fn prepare_to_wait(&self) -> Result<()> {
        self.waiting.prepare()?;
        self.waiting.progress();
        match lock(&self.queue).is_empty() {
            true => Ok(()),
            false => Err(AGAIN),
        }
    }

    /// Reads entries into an array of the program.
    fn take(&self, entries: Out<c_void>, count: usize, sources: Out<u64>) -> Result<usize> {
        self.waiting.progress();
        // Relaxed: an entry that is not seen now is seen by the next look; a sleeper looks with the lock.
        if self.length.load(Ordering::Relaxed) == 0 {
            self.waiting.looked(count == 0);
            return match count {
                0 => Ok(0),
                _ => Err(AGAIN),
            };
        }
        let mut queue = lock(&self.queue);
        let mut taken = 0;
        while taken < count {
            match queue.front() {
                None => break,
                Some(event) if event.error.is_some() => {
                    self.note_length(&queue);
                    return match taken {
                        0 => Err(Errno(FI_EAVAIL)),
                        _ => Ok(taken),
                    };
                }
                Some(event) => {
                    let offset = taken.checked_mul(self.entry_bytes).ok_or(INVALID)?;
                    let entry = event.entry.bytes();
                    let entry = entry.get(..self.entry_bytes).ok_or(INVALID)?;
                    if !entries.copy_in(offset, entry) {
                        self.note_length(&queue);
                        return Err(INVALID);
                    }
                    if !sources.is_null() {
                        sources.set_item(taken, event.source);
                    }
                    queue.pop_front();
                    taken += 1;
                }
            }
        }
        self.note_length(&queue);
        let is_left = !queue.is_empty();
        drop(queue);
        self.waiting.looked(taken > 0 || count == 0);
        if is_left {
            // For another thread, whose event this one may have taken.
            self.waiting.wake();
        }
        match taken {
            0 if count > 0 => Err(AGAIN),
            _ => Ok(taken),
        }
    }

    /// The same; sleeps until there is an entry.
    fn wait(
        &self,
        entries: Out<c_void>,
        count: usize,
        sources: Out<u64>,
        timeout: c_int,
    ) -> Result<usize> {
        if self.waiting.kind() == WAIT_NONE {
            return Err(UNSUPPORTED);
        }
        let deadline = deadline(timeout);
        loop {
            match self.take(entries, count, sources) {
                Err(AGAIN) => {}
                result => return result,
            }
            if self.waiting.take_signal() {
                return Err(AGAIN);
            }
            match self.prepare_to_wait() {
                Ok(()) => {}
                Err(AGAIN) => continue,
                // Without a NIC, what is under way ends first.
                Err(error) => match self.take(entries, count, sources) {
                    Err(AGAIN) => return Err(error),
                    result => return result,
                },
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(AGAIN);
            }
            self.waiting.sleep(deadline)?;
        }
    }

    fn take_error(&self, room: Out<CqErrEntry>) -> Result<usize> {
        let given = room.get().ok_or(INVALID)?;
        let mut queue = lock(&self.queue);
        let Some((event, (err, prov_errno))) = queue.front().and_then(|it| Some((it, it.error?)))
        else {
            return Err(AGAIN);
        };
        let entry = CqErrEntry {
            entry: event.entry,
            olen: event.beyond,
            err,
            prov_errno,
            err_data: given.err_data,
            err_data_size: 0,
        };
        room.set(entry);
        queue.pop_front();
        self.note_length(&queue);
        Ok(1)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of<'call>(queue: Fid<FidCq>) -> Result<&'call Cq> {
    object::borrow::<Cq, _>(queue)
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<Cq>(fid, object::unused))
}

extern "C" fn control(fid: Fid<Head>, command: c_int, argument: Out<c_void>) -> c_int {
    let queue = object::state::<Cq, _>(fid);
    status(queue.and_then(|queue| queue.waiting.tell(command, argument)))
}

extern "C" fn read(queue: Fid<FidCq>, entries: Out<c_void>, number: usize) -> isize {
    readfrom(queue, entries, number, Out::NULL)
}

extern "C" fn readfrom(
    queue: Fid<FidCq>,
    entries: Out<c_void>,
    number: usize,
    sources: Out<u64>,
) -> isize {
    count(of(queue).and_then(|queue| queue.take(entries, number, sources)))
}

extern "C" fn readerr(queue: Fid<FidCq>, room: Out<CqErrEntry>, _flags: u64) -> isize {
    count(of(queue).and_then(|queue| queue.take_error(room)))
}

extern "C" fn sread(
    queue: Fid<FidCq>,
    entries: Out<c_void>,
    number: usize,
    condition: In<c_void>,
    timeout: c_int,
) -> isize {
    sreadfrom(queue, entries, number, Out::NULL, condition, timeout)
}

extern "C" fn sreadfrom(
    queue: Fid<FidCq>,
    entries: Out<c_void>,
    number: usize,
    sources: Out<u64>,
    _condition: In<c_void>,
    timeout: c_int,
) -> isize {
    count(of(queue).and_then(|queue| queue.wait(entries, number, sources, timeout)))
}

extern "C" fn signal(queue: Fid<FidCq>) -> c_int {
    status(of(queue).and_then(|queue| queue.waiting.signal()))
}

/// What a status of the NIC means.
extern "C" fn strerror(
    _queue: Fid<FidCq>,
    status: c_int,
    _data: In<c_void>,
    room: Out<c_void>,
    length: usize,
) -> *const c_char {
    let text = match status {
        0 => "no status of the NIC".to_owned(),
        _ => match u32::try_from(status).map(qnic::Status::try_from) {
            Ok(Ok(status)) => status.to_string(),
            _ => format!("status {status} of the NIC"),
        },
    };
    if let Some(most) = length.checked_sub(1) {
        let part = text.as_bytes().get(..most).unwrap_or(text.as_bytes());
        room.copy_in(0, part);
        room.copy_in(part.len(), &[0]);
        return room.text_pointer();
    }
    c"a status of the NIC".as_ptr()
}
