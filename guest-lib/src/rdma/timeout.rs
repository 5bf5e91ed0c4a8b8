//! Transfers and flushes that wait for a limited time.
//!
//! A timeout ends the wait, and nothing else. What was issued goes on: it may complete or fail
//! later, and its failure is reported once, as without a timeout.
//!
//! | the call returns | what was issued | what to do |
//! |---|---|---|
//! | [`Error::QueueFull`](crate::Error::QueueFull) | nothing | issue it again |
//! | [`Error::TimedOut`](crate::Error::TimedOut) | all of it; not known whether it is complete | wait again: `wait_timeout`, `flush_timeout`, … |
//!
//! After `TimedOut` a source must not change, and a destination may still change.

use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::error::{Operation, Result};
use crate::memory::{Part, RemoteSegment};
use crate::notification::Signal;
use crate::rdma::transfer::Write;
use crate::rdma::{Source, Ticket};

/// # Transfers with timeouts
/// A timeout of zero asks once. What is known afterwards: [`Endpoint`], "Timeouts".
impl Endpoint {
    /// [`Endpoint::write`], which waits for room in the command queue up to `timeout`.
    ///
    /// # Errors
    /// [`Error::QueueFull`](crate::Error::QueueFull), and those of [`Endpoint::write`].
    pub fn write_timeout<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        timeout: Duration,
    ) -> Result<Ticket<'_>> {
        let write = Write::new(to, offset, source.into(), None);
        self.issue_write(write, self.core().deadline(Some(timeout)))
    }

    /// [`Endpoint::write_notify`], which waits for room in the command queue up to `timeout`.
    ///
    /// # Errors
    /// [`Error::QueueFull`](crate::Error::QueueFull), and those of [`Endpoint::write`].
    pub fn write_notify_timeout<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        signal: impl Into<Signal>,
        timeout: Duration,
    ) -> Result<Ticket<'_>> {
        let write = Write::new(to, offset, source.into(), Some(signal.into()));
        self.issue_write(write, self.core().deadline(Some(timeout)))
    }

    /// [`Endpoint::read`], which waits for room in the command queue up to `timeout`.
    ///
    /// # Errors
    /// [`Error::QueueFull`](crate::Error::QueueFull), and those of [`Endpoint::read`].
    pub fn read_timeout(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
        timeout: Duration,
    ) -> Result<Ticket<'_>> {
        let deadline = self.core().deadline(Some(timeout));
        self.issue_read((from, offset), destination, deadline)
    }

    /// [`Endpoint::write_fenced`], which waits up to `timeout` in all.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut): the write and all earlier ones go on; wait
    /// again by [`Endpoint::flush_writes_timeout`].
    /// [`Error::QueueFull`](crate::Error::QueueFull), and those of [`Endpoint::write_fenced`].
    pub fn write_fenced_timeout<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        timeout: Duration,
    ) -> Result<()> {
        let write = Write::new(to, offset, source.into(), None);
        self.fenced_write(write, self.core().deadline(Some(timeout)))
    }

    /// [`Endpoint::write_fenced_notify`], which waits up to `timeout` in all.
    ///
    /// # Errors
    /// Those of [`Endpoint::write_fenced_timeout`].
    pub fn write_fenced_notify_timeout<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        signal: impl Into<Signal>,
        timeout: Duration,
    ) -> Result<()> {
        let write = Write::new(to, offset, source.into(), Some(signal.into()));
        self.fenced_write(write, self.core().deadline(Some(timeout)))
    }

    /// [`Endpoint::read_fenced`], which waits up to `timeout` in all.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut): the read and all earlier ones go on; wait
    /// again by [`Endpoint::flush_reads_timeout`].
    /// [`Error::QueueFull`](crate::Error::QueueFull), and those of [`Endpoint::read_fenced`].
    pub fn read_fenced_timeout(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let deadline = self.core().deadline(Some(timeout));
        self.fenced_read((from, offset), destination, deadline)
    }

    /// [`Endpoint::flush_reads`], which waits up to `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut): the reads go on, and no failure was
    /// reported; flush again. Those of [`Endpoint::flush_reads`].
    pub fn flush_reads_timeout(&self, timeout: Duration) -> Result<()> {
        self.flush_within(&[Operation::Read], timeout)
    }

    /// [`Endpoint::flush_writes`], which waits up to `timeout`.
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads_timeout`], of writes.
    pub fn flush_writes_timeout(&self, timeout: Duration) -> Result<()> {
        self.flush_within(&[Operation::Write], timeout)
    }

    /// [`Endpoint::flush`], which waits up to `timeout` in all.
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads_timeout`], of both.
    pub fn flush_timeout(&self, timeout: Duration) -> Result<()> {
        self.flush_within(&[Operation::Read, Operation::Write], timeout)
    }

    fn flush_within(&self, kinds: &[Operation], timeout: Duration) -> Result<()> {
        let core = self.core();
        core.flush(kinds, core.deadline(Some(timeout)))
    }
}
