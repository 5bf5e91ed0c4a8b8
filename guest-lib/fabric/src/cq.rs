//! `fid_cq`: the ends of operations, in the order in which they are seen.
//!
//! # Invariants
//! - It holds as many entries as operations can end, whatever size the program has asked for: it is never overrun.
//! - An entry has the context of its operation, if that had one.
//! - A thread that sleeps in `sread`, or on the descriptor, is woken by a change at the NIC of each endpoint, and by
//!   an entry that another thread has put in: each says first that it will sleep, then looks, then sleeps. A thread
//!   that leaves entries wakes the others again, as it may have taken the event of one.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use rustix::event::{epoll, eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno as Os;

use crate::eq::deadline;
use crate::errno::{count, status, Errno, Result, AGAIN, INVALID, UNSUPPORTED};
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    CqAttr, CqEntry, CqErrEntry, FidCq, Head, Ops, OpsCq, ADDR_UNSPEC, CLASS_CQ, CONTROL_GETWAIT,
    CONTROL_GETWAITOBJ, CQ_FORMAT_CONTEXT, CQ_FORMAT_DATA, CQ_FORMAT_MSG, CQ_FORMAT_TAGGED,
    CQ_FORMAT_UNSPEC, FI_EAVAIL, WAIT_FD, WAIT_NONE, WAIT_UNSPEC,
};

/// Programs read in a loop. So many reads in vain give their processor away once: the NIC or the peer that they
/// wait for may need just that.
const YIELD_EVERY: u32 = 8;

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

/// What puts entries in: an endpoint at the NIC.
pub(crate) trait Engine: Send + Sync + std::fmt::Debug {
    /// Puts in what has ended.
    fn progress(&self);

    /// Makes the next change at the NIC wake a thread that polls the descriptor. The caller then looks
    /// ([`Engine::progress`]), and polls if nothing has come.
    ///
    /// # Errors
    /// The NIC is gone, or those of the system.
    fn prepare_to_wait(&self) -> Result<()>;

    /// Its descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// What the provider keeps of a completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    queue: Mutex<VecDeque<Event>>,
    /// Bytes of an entry.
    entry_bytes: usize,
    engines: Mutex<Vec<Weak<dyn Engine>>>,
    wait: Option<Wait>,
    /// Reads that have found nothing since the last one that has.
    vain: AtomicU32,
    _domain: Parent,
}

/// What threads sleep on.
#[derive(Debug)]
struct Wait {
    kind: u32,
    /// Readable if one of the others is: those of the endpoints, and `event`.
    all: OwnedFd,
    event: OwnedFd,
    /// A thread may sleep: an entry that is put in writes to `event`.
    armed: AtomicBool,
    /// `fi_cq_signal` was called.
    signalled: AtomicBool,
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
    let wait = match attributes.wait_obj {
        WAIT_NONE => None,
        kind @ (WAIT_UNSPEC | WAIT_FD) => Some(Wait::new(kind).map_err(system)?),
        _ => return Err(UNSUPPORTED),
    };
    let (queue, engines) = (Mutex::default(), Mutex::default());
    let state = Arc::new(Cq {
        queue,
        entry_bytes,
        engines,
        wait,
        vain: AtomicU32::new(0),
        _domain: domain,
    });
    let head = Head {
        class: CLASS_CQ,
        context,
        ops: Cq::OPS,
    };
    object::open_at(opened, FidCq { head, ops: &CQ_OPS }, state)
}

fn system(error: Os) -> Errno {
    Errno(error.raw_os_error())
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

impl Wait {
    fn new(kind: u32) -> rustix::io::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        add(&all, &event)?;
        let (armed, signalled) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Wait {
            kind,
            all,
            event,
            armed,
            signalled,
        })
    }

    fn wake(&self) {
        // It can only be full, which wakes as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// From here on entries of other threads wake the caller.
    fn arm(&self) {
        // It may be empty.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        // SeqCst: partner is the load in `Cq::wake`, behind an entry; the caller looks behind this.
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Sleeps until a descriptor is readable, or time is up.
    fn sleep(&self, deadline: Option<Instant>) -> Result<()> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut descriptors = [PollFd::new(&self.all, PollFlags::IN)];
        match poll(&mut descriptors, left.as_ref()) {
            Ok(_) | Err(Os::INTR) => Ok(()),
            Err(error) => Err(system(error)),
        }
    }
}

fn add(all: &OwnedFd, one: impl AsFd) -> rustix::io::Result<()> {
    epoll::add(
        all,
        one,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )
}

impl Cq {
    /// Makes the queue one of an endpoint.
    ///
    /// # Errors
    /// Those of the system
    pub(crate) fn attach(&self, engine: &Arc<dyn Engine>) -> Result<()> {
        let mut engines = lock(&self.engines);
        engines.retain(|it| it.strong_count() > 0);
        if engines
            .iter()
            .any(|it| std::ptr::addr_eq(it.as_ptr(), Arc::as_ptr(engine)))
        {
            return Ok(());
        }
        if let Some(wait) = &self.wait {
            add(&wait.all, engine.descriptor()).map_err(system)?;
        }
        engines.push(Arc::downgrade(engine));
        Ok(())
    }

    /// Puts an entry in.
    pub(crate) fn push(&self, event: Event) {
        lock(&self.queue).push_back(event);
        self.wake();
    }

    /// Wakes threads that sleep, or will.
    fn wake(&self) {
        if let Some(wait) = &self.wait {
            // SeqCst: partner is the store in `Wait::arm`.
            if wait.armed.load(Ordering::SeqCst) {
                wait.wake();
            }
        }
    }

    /// Makes sure that what comes from now on wakes a thread that polls the descriptor.
    ///
    /// # Errors
    /// [`AGAIN`]: there is something to read.
    pub(crate) fn prepare_to_wait(&self) -> Result<()> {
        if let Some(wait) = &self.wait {
            wait.arm();
        }
        for engine in self.engines() {
            engine.prepare_to_wait()?;
            engine.progress();
        }
        match lock(&self.queue).is_empty() {
            true => Ok(()),
            false => Err(AGAIN),
        }
    }

    fn engines(&self) -> Vec<Arc<dyn Engine>> {
        lock(&self.engines)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Reads entries into an array of the program.
    fn take(&self, entries: Out<c_void>, count: usize, sources: Out<u64>) -> Result<usize> {
        for engine in self.engines() {
            engine.progress();
        }
        let mut queue = lock(&self.queue);
        let mut taken = 0;
        while taken < count {
            match queue.front() {
                None => break,
                Some(event) if event.error.is_some() => {
                    return match taken {
                        0 => Err(Errno(FI_EAVAIL)),
                        _ => Ok(taken),
                    }
                }
                Some(event) => {
                    let offset = taken.checked_mul(self.entry_bytes).ok_or(INVALID)?;
                    let entry = event.entry.bytes();
                    let entry = entry.get(..self.entry_bytes).ok_or(INVALID)?;
                    if !entries.copy_in(offset, entry) {
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
        let is_left = !queue.is_empty();
        drop(queue);
        if is_left {
            // For another thread that sleeps, whose event this one may have taken.
            self.wake();
        }
        if taken > 0 || count == 0 {
            // Relaxed: a hint for when to yield.
            self.vain.store(0, Ordering::Relaxed);
            return Ok(taken);
        }
        if self.vain.fetch_add(1, Ordering::Relaxed) % YIELD_EVERY == YIELD_EVERY - 1 {
            std::thread::yield_now();
        }
        Err(AGAIN)
    }

    /// The same; sleeps until there is an entry.
    fn wait(
        &self,
        entries: Out<c_void>,
        count: usize,
        sources: Out<u64>,
        timeout: c_int,
    ) -> Result<usize> {
        let wait = self.wait.as_ref().ok_or(UNSUPPORTED)?;
        let deadline = deadline(timeout);
        loop {
            match self.take(entries, count, sources) {
                Err(AGAIN) => {}
                result => return result,
            }
            if wait.signalled.swap(false, Ordering::AcqRel) {
                return Err(AGAIN);
            }
            match self.prepare_to_wait() {
                Err(AGAIN) => continue,
                result => result?,
            }
            if wait.signalled.load(Ordering::Acquire) {
                continue;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(AGAIN);
            }
            wait.sleep(deadline)?;
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
        Ok(1)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of(queue: Fid<FidCq>) -> Result<Arc<Cq>> {
    object::state::<Cq, _>(queue)
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<Cq>(fid, object::unused))
}

extern "C" fn control(fid: Fid<Head>, command: c_int, argument: Out<c_void>) -> c_int {
    let tell = || {
        let queue = object::state::<Cq, _>(fid)?;
        let kind = queue.wait.as_ref().map_or(WAIT_NONE, |wait| wait.kind);
        let value = match (command, &queue.wait) {
            (CONTROL_GETWAITOBJ, _) => kind.to_ne_bytes(),
            (CONTROL_GETWAIT, Some(wait)) => wait.all.as_raw_fd().to_ne_bytes(),
            _ => return Err(UNSUPPORTED),
        };
        match argument.copy_in(0, &value) {
            true => Ok(()),
            false => Err(INVALID),
        }
    };
    status(tell())
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
    let wake = || {
        let queue = of(queue)?;
        let wait = queue.wait.as_ref().ok_or(UNSUPPORTED)?;
        wait.signalled.store(true, Ordering::Release);
        wait.wake();
        Ok(())
    };
    status(wake())
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
        _ => format!("status {status} of the NIC"),
    };
    if let Some(most) = length.checked_sub(1) {
        let part = text.as_bytes().get(..most).unwrap_or(text.as_bytes());
        room.copy_in(0, part);
        room.copy_in(part.len(), &[0]);
        return room.text_pointer();
    }
    c"a status of the NIC".as_ptr()
}
