//! How a thread that waits for sockets is told to end.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::notifier::Notifier;

/// Tells one thread to end: wakes it from waiting, and shuts down the socket that
/// it may be reading from.
#[derive(Debug)]
pub(crate) struct Stop {
    signal: Notifier,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    raised: bool,
    current: Option<UnixStream>,
}

impl Stop {
    /// # Errors
    /// What the system says to an eventfd.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Stop {
            signal: Notifier::new()?,
            state: Mutex::default(),
        })
    }

    /// Ends the thread, wherever it waits.
    pub(crate) fn raise(&self) {
        self.signal.signal();
        let mut state = self.lock();
        state.raised = true;
        if let Some(stream) = &state.current {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Waits for it up to `timeout` and says whether it came.
    pub(crate) fn comes_within(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        rustix::event::poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// The thread is going to read from `stream`.
    ///
    /// # Errors
    /// If it must end instead, or what the system says.
    pub(crate) fn watch(&self, stream: &UnixStream) -> std::io::Result<()> {
        let mut state = self.lock();
        if state.raised {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        state.current = Some(stream.try_clone()?);
        Ok(())
    }

    /// The thread has done with the stream.
    pub(crate) fn unwatch(&self) {
        self.lock().current = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Stop {
    /// Readable once the thread must end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}
