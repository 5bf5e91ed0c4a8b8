//! Writes and reads of remote memory (N9, N10, N11).

pub(crate) mod internal_writes;
mod ticket;
mod timeout;
pub(crate) mod transfer;

use std::time::Instant;

use qnic_abi::command::CommandFlags;

use crate::core::IssueOptions;
use crate::endpoint::Endpoint;
use crate::error::{Operation, Result};
use crate::memory::{Part, RemoteSegment};
use crate::notification::Signal;
use crate::rdma::transfer::Write;

pub use ticket::Ticket;
pub use transfer::Source;

/// # Transfers
impl Endpoint {
    /// Writes to a remote segment at `offset`, and does not wait.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange), [`NotExported`](crate::Error::NotExported),
    /// [`ForeignSegment`](crate::Error::ForeignSegment),
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed).
    pub fn write<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) -> Result<Ticket<'_>> {
        self.issue_write(Write::new(to, offset, source.into(), None), None)
    }

    /// Writes, waits for this and all earlier writes, and reports those that failed and
    /// have no ticket (writeF). The sources are reusable then.
    ///
    /// # Errors
    /// [`Transfer`](crate::Error::Transfer), and those of [`Endpoint::write`].
    pub fn write_fenced<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.fenced_write(Write::new(to, offset, source.into(), None), None)
    }

    /// Writes and signals a notification of the remote process once this and all
    /// earlier writes to its node have been delivered (writeN; N16, N18). A write
    /// without bytes only signals.
    ///
    /// # Errors
    /// Those of [`Endpoint::write`].
    pub fn write_notify<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        signal: impl Into<Signal>,
    ) -> Result<Ticket<'_>> {
        self.issue_write(
            Write::new(to, offset, source.into(), Some(signal.into())),
            None,
        )
    }

    /// [`Endpoint::write_notify`], fenced like [`Endpoint::write_fenced`] (writeFN).
    ///
    /// # Errors
    /// Those of [`Endpoint::write_fenced`].
    pub fn write_fenced_notify<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        signal: impl Into<Signal>,
    ) -> Result<()> {
        self.fenced_write(
            Write::new(to, offset, source.into(), Some(signal.into())),
            None,
        )
    }

    /// Reads from a remote segment at `offset` into exported memory of this
    /// process, and does not wait. The access that the local segment grants to peers does
    /// not matter.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange),
    /// [`ForeignSegment`](crate::Error::ForeignSegment),
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed).
    pub fn read(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
    ) -> Result<Ticket<'_>> {
        self.issue_read((from, offset), destination, None)
    }

    /// Reads, waits for this and all earlier reads, and reports those that failed and
    /// have no ticket (readF).
    ///
    /// # Errors
    /// [`Transfer`](crate::Error::Transfer), and those of [`Endpoint::read`].
    pub fn read_fenced(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
    ) -> Result<()> {
        self.fenced_read((from, offset), destination, None)
    }

    /// Waits for all reads that were issued before (flushR).
    ///
    /// # Errors
    /// [`Transfer`](crate::Error::Transfer) with all failed reads that no ticket waits for;
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed),
    /// [`QueueReset`](crate::Error::QueueReset).
    pub fn flush_reads(&self) -> Result<()> {
        self.core().flush(&[Operation::Read], None)
    }

    /// Waits for all writes that were issued before (flushW).
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads`], of writes.
    pub fn flush_writes(&self) -> Result<()> {
        self.core().flush(&[Operation::Write], None)
    }

    /// Waits for all reads and writes that were issued before (flushRW).
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads`], of both.
    pub fn flush(&self) -> Result<()> {
        let kinds = [Operation::Read, Operation::Write];
        self.core().flush(&kinds, None)
    }

    fn issue_write(&self, write: Write<'_>, deadline: Option<Instant>) -> Result<Ticket<'_>> {
        let (core, flags) = (self.core(), CommandFlags::empty());
        core.check_reachable(write.to.node(), write.to.port(), Operation::Write)?;
        let issued = core.write(write, flags, IssueOptions::CLAIMED.until(deadline))?;
        Ok(Ticket::new(core, issued))
    }

    fn fenced_write(&self, write: Write<'_>, deadline: Option<Instant>) -> Result<()> {
        let (core, flags) = (self.core(), CommandFlags::PUBLISH);
        let issued = core.write(write, flags, IssueOptions::default().until(deadline))?;
        core.fence(&[issued.mark], deadline)
    }

    fn issue_read(
        &self,
        (from, offset): (&RemoteSegment, u64),
        destination: Part<'_>,
        deadline: Option<Instant>,
    ) -> Result<Ticket<'_>> {
        let (core, flags) = (self.core(), CommandFlags::empty());
        core.check_reachable(from.node(), from.port(), Operation::Read)?;
        let options = IssueOptions::CLAIMED.until(deadline);
        let issued = core.read(from, offset, destination, flags, options)?;
        Ok(Ticket::new(core, issued))
    }

    fn fenced_read(
        &self,
        (from, offset): (&RemoteSegment, u64),
        destination: Part<'_>,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let (core, flags) = (self.core(), CommandFlags::PUBLISH);
        let options = IssueOptions::default().until(deadline);
        let issued = core.read(from, offset, destination, flags, options)?;
        core.fence(&[issued.mark], deadline)
    }
}
