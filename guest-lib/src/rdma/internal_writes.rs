//! Writes that the library makes for itself. Their failures go to the part of the library
//! that made them, or are dropped; no fence of the program reports them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use qnic_abi::command::{CommandBody, CommandFlags};

use crate::core::tracker::Issued;
use crate::core::{Core, IssueOptions};
use crate::error::{Operation, Result, TransferError};
use crate::memory::RemoteSegment;
use crate::notification::NotificationId;
use crate::rdma::transfer::Write;
use crate::rdma::Source;

/// Incomplete writes, oldest first.
#[derive(Debug)]
pub(crate) struct InternalWrites {
    core: Arc<Core>,
    issued: VecDeque<Issued>,
}

impl InternalWrites {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        InternalWrites {
            core: core.clone(),
            issued: VecDeque::new(),
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.issued.is_empty()
    }

    /// Issues a write; waits while the command queue is full, until the deadline.
    ///
    /// # Errors
    /// Those of [`crate::Endpoint::write`]; [`crate::Error::QueueFull`]
    pub(crate) fn write<'a>(
        &mut self,
        (to, offset): (&RemoteSegment, usize),
        source: impl Into<Source<'a>>,
        notification: Option<NotificationId>,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let (offset, signal) = (offset as u64, notification.map(Into::into));
        // The library waits for its end sooner or later.
        let flags = CommandFlags::PUBLISH;
        let options = IssueOptions::CLAIMED.until(deadline);
        let write = Write::new(to, offset, source.into(), signal);
        let issued = self.core.write(&write, flags, options)?;
        self.issued.push_back(issued);
        Ok(())
    }

    /// Returns true if the oldest write has ended, or never will.
    pub(crate) fn has_ended_one(&self) -> bool {
        let oldest = self.issued.front();
        oldest.is_some_and(|issued| self.core.is_complete(issued.mark).unwrap_or(true))
    }

    /// Forgets the writes that have ended, up to the first that failed.
    ///
    /// # Errors
    /// [`crate::Error::QueueReset`]
    pub(crate) fn reap(&mut self) -> Result<Option<TransferError>> {
        while let Some(issued) = self.issued.front().copied() {
            if !self.core.is_complete(issued.mark)? {
                break;
            }
            self.issued.pop_front();
            if let Some(failure) = self.core.take_result(&issued) {
                return Ok(Some(failure));
            }
        }
        Ok(None)
    }

    /// Waits until all have ended; returns the first failure.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`]: the deadline is over, and the writes go on;
    /// [`crate::Error::QueueReset`], [`crate::Error::DeviceGone`], …
    pub(crate) fn wait_all(&mut self, deadline: Option<Instant>) -> Result<Option<TransferError>> {
        for issued in &self.issued {
            self.core.wait_complete(issued.mark, deadline)?;
        }
        self.reap()
    }
}

impl Drop for InternalWrites {
    fn drop(&mut self) {
        for issued in &self.issued {
            self.core.silence(issued);
        }
    }
}

impl Core {
    /// Writes a word, does not wait, and drops a failure.
    ///
    /// # Errors
    /// Those of [`crate::Endpoint::write`].
    pub(crate) fn write_word(
        &self,
        to: &RemoteSegment,
        offset: u64,
        value: u64,
        notification: Option<NotificationId>,
    ) -> Result<()> {
        let bytes = value.to_le_bytes();
        let length = bytes.len() as u64;
        let (target, mut summary) = to.describe(Operation::Write, offset, length)?;
        let mut command = target.write(length, notification.map(|id| id.number()));
        command.header.inline_length = bytes.len() as u8;
        summary.silent = true;
        self.issue(
            &command.descriptor(),
            &bytes,
            summary,
            IssueOptions::default(),
        )
        .map(drop)
    }
}
