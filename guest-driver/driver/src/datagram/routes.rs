//! How much a packet to a node may carry (H3).
//!
//! A packet carries a whole buffer unless the route is narrower. The NIC tells by refusing the packet
//! with BadLength: then the next ones carry half. The driver cannot ask the NIC first, because sending
//! is atomic. A narrow route is forgotten after a while, as routes change.

use alloc::vec::Vec;

use qnic_abi::datagram::MAX_DATA;
use qnic_abi::NodeId;

use super::fragments::MIN_FRAGMENT;
use crate::platform::NoMemory;

/// Narrow routes that are remembered; beyond that the oldest is forgotten.
const REMEMBERED: usize = 64;

/// How long a route counts as narrow, in nanoseconds.
const NARROW_NS: u64 = 60_000_000_000;

struct Narrow {
    node: NodeId,
    size: usize,
    until_ns: u64,
}

/// The routes that carry less than [`MAX_DATA`].
pub(super) struct Routes(Vec<Narrow>);

impl Routes {
    pub(super) fn new() -> Result<Self, NoMemory> {
        let mut narrow = Vec::new();
        narrow.try_reserve_exact(REMEMBERED)?;
        Ok(Routes(narrow))
    }

    /// Bytes of data in a packet to a node.
    pub(super) fn size(&self, now_ns: u64, node: NodeId) -> usize {
        let known = self.0.iter().find(|narrow| narrow.node == node);
        let known = known.filter(|narrow| now_ns < narrow.until_ns);
        known.map_or(MAX_DATA, |narrow| narrow.size)
    }

    /// Notes that a packet of this size was refused. Returns true if a smaller one may pass.
    pub(super) fn refused(&mut self, now_ns: u64, node: NodeId, size: usize) -> bool {
        let smaller = size / 2;
        if smaller < MIN_FRAGMENT {
            return false;
        }
        let size = smaller.min(self.size(now_ns, node));
        self.0.retain(|narrow| narrow.node != node);
        if self.0.len() >= REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(Narrow {
            node,
            size,
            until_ns: now_ns.saturating_add(NARROW_NS),
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_refuses_gets_smaller_packets_for_a_while() {
        let mut routes = Routes::new().unwrap();
        let node = NodeId(3);
        assert_eq!(routes.size(0, node), MAX_DATA);
        assert!(routes.refused(0, node, 4096));
        assert!(routes.refused(0, node, 4096), "the same size, once more");
        assert_eq!(routes.size(1, node), 2048);
        assert!(routes.refused(1, node, 2048) && routes.refused(1, node, 1024));
        assert!(!routes.refused(1, node, 512));
        assert_eq!(routes.size(2, node), 512);
        assert_eq!(routes.size(2, NodeId(4)), MAX_DATA);
        assert_eq!(routes.size(2 + NARROW_NS, node), MAX_DATA);
    }

    #[test]
    fn only_so_many_routes_are_remembered() {
        let mut routes = Routes::new().unwrap();
        for node in 0..=REMEMBERED as u16 {
            assert!(routes.refused(0, NodeId(node), 4096));
        }
        assert_eq!(routes.size(1, NodeId(0)), MAX_DATA);
        assert_eq!(routes.size(1, NodeId(1)), 2048);
    }
}
