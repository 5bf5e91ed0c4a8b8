//! The writes of one process, in their order to each node.

use qnic_abi::NodeId;

use crate::core::{Order, OPERATION_SLOTS};

/// A member of a [`Streams`]: a write of the process to one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StreamPosition {
    stream: u8,
    number: u64,
}

/// Writes to one node, in the order of issue.
#[derive(Debug)]
struct Stream {
    order: Order,
    /// Slot of the operation for each member, by number modulo the window.
    slots: [u8; OPERATION_SLOTS],
}

/// Order of the writes of one process, node by node (N18): a write may notify
/// when every earlier one to the same node is settled, which means that all of it,
/// its notification included, was sent.
///
/// A process has at most 64 writes that are not settled, so there are at most 64
/// streams in use; with that many, idle ones are taken again.
///
/// With many nodes a search would touch as many lines of memory as there are streams (P9). So the
/// nodes stand together, and a table says where one of a number like it was found last.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    /// The node of each.
    nodes: Vec<NodeId>,
    /// Index of the stream that was found last, by node modulo the length of this table.
    found: [u8; OPERATION_SLOTS],
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            streams: Vec::new(),
            nodes: Vec::new(),
            found: [0; OPERATION_SLOTS],
        }
    }
}

impl Streams {
    /// Adds a write to `node`, run by the operation in `slot`.
    pub(super) fn join(&mut self, node: NodeId, slot: u8) -> StreamPosition {
        let place = usize::from(node.0) % OPERATION_SLOTS;
        let found = usize::from(self.found[place]);
        let index = match self.nodes.get(found) == Some(&node) {
            true => found,
            false => self.find(node),
        };
        self.found[place] = index as u8;
        let stream = &mut self.streams[index];
        let number = stream.order.start();
        stream.slots[(number % OPERATION_SLOTS as u64) as usize] = slot;
        StreamPosition {
            stream: index as u8,
            number,
        }
    }

    /// The stream of a node, or one that is idle, for that node.
    #[cold]
    fn find(&mut self, node: NodeId) -> usize {
        if let Some(known) = self.nodes.iter().position(|other| *other == node) {
            return known;
        }
        let full = self.streams.len() >= OPERATION_SLOTS;
        let mut idle = self.streams.iter().map(|stream| stream.order.is_idle());
        if let Some(idle) = idle.position(|idle| idle).filter(|_| full) {
            self.nodes[idle] = node;
            return idle;
        }
        self.streams.push(Stream {
            order: Order::default(),
            slots: [0; OPERATION_SLOTS],
        });
        self.nodes.push(node);
        self.streams.len() - 1
    }

    /// Returns true if every earlier write to the same node is settled.
    pub(super) fn is_first(&self, position: StreamPosition) -> bool {
        self.streams[usize::from(position.stream)].order.ended() >= position.number
    }

    /// Settles a write. Returns the slot of the write that has become the first
    /// one that is not settled, if it is another one than before.
    pub(super) fn settle(&mut self, position: StreamPosition) -> Option<u8> {
        let stream = &mut self.streams[usize::from(position.stream)];
        if !stream.order.end(position.number) || stream.order.is_idle() {
            return None;
        }
        Some(stream.slots[(stream.order.ended() % OPERATION_SLOTS as u64) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_nodes_are_apart_and_reused() {
        let mut streams = Streams::default();
        let a = streams.join(NodeId(1), 10);
        let b = streams.join(NodeId(2), 11);
        let c = streams.join(NodeId(1), 12);
        assert!(streams.is_first(a) && streams.is_first(b) && !streams.is_first(c));
        assert_eq!(streams.settle(b), None);
        assert_eq!(streams.settle(a), Some(12));
        assert!(streams.is_first(c));
        assert_eq!(streams.settle(a), None, "settling twice changes nothing");
        // As many nodes as there are writes, then one more after another: idle streams are taken.
        for node in 3..300 {
            let d = streams.join(NodeId(node), 13);
            assert!(streams.is_first(d));
            let again = streams.join(NodeId(node), 14);
            assert!(!streams.is_first(again));
            assert_eq!(streams.settle(d), Some(14));
            assert_eq!(streams.settle(again), None);
        }
        assert_eq!(streams.streams.len(), OPERATION_SLOTS);
        assert!(streams.is_first(c), "one in use was not taken");
        let e = streams.join(NodeId(1), 15);
        assert!(!streams.is_first(e));
    }
}
