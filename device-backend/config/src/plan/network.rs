//! The plan of a network: its nodes, and how they are joined.

use std::collections::BTreeMap;

use qnic_limits::NodeId;

use crate::plan::impairment::Impairments;
use crate::plan::topology::Topology;

/// Longest name of a device process that others of its host reach, in bytes.
pub const MAX_NAME: usize = 64;

/// Most nodes in one network, those of all processes: as many as a NIC has places for peers.
pub const MAX_NODES: usize = 1024;

/// What a network is made from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NetworkPlan {
    /// How nodes are joined.
    pub topology: Topology,
    /// All nodes, those of other processes included, in the order of their places, each once.
    pub nodes: Vec<NodeId>,
    /// Impairments of the links that `links` does not name.
    pub default: Impairments,
    /// Impairments of single links, in one direction.
    pub links: Vec<(NodeId, NodeId, Impairments)>,
    /// Seed of all randomness.
    pub seed: u64,
    /// All frames take the data channel, on every link.
    pub one_channel: bool,
}

impl NetworkPlan {
    /// For each other node, the one before it on the route from `node`; nothing if each node is
    /// joined with each other one.
    pub fn routes(&self, node: NodeId) -> BTreeMap<NodeId, NodeId> {
        let nodes = &self.nodes;
        let from = self.place_of(node);
        let (Some(from), false) = (from, self.topology == Topology::Mesh) else {
            return BTreeMap::new();
        };
        let others = (0..nodes.len()).filter(|to| *to != from);
        let before = others.map(|to| {
            let route = self.topology.route(nodes.len(), from, to);
            let last = route.len().checked_sub(2).map(|place| route[place]);
            (nodes[to], nodes[last.unwrap_or(from)])
        });
        before.collect()
    }

    fn place_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| *known == node)
    }

    /// Checks that the nodes can be joined so, and that the links exist that are named.
    ///
    /// # Errors
    /// Returns a sentence that says why not.
    pub fn check(&self) -> Result<(), String> {
        let nodes = &self.nodes;
        if nodes.len() > MAX_NODES {
            return Err(format!("{} nodes, at most {MAX_NODES}", nodes.len()));
        }
        self.topology.check(nodes.len())?;
        for (from, to, _) in &self.links {
            let joined = self
                .place_of(*from)
                .zip(self.place_of(*to))
                .is_some_and(|(from, to)| self.topology.joins(nodes.len(), from, to));
            if !joined {
                return Err(format!("no link joins {from} and {to}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_before_each_on_its_route() {
        let plan = |topology| NetworkPlan {
            topology,
            nodes: [1, 2, 3, 4, 5, 6].map(NodeId).to_vec(),
            ..NetworkPlan::default()
        };
        assert!(plan(Topology::Mesh).routes(NodeId(1)).is_empty());
        let torus = plan(Topology::Torus { columns: 3 }).routes(NodeId(1));
        let expected = [(2, 1), (3, 1), (4, 1), (5, 2), (6, 3)];
        let expected = expected.map(|(node, before)| (NodeId(node), NodeId(before)));
        assert_eq!(torus, expected.into());
        let mut moved = plan(Topology::Torus { columns: 3 });
        moved.nodes.swap(0, 4);
        assert_eq!(moved.routes(NodeId(1))[&NodeId(3)], NodeId(6));
        let star = plan(Topology::Star { hub: 1 }).routes(NodeId(4));
        assert_eq!(star[&NodeId(2)], NodeId(4));
        assert_eq!(star[&NodeId(5)], NodeId(2));
    }

    #[test]
    fn what_cannot_be_joined_is_refused() {
        let plan = |topology, count, links: &[(u16, u16)]| NetworkPlan {
            topology,
            nodes: (0..count).map(NodeId).collect(),
            links: links
                .iter()
                .map(|(from, to)| (NodeId(*from), NodeId(*to), Impairments::NONE))
                .collect(),
            ..NetworkPlan::default()
        };
        assert_eq!(plan(Topology::Ring, 4, &[(0, 1), (0, 3)]).check(), Ok(()));
        for (topology, count, links, part) in [
            (Topology::Mesh, 1025, &[][..], "1025 nodes, at most 1024"),
            (Topology::Star { hub: 4 }, 4, &[], "the hub is node 4 of 4"),
            (Topology::Ring, 4, &[(0, 2)], "no link joins"),
            (Topology::Mesh, 4, &[(0, 1), (0, 9)], "no link joins"),
        ] {
            let error = plan(topology, count, links).check().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
