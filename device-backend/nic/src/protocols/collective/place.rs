//! The place of a NIC in a group: its members here, and its neighbours in the tree (Q15). The home
//! is the root of the tree.
//!
//! Where routes have several hops, a node is below the nearest node of the group on the route from
//! the home: frames take each link of the topology once (Q16). A group that has few of the nodes on
//! these routes would give one node many others: of those the first [`FAN_OUT`] stay below it, and
//! each of them takes its share of the rest, on to the leaves. Where each node is joined with each
//! other one, the tree is binomial: node *i* is below the node whose number is *i* without its lowest
//! bit. Its depth is the logarithm of the number of nodes, and no node has more below it.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::collective::{PartFields, NO_NODE};
use qnic_abi::{NodeId, VniId};
use zerocopy::little_endian::{U16, U64};

use super::command::Shape;
use crate::core::Subject;
use crate::trace::Scope;

/// Names a group in all NICs: its home, and a number that the home never uses again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct GroupId {
    pub(super) home: u16,
    pub(super) number: u64,
}

/// A member on this node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) vni: VniId,
    pub(super) group: GroupId,
    pub(super) rank: u32,
    /// The group's name for commands of this member.
    pub(super) local: u64,
    /// Collectives that it has called.
    pub(super) calls: u32,
}

/// The place of a NIC in the tree of a group.
#[derive(Debug, Clone)]
pub(super) struct Relatives {
    pub(super) id: GroupId,
    pub(super) parent: Option<u16>,
    pub(super) children: Vec<u16>,
    /// Bytes of a part; zero until the group has started.
    pub(super) part_bytes: u64,
}

impl GroupId {
    /// As frames name it.
    pub(super) fn of(home: U16, number: U64) -> Self {
        let (home, number) = (home.get(), number.get());
        GroupId { home, number }
    }

    /// What happens to the group, for a trace.
    pub(super) fn subject(self) -> Subject {
        Subject::always(Scope::Group, self.home, self.number)
    }

    /// What happens to a collective of it.
    pub(super) fn collective(self, sequence: u32) -> Subject {
        Subject::collective(self.home, self.number, sequence)
    }
}

impl Relatives {
    /// Those that a frame of the home says.
    pub(super) fn new(id: GroupId, parent: u16, children: Vec<u16>) -> Self {
        Relatives {
            id,
            parent: (parent != NO_NODE).then_some(parent),
            children,
            part_bytes: 0,
        }
    }

    /// All nodes next to it.
    pub(super) fn all(&self) -> impl Iterator<Item = u16> + '_ {
        self.parent.into_iter().chain(self.children.iter().copied())
    }

    /// The fields of a frame about a part.
    pub(super) fn fields(&self, shape: &Shape, sequence: u32, part: u32) -> PartFields {
        PartFields {
            number: self.id.number.into(),
            home: self.id.home.into(),
            sequence: sequence.into(),
            part: part.into(),
            part_bytes: (self.part_bytes as u32).into(),
            ..shape.fields()
        }
    }
}

/// Most nodes below one node, where routes have several hops: more than the links of a node of a
/// torus, and fewer than would make its tree deep.
const FAN_OUT: usize = 6;

/// For each node but the first, which is the home, the node above it. `before` has the node
/// before each one on the route from the home; it is empty where each is joined with each.
pub(super) fn parents(nodes: &[u16], before: &BTreeMap<NodeId, NodeId>) -> Vec<(u16, u16)> {
    let Some(home) = nodes.first().copied() else {
        return Vec::new();
    };
    let members: BTreeSet<u16> = nodes.iter().copied().collect();
    let above = |place: usize, node: u16| {
        if before.is_empty() {
            return nodes[place & (place - 1)];
        }
        let mut at = NodeId(node);
        // A route is no longer than there are nodes.
        for _ in 0..=before.len() {
            match before.get(&at) {
                Some(next) if next.0 == home || members.contains(&next.0) => return next.0,
                Some(next) => at = *next,
                None => break,
            }
        }
        home
    };
    let others = nodes.iter().enumerate().skip(1);
    let tree = others.map(|(place, node)| (*node, above(place, *node)));
    match before.is_empty() {
        true => tree.collect(),
        false => narrow(nodes, tree),
    }
}

/// Moves nodes down, so that none has more than [`FAN_OUT`] below it: those that are too many go
/// below the ones that stay, in turn, and are moved further down from there.
fn narrow(nodes: &[u16], tree: impl Iterator<Item = (u16, u16)>) -> Vec<(u16, u16)> {
    let mut below: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for (node, above) in tree {
        below.entry(above).or_default().push(node);
    }
    let mut narrow = Vec::new();
    let mut at: Vec<u16> = nodes.first().copied().into_iter().collect();
    while let Some(above) = at.pop() {
        let children = below.remove(&above).unwrap_or_default();
        let (stay, move_down) = children.split_at(children.len().min(FAN_OUT));
        for (place, node) in move_down.iter().enumerate() {
            below
                .entry(stay[place % stay.len()])
                .or_default()
                .push(*node);
        }
        narrow.extend(stay.iter().map(|node| (*node, above)));
        at.extend(stay);
    }
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(tree: &[(u16, u16)], home: u16) -> usize {
        let above: BTreeMap<u16, u16> = tree.iter().copied().collect();
        let depth = |node: u16| {
            let mut at = node;
            (1..).find(|_| {
                at = above[&at];
                at == home
            })
        };
        tree.iter()
            .filter_map(|(node, _)| depth(*node))
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn a_mesh_has_a_tree_as_deep_as_the_logarithm() {
        let routes = BTreeMap::new();
        for (count, expected) in [(1, 0), (2, 1), (4, 2), (8, 3), (64, 6), (65, 6)] {
            // The home need not be the first node of the cluster.
            let nodes: Vec<u16> = (0..count).map(|node| (node + 7) % count).collect();
            let tree = parents(&nodes, &routes);
            assert_eq!(tree.len(), usize::from(count) - 1);
            assert_eq!(depth(&tree, nodes[0]), expected, "{count} nodes");
            let below = |node: u16| tree.iter().filter(|(_, above)| *above == node).count();
            assert!(nodes.iter().all(|node| below(*node) <= 7));
        }
    }

    /// A star whose hub is no member, and a sparse group of a torus: no node sends to more than a
    /// few others, and the tree is no deeper than the logarithm beyond the routes (Q15).
    #[test]
    fn sparse_groups_have_a_bounded_fan_out() {
        let star = (1..64).map(|node| (NodeId(node), NodeId(if node == 7 { 5 } else { 7 })));
        let star: BTreeMap<NodeId, NodeId> = star.collect();
        // An 8 x 8 torus, seen from its first node: along the row, then along the column.
        let nearer = |at: u16| if at <= 4 { at - 1 } else { (at + 1) % 8 };
        let torus = (1..64_u16).map(|node| match (node % 8, node / 8) {
            (column, 0) => (NodeId(node), NodeId(nearer(column))),
            (column, row) => (NodeId(node), NodeId(nearer(row) * 8 + column)),
        });
        let torus: BTreeMap<NodeId, NodeId> = torus.collect();
        let corners: Vec<u16> = (0..64)
            .filter(|node| *node == 0 || node % 8 != 0 && node / 8 != 0)
            .collect();
        let leaves: Vec<u16> = std::iter::once(5)
            .chain((0..64).filter(|node| ![5, 7].contains(node)))
            .collect();
        for (nodes, routes, deepest) in [(&corners, torus, 8), (&leaves, star, 3)] {
            let tree = parents(nodes, &routes);
            assert_eq!(tree.len(), nodes.len() - 1);
            let below = |node: u16| tree.iter().filter(|(_, above)| *above == node).count();
            assert!(nodes.iter().all(|node| below(*node) <= FAN_OUT));
            assert!(
                depth(&tree, nodes[0]) <= deepest,
                "{}",
                depth(&tree, nodes[0])
            );
        }
    }

    #[test]
    fn where_routes_have_hops_the_tree_follows_them() {
        // A ring of six, seen from node 2.
        let before = [(3, 2), (4, 3), (5, 4), (1, 2), (0, 1)];
        let before = before
            .map(|(node, last)| (NodeId(node), NodeId(last)))
            .into();
        let tree = parents(&[2, 0, 5, 3], &before);
        assert_eq!(tree, [(0, 2), (3, 2), (5, 3)]);
        // A node of which the topology does not know is below the home.
        assert_eq!(parents(&[2, 9], &before), [(9, 2)]);
    }
}
