//! Ends a thread that waits for sockets.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::notifier::Notifier;

/// Time until the next attempt to accept a client after one that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Ends one thread: wakes it from waiting, and shuts down the socket that it may be
/// reading from.
#[derive(Debug)]
pub(crate) struct Stop {
    signal: Notifier,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    raised: bool,
    /// Ends what the thread waits for.
    current: Option<Box<dyn Fn() + Send>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("State")
            .field("raised", &self.raised)
            .finish_non_exhaustive()
    }
}

impl Stop {
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
        if let Some(end) = &state.current {
            end();
        }
    }

    /// Readable once the thread must end, for one that polls by itself.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    /// Waits until the thread must end, or one of `others` is readable. Returns whether
    /// each of them is, or `None` if the thread must end.
    pub(crate) fn wait<const N: usize>(
        &self,
        others: [BorrowedFd<'_>; N],
        timeout: Option<Duration>,
    ) -> std::io::Result<Option<[bool; N]>> {
        let timeout = timeout.map(Timespec::try_from).transpose();
        let timeout = timeout.map_err(std::io::Error::other)?;
        let all = std::iter::once(self.signal.as_fd()).chain(others);
        let mut fds: Vec<_> = all
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))?;
        let is_ready = |index: usize| !fds[index].revents().is_empty();
        Ok((!is_ready(0)).then(|| std::array::from_fn(|index| is_ready(index + 1))))
    }

    /// Waits for the next client of `listener`; `None` if the thread must end.
    pub(crate) fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        loop {
            self.wait([listener.as_fd()], None).ok().flatten()?;
            match listener.accept() {
                Ok((client, _)) => return Some(client),
                Err(error) => tracing::warn!("cannot accept a client: {error}"),
            }
            self.wait([], Some(RETRY_INTERVAL)).ok().flatten()?;
        }
    }

    /// The thread is going to read from `stream`. Fails with `Interrupted` if it must end
    /// instead.
    pub(crate) fn watch(&self, stream: &UnixStream) -> std::io::Result<()> {
        let stream = stream.try_clone()?;
        self.watch_with(move || {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        })
    }

    /// The thread is going to wait for something that `end` ends. Fails with `Interrupted` if the
    /// thread must end instead.
    pub(crate) fn watch_with(&self, end: impl Fn() + Send + 'static) -> std::io::Result<()> {
        let mut state = self.lock();
        if state.raised {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        state.current = Some(Box::new(end));
        Ok(())
    }

    /// The thread does not wait for that any more.
    pub(crate) fn unwatch(&self) {
        self.lock().current = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
