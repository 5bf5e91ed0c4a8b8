//! What a transfer that does not wait returns.

use std::time::{Duration, Instant};

use crate::core::tracker::Issued;
use crate::core::Core;
use crate::error::{Error, Result};

/// A transfer that was issued.
///
/// While the ticket lives, the failure of its transfer is reported to nothing else.
/// After it is dropped, the failure goes to the next fence or flush of its kind (N11).
#[derive(Debug)]
pub struct Ticket<'e> {
    core: &'e Core,
    issued: Issued,
    waited: bool,
}

impl<'e> Ticket<'e> {
    pub(crate) fn new(core: &'e Core, issued: Issued) -> Self {
        Ticket {
            core,
            issued,
            waited: false,
        }
    }

    /// Number of the command among all of its endpoint, from 0 at registration
    /// or queue reset.
    pub fn number(&self) -> u64 {
        self.issued.number
    }

    /// Returns true if this transfer and all earlier ones of its kind to the same process have ended, with
    /// success or not, as far as the NIC has reported. The NIC reports at the latest when
    /// it has nothing left to do for this process. Never blocks.
    pub fn has_ended(&self) -> bool {
        self.core.is_done(self.issued.mark)
    }

    /// Waits until this transfer and all earlier ones of its kind to the same process have ended.
    /// Returns an error if this one failed. Transfers to other processes are not waited for (N15).
    ///
    /// # Errors
    /// [`Error::Transfer`] with this transfer only; [`Error::DeviceGone`],
    /// [`Error::QueueFailed`], [`Error::QueueReset`], [`Error::Forked`].
    pub fn wait(mut self) -> Result<()> {
        self.wait_until(None)
    }

    /// [`Ticket::wait`], which waits up to `timeout`; zero asks once. When the transfer has
    /// ended and is reported, as success or as [`Error::Transfer`], later calls return `Ok` at
    /// once.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the transfer goes on, and it is not known whether it is complete:
    /// wait again. Its source must not change, its destination may still change. Those of
    /// [`Ticket::wait`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.wait_until(self.core.deadline(Some(timeout)))
    }

    /// Waits until a deadline.
    pub(crate) fn wait_until(&mut self, deadline: Option<Instant>) -> Result<()> {
        if self.waited {
            return Ok(());
        }
        self.core.wait_complete(self.issued.mark, deadline)?;
        self.core.check_own()?;
        self.waited = true;
        let failure = self.core.take_result(&self.issued);
        Error::transfers(failure.map(Into::into).unwrap_or_default())
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.waited {
            self.core.disclaim(&self.issued);
        }
    }
}
