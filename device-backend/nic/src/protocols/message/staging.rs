//! Messages that have arrived and are not done (early, held back, unexpected, claimed, or on their
//! way into a receive), and the bounds of their memory (Q12).
//!
//! | place | waits for | with its bytes | without |
//! |---|---|---|---|
//! | Early | a message before it, which has not arrived | staged | at the source |
//! | Held | its process to read completions | staged | at the source |
//! | Unexpected | a receive | staged | at the source |
//! | Claimed | a receive that names it | staged | at the source |
//! | Landing | pages of the receive | staged | data that is permitted |
//!
//! Staged bytes are bounded for each process that receives and for each node that sends; bytes beyond
//! that stay at their source. Messages without bytes are bounded for each node, as each belongs to
//! an operation that runs there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ahash::RandomState;
use qnic_abi::{Status, VniId};

use super::command::{Handle, Memory, Name, Space};
use super::matching::MessageId;
use crate::config::Limits;
use crate::ids::PeerIndex;

/// Messages for which there is room in the table though there are none.
const KEPT: usize = 64;

/// What a message that is staged takes beside its bytes.
const OVERHEAD: u64 = 256;

/// How a message goes into a receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landing {
    pub(super) handle: Handle,
    /// All memory of the receive.
    pub(super) memory: Memory,
    /// Where the message begins in it.
    pub(super) offset: u64,
    /// Bytes that it takes.
    pub(super) allowed: u64,
    /// Bytes that are there.
    pub(super) arrived: u64,
    /// The receive stays posted.
    pub(super) more: bool,
}

/// Where a message stands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// Behind the frame of that number.
    Early(u64),
    Held,
    Unexpected(MessageId),
    Claimed,
    Landing(Landing),
}

/// What a message says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) vni: VniId,
    pub(super) peer: PeerIndex,
    pub(super) source: Name,
    /// Number of the frame that has told of it.
    pub(super) sequence: u64,
    /// At its source.
    pub(super) operation: u64,
    pub(super) space: Space,
    pub(super) tag: u64,
    pub(super) immediate: u64,
    pub(super) length: u64,
}

/// A message that has arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) header: Header,
    pub(super) place: Place,
    /// Its bytes, if they are staged.
    pub(super) bytes: Option<Box<[u8]>>,
}

impl Arrived {
    fn cost(&self) -> u64 {
        let bytes = self.bytes.as_ref();
        bytes.map_or(0, |bytes| bytes.len() as u64 + OVERHEAD)
    }
}

/// Use by one node or process.
#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    staged: u64,
    envelopes: u32,
    messages: u32,
}

/// All messages that have arrived, by number.
#[derive(Debug, Default)]
pub(super) struct Staging {
    messages: HashMap<u64, Box<Arrived>, RandomState>,
    /// Those without bytes, by peer and operation.
    operations: BTreeMap<(PeerIndex, u64), u64>,
    /// Those that are early, by peer and the number that they wait for.
    followers: BTreeMap<(PeerIndex, u64), u64>,
    /// Own numbers of early messages that were refused or dropped, by peer and the number that
    /// they would wait for: those behind them wait for it all the same, also those to the next
    /// process on that port. The window bounds them.
    skipped: BTreeMap<(PeerIndex, u64), u64>,
    /// Own numbers of both.
    early: BTreeSet<(PeerIndex, u64)>,
    nodes: BTreeMap<u16, Usage>,
    processes: BTreeMap<u16, Usage>,
    last: u64,
}

impl Staging {
    /// A number that no message has had.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns true if so many bytes can be staged for a message.
    pub(super) fn has_room(&self, limits: &Limits, header: &Header, length: usize) -> bool {
        let cost = length as u64 + OVERHEAD;
        let used = |usage: Option<&Usage>| usage.map_or(0, |usage| usage.staged);
        let node = used(self.nodes.get(&header.source.node));
        let process = used(self.processes.get(&header.vni.0));
        node + cost <= u64::from(limits.staged_bytes_per_peer)
            && process + cost <= u64::from(limits.staged_bytes)
    }

    /// Keeps a message.
    ///
    /// # Errors
    /// Why there is no room.
    pub(super) fn insert(
        &mut self,
        limits: &Limits,
        number: u64,
        message: Arrived,
    ) -> Result<(), Status> {
        let header = &message.header;
        let key = (header.peer, header.operation);
        let cost = message.cost();
        let node = self.nodes.entry(header.source.node).or_default();
        let process = self.processes.entry(header.vni.0).or_default();
        let bare = message.bytes.is_none();
        let full = process.messages >= limits.unexpected
            || bare && node.envelopes >= limits.envelopes_per_peer;
        if full {
            self.sweep(header.source.node, header.vni.0);
            return Err(Status::Exhausted);
        }
        let twice = bare && self.operations.contains_key(&key);
        let follower = match message.place {
            Place::Early(after) => Some((header.peer, after)),
            _ => None,
        };
        if twice || follower.is_some_and(|key| self.followers.contains_key(&key)) {
            self.sweep(header.source.node, header.vni.0);
            return Err(Status::Malformed);
        }
        for usage in [node, process] {
            usage.staged += cost;
            usage.envelopes += u32::from(bare);
            usage.messages += 1;
        }
        if bare {
            self.operations.insert(key, number);
        }
        if let Some(key) = follower {
            self.followers.insert(key, number);
            self.early.insert((header.peer, header.sequence));
        }
        self.messages.insert(number, Box::new(message));
        Ok(())
    }

    /// Drops counts that are zero.
    fn sweep(&mut self, node: u16, process: u16) {
        if self
            .nodes
            .get(&node)
            .is_some_and(|usage| usage.messages == 0)
        {
            self.nodes.remove(&node);
        }
        let usage = self.processes.get(&process);
        if usage.is_some_and(|usage| usage.messages == 0) {
            self.processes.remove(&process);
        }
    }

    /// Takes a message out.
    pub(super) fn remove(&mut self, number: u64) -> Option<Arrived> {
        let message = self.messages.remove(&number)?;
        if self.messages.is_empty() {
            self.messages.shrink_to(KEPT);
        }
        let header = &message.header;
        let (node, process) = (header.source.node, header.vni.0);
        let usages = [self.nodes.get_mut(&node), self.processes.get_mut(&process)];
        for usage in usages.into_iter().flatten() {
            usage.staged -= message.cost();
            usage.envelopes -= u32::from(message.bytes.is_none());
            usage.messages -= 1;
        }
        if message.bytes.is_none() {
            self.operations.remove(&(header.peer, header.operation));
        }
        self.forget_order(&message.header, message.place);
        self.sweep(node, process);
        Some(*message)
    }

    fn forget_order(&mut self, header: &Header, place: Place) {
        if let Place::Early(after) = place {
            self.followers.remove(&(header.peer, after));
            self.early.remove(&(header.peer, header.sequence));
        }
    }

    /// The message of a number.
    pub(super) fn get(&mut self, number: u64) -> Option<&mut Arrived> {
        self.messages.get_mut(&number).map(|message| &mut **message)
    }

    /// Moves a message to another place.
    pub(super) fn set_place(&mut self, number: u64, place: Place) {
        let Some(message) = self.messages.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut message.place, place);
        let header = message.header;
        self.forget_order(&header, before);
    }

    /// The message without bytes of an operation of a peer.
    pub(super) fn of_operation(&self, peer: PeerIndex, operation: u64) -> Option<u64> {
        self.operations.get(&(peer, operation)).copied()
    }

    /// Returns true if the message of that frame is early itself.
    pub(super) fn is_early(&self, peer: PeerIndex, sequence: u64) -> bool {
        self.early.contains(&(peer, sequence))
    }

    /// Notes that an early message is not kept: that of the frame `sequence`, which names the
    /// frame `after`. All frames of the peer up to `received` have arrived: no message waits for
    /// one of those, unless the peer has named a frame that was none of a message.
    pub(super) fn skip(&mut self, peer: PeerIndex, sequence: u64, after: u64, received: u64) {
        self.forget_skipped(peer, received);
        let key = (peer, after);
        let is_free = !self.followers.contains_key(&key) && !self.skipped.contains_key(&key);
        if after > received && is_free {
            self.skipped.insert(key, sequence);
            self.early.insert((peer, sequence));
        }
    }

    /// The message of a frame has come: the number of one behind it that was not kept.
    pub(super) fn pass(&mut self, peer: PeerIndex, sequence: u64) -> Option<u64> {
        let skipped = self.skipped.remove(&(peer, sequence))?;
        self.early.remove(&(peer, skipped));
        Some(skipped)
    }

    /// Forgets which messages of a peer were not kept that name frames up to a number.
    pub(super) fn forget_skipped(&mut self, peer: PeerIndex, last: u64) {
        while let Some((&(_, after), _)) = self.skipped.range((peer, 0)..=(peer, last)).next() {
            self.pass(peer, after);
        }
    }

    /// The message that has waited for that of a frame.
    pub(super) fn follower(&self, peer: PeerIndex, sequence: u64) -> Option<u64> {
        self.followers.get(&(peer, sequence)).copied()
    }

    /// The numbers of messages that are chosen, in their order.
    pub(super) fn select(&self, chosen: impl Fn(&Arrived) -> bool) -> Vec<u64> {
        let messages = self.messages.iter();
        let chosen = messages.filter(|(_, message)| chosen(message));
        let mut chosen: Vec<u64> = chosen.map(|(number, _)| *number).collect();
        chosen.sort_unstable();
        chosen
    }

    /// Returns true if data of a node is awaited.
    pub(super) fn awaits(&self, node: u16) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|usage| usage.envelopes > 0)
    }

    /// Bytes staged of each process and each node, and envelopes of each node.
    pub(super) fn staged_of_processes(&self) -> impl Iterator<Item = u64> + '_ {
        self.processes.values().map(|usage| usage.staged)
    }

    pub(super) fn messages_of_processes(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.values().map(|usage| usage.messages)
    }

    /// Messages that wait for a process, and their bytes.
    pub(super) fn of_process(&self, vni: VniId) -> (u32, u64) {
        let usage = self.processes.get(&vni.0).copied().unwrap_or_default();
        (usage.messages, usage.staged)
    }

    pub(super) fn staged_of_nodes(&self) -> impl Iterator<Item = u64> + '_ {
        self.nodes.values().map(|usage| usage.staged)
    }

    pub(super) fn envelopes_of_nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.values().map(|usage| usage.envelopes)
    }
}
