//! Things that are started in order, end in any order, and are counted in order:
//! the completion counters of a process, and the writes of a process to one node.

use qnic_abi::NodeId;

/// Most members between the oldest that has not ended and the newest.
pub(crate) const ORDER_WINDOW: u64 = 64;

/// A window over numbered members: which of the last 64 have ended.
#[derive(Debug, Default)]
pub(crate) struct Order {
    started: u64,
    /// All members below this number have ended.
    ended: u64,
    /// Bit *i*: member `ended + i` has ended.
    mask: u64,
}

impl Order {
    /// Says whether another one can start.
    pub(crate) fn has_room(&self) -> bool {
        self.started - self.ended < ORDER_WINDOW
    }

    /// Starts one; returns its number.
    ///
    /// There must be room.
    pub(crate) fn start(&mut self) -> u64 {
        debug_assert!(self.has_room());
        let number = self.started;
        self.started += 1;
        number
    }

    /// Notes that one has ended (again, without effect). Returns `true` if the
    /// count of [`Order::ended`] has moved.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        if number < self.ended {
            return false;
        }
        self.mask |= 1 << (number - self.ended);
        let run = self.mask.trailing_ones();
        self.ended += u64::from(run);
        self.mask = self.mask.checked_shr(run).unwrap_or(0);
        run > 0
    }

    /// How many have ended, up to the first that has not.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    fn is_idle(&self) -> bool {
        self.started == self.ended
    }
}

/// A member of a [`Streams`]: a write of the process to one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StreamPosition {
    stream: u8,
    number: u64,
}

/// Writes to one node, in the order of issue.
#[derive(Debug)]
struct Stream {
    node: NodeId,
    order: Order,
    /// Slot of the operation for each member, by number modulo the window.
    slots: [u8; ORDER_WINDOW as usize],
}

/// Order of the writes of one process, node by node (N18): a write may notify
/// when every earlier one to the same node is settled, which means that all of it,
/// its notification included, was sent.
///
/// A process has at most 64 writes that are not settled, so there are at most 64
/// streams in use; idle ones are taken again.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
}

impl Streams {
    /// Adds a write to `node`, run by the operation in `slot`.
    pub(crate) fn join(&mut self, node: NodeId, slot: u8) -> StreamPosition {
        let known = self.streams.iter().position(|stream| stream.node == node);
        let place = known.or_else(|| self.streams.iter().position(|s| s.order.is_idle()));
        let place = place.unwrap_or_else(|| {
            self.streams.push(Stream {
                node,
                order: Order::default(),
                slots: [0; ORDER_WINDOW as usize],
            });
            self.streams.len() - 1
        });
        let stream = &mut self.streams[place];
        stream.node = node;
        let number = stream.order.start();
        stream.slots[(number % ORDER_WINDOW) as usize] = slot;
        StreamPosition {
            stream: place as u8,
            number,
        }
    }

    /// Says whether every earlier write to the same node is settled.
    pub(crate) fn is_first(&self, position: StreamPosition) -> bool {
        self.streams[usize::from(position.stream)].order.ended() >= position.number
    }

    /// Settles a write. Returns the slot of the write that has become the first
    /// one that is not settled, if it is another one than before.
    pub(crate) fn settle(&mut self, position: StreamPosition) -> Option<u8> {
        let stream = &mut self.streams[usize::from(position.stream)];
        if !stream.order.end(position.number) || stream.order.is_idle() {
            return None;
        }
        Some(stream.slots[(stream.order.ended() % ORDER_WINDOW) as usize])
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.streams.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn ended_counts_the_unbroken_run(ends in prop::collection::vec(0u64..64, 0..200)) {
            let mut order = Order::default();
            let mut ended = std::collections::BTreeSet::new();
            for choice in ends {
                while order.has_room() {
                    order.start();
                }
                let number = order.ended() + choice;
                let before = order.ended();
                ended.insert(number);
                let moved = order.end(number);
                let run = (0..).find(|n| !ended.contains(n)).unwrap();
                prop_assert_eq!(order.ended(), run);
                prop_assert_eq!(moved, run != before);
            }
        }
    }
}
