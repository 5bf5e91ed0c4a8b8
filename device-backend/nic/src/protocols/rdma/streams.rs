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
    node: NodeId,
    order: Order,
    /// Slot of the operation for each member, by number modulo the window.
    slots: [u8; OPERATION_SLOTS],
}

/// Order of the writes of one process, node by node (N18): a write may notify
/// when every earlier one to the same node is settled, which means that all of it,
/// its notification included, was sent.
///
/// A process has at most 64 writes that are not settled, so there are at most 64
/// streams in use; idle ones are taken again.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: Vec<Stream>,
}

impl Streams {
    /// Adds a write to `node`, run by the operation in `slot`.
    pub(super) fn join(&mut self, node: NodeId, slot: u8) -> StreamPosition {
        let known = self.streams.iter().position(|stream| stream.node == node);
        let index = known.or_else(|| self.streams.iter().position(|s| s.order.is_idle()));
        let index = index.unwrap_or_else(|| {
            self.streams.push(Stream {
                node,
                order: Order::default(),
                slots: [0; OPERATION_SLOTS],
            });
            self.streams.len() - 1
        });
        let stream = &mut self.streams[index];
        stream.node = node;
        let number = stream.order.start();
        stream.slots[(number % OPERATION_SLOTS as u64) as usize] = slot;
        StreamPosition {
            stream: index as u8,
            number,
        }
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
        let d = streams.join(NodeId(3), 13);
        assert_eq!(streams.streams.len(), 2, "the idle stream was taken");
        assert!(streams.is_first(d));
    }
}
