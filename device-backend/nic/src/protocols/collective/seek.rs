//! Which member is missing when the time of a call is over (Q15).
//!
//! ```text
//!   the time of a call is over
//!     │
//!     ▼ what does the collective wait for here?
//!     ├── a member of this node: it has not called, or its page is absent ──► the group ends, and
//!     │                                                                       all learn its name
//!     └── a part of a neighbour ── GroupSeek ──► the same question there
//!                                                (no answer in time: that node is named as a whole)
//! ```
//! # Invariants
//! - The process whose time is over is named only if the collective waits for nothing else.
//! - A GroupSeek is received behind the parts that were sent before (`IN_ORDER`), so the neighbour
//!   knows of these parts. It is not sent back to where it came from: what that node
//!   waits for is on its way to it.
//! - A NIC asks about a collective twice in each [`pause`] at most, whatever it is asked.
//! - A call ends [`patience`] after its time at the latest. A NIC that passes a question on is less
//!   patient than the one that asked, so the one next to a node that does not answer names that
//!   node. It does so only if the collective has stood still meanwhile.

use qnic_abi::collective::GroupSeek;
use qnic_abi::Status;

use super::command::Name;
use super::group::End;
use super::outbox::Content;
use super::place::GroupId;
use super::running::{Missing, Seek};
use super::{Collectives, Context, Due};
use crate::config::Limits;
use crate::env::{Host, Time};
use crate::frame::Arrival;

/// Nanoseconds in a microsecond.
const MICROSECOND: u64 = 1_000;

/// How long a NIC waits for the end of a question, in nanoseconds: some round trips, and some
/// retransmissions, to nodes that are not silent.
fn patience(limits: &Limits) -> u64 {
    limits.peer_timeout / 4
}

/// How long a NIC waits before it looks again, and asks again if the time of a call of its own is
/// over: what it has asked for may have been on its way.
fn pause(limits: &Limits) -> u64 {
    patience(limits) / 8
}

impl Collectives {
    /// The time of a call is over.
    pub(super) fn call_expired<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        name: u64,
        sequence: u32,
    ) {
        let Some((vni, id)) = self.names.get(&name).copied() else {
            return;
        };
        let own = Self::name_of(cx, vni);
        let wait = patience(&cx.core.limits);
        match self.missing(cx, id, sequence) {
            (sequence, Missing::Node(node)) if self.groups[&id].ended.is_none() => {
                self.ask(cx, (id, sequence), node, wait);
            }
            (_, Missing::Member(who)) => self.expire_collective(cx, (id, sequence), who),
            _ => self.expire_collective(cx, (id, sequence), own),
        }
    }

    /// What a collective waits for; of one behind those that are under way, what the first waits for.
    fn missing<H: Host>(
        &self,
        cx: &Context<'_, H>,
        id: GroupId,
        sequence: u32,
    ) -> (u32, Missing<Name>) {
        let Some(group) = self.groups.get(&id) else {
            return (sequence, Missing::Nothing);
        };
        let (sequence, missing) = group.missing(sequence);
        let named = match missing {
            Missing::Member(index) => Missing::Member(Self::name_of(cx, group.members[index].vni)),
            Missing::Node(node) => Missing::Node(node),
            Missing::Nothing => Missing::Nothing,
        };
        (sequence, named)
    }

    /// Asks a neighbour for what a collective waits for, unless it was asked just now.
    fn ask<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        (id, sequence): (GroupId, u32),
        node: u16,
        wait: u64,
    ) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let seek = Seek {
            progress: group.progress(sequence),
            asked: cx.now,
            until: cx.now.after(wait),
        };
        match group.take_seek(sequence) {
            None => self.watch(cx, (id, sequence), seek),
            // It was asked just now, for another one.
            Some(other) if cx.now < other.asked.after(pause(&cx.core.limits) / 2) => {
                group.put_seek(sequence, other);
                return;
            }
            Some(other) => {
                let until = other.until;
                group.put_seek(sequence, Seek { until, ..seek });
            }
        }
        let shorter = u32::try_from((wait - wait / 8) / MICROSECOND).unwrap_or(u32::MAX);
        let seek = GroupSeek {
            number: id.number.into(),
            sequence: sequence.into(),
            wait_us: shorter.into(),
            home: id.home.into(),
            reserved: Default::default(),
        };
        self.outbox.push(node, Content::Seek(seek), None);
    }

    /// A neighbour asks what a collective waits for.
    pub(super) fn receive_seek<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: GroupSeek = arrival.body();
        let from = cx.transport.node_of(arrival.peer).0;
        let id = GroupId::of(body.home, body.number);
        self.tell_if_ended(cx, from, id);
        let known = |group: &super::Group| {
            let next_to = group.relatives.all().any(|node| node == from);
            next_to && group.ended.is_none() && group.relatives.part_bytes > 0
        };
        if !self.groups.get(&id).is_some_and(known) {
            return;
        }
        let wait = u64::from(body.wait_us.get()) * MICROSECOND;
        let wait = wait.min(patience(&cx.core.limits));
        match self.missing(cx, id, body.sequence.get()) {
            (sequence, Missing::Member(who)) => self.expire_collective(cx, (id, sequence), who),
            (sequence, Missing::Node(node)) if node != from => {
                self.ask(cx, (id, sequence), node, wait);
            }
            _ => {}
        }
    }

    /// A neighbour was asked some time ago, and the group has not ended: looks again.
    pub(super) fn seek_due<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: GroupId,
        sequence: u32,
    ) {
        self.seeks.remove(&(id, sequence));
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let earlier = Time(cx.now.0.saturating_sub(patience(&cx.core.limits)));
        let (late, too_late) = (group.overdue(cx.now), group.overdue(earlier).is_some());
        let seek = group.take_seek(sequence);
        let (sequence, over) = match (late, seek) {
            (Some(late), _) => (late, too_late),
            (None, Some(seek)) if seek.until <= cx.now => (sequence, true),
            (None, Some(seek)) => return self.watch(cx, (id, sequence), seek),
            (None, None) => return,
        };
        let own = cx.core.geometry.node.0;
        let (sequence, who) = match self.missing(cx, id, sequence) {
            (sequence, Missing::Member(who)) => (sequence, who),
            (sequence, Missing::Node(node)) if !over => {
                let wait = patience(&cx.core.limits);
                return self.ask(cx, (id, sequence), node, wait);
            }
            (sequence, Missing::Node(node)) => (sequence, Name { node, port: 0 }),
            (sequence, Missing::Nothing) => (sequence, Name { node: own, port: 0 }),
        };
        self.expire_collective(cx, (id, sequence), who);
    }

    /// Looks again in a while.
    fn watch<H: Host>(&mut self, cx: &Context<'_, H>, (id, sequence): (GroupId, u32), seek: Seek) {
        let group = self.groups.get_mut(&id);
        if group.is_some_and(|group| group.put_seek(sequence, seek)) {
            let again = cx.now.after(pause(&cx.core.limits));
            let due = Due::Seek(id, sequence);
            if let Some(earlier) = self.seeks.insert((id, sequence), again) {
                self.deadlines.remove(&(earlier, due));
            }
            self.deadlines.insert((again, due));
        }
    }

    /// Ends a group because a collective has taken too long.
    fn expire_collective<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        (id, sequence): (GroupId, u32),
        who: Name,
    ) {
        let status = Status::TimedOut;
        self.end_group(cx, id, End::new(status, who), None);
        self.fail_call(cx, id, sequence, End::new(status, who));
        self.advance(cx, id);
    }
}
