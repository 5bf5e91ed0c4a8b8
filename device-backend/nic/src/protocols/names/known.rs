//! Names of processes of all nodes, by name and by node.
//!
//! ```text
//!   name ──► (node, port, term)     counts only if the term is that of the node's names
//!   node ──► term, names
//!            │ forgotten
//!            ▼
//!   graves: names whose entries are removed bit by bit
//! ```
//! A node can have many names, and is forgotten at once: its names go into a grave, from which
//! [`Known::sweep`] removes a few at a time. An entry in a grave is never found.

use std::collections::{BTreeMap, BTreeSet};

use super::{Name, Place};

#[derive(Debug, Default)]
struct OfNode {
    /// Tells the names of the node from those before it was forgotten.
    term: u64,
    names: BTreeSet<Name>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Port and term of each name of each node.
    places: BTreeMap<(Name, u16), (u16, u64)>,
    nodes: BTreeMap<u16, OfNode>,
    graves: Vec<(u16, OfNode)>,
    last_term: u64,
}

impl Known {
    /// The process that has a name; the lowest, should several have it.
    pub(super) fn find(&self, name: &Name) -> Option<Place> {
        let all = self.places.range((*name, 0)..=(*name, u16::MAX));
        let current = |node: &u16, term: &u64| {
            let of_node = self.nodes.get(node);
            of_node.is_some_and(|of_node| of_node.term == *term)
        };
        let mut live = all.filter(|((_, node), (_, term))| current(node, term));
        live.next().map(|((_, node), (port, _))| (*node, *port))
    }

    /// How many names a node has.
    pub(super) fn count(&self, node: u16) -> usize {
        self.nodes
            .get(&node)
            .map_or(0, |of_node| of_node.names.len())
    }

    /// Returns true if a node has that name.
    pub(super) fn has(&self, node: u16, name: &Name) -> bool {
        let of_node = self.nodes.get(&node);
        of_node.is_some_and(|of_node| of_node.names.contains(name))
    }

    /// How many each node has.
    pub(super) fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.nodes.values().map(|of_node| of_node.names.len())
    }

    /// Names of all nodes, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = (Name, Place)> + '_ {
        let names = self.places.iter().filter(|((_, node), (_, term))| {
            let of_node = self.nodes.get(node);
            of_node.is_some_and(|of_node| of_node.term == *term)
        });
        names.map(|((name, node), (port, _))| (*name, (*node, *port)))
    }

    /// Adds a name of a node, or gives it another port.
    pub(super) fn insert(&mut self, node: u16, name: Name, port: u16) {
        let of_node = self.nodes.entry(node).or_insert_with(|| {
            self.last_term += 1;
            OfNode {
                term: self.last_term,
                names: BTreeSet::new(),
            }
        });
        of_node.names.insert(name);
        self.places.insert((name, node), (port, of_node.term));
    }

    /// Takes a name of a node out.
    pub(super) fn remove(&mut self, node: u16, name: &Name) {
        if let Some(of_node) = self.nodes.get_mut(&node) {
            if of_node.names.remove(name) {
                self.places.remove(&(*name, node));
            }
            if of_node.names.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }

    /// Forgets all names of a node.
    pub(super) fn forget(&mut self, node: u16) {
        if let Some(of_node) = self.nodes.remove(&node) {
            self.graves.push((node, of_node));
        }
    }

    /// Returns true if [`Known::sweep`] has something to do.
    pub(super) fn is_sweeping(&self) -> bool {
        !self.graves.is_empty()
    }

    /// Removes up to so many names of nodes that were forgotten, and names each. Returns true if
    /// there were any.
    pub(super) fn sweep(&mut self, most: usize, mut removed: impl FnMut(Name)) -> bool {
        let busy = self.is_sweeping();
        for _ in 0..most {
            let Some((node, of_node)) = self.graves.last_mut() else {
                break;
            };
            match of_node.names.pop_first() {
                Some(name) => {
                    let place = self.places.get(&(name, *node));
                    if place.is_some_and(|(_, term)| *term == of_node.term) {
                        self.places.remove(&(name, *node));
                    }
                    removed(name);
                }
                None => drop(self.graves.pop()),
            }
        }
        busy
    }
}
