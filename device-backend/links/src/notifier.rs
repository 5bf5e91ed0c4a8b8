//! Eventfds: doorbells in, interrupts out, and wake-ups between threads.
//!
//! # What another process can do with its end
//! An eventfd is watched edge-triggered and never read, so another process that has it
//! cannot make this one block in a read. A descriptor that is no eventfd is refused:
//! polling one of another kind (FUSE, say) could block. Signalling is a write to a
//! non-blocking eventfd; a process that sets it back to blocking and fills its counter
//! could block the engine. A guest cannot do that. Front ends and other device processes
//! run as the same user, and could as well stop this process.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;

/// Why a descriptor of another process was refused.
#[derive(Debug, thiserror::Error)]
pub enum NotifierError {
    /// It is no eventfd.
    #[error("found {0} where an eventfd is wanted")]
    NotAnEventfd(String),
    /// It cannot be examined.
    #[error("cannot examine an eventfd: {0}")]
    System(#[from] std::io::Error),
}

/// An eventfd.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl Notifier {
    /// Creates one.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn new() -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Notifier(rustix::event::eventfd(0, flags)?))
    }

    /// Takes over a descriptor of another process.
    ///
    /// # Errors
    /// Returns [`NotifierError`] if it is no eventfd.
    pub fn adopt(file: OwnedFd) -> Result<Self, NotifierError> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let kind = std::fs::read_link(path)?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return Err(NotifierError::NotAnEventfd(kind.display().to_string()));
        }
        let flags = rustix::fs::fcntl_getfl(&file).map_err(std::io::Error::from)?;
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Notifier(file))
    }

    /// Another descriptor of the same eventfd.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Notifier(self.0.try_clone()?))
    }

    /// Wakes the threads that watch it. A full counter wakes them as well, so there is no
    /// error to return.
    pub fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_eventfds_are_taken() {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Notifier::adopt(eventfd.try_clone().unwrap()).unwrap();
        let flags = rustix::fs::fcntl_getfl(&eventfd).unwrap();
        assert!(flags.contains(OFlags::NONBLOCK));
        for path in ["/dev/zero", "/proc/self/status"] {
            let error = Notifier::adopt(std::fs::File::open(path).unwrap().into()).unwrap_err();
            assert!(
                error.to_string().contains("where an eventfd is wanted"),
                "{error}"
            );
        }
    }

    /// A full counter neither blocks nor fails.
    #[test]
    fn signalling_never_blocks() {
        let notifier = Notifier::new().unwrap();
        rustix::io::write(&notifier, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        notifier.signal();
        notifier.signal();
    }
}
