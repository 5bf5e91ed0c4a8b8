//! Waiting in an event loop: a descriptor for poll, epoll and async runtimes (N17).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use qnic_abi::uapi;
use qnic_abi::window::Changes;

use crate::core::wait::Wakes;
use crate::core::{retry, Core};
use crate::error::{Error, Result};

/// A descriptor that becomes readable when a notification arrives for an endpoint,
/// or when the device is gone.
///
/// ```text
///   loop { poller.prepare()?;  look: test, remove, try_recv …;  nothing? epoll_wait }
/// ```
///
/// An event loop that skips [`prepare`](Self::prepare), or polls without looking after it,
/// can sleep through a notification. An endpoint has one poller at a time, since two would
/// take each other's events. Threads that block in calls of this library do not disturb
/// it. It keeps its endpoint registered.
#[derive(Debug)]
pub struct Poller {
    // First, so that the descriptor that is closed last is the core's.
    descriptor: OwnedFd,
    seen: AtomicU64,
    core: Arc<Core>,
}

impl Poller {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self> {
        let what = || "make a descriptor to poll".to_owned();
        let event = retry(what, || core.process.event())?;
        let descriptor = event.try_clone_to_owned();
        let descriptor = descriptor.map_err(|source| Error::system(what(), source))?;
        // AcqRel: orders a poller behind the end of the one before it.
        if core.notifications.polled.swap(true, Ordering::AcqRel) {
            return Err(Error::Polled);
        }
        Ok(Poller {
            descriptor,
            seen: AtomicU64::new(0),
            core: core.clone(),
        })
    }

    /// Ends readability; the next notification makes the descriptor readable again.
    /// Returns true if there was an event since the last call. The caller then looks at
    /// what it waits for, and polls only if it finds nothing.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub fn prepare(&self) -> Result<bool> {
        self.prepare_with(Wakes::Signals)
    }

    /// The same, for any change that the NIC makes: the end of a request, too, makes the descriptor
    /// readable. The caller then looks at its requests ([`Request::test`](crate::message::Request::test)).
    ///
    /// # Errors
    /// Those of [`Poller::prepare`]
    pub fn prepare_for_any(&self) -> Result<bool> {
        self.prepare_with(Wakes::For(Changes::ANYTHING))
    }

    fn prepare_with(&self, wakes: Wakes) -> Result<bool> {
        let mut call = uapi::Wait {
            flags: uapi::WAIT_SEEN.into(),
            ..Default::default()
        };
        let what = || "mark events as seen".to_owned();
        // The driver may say so before its word in the host area does: what looks next is to see it, too.
        retry(what, || self.core.process.wait(&mut call)).map_err(|error| match error {
            Error::DeviceGone => self.core.lose_device(),
            error => error,
        })?;
        Error::check(call.status.get(), what)?;
        self.core.request_wake(wakes);
        let now = call.generation.get();
        // Relaxed: a hint; what happened is seen in the host area.
        Ok(self.seen.swap(now, Ordering::Relaxed) != now)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // Release: partner is the swap in `new`.
        self.core
            .notifications
            .polled
            .store(false, Ordering::Release);
    }
}
