//! Frames of unreliable queue pairs that wait for a page, or behind one that does.

use qnic_abi::verbs::frames::{VerbsDatagram, VerbsMessage};
use qnic_abi::NodeId;

/// Frames that are kept for a queue pair, at most.
pub(super) const KEPT: usize = 64;
/// Frames that are kept for all, at most.
pub(super) const KEPT_OF_NIC: usize = 1024;

/// What a frame of class Unreliable says.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cast {
    /// A part of a message.
    Message(VerbsMessage),
    /// A datagram of a node.
    Datagram(VerbsDatagram, NodeId),
}

/// A frame that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) cast: Cast,
    pub(super) bytes: Box<[u8]>,
}
