//! Names of links, and sets of them.

use qnic_abi::NodeId;
use serde::{Deserialize, Deserializer};

/// One direction of a link: the nodes where it begins and ends.
pub(crate) type Hop = (NodeId, NodeId);

/// A set of links. In JSON: `"all"`, `{"at":1}`, `{"one_way":[0,1]}`, `{"between":[0,1]}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkSet {
    /// Every link.
    All,
    /// All links that begin or end at a node.
    At(#[serde(deserialize_with = "node")] NodeId),
    /// One direction.
    OneWay(
        #[serde(deserialize_with = "node")] NodeId,
        #[serde(deserialize_with = "node")] NodeId,
    ),
    /// Both directions.
    Between(
        #[serde(deserialize_with = "node")] NodeId,
        #[serde(deserialize_with = "node")] NodeId,
    ),
}

fn node<'de, D: Deserializer<'de>>(number: D) -> Result<NodeId, D::Error> {
    u16::deserialize(number).map(NodeId)
}

impl LinkSet {
    /// Returns true if it contains the link from `from` to `to`.
    pub(crate) fn contains(self, from: NodeId, to: NodeId) -> bool {
        match self {
            LinkSet::All => true,
            LinkSet::At(node) => node == from || node == to,
            LinkSet::OneWay(a, b) => (a, b) == (from, to),
            LinkSet::Between(a, b) => (a, b) == (from, to) || (b, a) == (from, to),
        }
    }
}
