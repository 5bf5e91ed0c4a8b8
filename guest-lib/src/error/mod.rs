//! Errors. Each message says what failed, where, and what to do.

mod group;
mod message;
mod name;
mod parallel;
mod path;

use std::fmt;
use std::path::PathBuf;

use qnic_abi::host_area::OPERATIONS;
use qnic_abi::{NodeId, Port, SegmentName, Status};

use crate::provider::CallError;

pub use group::{Difference, GroupError, GroupOperation};
pub use message::{MessageError, MessageOperation};
pub use name::NameError;
pub use parallel::ParallelError;
pub use path::NoPath;

/// Result of a call of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device file or the socket cannot be opened.
    #[error("cannot open {path}: {source} ({hint})")]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// The host-mode node cannot be started.
    #[cfg(feature = "host")]
    #[error("{0}")]
    Host(#[from] qnic_host::ConnectError),
    /// The environment asks for a host-mode node, and the program has no host mode.
    #[error(
        "QNIC_HOST_SOCKET={}: the program was built without host mode: build qnic with its \
         feature `host`, or unset the variable to open the device file of a guest",
        .0.display()
    )]
    NoHostMode(PathBuf),
    /// An environment variable has a value that is not valid.
    #[error("{variable}={value}: expected {expected}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What a valid value is.
        expected: &'static str,
    },
    /// The process belongs to no parallel machine ([`crate::machine`]).
    #[error("{0} is not set: start the program with `cargo qnic machine run`")]
    NoMachine(&'static str),
    /// The ranks of a machine cannot go on ([`crate::parallel`]).
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// An inline limit that no command has room for (N10).
    #[error("an inline limit of {0} bytes: expected a number from 0 to 128")]
    InlineMax(usize),
    /// A bound of operations under way that no endpoint has (N12).
    #[error("{0} operations under way: expected a number from 16 to {OPERATIONS}")]
    Operations(usize),
    /// The driver says that its NIC has an impossible number of something (Q1).
    #[error("the driver tells of an impossible geometry: {0} is out of range; install a library and a driver of one release")]
    Count(&'static str),
    /// Driver or NIC refused a request.
    #[error("{what}: {status}{}", hint(.status))]
    Refused {
        /// The request and its arguments.
        what: String,
        /// The reason.
        status: Status,
    },
    /// Two nodes cannot talk (U8).
    #[error("{0}")]
    NoPath(NoPath),
    /// Processes have no datagram ports below 1024.
    #[error(
        "datagram port {0}: ports below 1024 are kept for modules of the kernel; choose one from \
         1024 up, or 0 for any free one"
    )]
    ReservedPort(u16),
    /// Transfers failed: all failures of those that the fence, flush or ticket waited for
    /// (N11).
    #[error("{0}")]
    Transfer(TransferErrors),
    /// A message was not sent, or a receive has brought none ([`crate::message`]).
    #[error("{0}")]
    Message(MessageError),
    /// A group was not joined, or an operation of it failed ([`crate::group`]).
    #[error("{0}")]
    Group(GroupError),
    /// A name was not registered, or not found ([`crate::names`]).
    #[error("{0}")]
    Name(NameError),
    /// What no application can be called: nothing was begun.
    #[error("{0:?} is no name of an application: it has 1 to 16 bytes, and none of them is zero")]
    BadName(String),
    /// A part in an operation of a group makes no sense: nothing was begun.
    #[error("{0}")]
    BadCollective(&'static str),
    /// Requests of several endpoints cannot be waited for together.
    #[error("these requests are of several endpoints: wait for those of each endpoint")]
    ForeignRequest,
    /// All contexts of a direction are under way: nothing was begun (Q8).
    #[error(
        "all {contexts} {direction} contexts are under way: wait for one, or use {}, which needs \
         none",
        if *.direction == "Send" { "send" } else { "receive" }
    )]
    NoContext {
        /// Send or Receive.
        direction: &'static str,
        /// How many there are.
        contexts: usize,
    },
    /// The buffer pool has no run of pages of that length (Q7).
    #[error("{pages} pages of the buffer pool in one run: {free} are free; drop a buffer")]
    PoolFull {
        /// Wanted pages.
        pages: usize,
        /// Free pages, not necessarily in one run.
        free: usize,
    },
    /// The pieces of a message do not fit into the pages of a context (Q5).
    #[error("piece {piece} of the message {problem}")]
    BadPiece {
        /// Its index, from 0.
        piece: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A range does not lie within its segment or buffer.
    #[error(
        "{length} bytes at offset {offset} are outside of the {segment} of {segment_length} bytes"
    )]
    OutOfRange {
        /// The kind of memory.
        segment: &'static str,
        /// Its length in bytes.
        segment_length: u64,
        /// Wanted offset in bytes.
        offset: u64,
        /// Wanted length in bytes.
        length: u64,
    },
    /// A word is not aligned to its width.
    #[error("a word of {width} bytes at offset {offset} is not aligned")]
    Misaligned {
        /// Wanted offset in bytes.
        offset: u64,
        /// Width of the word in bytes.
        width: u64,
    },
    /// A source is too long to travel inline and is not exported (N10).
    #[error(
        "{length} bytes at {address:#x} are more than the {inline_max} that travel inline and do \
         not lie in an exported segment: export them first"
    )]
    NotExported {
        /// Address of the source.
        address: u64,
        /// Its length in bytes.
        length: u64,
        /// Longest inline payload in bytes.
        inline_max: u64,
    },
    /// The local segment of a transfer belongs to another endpoint.
    #[error("the local segment belongs to another endpoint: export the memory on this one too")]
    ForeignSegment,
    /// The number is not that of a counted notification (N16).
    #[error("{0} is no counted notification: they have the numbers 1 to 1023")]
    BadNotification(u32),
    /// A handler or the notification queue takes the signals of that counted
    /// notification already (N17).
    #[error("notification {0} has a handler or is watched by the queue: end that first")]
    Armed(u32),
    /// One-shot notifications arrived faster than they were taken from the queue. So
    /// many were dropped since the last such error (N16).
    #[error(
        "{0} one-shot notifications were dropped: the queue was full; let senders keep fewer \
         under way"
    )]
    NotificationsLost(u64),
    /// The endpoint has a [`crate::Poller`] already.
    #[error("this endpoint has a poller already: share that one")]
    Polled,
    /// The options of a channel are not valid, or the segment holds no channel.
    #[error("no channel: {0}")]
    BadChannel(&'static str),
    /// The other end of a channel violates the protocol.
    #[error("the channel is broken: {0}")]
    ChannelBroken(&'static str),
    /// A message does not fit into the slots of its channel.
    #[error("a message of {length} bytes is longer than the {limit} bytes of the channel's slots")]
    MessageTooLong {
        /// Its length in bytes.
        length: usize,
        /// Longest message in bytes.
        limit: usize,
    },
    /// The other end closed the channel; everything it sent before has arrived.
    #[error("the other end closed the channel")]
    ChannelClosed,
    /// The process at the other end of a channel is gone, or its node is.
    #[error("the channel lost {node}, {port}: {status}{}", hint(.status))]
    PeerLost {
        /// Node of the other end.
        node: NodeId,
        /// Port of the other end.
        port: Port,
        /// The status of the transfer that failed.
        status: Status,
    },
    /// The list of an export is too long (N2).
    #[error(
        "a list of {0} importers: at most {most}; list nodes instead of processes, or give them a \
         secret (Importers::with_secret)",
        most = crate::Importers::MAX
    )]
    TooManyImporters(usize),
    /// A buffer or segment of length zero.
    #[error("memory of length zero cannot be allocated or exported")]
    EmptyMemory,
    /// The time limit was reached; nothing was consumed. What was waited for goes on, and can
    /// be waited for again ([`crate::Endpoint`], "Timeouts").
    #[error("timed out")]
    TimedOut,
    /// The command queue stayed full up to the time limit: nothing was issued.
    #[error("the command queue stayed full up to the time limit: nothing was issued")]
    QueueFull,
    /// The device is gone or was reset: nothing that was registered, exported, imported or
    /// queued is left, and every call on it fails from now on.
    #[error("the qnic device is gone or was reset: open it again once it is back")]
    DeviceGone,
    /// This process is a child that was forked after the NIC was opened, which is its parent's. The
    /// parent's transfers go on; nothing that the child calls or drops changes anything there.
    #[error("this process was forked: the NIC that was open is its parent's, so open it anew")]
    Forked,
    /// The command queue has stopped after a malformed command.
    #[error("{0}: something wrote over this process's window; call Endpoint::reset_queue")]
    QueueFailed(Status),
    /// The command was dropped by [`crate::Endpoint::reset_queue`].
    #[error("the command was dropped when the command queue was reset: issue it again")]
    QueueReset,
    /// A process has died in the queue of a lock, wait queue or semaphore, or has left it
    /// out of turn. The caller is not in the queue any more ([`crate::sync`]).
    #[error("{what} is broken, a process died in its queue: recover it, then try again")]
    Broken {
        /// The object.
        what: String,
    },
    /// A broken lock that cannot be recovered yet.
    #[error("{what} is held by a process that lives: recover it once that has released it")]
    Held {
        /// The lock.
        what: String,
    },
    /// Nothing can be done without waiting.
    #[error("nothing can be done without waiting")]
    WouldBlock,
    /// A datagram is longer than one can be ([`crate::datagram`]).
    #[error("a datagram of {length} bytes: at most {limit}")]
    DatagramTooLong {
        /// Its length in bytes.
        length: usize,
        /// Longest datagram in bytes.
        limit: usize,
    },
    /// A stream has failed, or could not be opened ([`crate::stream`]).
    #[error("the stream has failed: {0}")]
    Stream(crate::stream_protocol::Failure),
    /// This side has ended the stream, or closed it.
    #[error("the stream was ended on this side")]
    StreamEnded,
    /// The table of streams is full.
    #[error("too many streams: close some, or raise the limit (Options::connections)")]
    TooManyStreams,
    /// The system refused a call.
    #[error("{what}: {source}")]
    System {
        /// The call.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Driver, NIC and library are of different versions.
    #[error("{0}: library and driver are of different versions, install matching ones")]
    Incompatible(String),
}

impl Error {
    /// The status of a refused request, or of the first transfer that failed.
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Refused { status, .. }
            | Error::PeerLost { status, .. }
            | Error::QueueFailed(status) => Some(*status),
            Error::Transfer(errors) => match errors.failures.first() {
                Some(failure) => Some(failure.status),
                None => errors.more.first().map(|more| more.status),
            },
            Error::Message(error) => Some(error.status),
            Error::Group(error) => Some(error.status),
            Error::Name(error) => Some(error.status),
            _ => None,
        }
    }

    /// Returns true if the process at the other end, its node, or the segment is gone.
    pub fn is_peer_gone(&self) -> bool {
        matches!(
            self.status(),
            Some(
                Status::PeerGone
                    | Status::NoSuchNode
                    | Status::NoSuchPort
                    | Status::NoSuchSegment
                    | Status::NameNotFound
                    | Status::BadKey
                    | Status::Aborted
            )
        )
    }

    /// Translates a failed call of the provider.
    pub(crate) fn call(what: impl FnOnce() -> String, error: CallError) -> Self {
        match error {
            CallError::Gone => Error::DeviceGone,
            CallError::Forked => Error::Forked,
            CallError::TimedOut => Error::TimedOut,
            CallError::Interrupted => Error::system(what(), std::io::ErrorKind::Interrupted),
            CallError::System(source) => Error::system(what(), source),
        }
    }

    /// A call of the system that failed.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// A request that was refused.
    pub(crate) fn refused(what: impl Into<String>, status: Status) -> Self {
        let what = what.into();
        Error::Refused { what, status }
    }

    /// Returns an error if any transfer failed.
    pub(crate) fn transfers(errors: TransferErrors) -> Result<()> {
        match errors.failures.is_empty() && errors.more.is_empty() {
            true => Ok(()),
            false => Err(Error::Transfer(errors)),
        }
    }

    /// Returns an error unless `length` bytes at `offset` lie within memory of `size`
    /// bytes.
    pub(crate) fn check_range(
        memory: &'static str,
        size: u64,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        if offset <= size && length <= size - offset {
            return Ok(());
        }
        Err(Error::OutOfRange {
            segment: memory,
            segment_length: size,
            offset,
            length,
        })
    }

    /// Returns an error unless `address`, which is that of `offset`, is a multiple of
    /// `width`.
    pub(crate) fn check_alignment(address: u64, offset: u64, width: u64) -> Result<()> {
        match address % width {
            0 => Ok(()),
            _ => Err(Error::Misaligned { offset, width }),
        }
    }

    /// Returns an error unless the status that a call returned is [`Status::Ok`].
    pub(crate) fn check(code: u32, what: impl FnOnce() -> String) -> Result<()> {
        match Status::try_from(code) {
            Ok(Status::Ok) => Ok(()),
            Ok(status) => Err(Error::refused(what(), status)),
            Err(unknown) => Err(Error::Incompatible(format!(
                "{}: unknown status {}",
                what(),
                unknown.0
            ))),
        }
    }
}

/// The kind of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// From local memory to a remote segment.
    Write,
    /// From a remote segment to local memory.
    Read,
    /// A change of a remote word; completes in one order with the reads.
    Atomic,
}

impl Operation {
    /// Index of its kind: operations of one kind to one process complete in the order of issue.
    pub(crate) fn kind(self) -> usize {
        match self {
            Operation::Write => 0,
            Operation::Read | Operation::Atomic => 1,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Write => "write to",
            Operation::Read => "read from",
            Operation::Atomic => "atomic operation on",
        })
    }
}

/// One transfer that failed. It may have moved some of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferError {
    /// Its kind.
    pub operation: Operation,
    /// Node of the remote process.
    pub node: NodeId,
    /// Port of the remote process.
    pub port: Port,
    /// Name of the remote segment.
    pub segment: SegmentName,
    /// Offset in the remote segment, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Why it failed.
    pub status: Status,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} segment {:#x} of {}, {} ({} bytes at offset {}): {}{}",
            self.operation,
            self.segment.0,
            self.node,
            self.port,
            self.length,
            self.offset,
            self.status,
            hint(&self.status)
        )
    }
}

/// How many transfers failed beyond those that are kept one by one: of one kind, to one process, for
/// one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoreFailures {
    /// Their kind; atomic operations may be among reads.
    pub operation: Operation,
    /// Node of the remote process.
    pub node: NodeId,
    /// Port of the remote process.
    pub port: Port,
    /// Why they failed.
    pub status: Status,
    /// How many.
    pub count: u64,
}

/// The transfers that failed; at least one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TransferErrors {
    /// The first ones, in the order in which the NIC reported them.
    pub failures: Vec<TransferError>,
    /// Those that came when 64 failures had not been asked for.
    pub more: Vec<MoreFailures>,
}

impl TransferErrors {
    pub(crate) fn append(&mut self, other: TransferErrors) {
        self.failures.extend(other.failures);
        self.more.extend(other.more);
    }
}

impl From<TransferError> for TransferErrors {
    fn from(failure: TransferError) -> Self {
        TransferErrors {
            failures: vec![failure],
            more: Vec::new(),
        }
    }
}

impl fmt::Display for TransferErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more: u64 = self.more.iter().map(|more| more.count).sum();
        let Some((first, rest)) = self.failures.split_first() else {
            let first = self.more.first().map(|more| more.status);
            return write!(f, "{more} transfers failed, the first: {first:?}");
        };
        match rest.len() as u64 + more {
            0 => write!(f, "{first}"),
            more => write!(f, "{first} (and {more} more)"),
        }
    }
}

/// What to do about a status, as the end of a sentence.
fn hint(status: &Status) -> &'static str {
    match status {
        Status::NoSuchPort => "; start that process, or check the port",
        Status::NoSuchNode => "; check the node number and the cluster's links",
        Status::NameNotFound => "; check the name, or wait longer",
        Status::NameExists => "; unexport it, or choose another name",
        Status::PortInUse => "; choose another port, or 0 for any free one",
        Status::Exhausted => "; free some, or configure more",
        Status::BadKey | Status::NoSuchSegment => "; import it again",
        Status::AccessDenied => "; the exporter must grant it (ExportOptions)",
        Status::ImportRefused => {
            "; present its secret (ImportOptions::secret), or have it list this process \
             (Importers)"
        }
        Status::Aborted | Status::PeerGone => "; import again once the peer is back",
        Status::VersionMismatch => "; install matching versions",
        Status::ReadOnlyMemory => "; export it for reading only (Access::READ)",
        Status::UnreadableMemory
        | Status::SecretMemory
        | Status::DaxMemory
        | Status::UserFaultMemory
        | Status::DeviceMemory => "; use ordinary memory of the process",
        Status::PageUnavailable => "; its process must keep mapped what it exports",
        Status::OwnPageUnavailable => "; keep mapped what is exported",
        Status::Overlapping => "; export the same range, or use ExportOptions::overlapping",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
