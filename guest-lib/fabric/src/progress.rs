//! Automatic progress: a thread for each endpoint, which helps when the program does not call.
//!
//! ```text
//!   few operations under way      the NIC does all by itself: the thread sleeps, and nothing wakes it
//!   receives among them           the thread looks now and then: a message may have come whose sender waits for an
//!                                 answer, or of which there are further pieces
//!   more of them, or such a       each change at the NIC wakes the thread: it posts Sends that the library holds
//!   message has come before       back, makes room in the NIC's completion queue, answers, and goes on with pieces
//! ```
//! So an exchange of plain messages wakes no thread beside those of the program.
//! # Invariants
//! - What the helper does ([`Rest`]) is raised by what needs more of it, and lowered by the thread after a look: both
//!   under the lock of the operations.
//! - An endpoint that is closed ends its thread and waits for that, so none is left when the loader closes this
//!   library. In a process that was forked there is no such thread, and the one of its parent stays alone.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};

use crate::errno::{Errno, Result};

/// Sends under way that need no help: for so many to a process the library has a place at the NIC whatever else
/// is under way.
pub(crate) const FEW: usize = 16;

/// Operations of any kind under way that need no help: for so many ends the NIC has room.
pub(crate) const FEW_ENDS: usize = 256;

/// How long the helper sleeps between two looks at receives, of which no sender has needed anything so far.
const LOOK: Duration = Duration::from_millis(50);

/// What the helper does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rest {
    /// Sleeps until it is wanted.
    Asleep,
    /// Sleeps for [`LOOK`], or until it is wanted.
    Looking,
    /// Sleeps until something changes at the NIC.
    Watching,
    /// Looks again: more may have come during the look.
    Again,
}

/// What the thread of an endpoint does.
pub(crate) trait Tended: Send + Sync {
    /// Completes what has ended, and says what is to be done next.
    fn tend(&self) -> Rest;

    /// Makes the next change at the NIC readable at the descriptor; or says how long the thread may sleep without
    /// that, as others look meanwhile.
    ///
    /// # Errors
    /// The NIC is gone, or those of the system.
    fn prepare(&self) -> Result<Option<Timespec>>;

    /// Its descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    stopped: bool,
}

/// What wakes the thread.
#[derive(Debug)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
    stop: OwnedFd,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    /// The process that has it.
    process: u32,
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Signal {
    /// # Errors
    /// Those of the system
    pub(crate) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = eventfd(0, flags).map_err(|error| Errno(error.raw_os_error()))?;
        Ok(Signal {
            state: Mutex::default(),
            changed: Condvar::new(),
            stop,
        })
    }

    /// There is more to do.
    pub(crate) fn want(&self) {
        self.change(|state| state.wanted = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Sleeps until the thread is wanted; returns false if it is to end.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |state: &mut State| !state.wanted && !state.stopped;
        let mut state = self
            .changed
            .wait_while(state, idle)
            .unwrap_or_else(PoisonError::into_inner);
        state.wanted = false;
        !state.stopped
    }

    /// The same, but no longer than [`LOOK`].
    fn wait_shortly(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |state: &mut State| !state.wanted && !state.stopped;
        let waited = self.changed.wait_timeout_while(state, LOOK, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.wanted = false;
    }

    fn is_stopped(&self) -> bool {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stopped
    }
}

impl Helper {
    /// Starts the thread of an endpoint.
    ///
    /// # Errors
    /// -FI_EAGAIN: the system has no room for a thread.
    pub(crate) fn start(tended: Arc<dyn Tended>, signal: Arc<Signal>) -> Result<Self> {
        let own = signal.clone();
        let work = move || {
            while own.wait() {
                help(tended.as_ref(), &own);
            }
        };
        let thread = std::thread::Builder::new()
            .name("qnic-fi".to_owned())
            .spawn(work);
        let thread = thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok(Helper {
            process: std::process::id(),
            signal,
            thread: Some(thread),
        })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child: it shares the event with its parent, and its copies of lock and thread stand for nothing.
            std::mem::forget(self.thread.take());
            return;
        }
        self.signal.change(|state| state.stopped = true);
        // It can only be full, which wakes as well.
        let _ = rustix::io::write(&self.signal.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It has panicked: nothing more can be told of it here.
            drop(thread.join());
        }
    }
}

/// Helps until there is nothing to do.
fn help(tended: &dyn Tended, signal: &Signal) {
    loop {
        let prepared = tended.prepare();
        let rest = tended.tend();
        // Without a NIC each operation ends, with an error.
        if rest == Rest::Asleep || signal.is_stopped() {
            return;
        }
        let Ok(longest) = prepared else {
            return;
        };
        if rest == Rest::Again {
            continue;
        }
        if rest == Rest::Looking {
            signal.wait_shortly();
            continue;
        }
        let descriptor = tended.descriptor();
        let mut both = [
            PollFd::new(&signal.stop, PollFlags::IN),
            PollFd::new(&descriptor, PollFlags::IN),
        ];
        // While others look, the event of a change before is not for this thread.
        let awaited = if longest.is_some() { 1 } else { 2 };
        // Interrupted: it looks, and sleeps again.
        let _ = poll(&mut both[..awaited], longest.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Has nothing to do.
    struct Idle(OwnedFd);

    impl Tended for Idle {
        fn tend(&self) -> Rest {
            Rest::Asleep
        }

        fn prepare(&self) -> Result<Option<Timespec>> {
            Ok(None)
        }

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    #[test]
    fn a_child_that_ends_its_helper_leaves_that_of_its_parent_alone() {
        let signal = Arc::new(Signal::new().unwrap());
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let helper = Helper::start(Arc::new(Idle(event)), signal.clone()).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the child drops the helper, which takes no lock and frees nothing there, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            #[allow(unsafe_code)]
            // SAFETY: ends a child that hangs; no other code of it runs.
            unsafe {
                libc::alarm(30);
                drop(helper);
                libc::_exit(0)
            }
        }
        assert!(child > 0);
        let mut status = -1;
        #[allow(unsafe_code)]
        // SAFETY: a child of this process, and a place for its status.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        let stop = &mut [PollFd::new(&signal.stop, PollFlags::IN)];
        assert_eq!(poll(stop, Some(&Timespec::default())), Ok(0));
        drop(helper);
        assert!(signal.is_stopped());
    }
}
