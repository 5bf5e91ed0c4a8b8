//! Groups that form here, at the node of their home process.
//!
//! ```text
//!   joins ──► gathered ── all there ──► form sent to each node ── all know ──► start
//!                │                             │
//!                └── refused, taken back       └── one has ended: end sent to each node
//! ```
//! Joins may come before that of the home process itself, whose key and size are the right ones.
//! They wait until then, and count against the quota of the node that they came from.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::collective::{
    kind, GroupForm, GroupJoin, GroupRefused, GroupState, StateFields, MAX_CHILDREN, NO_NODE,
};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Status, PAGE_SIZE};

use super::command::Name;
use super::endings::end_frame;
use super::group::End;
use super::outbox::{Content, Outbox};
use super::place::{parents, GroupId};
use super::Context;
use crate::env::Host;
use crate::frame::Arrival;

/// A member that has come.
#[derive(Debug, Clone, Copy)]
struct Seat {
    who: Name,
    ticket: u64,
    key: u64,
    size: u32,
    rank: u32,
    /// Number of the frame that it came with.
    sequence: u64,
}

/// How far a group has come.
#[derive(Debug, Default)]
struct Forming {
    /// Key and size, once the home process has joined.
    terms: Option<(u64, u32)>,
    seats: Vec<Seat>,
    /// Its number, once all members are there; nodes that do not know of it yet, and the bytes
    /// of a part that all can take.
    formed: Option<(u64, BTreeSet<u16>, u32)>,
}

impl Forming {
    fn nodes(&self) -> BTreeSet<u16> {
        self.seats.iter().map(|seat| seat.who.node).collect()
    }
}

/// All groups that form here.
#[derive(Debug, Default)]
pub(super) struct Home {
    /// By port of the home process, and name.
    forming: BTreeMap<(u16, u64), Forming>,
    last_number: u64,
}

impl Home {
    /// Members of one node that wait here, of the node that has most.
    pub(super) fn seats_by_node(&self) -> BTreeMap<u16, usize> {
        let mut nodes = BTreeMap::new();
        for seat in self.forming.values().flat_map(|forming| &forming.seats) {
            *nodes.entry(seat.who.node).or_default() += 1;
        }
        nodes
    }

    /// Groups that form here.
    pub(super) fn count(&self) -> usize {
        self.forming.len()
    }

    /// Size, as far as it is known, and members of each group that forms here.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (Option<u32>, usize)> + '_ {
        let forming = self.forming.values();
        forming.map(|forming| (forming.terms.map(|(_, size)| size), forming.seats.len()))
    }

    /// Returns true if a member of that node waits here.
    pub(super) fn awaits(&self, node: u16) -> bool {
        let mut seats = self.forming.values().flat_map(|forming| &forming.seats);
        seats.any(|seat| seat.who.node == node)
    }

    /// A process wants to be a member.
    pub(super) fn receive_join<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        outbox: &mut Outbox,
    ) {
        let body: GroupJoin = arrival.body();
        let envelope = &arrival.frame.envelope;
        let port = envelope.destination_port.get();
        let seat = Seat {
            who: Name {
                node: cx.transport.node_of(arrival.peer).0,
                port: envelope.source_port.get(),
            },
            ticket: body.ticket.get(),
            key: body.key.get(),
            size: body.size.get(),
            rank: body.rank.get(),
            sequence: envelope.sequence.get(),
        };
        let is_home = cx.transport.is_own(arrival.peer) && seat.who.port == port;
        let key = (port, body.name.get());
        let waiting = self.seats_by_node().get(&seat.who.node).copied();
        let refusal = match self.forming.get(&key) {
            _ if waiting.unwrap_or(0) >= cx.core.limits.joins_per_peer as usize => {
                Some(Status::Exhausted)
            }
            _ if is_home != (seat.rank == 0) => Some(Status::GroupRefused),
            Some(forming) if forming.formed.is_some() => Some(Status::GroupRefused),
            _ => None,
        };
        if let Some(status) = refusal {
            return refuse(cx, &seat, port, status);
        }
        let forming = self.forming.entry(key).or_default();
        // A join that is said again: the answer was lost with a session.
        forming.seats.retain(|other| other.who != seat.who);
        if is_home {
            forming.terms = Some((seat.key, seat.size));
        }
        forming.seats.push(seat);
        // It says nothing more until the group forms.
        cx.transport.expect(cx.now, NodeId(seat.who.node));
        self.settle(cx, key, outbox);
    }

    /// Refuses joins that are wrong; forms the group if all others are there.
    fn settle<H: Host>(&mut self, cx: &mut Context<'_, H>, key: (u16, u64), outbox: &mut Outbox) {
        let Some(forming) = self.forming.get_mut(&key) else {
            return;
        };
        let Some((secret, size)) = forming.terms else {
            return;
        };
        let mut ranks = BTreeSet::new();
        let mut wrong = Vec::new();
        forming.seats.retain(|seat| {
            let right = (seat.key, seat.size) == (secret, size) && ranks.insert(seat.rank);
            if !right {
                wrong.push(*seat);
            }
            right
        });
        let complete = forming.seats.len() == size as usize;
        for seat in wrong {
            refuse(cx, &seat, key.0, Status::GroupRefused);
        }
        if complete {
            self.form(cx, key, outbox);
        }
    }

    /// Tells each node of its place in the tree.
    fn form<H: Host>(&mut self, cx: &mut Context<'_, H>, key: (u16, u64), outbox: &mut Outbox) {
        // No number is used again, also after a reset: time goes on.
        self.last_number = cx.now.0.max(self.last_number + 1);
        let number = self.last_number;
        let Some(forming) = self.forming.get_mut(&key) else {
            return;
        };
        let secret = forming.terms.map_or(0, |(secret, _)| secret);
        forming.seats.sort_by_key(|seat| seat.rank);
        let mut nodes = Vec::new();
        for seat in &forming.seats {
            if !nodes.contains(&seat.who.node) {
                nodes.push(seat.who.node);
            }
        }
        let parents = parents(&nodes, &cx.core.routes);
        let below = |node: u16| -> Vec<u16> {
            let children = parents.iter().filter(|(_, parent)| *parent == node);
            children.map(|(child, _)| *child).collect()
        };
        let wide = nodes.iter().any(|node| below(*node).len() > MAX_CHILDREN);
        if wide || nodes.iter().any(|node| outbox.is_full(*node)) {
            return self.give_up(cx, key, Status::Exhausted);
        }
        for node in &nodes {
            let parent = parents.iter().find(|(child, _)| child == node);
            let members = forming.seats.iter().filter(|seat| seat.who.node == *node);
            let ranks: Vec<u16> = members.map(|seat| seat.rank as u16).collect();
            let form = GroupForm {
                name: key.1.into(),
                key: secret.into(),
                number: number.into(),
                size: (forming.seats.len() as u32).into(),
                members: (ranks.len() as u32).into(),
                parent: parent.map_or(NO_NODE, |(_, parent)| *parent).into(),
                port: key.0.into(),
                reserved: 0.into(),
            };
            let words = below(*node).into_iter().chain(ranks);
            let bytes: Vec<u8> = words.flat_map(u16::to_le_bytes).collect();
            outbox.push(*node, Content::Form(form), Some(bytes.into()));
        }
        forming.formed = Some((number, nodes.into_iter().collect(), PAGE_SIZE as u32));
    }

    /// A node knows of a group, and can take parts of so many bytes. Returns the nodes of the
    /// group once all know of it.
    pub(super) fn receive_formed<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        node: u16,
        state: &StateFields,
    ) -> Option<BTreeSet<u16>> {
        let number = state.number.get();
        let named = |forming: &Forming| {
            let formed = forming.formed.as_ref();
            formed.is_some_and(|(own, ..)| *own == number)
        };
        let mut all = self.forming.iter_mut();
        let (key, forming) = all.find(|(_, forming)| named(forming))?;
        let (key, (_, unaware, part_bytes)) = (*key, forming.formed.as_mut()?);
        unaware.remove(&node);
        *part_bytes = (*part_bytes).min(state.part_bytes.get());
        if !unaware.is_empty() {
            return None;
        }
        let state = StateFields {
            number: number.into(),
            part_bytes: (*part_bytes).into(),
            home: state.home,
            reserved: 0.into(),
        };
        let nodes = forming.nodes();
        for node in &nodes {
            if let Some(peer) = cx.transport.find(NodeId(*node)) {
                let start = GroupState::<{ kind::GROUP_START }>(state);
                cx.transport.send_control(peer, Frame::new(&start));
            }
        }
        self.forming.remove(&key);
        Some(nodes)
    }

    /// The node `from` says that a group has ended before it has started.
    pub(super) fn receive_end(
        &mut self,
        (own, from): (u16, u16),
        number: u64,
        end: End,
        outbox: &mut Outbox,
    ) {
        let named = |forming: &Forming| {
            let formed = forming.formed.as_ref();
            let right = formed.is_some_and(|(other, ..)| *other == number);
            right && forming.seats.iter().any(|seat| seat.who.node == from)
        };
        let key = self.forming.iter().find(|(_, forming)| named(forming));
        if let Some(forming) = key
            .map(|(key, _)| *key)
            .and_then(|key| self.forming.remove(&key))
        {
            tell(own, &forming, number, end, outbox);
        }
    }

    /// A member takes its join back.
    pub(super) fn receive_withdrawal<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        who: Name,
        ticket: u64,
        outbox: &mut Outbox,
    ) {
        self.remove(cx, |seat| seat.who == who && seat.ticket == ticket, outbox);
    }

    /// Processes have ended, or their node has: what came before a frame of that number is void.
    pub(super) fn members_ended<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ended: impl Fn(Name) -> bool,
        before: u64,
        outbox: &mut Outbox,
    ) {
        let gone = |seat: &Seat| ended(seat.who) && seat.sequence < before;
        self.remove(cx, gone, outbox);
    }

    /// Takes members out. A group that all nodes were told of ends.
    fn remove<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        chosen: impl Fn(&Seat) -> bool,
        outbox: &mut Outbox,
    ) {
        let own = cx.core.geometry.node.0;
        let mut over = Vec::new();
        for (key, forming) in &mut self.forming {
            let Some(gone) = forming.seats.iter().find(|seat| chosen(seat)).copied() else {
                continue;
            };
            let who = gone.who;
            let status = Status::PeerGone;
            match &forming.formed {
                Some((number, ..)) => {
                    tell(own, forming, *number, End::new(status, who), outbox);
                    over.push((*key, None));
                }
                None => {
                    forming.seats.retain(|seat| !chosen(seat));
                    let home = who
                        == Name {
                            node: own,
                            port: key.0,
                        };
                    if home || forming.seats.is_empty() {
                        over.push((*key, Some(who)));
                    }
                }
            }
        }
        for (key, who) in over {
            let seats = self.forming.remove(&key).map(|forming| forming.seats);
            if let Some(who) = who {
                for seat in seats.into_iter().flatten() {
                    answer(cx, &seat, Status::PeerGone, who);
                }
            }
        }
    }

    /// Refuses all members of a group that cannot form.
    fn give_up<H: Host>(&mut self, cx: &mut Context<'_, H>, key: (u16, u64), status: Status) {
        let seats = self.forming.remove(&key).map(|forming| forming.seats);
        for seat in seats.into_iter().flatten() {
            refuse(cx, &seat, key.0, status);
        }
    }
}

/// Tells all nodes of a group that it has ended before it has started.
fn tell(own: u16, forming: &Forming, number: u64, end: End, outbox: &mut Outbox) {
    let frame = end_frame(GroupId { home: own, number }, end);
    for node in forming.nodes() {
        outbox.push(node, Content::End(frame), None);
    }
}

/// Refuses a join; the home process is the reason.
fn refuse<H: Host>(cx: &mut Context<'_, H>, seat: &Seat, port: u16, status: Status) {
    let node = cx.core.geometry.node.0;
    answer(cx, seat, status, Name { node, port });
}

fn answer<H: Host>(cx: &mut Context<'_, H>, seat: &Seat, status: Status, who: Name) {
    if let Some(peer) = cx.transport.find(NodeId(seat.who.node)) {
        let refused = GroupRefused {
            ticket: seat.ticket.into(),
            status: status.code().into(),
            node: who.node.into(),
            port: who.port.into(),
        };
        cx.transport.send_control(peer, Frame::new(&refused));
    }
}

/// Reads the payload of a form: the nodes below, then the ranks of so many members.
pub(super) fn places(bytes: &[u8], members: u32) -> Option<(Vec<u16>, Vec<u16>)> {
    let words = bytes.chunks_exact(2);
    let whole = words.remainder().is_empty();
    let mut children: Vec<u16> = words.map(|it| u16::from_le_bytes([it[0], it[1]])).collect();
    let count = children.len().checked_sub(members as usize)?;
    let ranks = children.split_off(count);
    (whole && count <= MAX_CHILDREN).then_some((children, ranks))
}
