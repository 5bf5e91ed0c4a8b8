//! Where nodes are: in which slot of this process, or in which other process.

use qnic_abi::NodeId;

use super::DuplicateNode;

/// How a node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It is in this process.
    Slot(usize),
    /// It is in another one.
    Process { carrier: usize, process: usize },
}

/// How each node is reached, in the order of node numbers.
#[derive(Debug, Default)]
pub(super) struct Routes(Vec<(NodeId, Place)>);

impl Routes {
    /// How a node is reached, if it is known.
    pub(super) fn find(&self, node: NodeId) -> Option<Place> {
        let place = self.0.binary_search_by_key(&node, |route| route.0).ok()?;
        Some(self.0[place].1)
    }

    /// Adds a node.
    pub(super) fn add(&mut self, node: NodeId, way: Place) -> Result<(), DuplicateNode> {
        match self.0.binary_search_by_key(&node, |route| route.0) {
            Ok(_) => Err(DuplicateNode(node)),
            Err(place) => {
                self.0.insert(place, (node, way));
                Ok(())
            }
        }
    }
}
