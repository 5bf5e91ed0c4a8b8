//! Multicasts from the command of a member to the inboxes of the others ([`super::multicast`]).
//!
//! ```text
//!   command ──► send ──┐                                    ┌─► Messages: a receive, or staging memory
//!   part ──► receive ──┴─► arrived: whose members ──► deliver, when they have come, and when
//!                                                     such a member receives or has room again
//! ```

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::multicast::{Multicast, MulticastTaken};
use qnic_abi::{Status, VniId};

use super::command::{Name, Send};
use super::group::{End, Group};
use super::multicast::{Held, Sent};
use super::place::GroupId;
use super::{end_entry, Collectives, Context, Job};
use crate::core::Waiter;
use crate::env::Host;
use crate::frame::Arrival;
use crate::letter::Letter;

/// Streams with messages that a process has not taken: group, and rank of the source.
#[derive(Debug, Default)]
pub(super) struct Mail {
    streams: BTreeMap<VniId, BTreeSet<(GroupId, u32)>>,
    /// Processes for which something has come.
    arrived: BTreeSet<VniId>,
    /// Groups that have ended: home and number.
    ended: Vec<(u16, u64)>,
}

impl Mail {
    /// A message of a source has come for a process.
    fn put(&mut self, vni: VniId, stream: (GroupId, u32)) {
        self.streams.entry(vni).or_default().insert(stream);
        self.arrived.insert(vni);
    }

    /// A group has ended: no more comes of what has begun.
    pub(super) fn group_ended(&mut self, id: GroupId) {
        self.ended.push((id.home, id.number));
    }

    /// A process has ended.
    pub(super) fn forget(&mut self, vni: VniId) {
        self.streams.remove(&vni);
        self.arrived.remove(&vni);
    }
}

impl Collectives {
    /// Returns true if a message has come for a process, or will not come.
    #[inline]
    pub(in super::super) fn has_mail(&self) -> bool {
        !self.mail.arrived.is_empty() || !self.mail.ended.is_empty()
    }

    /// Home and number of the groups that have ended.
    pub(in super::super) fn take_ended(&mut self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.mail.ended)
    }

    /// The processes for which messages have come.
    pub(in super::super) fn take_arrived(&mut self) -> BTreeSet<VniId> {
        std::mem::take(&mut self.mail.arrived)
    }

    /// Sends a message to members of a group.
    pub(super) fn send<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, send: Send) {
        let named = self.names.get(&send.group);
        let id = named.filter(|(owner, _)| *owner == vni).map(|(_, id)| *id);
        match self.may_send(cx, vni, id, &send) {
            Ok((id, rank)) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.multicasts.post(rank, send);
                }
                self.send_on(cx, id, rank);
            }
            Err(end) => {
                let (handle, length) = (send.handle, send.length.into());
                let sent = Sent {
                    rank: 0,
                    handle,
                    length,
                };
                Self::complete_send(cx, vni, sent, Some(end));
            }
        }
    }

    /// The group and the rank of a member that may send now, or why it may not.
    fn may_send<H: Host>(
        &self,
        cx: &Context<'_, H>,
        vni: VniId,
        id: Option<GroupId>,
        send: &Send,
    ) -> Result<(GroupId, u32), End> {
        let who = Self::name_of(cx, vni);
        let refused = |status| End::new(status, who);
        let gone = refused(Status::NoSuchGroup);
        let id = id.ok_or(gone)?;
        let group = self.groups.get(&id).ok_or(gone)?;
        let mut members = group.members.iter();
        let member = members.find(|member| member.vni == vni).ok_or(gone)?;
        if let Some(end) = group.ended {
            return Err(end);
        }
        let mut ranks = send
            .list()
            .chunks_exact(2)
            .map(|it| u32::from(u16::from_le_bytes([it[0], it[1]])));
        if ranks.any(|rank| rank >= group.size) {
            return Err(refused(Status::Malformed));
        }
        send.local.authorise(cx.core, vni).map_err(refused)?;
        match group.multicasts.pending(member.rank) < cx.core.limits.collectives as usize {
            true => Ok((id, member.rank)),
            false => Err(refused(Status::Exhausted)),
        }
    }

    /// Sends what a member has, as far as there is room.
    fn send_on<H: Host>(&mut self, cx: &mut Context<'_, H>, id: GroupId, rank: u32) {
        loop {
            let Some(group) = self.groups.get_mut(&id) else {
                return;
            };
            let Some(index) = group.members.iter().position(|member| member.rank == rank) else {
                return;
            };
            let vni = group.members[index].vni;
            let (multicasts, here) = group.multicasts();
            let held = multicasts.send(cx, here, index, &mut self.outbox);
            self.arrive(id, rank);
            match held {
                None => return self.settle(cx, id, rank),
                Some(Held::Pages(range)) => {
                    let job = self.next_name();
                    self.jobs.insert(job, Job::Send(id, rank));
                    let waiter = Waiter::Job(<Self as super::Protocol>::ID, job);
                    cx.core.wait_for_pages(vni, range, waiter);
                }
                Some(Held::Failed(sent, status)) => {
                    let who = Self::name_of(cx, vni);
                    Self::complete_send(cx, vni, sent, Some(End::new(status, who)));
                }
            }
        }
    }

    /// The pages that a member has waited for have come, or never will.
    pub(super) fn pages_to_send<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        (id, rank): (GroupId, u32),
        vni: VniId,
        failed: Option<Status>,
    ) {
        let (group, outbox) = (self.groups.get_mut(&id), &mut self.outbox);
        let sent =
            group.and_then(|group| group.multicasts.pages_came(rank, failed.is_some(), outbox));
        if let Some((sent, status)) = sent.zip(failed) {
            let (who, status) = (Self::name_of(cx, vni), status.for_owner());
            Self::complete_send(cx, vni, sent, Some(End::new(status, who)));
        }
        self.send_on(cx, id, rank);
    }

    /// Receives a part of a message.
    pub(super) fn receive_multicast<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let fields: Multicast = arrival.body();
        let node = cx.transport.node_of(arrival.peer).0;
        let id = GroupId::of(fields.home, fields.number);
        if fields.offset.get() == 0 {
            self.tell_if_ended(cx, node, id);
        }
        if !self.is_next_to(id, node) {
            return;
        }
        let mut part = vec![0; arrival.payload.len()];
        let read = arrival.payload.read(&mut part);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let (multicasts, here) = group.multicasts();
        let received = match read {
            Ok(()) => multicasts.receive(here, node, &fields, part, &mut self.outbox),
            Err(_) => Err(Status::Malformed),
        };
        let rank = fields.rank.get();
        match received {
            Ok(false) => {}
            Ok(true) => {
                self.arrive(id, rank);
                self.settle(cx, id, rank);
                // It may be more than the group may have.
                self.advance(cx, id);
            }
            Err(status) => {
                let who = Name { node, port: 0 };
                self.end_group(cx, id, End::new(status, who), None);
            }
        }
    }

    /// A neighbour says how many messages of a source were taken.
    pub(super) fn receive_taken<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: MulticastTaken = arrival.body();
        let node = cx.transport.node_of(arrival.peer).0;
        let id = GroupId::of(body.home, body.number);
        let rank = body.rank.get();
        if !self.is_next_to(id, node) {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        match group.multicasts.taken(node, rank, body.count.get()) {
            Ok(()) => self.settle(cx, id, rank),
            Err(status) => {
                let who = Name { node, port: 0 };
                self.end_group(cx, id, End::new(status, who), None);
            }
        }
    }

    /// Returns true if a node is a neighbour in a group that goes on.
    fn is_next_to(&self, id: GroupId, node: u16) -> bool {
        let group = self.groups.get(&id).filter(|group| group.ended.is_none());
        group.is_some_and(|group| group.relatives.all().any(|other| other == node))
    }

    /// Messages of a source have come for the members here.
    fn arrive(&mut self, id: GroupId, rank: u32) {
        let members = self.groups.get(&id).map(|group| &group.members);
        for member in members.into_iter().flatten() {
            if member.rank != rank {
                self.mail.put(member.vni, (id, rank));
            }
        }
    }

    /// Gives a process what has come for it, as far as it takes it.
    pub(in super::super) fn deliver<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        mut take: impl FnMut(&mut Context<'_, H>, &Letter) -> bool,
    ) {
        let Some(mut streams) = self.mail.streams.remove(&vni) else {
            return;
        };
        let mut changed = Vec::new();
        streams.retain(|(id, rank)| {
            let Some(group) = self.groups.get_mut(id) else {
                return false;
            };
            let Group {
                members,
                multicasts,
                ..
            } = group;
            let places = members.iter().enumerate();
            let mut places = places.filter(|(_, member)| member.vni == vni);
            let all =
                places.all(|place| multicasts.deliver(place, *rank, |letter| take(cx, letter)));
            changed.push((*id, *rank));
            !all
        });
        if !streams.is_empty() {
            self.mail.streams.insert(vni, streams);
        }
        for (id, rank) in changed {
            self.settle(cx, id, rank);
        }
        self.schedule(cx);
    }

    /// Tells of what all have taken, and goes on with what has waited for that.
    fn settle<H: Host>(&mut self, cx: &mut Context<'_, H>, id: GroupId, rank: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let (multicasts, here) = group.multicasts();
        let sent = multicasts.settle(here, rank, &mut self.outbox);
        let member = here.members.iter().find(|member| member.rank == rank);
        if let Some((vni, sent)) = member.map(|member| member.vni).zip(sent) {
            for sent in sent {
                Self::complete_send(cx, vni, sent, None);
            }
            self.send_on(cx, id, rank);
        }
    }

    /// Fails what members of a group that has ended have sent.
    pub(super) fn fail_sends<H: Host>(cx: &mut Context<'_, H>, group: &mut Group, end: End) {
        for sent in group.multicasts.end() {
            let mut members = group.members.iter();
            if let Some(member) = members.find(|member| member.rank == sent.rank) {
                Self::complete_send(cx, member.vni, sent, Some(end));
            }
        }
    }

    fn complete_send<H: Host>(cx: &mut Context<'_, H>, vni: VniId, sent: Sent, end: Option<End>) {
        let entry = CompletionEntry {
            handle: sent.handle.into(),
            length: sent.length.into(),
            ..end_entry(end)
        };
        Self::complete(cx, vni, CompletionKind::Collective, entry);
    }
}
