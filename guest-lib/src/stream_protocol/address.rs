//! Names of peers and connections, and how connections end.

use qnic_abi::stream::Reason;
use qnic_abi::NodeId;

/// A datagram port of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// Its datagram port.
    pub port: u16,
}

/// Names a connection of an endpoint, also when it is gone: no later one has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// Its place in the table; the rest is random.
    pub(crate) fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// Why a connection has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// Nobody listens at the peer's port.
    #[error("nobody listens there")]
    Refused,
    /// The peer has too many connections.
    #[error("the peer has too many connections")]
    Full,
    /// The peer has given the connection up, or knows it no more.
    #[error("the peer has reset the connection")]
    Reset,
    /// The peer says nothing any more.
    #[error("the peer does not answer")]
    PeerLost,
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Refused => Failure::Refused,
            Reason::Full => Failure::Full,
            Reason::Unknown | Reason::Aborted => Failure::Reset,
        }
    }
}

/// Why a call was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// There is no such connection, or it was closed.
    #[error("no such connection")]
    NoConnection,
    /// Nothing can be done now: nothing has come, or there is no room.
    #[error("not now")]
    WouldBlock,
    /// This side has ended the stream: nothing can be written.
    #[error("the stream has been ended")]
    Ended,
    /// The table of connections is full.
    #[error("too many connections")]
    Full,
    /// The connection has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}
