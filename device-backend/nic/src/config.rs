//! What a NIC is made from: its place in the network and the bounds of its memory.

use std::collections::BTreeMap;

use qnic_abi::NodeId;
pub use qnic_limits::{Limits, MAX_WINDOW, SMALLEST_WINDOW, STAGED_OVERHEAD};
use qnic_shared::timing::RetransmitLimits;

/// What a NIC is made from.
#[derive(Debug, Clone)]
pub struct NicConfig {
    /// Number of the node.
    pub node: NodeId,
    /// One more than the highest frame number of the node's physical memory.
    pub frames: u64,
    /// Windows, which is the number of processes that can register (Q1).
    pub windows: u32,
    /// Doorbells.
    pub doorbells: u32,
    /// Bounds.
    pub limits: Limits,
    /// For each other node, the one before it on the route from here; empty if each node is
    /// joined with each other one (Q16).
    pub routes: BTreeMap<NodeId, NodeId>,
    /// All nodes of the network: those that learn the names of processes (Q14).
    pub nodes: Vec<NodeId>,
}

/// How long a sender waits for an acknowledgement.
pub(crate) fn retransmission(limits: &Limits) -> RetransmitLimits {
    RetransmitLimits {
        initial: limits.retransmit_initial,
        floor: limits.retransmit_floor,
        floor_oldest: limits.retransmit_floor_oldest,
        ceiling: limits.retransmit_ceiling,
        ack_delay: limits.ack_delay,
    }
}
