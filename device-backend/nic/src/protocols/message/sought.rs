//! Which processes one process has asked for ([`sources`](super::sources)).

use std::collections::BTreeSet;

use super::command::{Name, Source};

/// Processes that one process has asked for, and that are remembered. Those that are forgotten are asked for again.
const MOST: usize = 4096;

/// The processes that one process has asked for: node, port, incarnation.
#[derive(Debug, Default)]
pub(super) struct Sought(BTreeSet<(u16, u16, u32)>);

impl Sought {
    pub(super) fn key(Source { name, incarnation }: Source) -> (u16, u16, u32) {
        (name.node, name.port, incarnation)
    }

    pub(super) fn has(&self, source: Source) -> bool {
        self.0.contains(&Self::key(source))
    }

    pub(super) fn note(&mut self, source: Source) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(Self::key(source));
    }

    pub(super) fn forget(&mut self, source: Source) {
        self.0.remove(&Self::key(source));
    }

    pub(super) fn forget_node(&mut self, node: u16) {
        self.0.retain(|(other, ..)| *other != node);
    }

    pub(super) fn forget_port(&mut self, port: Name) {
        self.0
            .retain(|(node, number, _)| (*node, *number) != (port.node, port.port));
    }
}
