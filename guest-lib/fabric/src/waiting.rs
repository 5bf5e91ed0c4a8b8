//! Waiting for what endpoints tell: completion queues and counters.
//!
//! ```text
//!   epoll ◄── descriptor of each endpoint: the NIC has changed something
//!     ▲ └──── eventfd: another thread has told something
//!   sleeper, or the program by FI_GETWAIT
//! ```
//! # Invariants
//! - A sleeper says first that it will sleep ([`Waiting::prepare`]), then looks, then sleeps. What comes after it has
//!   said so wakes it.
//! - A sleeper that leaves something for others wakes them again, as it may have taken the event of one.
//! - What is told is stored, then comes a full fence, then `armed` is loaded; a sleeper stores `armed`, then comes a full
//!   fence, then it looks. So the sleeper sees what was told, or its teller sees `armed`: the pair of fences has no other
//!   outcome. No model explores it: `armed` is the one word, never cleared, and the rest is calls of the kernel; the tests
//!   try all orders of the steps on the real object.
//! - A thread uses an endpoint with the list of them locked. So a close that has changed the list has waited for it.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Instant;

use rustix::event::{epoll, eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno as Os;

use crate::errno::{Errno, Result, INVALID, UNSUPPORTED};
use crate::pointers::Out;
use crate::sys::{CONTROL_GETWAIT, CONTROL_GETWAITOBJ, WAIT_FD, WAIT_NONE, WAIT_UNSPEC};

/// Programs read in a loop. So many reads in vain give their processor away once: the NIC or the peer that they
/// wait for may need just that.
const YIELD_EVERY: u32 = 8;

/// What ends operations: an endpoint at the NIC.
pub(crate) trait Engine: Send + Sync + std::fmt::Debug {
    /// Tells what has ended to queues and counters.
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

/// The endpoints that tell, and how to wait for them.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Locked for reading while one is used.
    engines: RwLock<Vec<Weak<dyn Engine>>>,
    wait: Option<Wait>,
    /// Looks that have found nothing since the last one that has.
    vain: AtomicU32,
}

/// What threads sleep on.
#[derive(Debug)]
struct Wait {
    kind: u32,
    /// Readable if one of the others is: those of the endpoints, and `event`.
    all: OwnedFd,
    event: OwnedFd,
    /// A thread may sleep: what is told writes to `event`.
    armed: AtomicBool,
    /// A thread is to wake up without reason.
    signalled: AtomicBool,
}

impl Waiting {
    /// # Errors
    /// [`UNSUPPORTED`]: there is no such object to wait with. Those of the system.
    pub(crate) fn new(kind: u32) -> Result<Self> {
        let wait = match kind {
            WAIT_NONE => None,
            WAIT_UNSPEC | WAIT_FD => Some(Wait::new(kind).map_err(system)?),
            _ => return Err(UNSUPPORTED),
        };
        let (engines, vain) = (RwLock::default(), AtomicU32::new(0));
        Ok(Waiting {
            engines,
            wait,
            vain,
        })
    }

    /// Adds an endpoint.
    ///
    /// # Errors
    /// Those of the system
    pub(crate) fn attach(&self, engine: &Arc<dyn Engine>) -> Result<()> {
        let mut engines = self.change();
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

    /// Forgets endpoints that were dropped. Of those no thread uses one any more when this returns.
    pub(crate) fn forget_dropped(&self) {
        drop(self.change());
    }

    /// Has each endpoint tell what has ended.
    pub(crate) fn progress(&self) {
        self.engines().iter().for_each(|engine| {
            if let Some(engine) = engine.upgrade() {
                engine.progress();
            }
        });
    }

    /// Notes whether a look has found something; one in vain may give the processor away.
    pub(crate) fn looked(&self, found: bool) {
        // Relaxed: a hint for when to yield.
        let vain = match found {
            true => 0,
            // Of looks of several threads at once some are not counted.
            false => self.vain.load(Ordering::Relaxed) + 1,
        };
        self.vain.store(vain % YIELD_EVERY, Ordering::Relaxed);
        if vain == YIELD_EVERY {
            std::thread::yield_now();
        }
    }

    /// Wakes those that sleep, or will.
    pub(crate) fn wake(&self) {
        if let Some(wait) = &self.wait {
            // SeqCst: partner is the fence in `Wait::arm`, behind the store.
            fence(Ordering::SeqCst);
            if wait.armed.load(Ordering::Relaxed) {
                wait.wake();
            }
        }
    }

    /// Makes a thread that sleeps wake up without reason.
    ///
    /// # Errors
    /// [`UNSUPPORTED`]: none sleeps here.
    pub(crate) fn signal(&self) -> Result<()> {
        let wait = self.wait.as_ref().ok_or(UNSUPPORTED)?;
        wait.signalled.store(true, Ordering::Release);
        wait.wake();
        Ok(())
    }

    /// Returns true, once, if a thread is to wake up without reason.
    pub(crate) fn take_signal(&self) -> bool {
        let signalled = |wait: &Wait| wait.signalled.swap(false, Ordering::AcqRel);
        self.wait.as_ref().is_some_and(signalled)
    }

    /// Makes sure that what comes from now on wakes a thread that polls the descriptor.
    ///
    /// # Errors
    /// The NIC is gone, or those of the system.
    pub(crate) fn prepare(&self) -> Result<()> {
        if let Some(wait) = &self.wait {
            wait.arm();
        }
        self.engines()
            .iter()
            .filter_map(Weak::upgrade)
            .try_for_each(|engine| engine.prepare_to_wait())
    }

    /// Sleeps until something comes, or time is up.
    ///
    /// # Errors
    /// [`UNSUPPORTED`]: it has no object to wait with. Those of the system.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> Result<()> {
        let wait = self.wait.as_ref().ok_or(UNSUPPORTED)?;
        // One that came after the last look.
        match wait.signalled.load(Ordering::Acquire) {
            true => Ok(()),
            false => wait.sleep(deadline),
        }
    }

    /// The kind of object to wait with.
    pub(crate) fn kind(&self) -> u32 {
        self.wait.as_ref().map_or(WAIT_NONE, |wait| wait.kind)
    }

    /// Answers `fi_control`: the kind of object to wait with, or its descriptor.
    ///
    /// # Errors
    /// [`UNSUPPORTED`]: no such command, or no descriptor; [`INVALID`]: no room for the answer.
    pub(crate) fn tell(&self, command: c_int, answer: Out<c_void>) -> Result<()> {
        let descriptor = self.wait.as_ref().map(|wait| wait.all.as_raw_fd());
        let value = match (command, descriptor) {
            (CONTROL_GETWAITOBJ, _) => self.kind().to_ne_bytes(),
            (CONTROL_GETWAIT, Some(descriptor)) => descriptor.to_ne_bytes(),
            _ => return Err(UNSUPPORTED),
        };
        match answer.copy_in(0, &value) {
            true => Ok(()),
            false => Err(INVALID),
        }
    }

    fn engines(&self) -> RwLockReadGuard<'_, Vec<Weak<dyn Engine>>> {
        self.engines.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that were not dropped, to change them.
    fn change(&self) -> RwLockWriteGuard<'_, Vec<Weak<dyn Engine>>> {
        let engines = self.engines.write();
        let mut engines = engines.unwrap_or_else(PoisonError::into_inner);
        engines.retain(|it| it.strong_count() > 0);
        engines
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

    /// From here on what other threads tell wakes the caller.
    fn arm(&self) {
        // It may be empty.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.armed.store(true, Ordering::Relaxed);
        // SeqCst: partner is the fence in `Waiting::wake`, behind what is told; the caller looks behind this.
        fence(Ordering::SeqCst);
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

fn system(error: Os) -> Errno {
    Errno(error.raw_os_error())
}

#[cfg(test)]
mod tests;
