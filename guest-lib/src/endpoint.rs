//! The endpoint: a registered process. Each folder adds its methods to it.

use std::sync::Arc;
use std::time::Duration;

use qnic_abi::{NodeId, Port};
use qnic_shared::timing::Histogram;

use crate::core::{Core, Settings};
use crate::error::Result;
use crate::provider::{Process, Provider};

/// A process registered on a port; (node, port) names it in the network (N1).
///
/// All methods may be called from several threads at once. Commands of one thread
/// are issued in the order of its calls. The process stays registered until the
/// endpoint and all of its segments are dropped.
///
/// # Operations
/// Each method returns a value that describes an operation. Methods of that value set its options
/// (`timeout`, `notify`, …), and the last one begins the operation and determines what is waited
/// for:
///
/// | | begins it and waits for | and returns |
/// |---|---|---|
/// | `post` | nothing but room | a handle: [`Ticket`](crate::Ticket), [`Request`](crate::message::Request), [`Call`](crate::group::Call) |
/// | `begin` | nothing but room | a [`Request`](crate::request::Request), which ends when this operation has ended |
/// | `wait` | it | its result |
/// | `fenced` | it and all earlier ones of its kind to the same process | nothing |
///
/// # Completion (N9)
/// A transfer ([`write`](Self::write), [`read`](Self::read)) that is *posted* is in the queue. A
/// *fenced* one waits until it and all earlier operations of its kind to the same process are
/// complete. A [`flush`](Self::flush) waits for all earlier ones, to one process or to all. Atomic
/// operations ([`atomic`](Self::atomic)) count as reads. When a write is complete, its bytes are in
/// the destination's memory and its source is reusable. Writes may reach the destination in any
/// order; a notification arrives after all earlier writes to its node.
///
/// # Other processes (N12, N15)
/// Operations on one process complete, fail and find room independently of those on other
/// processes: a process that is silent, slow or gone delays only operations on itself. At most
/// 1,024 transfers and atomic operations can be under way together, or as many as
/// [`Nic::with_operations`](crate::Nic::with_operations) sets. Operations on one process can take
/// all of this room but 16 places for each other process that this endpoint has used (fewer, if
/// there are more than 63 of these).
///
/// # Failures (N11)
/// A transfer that fails moves nothing further and is reported once: to its
/// [`Ticket`](crate::Ticket) while that lives, else to the next fence or flush of its
/// kind that covers its destination. If the destination is gone, a transfer to it that would have to
/// wait for room reports the failure instead, and is not issued. Of failures that the program never
/// asks for, the first 64 are kept; the others are only counted
/// ([`TransferErrors::more`](crate::TransferErrors::more)).
///
/// # Timeouts
/// Every wait takes a timeout. When the time is over, only the wait ends: nothing is cancelled, and
/// the program can wait again.
///
/// | error | known | not known |
/// |---|---|---|
/// | [`TimedOut`](crate::Error::TimedOut) of a fenced transfer, a ticket, a flush | all that was issued goes on, no failure was reported | which of it is complete |
/// | [`TimedOut`](crate::Error::TimedOut) of an atomic operation | it is executed once or not at all | whether it was, and its result |
/// | [`QueueFull`](crate::Error::QueueFull) | nothing was issued | |
///
/// Without a timeout, a transfer ends when the NIC says so: at the latest when its peer has been
/// silent for the peer timeout, or a page was not brought in within the fault timeout.
#[derive(Debug)]
pub struct Endpoint {
    core: Arc<Core>,
}

impl Endpoint {
    pub(crate) fn new(
        process: Box<dyn Process>,
        provider: Arc<dyn Provider>,
        settings: Settings,
    ) -> Result<Self> {
        Ok(Endpoint {
            core: Arc::new(Core::new(process, provider, settings)?),
        })
    }

    /// Another handle of the same endpoint.
    pub(crate) fn share(&self) -> Self {
        Endpoint {
            core: self.core.clone(),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Node of this process.
    pub fn node(&self) -> NodeId {
        self.core.name().0
    }

    /// Port of this process.
    pub fn port(&self) -> Port {
        self.core.name().1
    }

    /// Longest part of a segment that travels inline as source of a write, in bytes (N10): what
    /// the NIC says, or what [`Nic::with_inline_max`](crate::Nic::with_inline_max) or
    /// [`INLINE_MAX_VARIABLE`](crate::INLINE_MAX_VARIABLE) says instead. A longer one travels by
    /// DMA.
    pub fn inline_max(&self) -> usize {
        self.core.inline_max
    }

    /// How long another node may be silent before this NIC gives it up (U10;
    /// `network.peer_timeout`).
    pub fn peer_timeout(&self) -> Duration {
        self.core.peer_timeout
    }

    /// Calls `post`, and rings one doorbell for all commands that it issues: a NIC that sleeps is
    /// woken once, at the end, and finds all of them. (libfabric has `FI_MORE` for it, verbs
    /// `ibv_wr_complete`.) This is worth it for a Send and the receive of its answer, for example:
    /// a program that wakes a NIC on the same processors loses its own processor to it.
    ///
    /// A batch concerns the calling thread only: other threads ring for their commands at once. If
    /// `post` itself waits, or tests and finds nothing, the doorbell rings for the commands before
    /// that. A NIC that does not sleep reads each command when it is issued. A batch inside a batch
    /// of the same endpoint is part of the outer one.
    ///
    /// ```no_run
    /// # fn main() -> qnic::Result<()> {
    /// use qnic::message::{Destination, Pattern, Source, Tag};
    /// use qnic::{NodeId, Port};
    ///
    /// # let endpoint = qnic::Nic::open()?.register(Port(7))?;
    /// let to = Destination::tagged(NodeId(1), Port(7), Tag(1));
    /// let from = Pattern::tagged(Source::Process(NodeId(1), Port(7)), Tag(1));
    /// # let buffer = endpoint.allocate(4096)?;
    /// # let inbox = endpoint.export(qnic::SegmentName(1), &buffer, qnic::Access::READ)?;
    /// let (mut answer, mut question) = endpoint.batch(|| -> qnic::Result<_> {
    ///     let answer = endpoint.receive(&from, inbox.part(0, 4096)).post()?;
    ///     Ok((answer, endpoint.send(&to, b"ping").post()?))
    /// })?;
    /// question.wait(None)?;
    /// answer.wait(None)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch<T>(&self, post: impl FnOnce() -> T) -> T {
        self.core.batch(post)
    }

    /// Bounds the Sends that wait in the library because the NIC has no place for them
    /// ([`crate::message`]): `most` in all, 16,384 unless set, and beyond that 16 for each destination.
    /// Each takes about 250 bytes. For one more, [`Send::post`](crate::message::Send::post) returns
    /// [`WouldBlock`](crate::Error::WouldBlock), and [`Send::wait`](crate::message::Send::wait) waits.
    pub fn hold_sends(&self, most: usize) {
        self.core.hold_sends(most);
    }

    /// What the library has counted for this endpoint.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            times_to_seen: self.core.times_to_seen(),
            failed_sends: self.core.failed_sends(),
        }
    }

    /// What the route to a node is like, if the two NICs have a session (U8).
    ///
    /// # Errors
    /// [`Refused`](crate::Error::Refused) with `NoSuchNode` without a session;
    /// [`DeviceGone`](crate::Error::DeviceGone), [`System`](crate::Error::System)
    #[cfg(not(feature = "stream"))]
    pub fn path(&self, node: qnic_abi::NodeId) -> Result<crate::path::Path> {
        self.core.path(node)
    }

    /// Starts the command queue again after [`QueueFailed`](crate::Error::QueueFailed).
    /// Commands that were in the queue are dropped; a thread that waits for one gets
    /// [`QueueReset`](crate::Error::QueueReset). A failure from before the reset is still reported: by
    /// its request, or by the first flush after its ticket is dropped (N11).
    ///
    /// # Errors
    /// [`DeviceGone`](crate::Error::DeviceGone), [`System`](crate::Error::System)
    pub fn reset_queue(&self) -> Result<()> {
        self.core.reset_queue()
    }
}

/// What the library has counted for an endpoint since it was registered
/// ([`Endpoint::statistics`]). What NIC and driver have counted: [`Nic::counters`](crate::Nic::counters).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Statistics {
    /// How long transfers took from their post until a wait of this endpoint saw them complete, in
    /// nanoseconds. The first transfer and every 61st after it are timed, if the program waits for
    /// them (docs/observing.md).
    pub times_to_seen: Histogram,
    /// Sends that have failed, and whose end was not to be reported
    /// ([`SendShort::forget`](crate::message::SendShort::forget)).
    pub failed_sends: u64,
}
