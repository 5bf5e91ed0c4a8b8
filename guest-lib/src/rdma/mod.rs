//! Writes and reads of remote memory (N9, N10, N11).

pub(crate) mod internal_writes;
mod ticket;
mod transfer;

use qnic_abi::command::CommandFlags;

use crate::endpoint::Endpoint;
use crate::error::{Error, Operation, Result};
use crate::memory::{Part, RemoteSegment};
use crate::notification::Signal;

pub use ticket::Ticket;
pub use transfer::Source;

/// # Transfers
impl Endpoint {
    /// Writes to a remote segment at `offset`, and does not wait.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NotExported`], [`Error::ForeignSegment`],
    /// [`Error::DeviceGone`], [`Error::QueueFailed`].
    pub fn write<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) -> Result<Ticket<'_>> {
        self.issue_write(to, offset, source.into(), None)
    }

    /// Writes, waits for this and all earlier writes, and reports those that failed and
    /// have no ticket (writeF). The sources are reusable then.
    ///
    /// # Errors
    /// [`Error::Transfer`], and those of [`Endpoint::write`].
    pub fn write_fenced<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.fenced_write(to, offset, source.into(), None)
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
        self.issue_write(to, offset, source.into(), Some(signal.into()))
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
        self.fenced_write(to, offset, source.into(), Some(signal.into()))
    }

    /// Reads from a remote segment at `offset` into exported memory of this
    /// process, and does not wait. The access that the local segment grants to peers does
    /// not matter.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignSegment`], [`Error::DeviceGone`],
    /// [`Error::QueueFailed`].
    pub fn read(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
    ) -> Result<Ticket<'_>> {
        let (core, flags) = (self.core(), CommandFlags::empty());
        core.check_reachable(from.node(), from.port(), Operation::Read)?;
        let issued = core.read(from, offset, destination, flags, true)?;
        Ok(Ticket::new(core, issued))
    }

    /// Reads, waits for this and all earlier reads, and reports those that failed and
    /// have no ticket (readF).
    ///
    /// # Errors
    /// [`Error::Transfer`], and those of [`Endpoint::read`].
    pub fn read_fenced(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
    ) -> Result<()> {
        let (core, flags) = (self.core(), CommandFlags::PUBLISH);
        let issued = core.read(from, offset, destination, flags, false)?;
        core.fence(issued.mark)
    }

    /// Waits for all reads that were issued before (flushR).
    ///
    /// # Errors
    /// [`Error::Transfer`] with all failed reads that no ticket waits for;
    /// [`Error::DeviceGone`], [`Error::QueueFailed`], [`Error::QueueReset`].
    pub fn flush_reads(&self) -> Result<()> {
        self.core().flush(Operation::Read)
    }

    /// Waits for all writes that were issued before (flushW).
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads`], of writes.
    pub fn flush_writes(&self) -> Result<()> {
        self.core().flush(Operation::Write)
    }

    /// Waits for all reads and writes that were issued before (flushRW).
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads`], of both.
    pub fn flush(&self) -> Result<()> {
        match (self.flush_reads(), self.flush_writes()) {
            (Err(Error::Transfer(mut reads)), Err(Error::Transfer(writes))) => {
                reads.failures.extend(writes.failures);
                Err(Error::Transfer(reads))
            }
            (reads, writes) => reads.and(writes),
        }
    }

    fn issue_write(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: Source<'_>,
        signal: Option<Signal>,
    ) -> Result<Ticket<'_>> {
        let (core, flags) = (self.core(), CommandFlags::empty());
        core.check_reachable(to.node(), to.port(), Operation::Write)?;
        let issued = core.write(to, offset, source, signal, flags, true)?;
        Ok(Ticket::new(core, issued))
    }

    fn fenced_write(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: Source<'_>,
        signal: Option<Signal>,
    ) -> Result<()> {
        let (core, flags) = (self.core(), CommandFlags::PUBLISH);
        let issued = core.write(to, offset, source, signal, flags, false)?;
        core.fence(issued.mark)
    }
}
