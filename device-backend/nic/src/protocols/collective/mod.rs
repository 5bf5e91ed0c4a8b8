//! Groups of processes, and collective operations that complete in the NICs (Q14, Q15, N26).
//! docs/collectives.md has the protocol as a whole.
//!
//! ```text
//!   member ── Join ──► home: all there? ── Form, Start ──► all members' NICs
//!
//!                  root
//!            Up ▲ ▲  │ │ Down       each NIC reduces what its members and the nodes below
//!              ╱   ╲ ▼ ▼            it give, part by part, and gives the result to its
//!            node   node            members and sends it down
//! ```
//! | module | holds |
//! |---|---|
//! | `command` | from a descriptor to a checked command |
//! | `home` | groups that form at this node |
//! | `members` | joins and leaves of processes of this node, and how groups begin |
//! | `place` | the place of this NIC in the tree of a group |
//! | `group`, `running` | a group that has formed, and its collectives |
//! | `reduction` | how the bytes of two members become one |
//! | `frames` | what frames of other NICs do to a group, and what they belong to in a trace |
//! | `endings` | how groups end, and calls with them |
//! | `seek` | which member is missing when the time of a call is over |
//! | `multicast`, `streams`, `letters` | messages to members of a group, those of one source, and their way to the inboxes |
//! | `outbox` | frames that are to be sent |
//!
//! # Invariants
//! - Each command has one completion: a call at its end or when its time is over, a join when
//!   the group has started or cannot.
//! - A group ends once at each NIC, for the reason that comes first there. No call begins in it
//!   afterwards. All neighbours are told, behind what was sent to them before.
//! - A collective whose results are all here completes, even if the group ends meanwhile.

mod command;
mod endings;
mod frames;
mod group;
mod home;
mod letters;
mod members;
mod multicast;
mod outbox;
mod place;
mod reduction;
mod running;
mod seek;
mod streams;

use std::collections::{BTreeMap, BTreeSet};

use command::{Command, Difference};
use endings::LastEnded;
use group::{End, Finished, Group};
use home::Home;
use letters::Mail;
use members::Joining;
use outbox::Outbox;
use place::GroupId;
use qnic_abi::collective::{
    kind, Collective, CollectiveCommand, CollectivePart, GroupEnd, GroupForm, GroupJoin,
    GroupRefused, GroupSeek, GroupState, Opcode,
};
use qnic_abi::command::Descriptor;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::multicast::{self as multicasts, Multicast, MulticastTaken};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Status, VniId};

use super::protocol::{Context, Ended, Outgoing, Protocol, Received, Turn};
use crate::budget::Budget;
use crate::config::Limits;
use crate::core::{Fetched, Subject};
use crate::env::{Host, Time};
use crate::frame::Arrival;
use crate::ids::PeerIndex;
use crate::stages::Kind;
use crate::table::Table;

/// Frames of one group that wait for one node at most: parts that are under way, a question for each
/// collective, and its end.
const FRAMES_OF_GROUP: u32 = group::RUNNING * (2 * running::WINDOW + 1) + 2;

/// What a deadline is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A join is over.
    Join(u64),
    /// A join is sent again.
    Resend(u64),
    /// A call of a member is over: its group's name at that member, and the number of the
    /// collective.
    Call(u64, u32),
    /// A neighbour was asked what a collective waits for.
    Seek(GroupId, u32),
}

/// What waits for pages of a member.
#[derive(Debug, Clone, Copy)]
enum Job {
    /// A collective, by its number.
    Call(GroupId, u32),
    /// The messages of a member, by its rank.
    Send(GroupId, u32),
}

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    home: Home,
    joins: BTreeMap<u64, Joining>,
    groups: BTreeMap<GroupId, Group>,
    /// Groups by the name that their members on this node have for them.
    names: BTreeMap<u64, (VniId, GroupId)>,
    /// The last ticket or name.
    last_name: u64,
    deadlines: BTreeSet<(Time, Due)>,
    /// When to look again at the collectives whose neighbours were asked.
    seeks: BTreeMap<(GroupId, u32), Time>,
    outbox: Outbox,
    /// What waits for pages, by number.
    jobs: BTreeMap<u64, Job>,
    mail: Mail,
    ended: LastEnded,
}

impl Collectives {
    fn next_name(&mut self) -> u64 {
        self.last_name += 1;
        self.last_name
    }

    /// Stores a completion, and looks at the queue of its process: it is likely to go on.
    fn complete<H: Host>(
        cx: &mut Context<'_, H>,
        vni: VniId,
        kind: CompletionKind,
        entry: CompletionEntry,
    ) {
        let kind = kind as u8;
        cx.core
            .complete(cx.host, vni, CompletionEntry { kind, ..entry });
        cx.core.activate(vni, Some(cx.now));
    }

    /// Completes calls.
    fn complete_calls<H: Host>(&mut self, cx: &mut Context<'_, H>, finished: Vec<Finished>) {
        for call in finished {
            let due = Due::Call(call.member, call.sequence);
            self.deadlines.remove(&(call.deadline, due));
            let status = call.end.map_or(Status::Ok, |end| end.status);
            cx.trace_ended(call.vni, call.group.collective(call.sequence), status);
            let entry = CompletionEntry {
                handle: call.handle.into(),
                length: call.length.into(),
                ..end_entry(call.end)
            };
            Self::complete(cx, call.vni, CompletionKind::Collective, entry);
        }
    }

    /// Groups of this node, and those that form here.
    pub(super) fn table(&self) -> Table {
        let groups = self.groups.iter().map(|(id, group)| {
            let state = match (group.ended, group.has_started()) {
                (Some(end), _) => {
                    format!("ended: {} ({}, {})", end.status, end.who.node, end.who.port)
                }
                (None, true) => "runs".to_owned(),
                (None, false) => "forms".to_owned(),
            };
            vec![
                id.home.to_string(),
                id.number.to_string(),
                group.size.to_string(),
                group.members.len().to_string(),
                group.most_pending().to_string(),
                group.kept_bytes().to_string(),
                state,
            ]
        });
        let forming = self.home.waiting().map(|(size, seats)| {
            let size = size.map_or("-".to_owned(), |size| size.to_string());
            let mut row = vec!["here".to_owned(), "-".to_owned(), size];
            row.extend([seats.to_string(), "0".to_owned(), "0".to_owned()]);
            row.push("waits for members".to_owned());
            row
        });
        let columns = [
            "home", "number", "size", "members", "calls", "bytes", "state",
        ];
        Table::new(&columns, groups.chain(forming))
    }

    /// Gives the NIC a turn if there is something to send.
    fn schedule<H: Host>(&self, cx: &mut Context<'_, H>) {
        if self.outbox.has_turn() {
            cx.core.schedule_nic(Self::ID);
        }
    }
}

/// The part of a completion that says why something has failed.
fn end_entry(end: Option<End>) -> CompletionEntry {
    let who = end.map(|end| end.who).unwrap_or_default();
    let status = end.map_or(Status::Ok, |end| end.status);
    let Difference { reason, others } = end.map(|end| end.difference).unwrap_or_default();
    CompletionEntry {
        tag: reason.0.into(),
        immediate: others.0.into(),
        mark: (u32::from(reason.1) | u32::from(others.1) << 16).into(),
        status: status.code().into(),
        node: who.node.into(),
        port: who.port.into(),
        ..CompletionEntry::default()
    }
}

impl Protocol for Collectives {
    const OPERATIONS: Kind = Kind::Collective;
    const OPCODES: &'static [u8] = &[
        Opcode::JoinGroup as u8,
        Opcode::LeaveGroup as u8,
        Opcode::Collective as u8,
        multicasts::OPCODE,
    ];
    const KINDS: &'static [u8] = &[
        kind::COLLECTIVE_UP,
        kind::COLLECTIVE_DOWN,
        kind::GROUP_FORM,
        kind::GROUP_END,
        kind::GROUP_SEEK,
        kind::GROUP_JOIN,
        kind::GROUP_REFUSED,
        kind::GROUP_FORMED,
        kind::GROUP_START,
        kind::GROUP_GREET,
        multicasts::kind::MULTICAST,
        multicasts::kind::MULTICAST_TAKEN,
    ];
    // A join that is taken back does not come after that, nor a part behind a question about it. The
    // messages of a source are a row.
    const IN_ORDER: &'static [u8] = &[
        kind::GROUP_END,
        kind::GROUP_SEEK,
        kind::GROUP_REFUSED,
        multicasts::kind::MULTICAST,
        multicasts::kind::MULTICAST_TAKEN,
    ];

    fn kind_of_command(command: &Descriptor) -> Kind {
        if command.header.opcode == multicasts::OPCODE {
            return Kind::Multicast;
        }
        match Opcode::try_from(command.header.opcode) {
            Ok(Opcode::JoinGroup) => return Kind::JoinGroup,
            Ok(Opcode::LeaveGroup) => return Kind::LeaveGroup,
            _ => {}
        }
        match Collective::try_from(command.read::<CollectiveCommand>().collective) {
            Ok(Collective::Barrier) => Kind::Barrier,
            Ok(Collective::Broadcast) => Kind::Broadcast,
            Ok(Collective::Reduce) => Kind::Reduce,
            Ok(Collective::Allreduce) => Kind::Allreduce,
            Err(_) => Kind::Collective,
        }
    }

    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::COLLECTIVE_UP => frame.is::<CollectivePart<{ kind::COLLECTIVE_UP }>>(),
            kind::COLLECTIVE_DOWN => frame.is::<CollectivePart<{ kind::COLLECTIVE_DOWN }>>(),
            kind::GROUP_FORM => frame.is::<GroupForm>(),
            kind::GROUP_END => frame.is::<GroupEnd>(),
            kind::GROUP_SEEK => frame.is::<GroupSeek>(),
            multicasts::kind::MULTICAST => frame.is::<Multicast>(),
            multicasts::kind::MULTICAST_TAKEN => frame.is::<MulticastTaken>(),
            kind::GROUP_JOIN => frame.is::<GroupJoin>(),
            kind::GROUP_REFUSED => frame.is::<GroupRefused>(),
            kind::GROUP_FORMED => frame.is::<GroupState<{ kind::GROUP_FORMED }>>(),
            kind::GROUP_START => frame.is::<GroupState<{ kind::GROUP_START }>>(),
            _ => frame.is::<GroupState<{ kind::GROUP_GREET }>>(),
        }
    }

    fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
        frames::subject(frame, from, to)
    }

    #[inline(never)] // It would cost transfers registers.
    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        match Command::read(fetched, cx.now)? {
            Command::Join(join) => self.join(cx, vni, join),
            Command::Leave { handle, group } => self.leave(cx, vni, handle, group),
            Command::Call(call) => self.call(cx, vni, call),
            Command::Send(send) => self.send(cx, vni, send),
        }
        self.schedule(cx);
        Ok(())
    }

    fn nic_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        self.outbox.turn(cx.transport, outgoing)
    }

    fn unblocked<H: Host>(&mut self, cx: &mut Context<'_, H>, peer: PeerIndex) {
        self.outbox.resume(cx.transport.node_of(peer).0);
        self.schedule(cx);
    }

    #[inline(never)] // It would cost transfers registers.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        self.receive_frame(cx, arrival);
        self.schedule(cx);
        Received::Done
    }

    fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        job: u64,
        failed: Option<Status>,
    ) {
        match self.jobs.remove(&job) {
            Some(Job::Call(id, sequence)) => self.pages_came(cx, (id, sequence), vni, failed),
            Some(Job::Send(id, rank)) => self.pages_to_send(cx, (id, rank), vni, failed),
            None => {}
        }
        self.schedule(cx);
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        match ended {
            Ended::Operations(vni) | Ended::Process(vni) => self.process_ended(cx, vni),
            Ended::Segment(vni, segment) => self.segment_ended(cx, vni, segment),
            Ended::Session(_, node, again) | Ended::Unreached(_, node, again) => {
                self.session_ended(cx, node, again);
            }
            Ended::Left(_, node, again) => self.session_left(cx, node, again),
            Ended::PeerProcess(peer, port, before) => {
                let node = cx.transport.node_of(peer).0;
                let port = port.0;
                let ended = |who| who == command::Name { node, port };
                self.home.members_ended(cx, ended, before, &mut self.outbox);
            }
        }
        self.schedule(cx);
    }

    fn peers_added<H: Host>(&mut self, cx: &mut Context<'_, H>, _some: bool) {
        for node in self.outbox.with_peer(cx.transport) {
            self.outbox.resume(node);
        }
        for node in self.outbox.without_peer(cx.transport) {
            let again = cx.now;
            self.session_ended(cx, NodeId(node), again);
        }
        self.send_joins(cx);
        self.schedule(cx);
    }

    fn awaits(&self, node: NodeId) -> bool {
        let next_to = |group: &Group| {
            group.ended.is_none() && group.relatives.all().any(|other| other == node.0)
        };
        self.home.awaits(node.0)
            || self.joins.values().any(|join| join.home.node == node.0)
            || self.groups.values().any(next_to)
    }

    fn expire<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        match self.deadlines.first() {
            Some((time, _)) if *time <= cx.now => {}
            _ => return false,
        }
        while let Some((time, due)) = self.deadlines.first().copied() {
            if time > cx.now {
                break;
            }
            self.deadlines.pop_first();
            match due {
                Due::Join(ticket) => self.join_expired(cx, ticket),
                Due::Resend(ticket) => self.send_join(cx, ticket),
                Due::Call(name, sequence) => self.call_expired(cx, name, sequence),
                Due::Seek(id, sequence) => self.seek_due(cx, id, sequence),
            }
        }
        self.schedule(cx);
        true
    }

    fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    fn budgets(&self, limits: &Limits, budgets: &mut Vec<Budget>) {
        let mut of_process: BTreeMap<VniId, usize> = BTreeMap::new();
        let joins = self.joins.values().map(|join| join.vni);
        for vni in joins.chain(self.names.values().map(|(vni, _)| *vni)) {
            *of_process.entry(vni).or_default() += 1;
        }
        let seats = self.home.seats_by_node();
        let bytes = self.groups.values().map(Group::kept_bytes);
        let calls = self.groups.values().map(Group::most_pending);
        let sends = self.groups.values().map(Group::most_sends);
        let frames = self.outbox.counts();
        let begun = self.groups.len() + self.home.count();
        let multicasts = self.groups.values().map(Group::most_multicast_frames);
        let most = outbox::MANY as u32
            + begun as u32 * FRAMES_OF_GROUP
            + multicasts.fold(0, u32::saturating_add);
        budgets.extend([
            Budget::most("groups_of_process", of_process.into_values(), limits.groups),
            Budget::most("joins_of_peer", seats.into_values(), limits.joins_per_peer),
            Budget::most("bytes_of_group", bytes, limits.group_bytes),
            Budget::most("collectives_of_member", calls, limits.collectives),
            Budget::most("multicasts_of_member", sends, limits.collectives),
            Budget::most("group_frames_of_peer", frames, most),
        ]);
    }
}
