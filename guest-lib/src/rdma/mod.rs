//! Writes and reads of remote memory, and what waits for them (N9, N10, N11).
//!
//! ```text
//!   what                              how                        begin it
//!   Endpoint::write(to, at, bytes) ─► Write ─ notify, timeout ─┬─ post   ─► Ticket: and all before it
//!   Endpoint::read(from, at, part) ─► Read  ─ timeout ─────────┼─ begin  ─► Request: it alone
//!                                                              └─ fenced ─► (): and all before it
//!   Endpoint::flush() ──────────────► Flush ─ reads, writes, to, sources, timeout ─ wait ─► (): all before it
//! ```
//! A call of [`Endpoint`] only describes a transfer. Methods of the value that it returns set
//! options. The last one begins the transfer, and its name says what the program waits for: nothing
//! (`post`, `begin`), or this and all earlier transfers of its kind to the same process (`fenced`).
//! Transfers to different processes never wait for each other (N12, N15): a process that is silent,
//! slow or gone delays and fails only transfers to itself.
//!
//! # A completion of its own
//! The NIC counts transfers that are posted or fenced: its counter says that a transfer and all
//! before it to the same process are complete, and costs next to nothing. A transfer that is
//! *begun* also ends with an entry of the completion queue (N12), as messages do. So its
//! [`Request`] ends as soon as the transfer itself has ended, even if earlier ones still wait, and
//! [`wait_any`](crate::request::wait_any) takes it together with requests of messages.
//!
//! # Sources
//! A source may be changed or freed when its write is complete. [`Flush::sources`] waits for less:
//! until the NIC has read the sources of all earlier writes. These writes may still wait for their
//! destinations (N9).
//!
//! [`Write`], [`Read`] and [`Flush`] are plain values: building one allocates nothing, and each can
//! be copied and begun several times.
//!
//! # Timeouts
//! A timeout ends only the wait. What was issued goes on: it may complete or fail later, and its
//! failure is reported once, as without a timeout. A timeout of zero asks once.
//!
//! | the call returns | what was issued | what to do |
//! |---|---|---|
//! | [`Error::QueueFull`](crate::Error::QueueFull) | nothing | issue it again |
//! | [`Error::TimedOut`](crate::Error::TimedOut) | all of it; not known whether it is complete | wait again: [`Ticket::wait_timeout`], [`Endpoint::flush`] |
//!
//! After `TimedOut` a source must not change, and a destination may still change.

mod flush;
pub(crate) mod internal_writes;
mod ticket;
pub(crate) mod transfer;

use std::time::Duration;

use qnic_abi::command::{CommandFlags, INLINE_CAPACITY};

use crate::core::tracker::Issued;
use crate::core::{Core, IssueOptions};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::memory::{Part, RemoteSegment};
use crate::notification::Signal;
use crate::request::Request;

pub use flush::Flush;
pub use ticket::Ticket;
pub use transfer::Source;

/// A write to memory of another process, which has not begun ([`Endpoint::write`]).
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is written before `post` or `fenced`"]
pub struct Write<'e, 's> {
    core: &'e Core,
    what: transfer::Write<'s>,
    timeout: Option<Duration>,
}

/// A read from memory of another process, which has not begun ([`Endpoint::read`]).
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is read before `post` or `fenced`"]
pub struct Read<'e, 's> {
    core: &'e Core,
    what: transfer::Read<'s>,
    timeout: Option<Duration>,
}

/// # Transfers
impl Endpoint {
    /// A write of `source` to a remote segment at `offset`, in bytes.
    ///
    /// ```no_run
    /// # use qnic::{Endpoint, NotificationId, RemoteSegment};
    /// # fn f(endpoint: &Endpoint, theirs: &RemoteSegment, letter: NotificationId) -> qnic::Result<()> {
    /// let ticket = endpoint.write(theirs, 0, b"hello").post()?;
    /// ticket.wait()?;
    /// endpoint.write(theirs, 8, b"world").notify(letter).fenced()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn write<'s>(
        &self,
        to: &'s RemoteSegment,
        offset: u64,
        source: impl Into<Source<'s>>,
    ) -> Write<'_, 's> {
        Write {
            core: self.core(),
            what: transfer::Write::new(to, offset, source.into(), None),
            timeout: None,
        }
    }

    /// A read from a remote segment at `offset`, in bytes, into exported memory of this process.
    /// The access that the local segment grants to peers does not matter.
    ///
    /// ```no_run
    /// # fn f(endpoint: &qnic::Endpoint, theirs: &qnic::RemoteSegment, own: &qnic::Segment) -> qnic::Result<()> {
    /// endpoint.read(theirs, 0, own.part(0, 4096)).fenced()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn read<'s>(
        &self,
        from: &'s RemoteSegment,
        offset: u64,
        destination: Part<'s>,
    ) -> Read<'_, 's> {
        Read {
            core: self.core(),
            what: transfer::Read {
                from,
                offset,
                destination,
            },
            timeout: None,
        }
    }

    /// A wait for all reads and writes of this endpoint that were issued before (flushRW).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use qnic::{NodeId, Port};
    /// # fn f(endpoint: &qnic::Endpoint) -> qnic::Result<()> {
    /// endpoint.flush().wait()?;
    /// endpoint.flush().writes().timeout(Duration::from_millis(10)).wait()?;
    /// endpoint.flush().to((NodeId(1), Port(7))).wait()?;
    /// endpoint.flush().sources().wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&self) -> Flush<'_> {
        Flush::new(self.core())
    }
}

impl<'e> Write<'e, '_> {
    /// Signals a notification of the remote process once this and all earlier writes to its node
    /// have been delivered (writeN; N16, N18). A write without bytes only signals.
    #[inline]
    pub fn notify(mut self, signal: impl Into<Signal>) -> Self {
        self.what.signal = Some(signal.into());
        self
    }

    /// Waits at most so long in all; `None`, as at first: as long as it takes.
    #[inline]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Issues it. Waits only for room in the command queue.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange), [`NotExported`](crate::Error::NotExported),
    /// [`ForeignSegment`](crate::Error::ForeignSegment),
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed);
    /// [`QueueFull`](crate::Error::QueueFull): the timeout is over;
    /// [`Transfer`](crate::Error::Transfer): there is no room because of transfers to a process that
    /// is gone, and this is their failure.
    pub fn post(self) -> Result<Ticket<'e>> {
        begin(self.core, self.timeout, |options| {
            self.core.write(&self.what, CommandFlags::empty(), options)
        })
    }

    /// Issues it with a completion of its own. Waits only for room in the command queue.
    ///
    /// # Errors
    /// Those of [`Write::post`].
    pub fn begin(self) -> Result<Request<'e>> {
        let core = self.core;
        let mut copy = [0; INLINE_CAPACITY];
        let (command, payload, summary) = core.write_command(&self.what, &mut copy)?;
        core.check_reachable(&summary.failure)?;
        let deadline = core.deadline(self.timeout);
        let issued = core.issue_request(command, payload, summary, deadline)?;
        Ok(Request::transfer(core, issued, summary.failure))
    }

    /// Issues it, waits for this and all earlier writes to the same process, and reports those that
    /// failed and have no ticket (writeF, writeFN). The sources are reusable then. Writes to other
    /// processes are not waited for: [`Endpoint::flush`] does that.
    ///
    /// # Errors
    /// [`TimedOut`](crate::Error::TimedOut): this and all earlier writes go on.
    /// [`Transfer`](crate::Error::Transfer) with all that failed; those of [`Write::post`].
    pub fn fenced(self) -> Result<()> {
        fence(self.core, self.what.to, self.timeout, |options| {
            self.core.write(&self.what, CommandFlags::PUBLISH, options)
        })
    }
}

impl<'e> Read<'e, '_> {
    /// Waits at most so long in all; `None`, as at first: as long as it takes.
    #[inline]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Issues it. Waits only for room in the command queue.
    ///
    /// # Errors
    /// Those of [`Write::post`] but `NotExported`.
    pub fn post(self) -> Result<Ticket<'e>> {
        begin(self.core, self.timeout, |options| {
            self.core.read(&self.what, CommandFlags::empty(), options)
        })
    }

    /// Issues it with a completion of its own. Waits only for room in the command queue.
    ///
    /// # Errors
    /// Those of [`Read::post`].
    pub fn begin(self) -> Result<Request<'e>> {
        let core = self.core;
        let (command, summary) = core.read_command(&self.what)?;
        core.check_reachable(&summary.failure)?;
        let issued = core.issue_request(command, &[], summary, core.deadline(self.timeout))?;
        Ok(Request::transfer(core, issued, summary.failure))
    }

    /// Issues it, waits for this and all earlier reads from the same process, and reports those that
    /// failed and have no ticket (readF).
    ///
    /// # Errors
    /// Those of [`Write::fenced`], of reads.
    pub fn fenced(self) -> Result<()> {
        fence(self.core, self.what.from, self.timeout, |options| {
            self.core.read(&self.what, CommandFlags::PUBLISH, options)
        })
    }
}

/// Issues a transfer that has a ticket.
#[inline]
fn begin<'e>(
    core: &'e Core,
    timeout: Option<Duration>,
    issue: impl FnOnce(IssueOptions) -> Result<Issued>,
) -> Result<Ticket<'e>> {
    let options = IssueOptions {
        reports: true,
        ..IssueOptions::CLAIMED
    };
    let issued = issue(options.until(core.deadline(timeout)))?;
    Ok(Ticket::new(core, issued))
}

/// Issues a transfer, and waits for it and those before it to the same process.
fn fence(
    core: &Core,
    peer: &RemoteSegment,
    timeout: Option<Duration>,
    issue: impl FnOnce(IssueOptions) -> Result<Issued>,
) -> Result<()> {
    let deadline = core.deadline(timeout);
    let issued = issue(IssueOptions::default().until(deadline))?;
    core.fence(issued.mark, (peer.node(), peer.port()), deadline)
}
