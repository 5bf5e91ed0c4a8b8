//! Staging memory (Q12): how much of it each process and node has, and which messages wait for some.
//!
//! ```text
//!            half                                    full
//!   ┌─────────┴───────────────────┬───────────────────┐
//!   │ any message that fits       │ only within the   │   of a process that receives, and
//!   │                             │ share of a sender │   of a node that sends
//!   └─────────────────────────────┴───────────────────┘
//! ```
//! There are two kinds of pools: `staged_bytes` of each process that receives, and
//! `staged_bytes_per_peer` of each node that sends. A message needs room in both. One that would
//! fill a pool by more than half has room only within the share of its *flow*: the first
//! `staged_bytes_per_sender` bytes that one process has staged at another one. So a sender that
//! sends more than its share cannot take the shares of others, and may use what is over.
//!
//! | | |
//! |---|---|
//! | fills it | a peer, by messages that no receive takes |
//! | pays | its flow; each message counts [`STAGED_OVERHEAD`] bytes beside its own |
//! | empties it | a receive that takes the message, a discard, the end of the process that receives; of messages whose bytes are still coming also the end of the sender, or of its session |
//!
//! Messages without room wait at their source. When memory is given back, flows have turns: each
//! gets room for its messages, the first first, until one has none.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use qnic_abi::multicast::MAX_KEPT_BYTES;
use qnic_abi::VniId;

use super::command::Name;
use crate::config::{Limits, STAGED_OVERHEAD};

/// By how much a letter may exceed a pool ([`Room::may_overflow`]).
pub(super) const LETTER: u32 = MAX_KEPT_BYTES + STAGED_OVERHEAD;

/// What one process sends to another one here.
pub(super) type Flow = (VniId, Name);

/// Bytes in use by key; none is zero.
#[derive(Debug)]
struct Used<K>(BTreeMap<K, u64>);

impl<K> Default for Used<K> {
    fn default() -> Self {
        Used(BTreeMap::new())
    }
}

impl<K: Copy + Ord> Used<K> {
    fn of(&self, key: K) -> u64 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    fn add(&mut self, key: K, bytes: u64) {
        *self.0.entry(key).or_default() += bytes;
    }

    fn subtract(&mut self, key: K, bytes: u64) {
        if let Entry::Occupied(mut used) = self.0.entry(key) {
            *used.get_mut() -= bytes;
            if *used.get() == 0 {
                used.remove();
            }
        }
    }
}

/// Processes with letters that wait for a receive or for room ([`super::letters`]), and those of
/// them for which something may have changed.
#[derive(Debug, Default)]
pub(super) struct Openings {
    awaited: BTreeSet<VniId>,
    /// Those that also wait until less is staged of a node.
    nodes: BTreeMap<u16, BTreeSet<VniId>>,
    open: BTreeSet<VniId>,
}

impl Openings {
    /// A letter waits for an opening of a process.
    pub(super) fn await_one(&mut self, vni: VniId) {
        self.awaited.insert(vni);
    }

    /// A letter for a process waits until less is staged of a node.
    pub(super) fn await_node(&mut self, node: u16, vni: VniId) {
        self.nodes.entry(node).or_default().insert(vni);
    }

    /// A process has posted a receive, or has more room.
    #[inline]
    pub(super) fn open(&mut self, vni: VniId) {
        if !self.awaited.is_empty() && self.awaited.remove(&vni) {
            self.open.insert(vni);
        }
    }

    /// Less is staged of a node.
    pub(super) fn open_node(&mut self, node: u16) {
        if !self.nodes.is_empty() {
            self.open
                .extend(self.nodes.remove(&node).unwrap_or_default());
        }
    }

    pub(super) fn has_any(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn take(&mut self) -> BTreeSet<VniId> {
        std::mem::take(&mut self.open)
    }
}

/// Staging memory in use, and what waits for some.
#[derive(Debug, Default)]
pub(super) struct Room {
    processes: Used<VniId>,
    nodes: Used<u16>,
    flows: Used<Flow>,
    /// Messages that wait.
    wanting: BTreeSet<(Flow, u64)>,
    /// Flows up to this one have had their turn.
    passed: Option<Flow>,
    /// How often turns go round until each flow has had one since memory was given back.
    rounds: u8,
}

fn cost(length: usize) -> u64 {
    (length as u64).saturating_add(STAGED_OVERHEAD.into())
}

impl Room {
    /// Returns true if there is room for so many bytes of a flow.
    pub(super) fn has(&self, limits: &Limits, flow: Flow, length: usize) -> bool {
        let (vni, source) = flow;
        let cost = cost(length);
        let process = self.processes.of(vni).saturating_add(cost);
        let node = self.nodes.of(source.node).saturating_add(cost);
        let (of_process, of_node) = (limits.staged_bytes, limits.staged_bytes_per_peer);
        let fits = |bytes: u64, limit: u32| bytes <= limit.into();
        fits(process, of_process)
            && fits(node, of_node)
            && (fits(process, of_process / 2) && fits(node, of_node / 2)
                || fits(self.flows.of(flow) + cost, limits.staged_bytes_per_sender))
    }

    /// Returns true if the pool of a flow's node is why there is no room for so many bytes, or one of
    /// the reasons.
    pub(super) fn lacks_of_node(&self, limits: &Limits, flow: Flow, length: usize) -> bool {
        let node = self.nodes.of(flow.1.node).saturating_add(cost(length));
        node > u64::from(limits.staged_bytes_per_peer / 2)
    }

    /// Takes room for so many bytes of a flow, which there is.
    pub(super) fn take(&mut self, flow: Flow, length: usize) {
        let cost = cost(length);
        self.processes.add(flow.0, cost);
        self.nodes.add(flow.1.node, cost);
        self.flows.add(flow, cost);
    }

    /// Gives room back.
    pub(super) fn give_back(&mut self, flow: Flow, length: usize) {
        let cost = cost(length);
        self.processes.subtract(flow.0, cost);
        self.nodes.subtract(flow.1.node, cost);
        self.flows.subtract(flow, cost);
        // The first round may have begun in the middle.
        self.rounds = 2;
    }

    /// Lets a message wait for room.
    pub(super) fn want(&mut self, flow: Flow, number: u64) {
        self.wanting.insert((flow, number));
    }

    /// A message waits for room no more.
    pub(super) fn want_none(&mut self, flow: Flow, number: u64) {
        self.wanting.remove(&(flow, number));
    }

    /// Returns true if there may be room for a message that waits.
    pub(super) fn has_turns(&self) -> bool {
        self.rounds > 0 && !self.wanting.is_empty()
    }

    /// The first message of the flow whose turn it is; none: each flow has had its turn.
    pub(super) fn turn(&mut self) -> Option<u64> {
        while self.has_turns() {
            let behind = match self.passed {
                Some(flow) => Bound::Excluded((flow, u64::MAX)),
                None => Bound::Unbounded,
            };
            if let Some((_, number)) = self.wanting.range((behind, Bound::Unbounded)).next() {
                return Some(*number);
            }
            self.passed = None;
            self.rounds -= 1;
        }
        None
    }

    /// Ends the turn of a flow: there is no room for its first message.
    pub(super) fn pass(&mut self, flow: Flow) {
        self.passed = Some(flow);
    }

    /// Returns true if one letter more than there is room for may be staged.
    pub(super) fn may_overflow(&self, limits: &Limits, (vni, source): Flow) -> bool {
        self.processes.of(vni) <= limits.staged_bytes.into()
            && self.nodes.of(source.node) <= limits.staged_bytes_per_peer.into()
    }

    /// Bytes staged for a process.
    pub(super) fn of_process(&self, vni: VniId) -> u64 {
        self.processes.of(vni)
    }

    /// Bytes staged for each process.
    pub(super) fn of_processes(&self) -> impl Iterator<Item = u64> + '_ {
        self.processes.0.values().copied()
    }

    /// Bytes staged of each node.
    pub(super) fn of_nodes(&self) -> impl Iterator<Item = u64> + '_ {
        self.nodes.0.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OVERHEAD: u64 = STAGED_OVERHEAD as u64;

    fn limits() -> Limits {
        Limits {
            staged_bytes: 64_000,
            staged_bytes_per_peer: 100_000,
            staged_bytes_per_sender: 8_000,
            ..Limits::default()
        }
    }

    fn flow(vni: u16, node: u16, port: u16) -> Flow {
        (VniId(vni), Name { node, port })
    }

    /// Takes as much as there is room for, in messages of that size. Returns how much.
    fn fill(room: &mut Room, flow: Flow, length: usize) -> u64 {
        let before = room.flows.of(flow);
        while room.has(&limits(), flow, length) {
            room.take(flow, length);
        }
        room.flows.of(flow) - before
    }

    #[test]
    fn a_sender_leaves_others_their_shares() {
        let mut room = Room::default();
        let greedy = fill(&mut room, flow(1, 2, 3), 1744);
        assert_eq!(greedy, 32_000);
        for port in 4..8 {
            assert_eq!(fill(&mut room, flow(1, 2, port), 1744), 8_000);
        }
        assert_eq!(room.of_process(VniId(1)), 64_000);
        assert_eq!(fill(&mut room, flow(1, 3, 9), 1744), 0, "all is taken");
        assert_eq!(
            fill(&mut room, flow(2, 2, 3), 1744),
            8_000,
            "of half of the node"
        );
        assert_eq!(fill(&mut room, flow(2, 3, 3), 1744), 24_000, "another node");
    }

    #[test]
    fn flows_that_wait_have_turns_in_their_order() {
        let mut room = Room::default();
        let (a, b) = (flow(1, 2, 3), flow(1, 2, 4));
        for (flow, number) in [(a, 1), (b, 2), (a, 3), (b, 4)] {
            room.want(flow, number);
        }
        assert_eq!(room.turn(), None, "no memory was given back");
        room.take(a, 10);
        room.give_back(a, 10);
        assert_eq!(room.turn(), Some(1));
        room.want_none(a, 1);
        assert_eq!(room.turn(), Some(3));
        room.pass(a);
        assert_eq!(room.turn(), Some(2));
        room.pass(b);
        // Once more, as the round may have begun in the middle.
        assert_eq!(room.turn(), Some(3));
        room.pass(a);
        room.pass(b);
        assert_eq!(room.turn(), None);
        assert!(!room.has_turns());
    }

    proptest! {
        /// No pool is overfull, and a sender within its share always has room as long as all those
        /// within theirs fit into half of the pools.
        #[test]
        fn shares_are_free(messages in prop::collection::vec((0u16..8, 0usize..9_000), 0..200)) {
            let mut room = Room::default();
            let limits = limits();
            for (port, length) in messages {
                let flow = flow(1, port % 2, port);
                let within = room.flows.of(flow) + length as u64 + OVERHEAD <= 8_000;
                let has = room.has(&limits, flow, length);
                let shares: u64 = (0..8)
                    .map(|port| room.flows.of(super::tests::flow(1, port % 2, port)).min(8_000))
                    .sum();
                let free = shares + length as u64 + OVERHEAD <= 32_000;
                prop_assert!(has || !within || !free);
                if has {
                    room.take(flow, length);
                }
                prop_assert!(room.of_process(VniId(1)) <= 64_000);
                prop_assert!(room.of_nodes().all(|node| node <= 100_000));
            }
        }
    }
}
