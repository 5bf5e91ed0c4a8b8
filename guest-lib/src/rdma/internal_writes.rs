//! Writes that the library issues for its own ends, and watches itself: their
//! failures are reported to none of the application's fences.

use std::collections::VecDeque;
use std::sync::Arc;

use qnic_abi::command::CommandFlags;

use crate::core::tracker::Issued;
use crate::core::Core;
use crate::error::{Operation, Result, TransferError};
use crate::memory::segment::RemoteSegment;
use crate::notification::NotificationId;
use crate::rdma::transfer::Source;

/// Writes under way, oldest first.
#[derive(Debug)]
pub(crate) struct Flight {
    core: Arc<Core>,
    issued: VecDeque<Issued>,
}

impl Flight {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Flight {
            core: core.clone(),
            issued: VecDeque::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.issued.is_empty()
    }

    /// Issues a write; waits while the command queue is full.
    ///
    /// # Errors
    /// Those of [`crate::Endpoint::write`].
    pub(crate) fn write(
        &mut self,
        to: &RemoteSegment,
        offset: usize,
        source: Source<'_>,
        notification: Option<NotificationId>,
    ) -> Result<()> {
        let signal = notification.map(Into::into);
        // Its end is waited for sooner or later.
        let flags = CommandFlags::PUBLISH;
        let core = &self.core;
        let issued = core.write(to, offset as u64, source, signal, flags, true)?;
        self.issued.push_back(issued);
        Ok(())
    }

    /// Says whether the oldest write has ended, or never will.
    pub(crate) fn has_news(&self) -> bool {
        let oldest = self.issued.front();
        oldest.is_some_and(|issued| self.core.has_ended(issued).unwrap_or(true))
    }

    /// Forgets the writes that have ended, up to the first that failed.
    ///
    /// # Errors
    /// [`crate::Error::QueueReset`]
    pub(crate) fn reap(&mut self) -> Result<Option<TransferError>> {
        while let Some(issued) = self.issued.front().copied() {
            if !self.core.has_ended(&issued)? {
                break;
            }
            self.issued.pop_front();
            if let Some(failure) = self.core.take_result(&issued) {
                return Ok(Some(failure));
            }
        }
        Ok(None)
    }

    /// Waits until all have ended; the first failure of any.
    ///
    /// # Errors
    /// [`crate::Error::QueueReset`], [`crate::Error::DeviceGone`], …
    pub(crate) fn settle(&mut self) -> Result<Option<TransferError>> {
        if let Some(last) = self.issued.back() {
            self.core
                .wait_complete(Operation::Write, last.ordinal, last.generation)?;
        }
        self.reap()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        for issued in &self.issued {
            self.core.silence(issued);
        }
    }
}
