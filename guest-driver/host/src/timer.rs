//! The clock for serving datagrams.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};

/// A timer that a thread waits for in epoll.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> std::io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Timer(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Expires in `ns` nanoseconds, instead of the time that was set before.
    pub(crate) fn set(&self, ns: u64) {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // Zero would stop it.
        let value = Duration::from_nanos(ns.max(1)).try_into().unwrap_or(zero);
        let time = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        // The descriptor and the time are valid; there is no other reason to fail.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
    }

    /// Clears the expiration.
    pub(crate) fn clear(&self) {
        // It fails if it was set again meanwhile.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
