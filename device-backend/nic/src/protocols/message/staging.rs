//! Messages that have arrived and are not done (early, held back, unexpected, claimed, or on their
//! way into a receive), and the bounds of their memory (Q12).
//!
//! | place | waits for | bytes staged | coming | at the source |
//! |---|---|---|---|---|
//! | Early | a message before it, which has not arrived | yes | | yes |
//! | Held | its process to read completions | yes | | yes |
//! | Unexpected | a receive | yes | yes | yes |
//! | Claimed | a receive that names it | yes | yes | yes |
//! | Landing | pages of the receive, or data | yes | yes | yes, permitted into the receive |
//! | Discarded | the rest of its bytes | | yes | |
//!
//! Bytes that are staged, or may come, take [`Room`]. Messages that are not staged as a whole are
//! bounded for each node, as each belongs to an operation that runs there. A message to members of a
//! group belongs to none, so it takes room, also if its bytes stay with the group.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ahash::RandomState;
use qnic_abi::{Status, VniId};

use super::command::{Handle, Memory, Name, Source, Space};
use super::matching::MessageId;
use super::room::{Flow, Openings, Room};
use super::straight::Straight;
use crate::config::Limits;
use crate::env::{HostMemory, Payload};
use crate::ids::PeerIndex;

/// Messages for which there is room in the table though there are none.
const KEPT: usize = 64;

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
    /// Claimed or found by a probe, and dropped.
    Discarded,
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
    pub(super) mark: u32,
    /// Of its source.
    pub(super) incarnation: u32,
    pub(super) length: u64,
    /// Most bytes of it that a frame brings (Q11).
    pub(super) packet_length: u64,
    /// Its group brings it: peer, sequence and operation say nothing.
    pub(super) of_group: bool,
}

impl Header {
    /// Its source, as receives name it.
    pub(super) fn sender(&self) -> Source {
        Source {
            name: self.source,
            incarnation: self.incarnation,
        }
    }
}

/// Where the bytes of a message are.
#[derive(Debug)]
pub(super) enum Bytes {
    AtSource,
    /// With its group, which offers the next piece until the receive has taken it.
    AtGroup,
    /// So many of them have come neither into this staging memory nor straight to their receive.
    Coming(Box<[u8]>, usize),
    Staged(Box<[u8]>),
}

/// A message that has arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) header: Header,
    pub(super) place: Place,
    pub(super) bytes: Bytes,
    /// What of it has not to be copied from staging memory.
    pub(super) straight: Straight,
    /// Pages of its receive were asked for while its bytes come, or while they are with its group.
    pub(super) asked: bool,
}

impl Arrived {
    pub(super) fn new(header: Header, place: Place, bytes: Bytes) -> Self {
        let straight = Straight::default();
        Arrived {
            header,
            place,
            bytes,
            straight,
            asked: false,
        }
    }

    /// Returns true if no byte of it is missing.
    pub(super) fn is_staged(&self) -> bool {
        matches!(self.bytes, Bytes::Staged(_))
    }

    /// Returns true if bytes are missing that an operation of its source sends.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_staged() && !self.header.of_group
    }

    fn flow(&self) -> Flow {
        (self.header.vni, self.header.source)
    }

    /// How much staging memory there is for its bytes, if there is some.
    fn memory(&self) -> Option<usize> {
        match &self.bytes {
            Bytes::AtSource => None,
            Bytes::AtGroup => Some(0),
            Bytes::Coming(bytes, _) | Bytes::Staged(bytes) => Some(bytes.len()),
        }
    }
}

/// Use by one node or process.
#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    /// Those of which an operation still sends bytes.
    envelopes: u32,
    messages: u32,
}

/// All messages that have arrived, by number.
#[derive(Debug, Default)]
pub(super) struct Staging {
    messages: HashMap<u64, Box<Arrived>, RandomState>,
    /// Those of which an operation still sends bytes, by peer and operation.
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
    pub(super) room: Room,
    pub(super) openings: Openings,
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
        let flow = (header.vni, header.source);
        self.room.has(limits, flow, length)
    }

    /// Finds memory to which the bytes of an unexpected message may come from their source. If
    /// there is no room, it waits for some from now on. Returns what the message says of itself if
    /// there is.
    pub(super) fn begin(&mut self, limits: &Limits, number: u64) -> Option<Header> {
        let message = self.messages.get_mut(&number)?;
        let (header, flow) = (message.header, message.flow());
        let waits = matches!(message.place, Place::Unexpected(_) | Place::Claimed);
        if !waits || !matches!(message.bytes, Bytes::AtSource) {
            return None;
        }
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if !self.room.has(limits, flow, length) {
            self.room.want(flow, number);
            return None;
        }
        self.room.want_none(flow, number);
        self.room.take(flow, length);
        let bytes = vec![0; length].into_boxed_slice();
        message.bytes = match length {
            0 => Bytes::Staged(bytes),
            _ => Bytes::Coming(bytes, length),
        };
        if length == 0 {
            self.uncount_envelope(&header);
        }
        Some(header)
    }

    /// The receive of a message has come: it wants no room any more.
    pub(super) fn wants_no_room(&mut self, number: u64) {
        if let Some(message) = self.messages.get(&number) {
            self.room.want_none(message.flow(), number);
        }
    }

    /// Ends the turn of a message's flow unless it has got room.
    pub(super) fn pass_if_it_waits(&mut self, number: u64) {
        if let Some(message) = self.messages.get(&number) {
            if matches!(message.bytes, Bytes::AtSource) {
                self.room.pass(message.flow());
            }
        }
    }

    /// Stores bytes of a message that is coming, from `offset` on; there is memory for them.
    /// Returns true if they were the last that were missing.
    pub(super) fn fill<M: HostMemory>(
        &mut self,
        number: u64,
        offset: usize,
        payload: &Payload<'_, M>,
    ) -> bool {
        let Some(message) = self.messages.get_mut(&number) else {
            return false;
        };
        let Bytes::Coming(bytes, _) = &mut message.bytes else {
            return false;
        };
        let Some(to) = bytes.get_mut(offset..offset + payload.len()) else {
            return false;
        };
        payload.read(to).is_ok() && self.come(number, payload.len())
    }

    /// So many bytes of a message that is coming are here. Returns true if they were the last that
    /// were missing.
    pub(super) fn come(&mut self, number: u64, length: usize) -> bool {
        let Some(message) = self.messages.get_mut(&number) else {
            return false;
        };
        let Bytes::Coming(bytes, missing) = &mut message.bytes else {
            return false;
        };
        *missing -= length;
        if *missing > 0 {
            return false;
        }
        message.bytes = Bytes::Staged(std::mem::take(bytes));
        let header = message.header;
        if !header.of_group {
            self.uncount_envelope(&header);
        }
        true
    }

    /// A message is staged as a whole.
    fn uncount_envelope(&mut self, header: &Header) {
        self.operations.remove(&(header.peer, header.operation));
        let (node, process) = (header.source.node, header.vni.0);
        let usages = [self.nodes.get_mut(&node), self.processes.get_mut(&process)];
        for usage in usages.into_iter().flatten() {
            usage.envelopes -= 1;
        }
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
        let node = self.nodes.entry(header.source.node).or_default();
        let process = self.processes.entry(header.vni.0).or_default();
        let bare = message.is_awaited();
        if bare && node.envelopes >= limits.envelopes_per_peer {
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
            usage.envelopes += u32::from(bare);
            usage.messages += 1;
        }
        if let Some(length) = message.memory() {
            self.room.take(message.flow(), length);
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
        self.openings.open(header.vni);
        let usages = [self.nodes.get_mut(&node), self.processes.get_mut(&process)];
        for usage in usages.into_iter().flatten() {
            usage.envelopes -= u32::from(message.is_awaited());
            usage.messages -= 1;
        }
        match message.memory() {
            Some(length) => {
                self.room.give_back(message.flow(), length);
                self.openings.open_node(node);
            }
            None => self.room.want_none(message.flow(), number),
        }
        if message.is_awaited() {
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

    /// The message of an operation of a peer, unless it is staged as a whole.
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

    pub(super) fn messages_of_processes(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.values().map(|usage| usage.messages)
    }

    /// Messages that wait for a process, and their bytes.
    pub(super) fn of_process(&self, vni: VniId) -> (u32, u64) {
        let usage = self.processes.get(&vni.0).copied().unwrap_or_default();
        (usage.messages, self.room.of_process(vni))
    }

    pub(super) fn envelopes_of_nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.values().map(|usage| usage.envelopes)
    }
}
