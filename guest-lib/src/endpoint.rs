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
/// Its methods describe operations: what is done, and to what. Methods of what they return say how
/// (`timeout`, `notify`, …), and the last one begins the operation and says what is waited for:
///
/// | | begins it and waits for | and returns |
/// |---|---|---|
/// | `post` | nothing but room | a handle: [`Ticket`](crate::Ticket), [`Request`](crate::message::Request), [`Call`](crate::group::Call) |
/// | `begin` | nothing but room | a [`Request`](crate::request::Request), which ends when it alone has |
/// | `wait` | it | its result |
/// | `fenced` | it and all earlier ones of its kind to the same process | nothing |
///
/// # Completion (N9)
/// A transfer ([`write`](Self::write), [`read`](Self::read)) that is *posted* is in the queue. A
/// *fenced* one waits until it and all earlier operations of its kind to the same process are
/// complete. A [`flush`](Self::flush) waits for all earlier ones, to one process or to all. Atomic
/// operations ([`atomic`](Self::atomic)) count as reads. A complete write has its bytes in the
/// destination's memory; its source is reusable. Writes may reach the destination
/// in any order; a notification arrives after all earlier writes to its node.
///
/// # Other processes (N12, N15)
/// What is issued to one process completes, fails and finds room independently of what is issued to
/// others: one that is silent, slow or gone delays its own operations only. 1,024 transfers and
/// atomic operations can be under way together, or as many as
/// [`Nic::with_operations`](crate::Nic::with_operations) says. One process can have all of them but
/// for 16 of each other one that this endpoint has used (less, if these are more than 63).
///
/// # Failures (N11)
/// A transfer that fails moves nothing further and is reported once: to its
/// [`Ticket`](crate::Ticket) while that lives, else to the next fence or flush of its
/// kind that covers its destination. If that is gone, another transfer there that would have to wait
/// for room reports it instead, and is not issued. Of failures that nothing asks for, the first 64
/// are kept, and of the others how many there were
/// ([`TransferErrors::more`](crate::TransferErrors::more)).
///
/// # Timeouts
/// Every wait takes a timeout. When time is up, the wait ends, and nothing else:
/// nothing is cancelled, and the same can be waited for again.
///
/// | error | known | not known |
/// |---|---|---|
/// | [`TimedOut`](crate::Error::TimedOut) of a fenced transfer, a ticket, a flush | all that was issued goes on, no failure was taken | which of it is complete |
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

    /// After what silence of another node this NIC gives it up (U10; `network.peer_timeout`).
    pub fn peer_timeout(&self) -> Duration {
        self.core.peer_timeout
    }

    /// Has the commands that `post` issues share a doorbell: a NIC that sleeps is woken once, at
    /// the end, and finds all of them. (libfabric has `FI_MORE` for it, verbs
    /// `ibv_wr_complete`.) A program that wakes a NIC on the same processors loses its own to it: a
    /// receive for the next message and the Send that it answers belong together.
    ///
    /// It is of the calling thread: commands of others are told at once, and a wait of this one
    /// inside `post`, or a test that finds nothing, tells of what was issued before. A NIC that
    /// does not sleep reads each command when it is issued. A batch inside a batch of the same
    /// endpoint is part of that.
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

    /// Bounds the Sends that wait in the library, 16,384 at first: those for which the NIC has no
    /// place ([`crate::message`]). Each takes about 250 bytes. Beyond `most` of all there is room for 16 of
    /// each destination; [`Send::post`](crate::message::Send::post) says
    /// [`WouldBlock`](crate::Error::WouldBlock) for the next one, and
    /// [`Send::wait`](crate::message::Send::wait) waits.
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
    /// [`QueueReset`](crate::Error::QueueReset). A failure from before stays: its request tells it, or
    /// the first flush after its ticket is dropped (N11).
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
    /// nanoseconds: of the first one, and of every 61st behind it, as far as the program waits for
    /// it (docs/observing.md).
    pub times_to_seen: Histogram,
    /// Sends that have failed and that told nothing of their end
    /// ([`SendShort::forget`](crate::message::SendShort::forget)).
    pub failed_sends: u64,
}
