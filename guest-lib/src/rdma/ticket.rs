//! What a non-blocking transfer returns.

use crate::core::completion;
use crate::core::tracker::Issued;
use crate::core::Core;
use crate::error::{Error, Result, TransferErrors};

/// A transfer that was issued.
///
/// While the ticket lives, the failure of its transfer is reported to nobody
/// else. Dropping it is fine: the failure then goes to the next fence or flush of
/// its kind (N11).
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

    /// Says whether this transfer and all earlier ones of its kind have ended,
    /// well or not, as far as the NIC has told; it tells at the latest when it
    /// has nothing left to do for this process. Never blocks.
    pub fn has_ended(&self) -> bool {
        completion::done(self.core.process.host_area(), self.issued.operation)
            >= self.issued.ordinal
    }

    /// Waits until this transfer and all earlier ones of its kind have ended, and
    /// says how this one did.
    ///
    /// # Errors
    /// [`Error::Transfer`] with this transfer only; [`Error::DeviceGone`],
    /// [`Error::QueueFailed`], [`Error::QueueReset`].
    pub fn wait(mut self) -> Result<()> {
        let Issued {
            operation,
            ordinal,
            generation,
            ..
        } = self.issued;
        self.core.wait_complete(operation, ordinal, generation)?;
        self.waited = true;
        match self.core.take_result(&self.issued) {
            None => Ok(()),
            Some(failure) => Err(Error::Transfer(TransferErrors {
                failures: vec![failure],
            })),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.waited && !self.core.claims.release(&self.issued) {
            self.core.ledger().disclaim(&self.issued);
        }
    }
}
