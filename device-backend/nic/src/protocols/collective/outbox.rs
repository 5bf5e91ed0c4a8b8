//! Frames of groups that are to be sent: a queue for each node, in order.
//!
//! ```text
//!   push ──► queue of a node ──► turn ──► frame      one node after the other
//!                 │  ▲
//!                 ▼  │ room in the window, or a peer
//!               waiting
//! ```
//! Frames to a node keep their order, also while they wait: the end of a group comes behind all that
//! its members have sent before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use qnic_abi::collective::{kind, CollectivePart, GroupEnd, GroupForm, GroupSeek, PartFields};
use qnic_abi::multicast::{Multicast, MulticastTaken};
use qnic_abi::NodeId;

use super::super::protocol::{Outgoing, Turn};
use crate::ids::PeerIndex;
use crate::transport::{Transport, Window};

/// A body of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) enum Content {
    Up(PartFields),
    Down(PartFields),
    Form(GroupForm),
    End(GroupEnd),
    Seek(GroupSeek),
    Multicast(Multicast),
    Taken(MulticastTaken),
}

/// A frame.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) content: Content,
    pub(super) bytes: Option<Arc<[u8]>>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    /// It waits for room, or for the node to become a peer; it has no turn.
    waiting: bool,
}

/// Frames for one node from which on no group with that node begins.
pub(super) const MANY: usize = 1024;

/// All that is to be sent. Groups bound it: each has a few parts of a few collectives under way,
/// and its end stays behind. As that may be more than a node takes, no group begins with a node
/// for which there are [`MANY`] frames.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queues: BTreeMap<u16, Queue>,
    /// Nodes in the order of their turns.
    turns: VecDeque<u16>,
}

impl Outbox {
    /// Adds a frame for a node.
    pub(super) fn push(&mut self, node: u16, content: Content, bytes: Option<Arc<[u8]>>) {
        let queue = self.queues.entry(node).or_default();
        if queue.items.is_empty() {
            self.turns.push_back(node);
        }
        queue.items.push_back(Item { content, bytes });
    }

    /// Returns true if a turn would send something.
    pub(super) fn has_turn(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Returns true if no group is to begin with a node.
    pub(super) fn is_full(&self, node: u16) -> bool {
        let queue = self.queues.get(&node);
        queue.is_some_and(|queue| queue.items.len() >= MANY)
    }

    /// Frames that wait, of each node.
    pub(super) fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.queues.values().map(|queue| queue.items.len())
    }

    /// Lets a queue go on that has waited.
    pub(super) fn resume(&mut self, node: u16) {
        if let Some(queue) = self.queues.get_mut(&node) {
            if std::mem::take(&mut queue.waiting) {
                self.turns.push_back(node);
            }
        }
    }

    /// Forgets what was for a node.
    pub(super) fn forget(&mut self, node: u16) {
        self.queues.remove(&node);
        self.turns.retain(|other| *other != node);
    }

    /// Nodes that are no peers, and have frames that wait for that.
    pub(super) fn without_peer(&self, transport: &Transport) -> Vec<u16> {
        let waiting = self.queues.iter().filter(|(_, queue)| queue.waiting);
        let nodes = waiting.map(|(node, _)| *node);
        nodes
            .filter(|node| transport.find(NodeId(*node)).is_none())
            .collect()
    }

    /// Nodes that have become peers, and have frames that wait.
    pub(super) fn with_peer(&self, transport: &Transport) -> Vec<u16> {
        let waiting = self.queues.iter().filter(|(_, queue)| queue.waiting);
        let nodes = waiting.map(|(node, _)| *node);
        nodes
            .filter(|node| transport.find(NodeId(*node)).is_some())
            .collect()
    }

    /// Fills in the next frame.
    pub(super) fn turn(&mut self, transport: &mut Transport, outgoing: &mut Outgoing) -> Turn {
        while let Some(node) = self.turns.pop_front() {
            let Some(queue) = self.queues.get_mut(&node) else {
                continue;
            };
            let Some(peer) = transport.find(NodeId(node)) else {
                queue.waiting = true;
                transport.want(NodeId(node));
                continue;
            };
            let Some(first) = queue.items.front() else {
                continue;
            };
            let length = first.bytes.as_ref().map_or(0, |bytes| bytes.len());
            if transport.room(peer, length as u64).0 == 0 {
                queue.waiting = true;
                return Turn::Blocked(peer, Window::Fragments);
            }
            if let Some(item) = queue.items.pop_front() {
                fill(outgoing, peer, item);
            }
            match queue.items.is_empty() {
                true => drop(self.queues.remove(&node)),
                false => self.turns.push_back(node),
            }
            return Turn::Send;
        }
        Turn::Idle
    }
}

fn fill(outgoing: &mut Outgoing, peer: PeerIndex, item: Item) {
    match item.content {
        Content::Up(fields) => {
            outgoing.begin(peer, &CollectivePart::<{ kind::COLLECTIVE_UP }>(fields));
        }
        Content::Down(fields) => {
            outgoing.begin(peer, &CollectivePart::<{ kind::COLLECTIVE_DOWN }>(fields));
        }
        Content::Form(form) => outgoing.begin(peer, &form),
        Content::End(end) => outgoing.begin(peer, &end),
        Content::Seek(seek) => outgoing.begin(peer, &seek),
        Content::Multicast(fields) => outgoing.begin(peer, &fields),
        Content::Taken(taken) => outgoing.begin(peer, &taken),
    }
    if let Some(bytes) = item.bytes.filter(|bytes| !bytes.is_empty()) {
        outgoing.set_bytes(bytes);
    }
}
