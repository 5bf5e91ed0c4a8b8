//! Names of peers and connections, and the ways in which connections end.

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

/// Names a connection of an endpoint. No later connection has the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// Its place in the table; the other bits are random.
    pub(crate) fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// Why a connection has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// No program listens at the peer's port.
    #[error("no program listens there")]
    Refused,
    /// The peer has too many connections.
    #[error("the peer has too many connections")]
    Full,
    /// The peer has given the connection up, or does not know it any more.
    #[error("the peer has reset the connection")]
    Reset,
    /// The peer is silent.
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

/// Why a call has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// There is no such connection, or it was closed.
    #[error("no such connection")]
    NoConnection,
    /// Not possible now: no bytes have come, or there is no room.
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
