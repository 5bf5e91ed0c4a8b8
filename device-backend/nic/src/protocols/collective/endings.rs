//! How groups and calls end.

use std::collections::VecDeque;

use qnic_abi::collective::GroupEnd;
use qnic_abi::{NodeId, SegmentId, Status, VniId};

use super::super::protocol::Said;
use super::command::Name;
use super::group::End;
use super::outbox::Content;
use super::place::GroupId;
use super::running::Stop;
use super::{Collectives, Context, Job};
use crate::core::Waiter;
use crate::env::{Host, Time};
use crate::trace::What;

impl Collectives {
    /// Goes on with the collectives of a group.
    pub(super) fn advance<H: Host>(&mut self, cx: &mut Context<'_, H>, id: GroupId) {
        loop {
            let Some(group) = self.groups.get_mut(&id) else {
                return;
            };
            let mut finished = Vec::new();
            let stopped = group.advance(cx, &mut self.outbox, &mut finished);
            let kept = match group.ended {
                None => group.kept_bytes(),
                Some(_) => 0,
            };
            let member = |index: usize| group.members.get(index).map(|member| member.vni);
            let stopped = stopped.map(|(sequence, stop)| match stop {
                Stop::Pages(index, _) | Stop::Member(index, _) => (sequence, stop, member(index)),
                Stop::Above(_) => (sequence, stop, None),
            });
            self.complete_calls(cx, finished);
            let own = cx.core.geometry.node.0;
            let end = match stopped {
                None if kept > u64::from(cx.core.limits.group_bytes) => {
                    End::new(Status::Exhausted, Name { node: own, port: 0 })
                }
                None => return,
                Some((sequence, Stop::Pages(_, range), Some(vni))) => {
                    let subject = id.collective(sequence);
                    cx.trace(vni, What::Waits, subject, Said::default());
                    let job = self.next_name();
                    self.jobs.insert(job, Job::Call(id, sequence));
                    let waiter = Waiter::Job(<Self as super::Protocol>::ID, job);
                    cx.core.wait_for_pages(vni, range, waiter);
                    continue;
                }
                Some((sequence, Stop::Member(_, status), Some(vni))) => {
                    let who = Self::name_of(cx, vni);
                    self.fail_call(cx, id, sequence, End::new(status, who));
                    End::new(status, who)
                }
                Some((sequence, stop, _)) => {
                    let status = match stop {
                        Stop::Above(status) | Stop::Member(_, status) => status,
                        Stop::Pages(..) => Status::Aborted,
                    };
                    let who = Name { node: own, port: 0 };
                    self.fail_call(cx, id, sequence, End::new(status, who));
                    End::new(status, who)
                }
            };
            self.end_group(cx, id, end, None);
        }
    }

    /// Fails all that a collective has of calls on this node.
    pub(super) fn fail_call<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: GroupId,
        sequence: u32,
        end: End,
    ) {
        let mut finished = Vec::new();
        if let Some(group) = self.groups.get_mut(&id) {
            group.fail(sequence, end, &mut finished);
        }
        self.complete_calls(cx, finished);
    }

    /// The pages that a collective has waited for are there, or will never be.
    pub(super) fn pages_came<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        (id, sequence): (GroupId, u32),
        vni: VniId,
        failed: Option<Status>,
    ) {
        cx.trace(vni, What::Resumed, id.collective(sequence), Said::default());
        if let Some(group) = self.groups.get_mut(&id) {
            group.pages_came(sequence);
        }
        if let Some(status) = failed {
            let who = Self::name_of(cx, vni);
            self.fail_call(cx, id, sequence, End::new(status, who));
            self.end_group(cx, id, End::new(status, who), None);
        }
        self.advance(cx, id);
    }

    /// Ends a group for a reason. Its neighbours are told, but for the one that has said it.
    pub(super) fn end_group<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: GroupId,
        end: End,
        from: Option<u16>,
    ) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if group.ended.is_none() {
            let mut finished = Vec::new();
            group.end(end, &mut finished);
            Self::fail_sends(cx, group, end);
            self.mail.group_ended(id);
            let frame = end_frame(id, end);
            let own = cx.core.geometry.node.0;
            // A home that has not started it tells the others. They are told from here all the same:
            // it may have started it for some, and be the reason of the end itself.
            let relatives = group.relatives.all().filter(|node| *node != id.home);
            let told: Vec<u16> = std::iter::once(id.home).chain(relatives).collect();
            for node in told {
                if Some(node) != from && node != own {
                    self.outbox.push(node, Content::End(frame), None);
                }
            }
            if id.home == own {
                self.home
                    .receive_end((own, own), id.number, end, &mut self.outbox);
            }
            self.complete_calls(cx, finished);
            self.fail_joins(cx, id, end);
            self.advance(cx, id);
        }
        self.forget_group(id);
    }

    /// A node shows that it takes a group for a running one. If that has ended here, it is told so
    /// again: it may have been told in a session that it never had, as it has begun anew before the
    /// group formed.
    pub(super) fn tell_if_ended<H: Host>(&mut self, cx: &Context<'_, H>, node: u16, id: GroupId) {
        let own = cx.core.geometry.node.0;
        // A group is known here from before it starts until it has ended.
        let forgotten = gone(NodeId(own));
        let group = self.groups.get(&id);
        let end = match group {
            Some(group) => group.ended,
            None => Some(self.ended.find(id).unwrap_or(forgotten)),
        };
        if let Some(end) = end.filter(|_| node != own && !self.outbox.is_full(node)) {
            self.outbox
                .push(node, Content::End(end_frame(id, end)), None);
        }
    }

    /// Forgets a group of which no member is left here that can name it.
    fn forget_group(&mut self, id: GroupId) {
        let named = self.names.values().any(|(_, other)| *other == id);
        let ended = self.groups.get(&id).and_then(|group| group.ended);
        if let Some(end) = ended.filter(|_| !named) {
            self.groups.remove(&id);
            self.ended.note(id, end);
            self.jobs.retain(|_, job| match job {
                Job::Call(other, _) | Job::Send(other, _) => *other != id,
            });
        }
    }

    /// A member is one no longer: the group ends for all.
    pub(super) fn member_left<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: GroupId,
        vni: VniId,
        end: End,
    ) {
        self.end_group(cx, id, end, None);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let mut finished = Vec::new();
        if let Some(index) = group.members.iter().position(|member| member.vni == vni) {
            let name = group.members[index].local;
            group.remove(index, end, &mut finished);
            self.names.remove(&name);
        }
        self.complete_calls(cx, finished);
        self.advance(cx, id);
        self.forget_group(id);
    }

    /// A process, or its queue, has ended.
    pub(super) fn process_ended<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        let who = Self::name_of(cx, vni);
        self.mail.forget(vni);
        let joins = self.joins.iter().filter(|(_, join)| join.vni == vni);
        let joins: Vec<u64> = joins.map(|(ticket, _)| *ticket).collect();
        for ticket in joins {
            self.withdraw(cx, ticket, None);
        }
        let names = self.names.values().filter(|(owner, _)| *owner == vni);
        let groups: Vec<GroupId> = names.map(|(_, id)| *id).collect();
        for id in groups {
            let status = Status::PeerGone;
            self.member_left(cx, id, vni, End::new(status, who));
        }
        self.home
            .members_ended(cx, |ended| ended == who, u64::MAX, &mut self.outbox);
    }

    /// A segment is gone: calls that use it fail.
    pub(super) fn segment_ended<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        segment: SegmentId,
    ) {
        let uses = |group: &super::Group| {
            let member = group.members.iter().position(|member| member.vni == vni);
            member.is_some_and(|member| group.uses(member, |call| call.local.uses(segment)))
        };
        let groups = self.groups.iter().filter(|(_, group)| uses(group));
        let groups: Vec<GroupId> = groups.map(|(id, _)| *id).collect();
        for id in groups {
            let (status, who) = (Status::Aborted, Self::name_of(cx, vni));
            self.end_group(cx, id, End::new(status, who), None);
            self.advance(cx, id);
        }
    }

    /// The session with a node has ended: groups that it is next to end, and joins that it had
    /// begin anew.
    pub(super) fn session_ended<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        node: NodeId,
        again: Time,
    ) {
        self.outbox.forget(node.0);
        for id in self.groups_next_to(node.0) {
            self.end_group(cx, id, gone(node), Some(node.0));
        }
        self.seats_ended(cx, node, again);
    }

    /// A session has ended that nothing ran in when this side asked to leave. Groups that have begun
    /// since go on in the next one: that node hears of them in it, and what is to be sent to it waits.
    pub(super) fn session_left<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        node: NodeId,
        again: Time,
    ) {
        for id in self.groups_next_to(node.0) {
            let group = self.groups.get(&id);
            if group.is_some_and(super::Group::has_started) {
                Self::say_begun(cx, id, node);
            } else if id.home == node.0 {
                self.end_group(cx, id, gone(node), Some(node.0));
            }
        }
        self.outbox.resume(node.0);
        self.seats_ended(cx, node, again);
    }

    /// Joins that were sent to a node, and members there of groups that form here, have ended.
    fn seats_ended<H: Host>(&mut self, cx: &mut Context<'_, H>, node: NodeId, again: Time) {
        self.send_joins_again(cx, node, again);
        let gone = |ended: Name| ended.node == node.0;
        self.home
            .members_ended(cx, gone, u64::MAX, &mut self.outbox);
    }

    /// Groups that have not ended, with a node as neighbour, or as home while they form.
    fn groups_next_to(&self, node: u16) -> Vec<GroupId> {
        let next_to = |id: &GroupId, group: &super::Group| {
            let forming = !group.has_started() && id.home == node;
            forming || group.relatives.all().any(|other| other == node)
        };
        let groups = self.groups.iter();
        let groups = groups.filter(|(id, group)| group.ended.is_none() && next_to(id, group));
        groups.map(|(id, _)| *id).collect()
    }
}

/// How groups have ended that this node has forgotten since, the last 64: a node that is told again
/// learns the same reason. Of earlier ones it learns only that a member here is gone, so a process that
/// ends many groups makes reasons less exact, and nothing else.
#[derive(Debug, Default)]
pub(super) struct LastEnded(VecDeque<(GroupId, End)>);

impl LastEnded {
    /// Groups that are remembered.
    const MOST: usize = 64;

    fn note(&mut self, id: GroupId, end: End) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((id, end));
    }

    fn find(&self, id: GroupId) -> Option<End> {
        let mut last = self.0.iter().rev();
        last.find(|(ended, _)| *ended == id).map(|(_, end)| *end)
    }
}

/// How a group ends whose neighbour is gone.
fn gone(node: NodeId) -> End {
    let who = Name {
        node: node.0,
        port: 0,
    };
    End::new(Status::PeerGone, who)
}

pub(super) fn end_frame(id: GroupId, end: End) -> GroupEnd {
    GroupEnd {
        number: id.number.into(),
        status: end.status.code().into(),
        home: id.home.into(),
        node: end.who.node.into(),
        port: end.who.port.into(),
        reason_label: end.difference.reason.1.into(),
        others_label: end.difference.others.1.into(),
        reason_called: end.difference.reason.0.into(),
        others_called: end.difference.others.0.into(),
        ..GroupEnd::default()
    }
}
