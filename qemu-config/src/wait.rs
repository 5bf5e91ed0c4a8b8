//! Waiting: always for something, never without an end.
//!
//! Every wait of this crate is a `poll` on descriptors with a deadline and, where
//! a user or a program may give up, a [`Cancel`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Ends the waits of everything that was given a clone of it.
///
/// It is a socket that becomes readable and stays so, which makes it usable in
/// `poll` by any number of threads, and from a signal handler.
#[derive(Clone, Debug)]
pub struct Cancel {
    ends: Arc<(UnixStream, UnixStream)>,
}

impl Cancel {
    /// A cancel that is not pulled.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let ends = UnixStream::pair()?;
        ends.1.set_nonblocking(true)?;
        Ok(Self {
            ends: Arc::new(ends),
        })
    }

    /// A cancel that the signals INT, TERM and HUP pull, instead of ending the
    /// process. The second signal ends it at once, as it would without this.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_signals() -> io::Result<Self> {
        let cancel = Self::new()?;
        let pulled = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag unset, and sets it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&pulled))?;
            signal_hook::flag::register(signal, Arc::clone(&pulled))?;
            signal_hook::low_level::pipe::register(signal, cancel.ends.1.try_clone()?)?;
        }
        Ok(cancel)
    }

    /// A cancel that these signals pull, however often they come: for a process whose starter sends several, and kills
    /// it in the end.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_repeated_signals() -> io::Result<Self> {
        let cancel = Self::new()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, cancel.ends.1.try_clone()?)?;
        }
        Ok(cancel)
    }

    /// Leaves Ctrl-C, however often, to a program that this process starts and waits for. From then on it
    /// does not end this process.
    ///
    /// # Errors
    /// Returns an error if the system has no room for a handler.
    pub fn left_to_child() -> io::Result<()> {
        // A handler, which programs that are started do not inherit, other than a signal that is ignored.
        signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)))?;
        Ok(())
    }

    /// Ends all waits, now and in future.
    pub fn cancel(&self) {
        // The only failure is a full socket, which is readable all the same.
        let _ = io::Write::write(&mut &self.ends.1, &[1]);
    }

    /// Waits until it is pulled.
    pub fn wait(&self) {
        // Nothing else can end this wait.
        let _ = Deadline::new(None, None).readable(self.as_fd());
    }

    /// Waits until it or `other` is pulled. Returns true if it was pulled.
    pub fn wait_before(&self, other: &Self) -> bool {
        let _ = Deadline::new(None, Some(other)).readable(self.as_fd());
        self.is_cancelled()
    }

    /// Returns true if it was pulled.
    pub fn is_cancelled(&self) -> bool {
        let mut fds = [PollFd::new(&self.ends.0, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }
}

impl AsFd for Cancel {
    /// Readable once cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ends.0.as_fd()
    }
}

/// When a wait ends at the latest, and what ends it earlier.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    until: Option<Instant>,
    cancels: Vec<Cancel>,
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    #[error("no answer in time")]
    Timeout,
    #[error("interrupted")]
    Cancelled,
}

impl Deadline {
    /// Waits for `limit`, `None` for ever, unless one of `cancels` is pulled.
    pub(crate) fn new<'a>(
        limit: Option<Duration>,
        cancels: impl IntoIterator<Item = &'a Cancel>,
    ) -> Self {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self {
            until,
            cancels: cancels.into_iter().cloned().collect(),
        }
    }

    pub(crate) fn seconds(seconds: u64) -> Self {
        Self::new(Some(Duration::from_secs(seconds)), None)
    }

    /// The same, but at most `limit` from now.
    pub(crate) fn at_most(&self, limit: Duration) -> Self {
        let limited = Instant::now() + limit;
        let until = self.until.map_or(limited, |until| until.min(limited));
        Self {
            until: Some(until),
            cancels: self.cancels.clone(),
        }
    }

    /// Time that is left; `None` is for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.until
            .map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Waits until one of `fds` is ready for its events (or has failed or hung
    /// up) and returns the index of the first that is.
    pub(crate) fn first_ready(&self, fds: &[(BorrowedFd<'_>, PollFlags)]) -> Result<usize, Stop> {
        let mut polled: Vec<_> = fds
            .iter()
            .map(|(fd, events)| PollFd::from_borrowed_fd(*fd, *events))
            .collect();
        polled.extend(
            self.cancels
                .iter()
                .map(|cancel| PollFd::new(cancel, PollFlags::IN)),
        );
        loop {
            let left = self.left();
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let found = poll(&mut polled, timeout.as_ref());
            if polled[fds.len()..]
                .iter()
                .any(|fd| !fd.revents().is_empty())
            {
                return Err(Stop::Cancelled);
            }
            if found.is_ok() {
                if let Some(index) = polled.iter().position(|fd| !fd.revents().is_empty()) {
                    return Ok(index);
                }
            }
            // Otherwise a signal interrupted the wait, or the time is over.
            if left == Some(Duration::ZERO) {
                return Err(Stop::Timeout);
            }
        }
    }

    /// Waits until it is over. Returns why it is.
    pub(crate) fn over(&self) -> Stop {
        match self.first_ready(&[]) {
            Err(stop) => stop,
            // Of no descriptors none is ready.
            Ok(_) => Stop::Timeout,
        }
    }

    /// Waits until `fd` can be read.
    pub(crate) fn readable(&self, fd: BorrowedFd<'_>) -> Result<(), Stop> {
        self.first_ready(&[(fd, PollFlags::IN)]).map(drop)
    }
}

impl From<Stop> for io::Error {
    /// Keeps the [`Stop`] inside, for [`stop_in`].
    fn from(stop: Stop) -> Self {
        let kind = match stop {
            Stop::Timeout => io::ErrorKind::TimedOut,
            Stop::Cancelled => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, stop)
    }
}

/// The [`Stop`] that an I/O error came from, if it did.
pub(crate) fn stop_in(error: &io::Error) -> Option<Stop> {
    error.get_ref()?.downcast_ref().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_ends_waits_for_all_and_for_good() {
        let cancel = Cancel::new().unwrap();
        let (quiet, _other) = UnixStream::pair().unwrap();
        let deadline = Deadline::new(None, Some(&cancel));
        let waiter = std::thread::spawn(move || deadline.readable(quiet.as_fd()));
        assert!(!cancel.is_cancelled());
        cancel.cancel();
        assert_eq!(waiter.join().unwrap(), Err(Stop::Cancelled));
        assert!(cancel.is_cancelled() && cancel.is_cancelled());
    }

    /// Otherwise the first one would end this process, and the second one if the first only cancelled.
    #[test]
    fn ctrl_c_that_is_left_to_a_child_ends_only_that() {
        Cancel::left_to_child().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        for pid in [
            rustix::process::getpid(),
            rustix::process::getpid(),
            rustix::process::Pid::from_child(&child),
        ] {
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(SIGINT));
    }

    #[test]
    fn a_wait_ends_in_time() {
        let (quiet, mut other) = UnixStream::pair().unwrap();
        let deadline = Deadline::new(Some(Duration::from_millis(20)), None);
        assert_eq!(deadline.readable(quiet.as_fd()), Err(Stop::Timeout));
        io::Write::write_all(&mut other, &[1]).unwrap();
        assert_eq!(deadline.readable(quiet.as_fd()), Ok(()));
    }
}
