//! Processes of this node that join, leave and call.

use qnic_abi::collective::{
    kind, GroupForm, GroupJoin, GroupRefused, GroupState, Opcode, StateFields,
};
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Status, VniId, PAGE_SIZE};

use super::super::protocol::Said;
use super::command::{Call, Join, Name};
use super::group::{End, Group, RUNNING};
use super::place::{GroupId, Member, Relatives};
use super::{end_entry, frames, home, Collectives, Context, Due};
use crate::env::{Host, Time};
use crate::frame::Arrival;
use crate::trace::{What, CALL};

/// A join that has no completion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joining {
    pub(super) vni: VniId,
    handle: u64,
    pub(super) home: Name,
    name: u64,
    key: u64,
    size: u32,
    rank: u32,
    deadline: Time,
    /// It is on its way, or with the home.
    sent: bool,
    /// The group that it belongs to, once that has formed.
    pub(super) group: Option<GroupId>,
}

impl Collectives {
    /// The name of the process of a VNI.
    pub(super) fn name_of<H: Host>(cx: &Context<'_, H>, vni: VniId) -> Name {
        let port = cx.core.process(vni).map_or(0, |process| process.port.0);
        Name {
            node: cx.core.geometry.node.0,
            port,
        }
    }

    /// Begins a join.
    pub(super) fn join<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, join: Join) {
        let own = self.joins.values().filter(|other| other.vni == vni);
        let same = |other: &Joining| (other.home, other.name) == (join.home, join.name);
        let taken = |other: &Joining| {
            let place = (other.key, other.size, other.rank);
            same(other) && place == (join.key, join.size, join.rank)
        };
        // What a node says of its ranks means one join.
        let twice = own.clone().any(same) || self.joins.values().any(taken);
        let groups = self.names.values().filter(|(other, _)| *other == vni);
        let refusal = match own.count() + groups.count() >= cx.core.limits.groups as usize {
            true => Some(Status::Exhausted),
            false => twice.then_some(Status::GroupRefused),
        };
        let ticket = self.next_name();
        let said = Said {
            node: Some(join.home.node),
            code: Opcode::JoinGroup as u32,
            ..Said::default()
        };
        let own = cx.core.geometry.node.0;
        cx.trace(vni, What::Fetched, frames::join(own, ticket), said);
        if let Some(status) = refusal {
            let who = Self::name_of(cx, vni);
            return complete_join(cx, vni, (ticket, join.handle), Err(End::new(status, who)));
        }
        let deadline = cx.now.after(join.timeout);
        let joining = Joining {
            vni,
            handle: join.handle,
            home: join.home,
            name: join.name,
            key: join.key,
            size: join.size,
            rank: join.rank,
            deadline,
            sent: false,
            group: None,
        };
        self.joins.insert(ticket, joining);
        self.deadlines.insert((deadline, Due::Join(ticket)));
        self.send_join(cx, ticket);
    }

    /// Sends a join to its home, or asks for a way there.
    pub(super) fn send_join<H: Host>(&mut self, cx: &mut Context<'_, H>, ticket: u64) {
        let Some(joining) = self.joins.get_mut(&ticket) else {
            return;
        };
        let node = NodeId(joining.home.node);
        let peer = cx.transport.find(node);
        let Some(peer) = peer.filter(|peer| cx.transport.has_control_room(*peer)) else {
            cx.transport.want(node);
            let again = cx.now.after(cx.transport.retry_after(node));
            self.deadlines.insert((again, Due::Resend(ticket)));
            return;
        };
        joining.sent = true;
        let mut frame = Frame::new(&GroupJoin {
            name: joining.name.into(),
            key: joining.key.into(),
            ticket: ticket.into(),
            size: joining.size.into(),
            rank: joining.rank.into(),
        });
        let port = cx.core.process(joining.vni).map(|process| process.port);
        frame.envelope.source_port = port.map_or(0, |port| port.0).into();
        frame.envelope.destination_port = joining.home.port.into();
        cx.transport.send_control(peer, frame);
    }

    /// Sends joins whose homes have become peers.
    pub(super) fn send_joins<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        let joins = self.joins.iter();
        let waiting = joins
            .filter(|(_, join)| !join.sent && cx.transport.find(NodeId(join.home.node)).is_some());
        let waiting: Vec<u64> = waiting.map(|(ticket, _)| *ticket).collect();
        for ticket in waiting {
            self.deadlines
                .retain(|(_, due)| *due != Due::Resend(ticket));
            self.send_join(cx, ticket);
        }
    }

    /// Lets joins that a node had begin anew: its session has ended.
    pub(super) fn send_joins_again<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        node: NodeId,
        again: Time,
    ) {
        let again = again.max(cx.now.after(crate::transport::RETRY_AFTER));
        for (ticket, join) in &mut self.joins {
            if join.home.node == node.0 && join.group.is_none() && join.sent {
                join.sent = false;
                self.deadlines.insert((again, Due::Resend(*ticket)));
            }
        }
    }

    /// The time of a join is over.
    pub(super) fn join_expired<H: Host>(&mut self, cx: &mut Context<'_, H>, ticket: u64) {
        let Some(joining) = self.joins.get(&ticket).copied() else {
            return;
        };
        let end = End::new(Status::TimedOut, joining.home);
        self.withdraw(cx, ticket, Some(end));
    }

    /// Takes a join back; `end`: its process learns why.
    pub(super) fn withdraw<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ticket: u64,
        end: Option<End>,
    ) {
        let Some(joining) = self.take_join(ticket) else {
            return;
        };
        let who = Self::name_of(cx, joining.vni);
        if let Some(peer) = cx.transport.find(NodeId(joining.home.node)) {
            let mut frame = Frame::new(&GroupRefused {
                ticket: ticket.into(),
                status: Status::Cancelled.code().into(),
                node: who.node.into(),
                port: who.port.into(),
            });
            frame.envelope.source_port = who.port.into();
            frame.envelope.destination_port = joining.home.port.into();
            cx.transport.send_control(peer, frame);
        }
        let names = (ticket, joining.handle);
        match end {
            Some(end) => complete_join(cx, joining.vni, names, Err(end)),
            None => cx.trace_ended(joining.vni, frames::join(who.node, ticket), Status::Aborted),
        }
        if let Some(id) = joining.group {
            let status = end.map_or(Status::PeerGone, |end| end.status);
            self.member_left(cx, id, joining.vni, End::new(status, who));
        }
    }

    /// Takes a join out.
    fn take_join(&mut self, ticket: u64) -> Option<Joining> {
        let joining = self.joins.remove(&ticket)?;
        self.deadlines
            .remove(&(joining.deadline, Due::Join(ticket)));
        self.deadlines
            .retain(|(_, due)| *due != Due::Resend(ticket));
        Some(joining)
    }

    /// Fails joins of a group that has ended before it has started.
    pub(super) fn fail_joins<H: Host>(&mut self, cx: &mut Context<'_, H>, id: GroupId, end: End) {
        let joins = self.joins.iter();
        let failed = joins.filter(|(_, join)| join.group == Some(id));
        let failed: Vec<u64> = failed.map(|(ticket, _)| *ticket).collect();
        for ticket in failed {
            if let Some(joining) = self.take_join(ticket) {
                complete_join(cx, joining.vni, (ticket, joining.handle), Err(end));
            }
        }
    }

    /// The home refuses a join, or a member takes one back.
    pub(super) fn receive_refusal<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: GroupRefused = arrival.body();
        let ticket = body.ticket.get();
        let node = cx.transport.node_of(arrival.peer).0;
        let port = arrival.frame.envelope.source_port.get();
        // A member speaks for itself; a home for the port of none.
        if port != 0 {
            let outbox = &mut self.outbox;
            let who = Name { node, port };
            return self.home.receive_withdrawal(cx, who, ticket, outbox);
        }
        let joining = self.joins.get(&ticket);
        if joining.is_none_or(|join| join.home.node != node || join.group.is_some()) {
            return;
        }
        let status = Status::try_from(body.status.get()).unwrap_or(Status::GroupRefused);
        let who = Name {
            node: body.node.get(),
            port: body.port.get(),
        };
        if let Some(joining) = self.take_join(ticket) {
            let names = (ticket, joining.handle);
            complete_join(cx, joining.vni, names, Err(End::new(status, who)));
        }
    }

    /// A group has formed: its members on this node have their place in it.
    pub(super) fn receive_form<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: GroupForm = arrival.body();
        let node = cx.transport.node_of(arrival.peer).0;
        let id = GroupId {
            home: node,
            number: body.number.get(),
        };
        let home = Name {
            node,
            port: body.port.get(),
        };
        // No answer: the home gives the group up when its members do.
        if self.groups.contains_key(&id) || self.outbox.is_full(node) {
            return;
        }
        let mut bytes = vec![0; arrival.payload.len()];
        let read = arrival.payload.read(&mut bytes).is_ok();
        let places = home::places(&bytes, body.members.get()).filter(|_| read);
        let known = places.is_some();
        let (children, ranks) = places.unwrap_or_default();
        // The home refuses others, which may not have heard of it yet.
        let asked = (home, body.name.get(), body.key.get(), body.size.get());
        let joins = self.joins.iter_mut().filter(|(_, join)| {
            let same = (join.home, join.name, join.key, join.size) == asked;
            same && ranks.contains(&(join.rank as u16)) && join.group.is_none()
        });
        let mut members = Vec::new();
        for (ticket, join) in joins {
            join.group = Some(id);
            members.push(Member {
                vni: join.vni,
                group: id,
                rank: join.rank,
                local: *ticket,
                calls: 0,
            });
        }
        members.sort_by_key(|member| member.rank);
        let all = known && members.len() == ranks.len();
        let relatives = Relatives::new(id, body.parent.get(), children);
        let neighbours: Vec<u16> = relatives.all().collect();
        let group = Group::new(body.size.get(), relatives, members);
        self.groups.insert(id, group);
        let full = neighbours.iter().any(|node| self.outbox.is_full(*node));
        if !all || full {
            // One has ended, or has taken its join back, while the group has formed.
            let status = match full {
                true => Status::Exhausted,
                false => Status::PeerGone,
            };
            let who = Name {
                node: cx.core.geometry.node.0,
                port: 0,
            };
            return self.end_group(cx, id, End::new(status, who), None);
        }
        let mut part_bytes = PAGE_SIZE as u32;
        for neighbour in neighbours {
            let node = NodeId(neighbour);
            match cx.transport.find(node) {
                Some(peer) => part_bytes = part_bytes.min(cx.transport.max_payload(peer)),
                None => cx.transport.want(node),
            }
        }
        let part_bytes = match part_bytes {
            0..64 => 64,
            bytes => 1 << bytes.ilog2(),
        };
        let state = StateFields {
            number: id.number.into(),
            part_bytes: part_bytes.into(),
            home: id.home.into(),
            reserved: 0.into(),
        };
        let formed = GroupState::<{ kind::GROUP_FORMED }>(state);
        cx.transport.send_control(arrival.peer, Frame::new(&formed));
    }

    /// All nodes know of a group: its members may call.
    pub(super) fn start<H: Host>(&mut self, cx: &mut Context<'_, H>, id: GroupId, part_bytes: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if group.has_started() || group.ended.is_some() {
            return;
        }
        group.relatives.part_bytes = part_bytes.into();
        let size = group.size;
        let neighbours: Vec<u16> = group.relatives.all().collect();
        for member in group.members.clone() {
            self.names.insert(member.local, (member.vni, id));
            if let Some(joining) = self.take_join(member.local) {
                let name = (member.local, size);
                let names = (member.local, joining.handle);
                complete_join(cx, member.vni, names, Ok(name));
            }
        }
        for node in neighbours {
            Self::say_begun(cx, id, NodeId(node));
        }
    }

    /// A frame to a neighbour, so that its silence is noticed.
    pub(super) fn say_begun<H: Host>(cx: &mut Context<'_, H>, id: GroupId, node: NodeId) {
        if let Some(peer) = cx.transport.find(node) {
            let greeting = GroupState::<{ kind::GROUP_GREET }>(StateFields {
                number: id.number.into(),
                home: id.home.into(),
                ..StateFields::default()
            });
            cx.transport.send_control(peer, Frame::new(&greeting));
        }
    }

    /// A member leaves.
    pub(super) fn leave<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        handle: u64,
        name: u64,
    ) {
        let entry = self.names.get(&name).filter(|(owner, _)| *owner == vni);
        let id = entry.map(|(_, id)| *id);
        let status = id.map_or(Status::NoSuchGroup, |_| Status::Ok);
        let own = cx.core.geometry.node.0;
        let subject = id.map_or_else(|| frames::join(own, name), GroupId::subject);
        let said = Said {
            code: Opcode::LeaveGroup as u32,
            ..Said::default()
        };
        cx.trace(vni, What::Fetched, subject, said);
        cx.trace_ended(vni, subject, status);
        if let Some(id) = id {
            let (status, who) = (Status::PeerGone, Self::name_of(cx, vni));
            self.member_left(cx, id, vni, End::new(status, who));
        }
        let entry = CompletionEntry {
            handle: handle.into(),
            status: status.code().into(),
            ..CompletionEntry::default()
        };
        Self::complete(cx, vni, CompletionKind::Leave, entry);
    }

    /// A member calls the next collective. A call that is refused takes its number with it, so the
    /// group ends: else the next call of this member would meet this one of the others.
    pub(super) fn call<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, call: Call) {
        let named = self.names.get(&call.group);
        let id = named.filter(|(owner, _)| *owner == vni).map(|(_, id)| *id);
        let (id, place) = match (id, self.may_call(cx, vni, id, &call)) {
            (Some(id), Ok(place)) => (id, place),
            (id, refused) => {
                let who = Self::name_of(cx, vni);
                let status = Status::NoSuchGroup;
                let end = refused.err().unwrap_or(End::new(status, who));
                let subject =
                    id.map_or_else(|| frames::join(who.node, call.group), GroupId::subject);
                cx.trace(vni, What::Fetched, subject, call_said(&call, 0));
                cx.trace_ended(vni, subject, end.status);
                let entry = CompletionEntry {
                    handle: call.handle.into(),
                    length: call.shape.length.into(),
                    ..end_entry(Some(end))
                };
                Self::complete(cx, vni, CompletionKind::Collective, entry);
                if let Some(id) = id {
                    self.end_group(cx, id, end, None);
                }
                return;
            }
        };
        let limits = &cx.core.limits;
        let who = Self::name_of(cx, vni);
        // Short ones behind the first may be complete: those do not count as pending.
        let most = limits.collectives.saturating_add(RUNNING);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let sequence = group.members[place].calls;
        let calls = &mut group.members[place].calls;
        *calls = calls.wrapping_add(1);
        let said = call_said(&call, sequence);
        cx.trace(vni, What::Fetched, id.collective(sequence), said);
        let due = Due::Call(call.group, sequence);
        self.deadlines.insert((call.deadline, due));
        match group.call(place, sequence, call, most) {
            Ok(()) => self.advance(cx, id),
            Err(difference) => self.end_group(cx, id, End::mismatch(who, difference), None),
        }
    }

    /// The place of a member that may call now, or why its call is refused.
    fn may_call<H: Host>(
        &self,
        cx: &Context<'_, H>,
        vni: VniId,
        id: Option<GroupId>,
        call: &Call,
    ) -> Result<usize, End> {
        let who = Self::name_of(cx, vni);
        let refused = |status| End::new(status, who);
        let gone = refused(Status::NoSuchGroup);
        let group = id.and_then(|id| self.groups.get(&id)).ok_or(gone)?;
        let mut members = group.members.iter();
        let place = members.position(|member| member.vni == vni).ok_or(gone)?;
        if let Some(end) = group.ended {
            return Err(end);
        }
        if call.shape.root >= group.size {
            return Err(refused(Status::Malformed));
        }
        call.local.authorise(cx.core, vni).map_err(refused)?;
        match group.pending(place) < cx.core.limits.collectives as usize {
            true => Ok(place),
            false => Err(refused(Status::Exhausted)),
        }
    }
}

/// What a trace says of a call.
fn call_said(call: &Call, sequence: u32) -> Said {
    Said {
        code: call.shape.collective as u32 | CALL,
        bytes: call.shape.length,
        detail: sequence.into(),
        ..Said::default()
    }
}

/// Ends a join: with the name and the size of the group, or with a reason.
pub(super) fn complete_join<H: Host>(
    cx: &mut Context<'_, H>,
    vni: VniId,
    (ticket, handle): (u64, u64),
    result: Result<(u64, u32), End>,
) {
    let own = cx.core.geometry.node.0;
    let status = result.map_or_else(|end| end.status, |_| Status::Ok);
    cx.trace_ended(vni, frames::join(own, ticket), status);
    let (name, size) = result.unwrap_or_default();
    let entry = CompletionEntry {
        handle: handle.into(),
        immediate: name.into(),
        length: u64::from(size).into(),
        ..end_entry(result.err())
    };
    Collectives::complete(cx, vni, CompletionKind::Join, entry);
}
