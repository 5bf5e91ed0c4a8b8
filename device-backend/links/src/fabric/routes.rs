//! The route to each node: a slot of this fabric, another engine of this process, or another
//! process.

use qnic_abi::NodeId;

use super::DuplicateNode;

/// How a node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// It is in this slot.
    Local(usize),
    /// It is at another engine of this process, which this way leads to.
    Sibling(usize),
    /// It is in another process.
    Remote { carrier: usize, process: usize },
}

/// The route to each node, in the order of node numbers.
#[derive(Debug, Default)]
pub(super) struct Routes(Vec<(NodeId, Route)>);

impl Routes {
    pub(super) fn find(&self, node: NodeId) -> Option<Route> {
        let index = self.0.binary_search_by_key(&node, |entry| entry.0).ok()?;
        Some(self.0[index].1)
    }

    pub(super) fn add(&mut self, node: NodeId, route: Route) -> Result<(), DuplicateNode> {
        match self.0.binary_search_by_key(&node, |entry| entry.0) {
            Ok(_) => Err(DuplicateNode(node)),
            Err(index) => {
                self.0.insert(index, (node, route));
                Ok(())
            }
        }
    }
}
