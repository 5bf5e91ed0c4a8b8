//! Groups of processes, and collectives in them (`crate::collective`), by those of the NICs.
//!
//! ```text
//!   join ─► Joining ─► Formed ─ calls: parts of collectives, in the order in which the program has called ─► left
//! ```
//! # Invariants
//! - The *n*-th call of a group at the NIC is the same part of the same collective at all members: parts are posted in
//!   the order of the program's calls. If one cannot be posted, the group ends at all members.
//! - A collective is told of once, when all parts that were posted have ended.
//! - The *n*-th join of a list of members is that of the same number at the others, so groups with the same members do
//!   not meet each other.
//!
//! # What of members that…
//! | member | here |
//! |---|---|
//! | are slow, or stopped | the others wait, ten minutes at most: then the collective or the join fails with -FI_ETIMEDOUT, and the group ends |
//! | end, or whose NIC is silent | collectives under way and later ones fail with -FI_ECONNABORTED within the peer timeout; some members may have their result |
//! | close their membership | it takes part in a last barrier first: no collective fails at others that has ended here. Those that others call behind it fail with -FI_ECONNABORTED |
//! | call something else, another length, type or operation | all fail with -FI_ECONNABORTED, and the log (FI_LOG_LEVEL=warn) says what each has called |

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use qnic::group::{
    Call, Element, Group, Joining, Membership, Operation as Collect, Reducible, MAX_MEMBERS,
};
use qnic::{Error, GroupError, Part};

use super::{lock, reason, Engine, Operations, Process, Report, Running};
use crate::address::Address;
use crate::arena::Bounce;
use crate::collective::{explain, Ask, Carried, Plan, Standing};
use crate::cq::Event;
use crate::eq::Eq;
use crate::errno::{Errno, Result, AGAIN, BAD_STATE, INVALID, NO_MEMORY};
use crate::info::offer::OPERATIONS;
use crate::loader;
use crate::pointers::Context;
use crate::sys::{EqEntry, JOIN_COMPLETE, LOG_WARN};

/// Most parts of a group at the NIC: it works on four at a time, and takes 64.
const CALLS: usize = 16;

/// How long a join and a call may take: the longest time that NICs know.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Where the end of a join is told.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) events: Arc<Eq>,
    /// The membership, as the program knows it.
    pub(crate) fid: Context,
    pub(crate) context: Context,
}

/// A join under way.
pub(super) struct Join<'a> {
    pub(super) joining: Joining<'a>,
    group: u64,
}

/// A part of a collective at the NIC.
pub(super) struct PartCall<'a> {
    // In front of its memory.
    pub(super) call: Call<'a>,
    bounce: Option<Bounce>,
    group: u64,
    collective: u64,
    part: usize,
}

enum State<'a> {
    Joining(Told),
    Formed(Group<'a>),
    Ended((i32, i32)),
}

/// A collective that has not ended.
struct Collective {
    number: u64,
    plan: Plan,
    report: Report,
    /// Parts that were posted, and those of them that have not ended.
    posted: usize,
    under_way: usize,
    failed: Option<(i32, i32)>,
}

struct Member<'a> {
    state: State<'a>,
    members: Vec<Address>,
    rank: u32,
    /// In the order of calls.
    collectives: VecDeque<Collective>,
    under_way: usize,
    /// The program has closed it.
    left: bool,
}

/// The groups of an endpoint.
#[derive(Default)]
pub(super) struct Groups<'a> {
    list: BTreeMap<u64, Member<'a>>,
    joins: Joins,
}

/// How often each list of members was joined, by its hash: as long as the endpoint is open, as other members go on from
/// the same numbers.
#[derive(Default)]
struct Joins {
    counts: HashMap<u64, u64>,
}

/// Most lists of members that an endpoint joins.
const LISTS: usize = 1 << 16;

impl Joins {
    /// How often a list was joined.
    ///
    /// # Errors
    /// [`NO_MEMORY`]: it is one list too many.
    fn of(&self, list: u64) -> Result<u64> {
        match self.counts.get(&list) {
            Some(count) => Ok(*count),
            None if self.counts.len() >= LISTS => Err(NO_MEMORY),
            None => Ok(0),
        }
    }

    /// Counts a join.
    fn add(&mut self, list: u64) {
        *self.counts.entry(list).or_default() += 1;
    }
}

impl Collective {
    fn is_posted(&self) -> bool {
        self.failed.is_some() || self.posted == self.plan.parts()
    }

    fn has_ended(&self) -> bool {
        self.is_posted() && self.under_way == 0
    }
}

impl Member<'_> {
    fn standing(&self, root: Option<u32>) -> Standing {
        Standing {
            rank: self.rank,
            size: self.members.len() as u32,
            root,
        }
    }

    /// Tells of collectives that have ended.
    fn tell(&mut self) {
        self.collectives.retain(|it| {
            if it.has_ended() {
                let mut event = Event::of(it.report.context, it.report.flags);
                event.error = it.failed;
                it.report.tell(event);
            }
            !it.has_ended()
        });
    }

    /// Ends it for all members: what was not posted fails.
    fn end(&mut self, error: (i32, i32)) {
        // Dropping the group ends it at the others, and what is under way here.
        self.state = State::Ended(error);
        for collective in &mut self.collectives {
            if !collective.is_posted() {
                collective.failed = Some(error);
            }
        }
    }
}

impl Groups<'_> {
    /// Some take a thread to go on.
    pub(super) fn owe(&self) -> bool {
        let owes = |member: &Member<'_>| {
            let waits = member.collectives.iter().any(|it| !it.is_posted());
            matches!(member.state, State::Joining(_)) || waits || member.left
        };
        !self.list.is_empty() && self.list.values().any(owes)
    }

    /// Others may still need this endpoint: the last barrier of a group is not over.
    pub(super) fn last(&self) -> bool {
        let is_formed = |member: &Member<'_>| matches!(member.state, State::Formed(_));
        self.list.values().any(is_formed)
    }

    /// The program has not closed all.
    fn has_open(&self) -> bool {
        self.list.values().any(|member| !member.left)
    }
}

/// A number of bytes (FNV-1a), which is the same on all nodes.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

impl Engine {
    /// A number for a group.
    pub(crate) fn new_group(&self) -> u64 {
        self.cell
            .with_dependent(|_, board| lock(board).next_number())
    }

    /// Joins a group of these members, by rank, under a number of [`Engine::new_group`].
    ///
    /// # Errors
    /// [`INVALID`]: this endpoint is not among them, one is there twice, or they are too many. [`NO_MEMORY`]: it has
    /// joined too many different lists. [`AGAIN`]
    pub(crate) fn join(&self, group: u64, members: &[Address], told: Told) -> Result<()> {
        let places = |address: &Address| members.iter().filter(|it| *it == address).count();
        let rank = members.iter().position(|it| *it == self.address);
        let rank = rank.ok_or(INVALID)? as u32;
        if members.len() > MAX_MEMBERS as usize || members.iter().any(|it| places(it) > 1) {
            return Err(INVALID);
        }
        let home = (members[0].node, members[0].port);
        let bytes = || members.iter().flat_map(|it| it.to_bytes());
        let of_list = hash(bytes());
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            let number = operations.groups.joins.of(of_list)?.to_le_bytes();
            let name = hash(bytes().chain(number));
            let key = hash(number.into_iter().chain(bytes()));
            let membership = Membership::new(home, rank, members.len() as u32);
            let membership = membership.name(name).key(key);
            let joining = Group::begin_join(&own.endpoint, &membership, TIME_LIMIT)?;
            operations.groups.joins.add(of_list);
            let member = Member {
                state: State::Joining(told),
                members: members.to_vec(),
                rank,
                collectives: VecDeque::new(),
                under_way: 0,
                left: false,
            };
            operations.groups.list.insert(group, member);
            self.begin(operations, Running::Join(Join { joining, group }));
            Ok(())
        })
    }

    /// The program leaves a group. What it has called goes on.
    pub(crate) fn leave(&self, group: u64) {
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            let number = operations.next_number();
            let Some(member) = operations.groups.list.get_mut(&group) else {
                return;
            };
            member.left = true;
            let plan = Plan::last(member.standing(None));
            member.begin(number, plan, Report::silent());
            self.post_calls(own, operations);
            self.want_help(operations);
        });
    }

    /// Some group was not closed.
    pub(crate) fn has_open_groups(&self) -> bool {
        self.cell
            .with_dependent(|_, board| lock(board).groups.has_open())
    }

    /// The group is one of this endpoint that was not closed.
    pub(crate) fn is_member(&self, group: u64) -> bool {
        self.cell.with_dependent(|_, board| {
            let operations = lock(board);
            let member = operations.groups.list.get(&group);
            member.is_some_and(|member| !member.left)
        })
    }

    /// Begins a collective of a group; its root is named by the number of an address.
    ///
    /// # Errors
    /// [`INVALID`]: no such group, or no such root in it; [`BAD_STATE`]: it has not formed yet; [`AGAIN`]: too many are
    /// under way. Those of [`Plan::new`]
    pub(crate) fn collect(
        &self,
        group: u64,
        ask: &Ask,
        root: Option<u64>,
        report: Report,
    ) -> Result<()> {
        let root = root.map(|root| self.av.address(root)).transpose()?;
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            let number = operations.next_number();
            let member = operations.groups.list.get_mut(&group);
            let member = member.filter(|it| !it.left).ok_or(INVALID)?;
            if matches!(member.state, State::Joining(_)) {
                return Err(BAD_STATE);
            }
            if member.collectives.len() >= OPERATIONS {
                return Err(AGAIN);
            }
            let rank_of = |root: Address| {
                let rank = member.members.iter().position(|it| *it == root);
                rank.map(|rank| rank as u32).ok_or(INVALID)
            };
            let root = root.map(rank_of).transpose()?;
            let plan = Plan::new(ask, member.standing(root))?;
            member.begin(number, plan, report);
            self.post_calls(own, operations);
            self.want_help(operations);
            Ok(())
        })
    }

    /// A join has ended: tells of it.
    pub(super) fn joined<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        join: &Join<'a>,
        end: qnic::Result<Group<'a>>,
    ) {
        let Some(member) = operations.groups.list.get_mut(&join.group) else {
            return;
        };
        let (state, failed) = match end {
            Ok(group) => (State::Formed(group), None),
            Err(error) => (State::Ended(reason(&error)), Some(reason(&error))),
        };
        let before = std::mem::replace(&mut member.state, state);
        if let Some(error) = failed {
            member.end(error);
        }
        if let (State::Joining(told), false) = (before, member.left) {
            let entry = EqEntry {
                fid: told.fid,
                context: told.context,
                data: 0,
            };
            told.events.tell(JOIN_COMPLETE, entry, failed);
        }
        self.post_calls(own, operations);
    }

    /// A part has ended.
    pub(super) fn end_part<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        ended: PartCall<'a>,
        error: Option<(i32, i32)>,
    ) {
        let PartCall {
            call,
            bounce,
            group,
            collective,
            part,
        } = ended;
        drop(call);
        if let Some(member) = operations.groups.list.get_mut(&group) {
            member.under_way -= 1;
            let found = member.collectives.iter_mut();
            if let Some(it) = found.into_iter().find(|it| it.number == collective) {
                it.under_way -= 1;
                let taken = match error {
                    Some(error) => Err(error),
                    None => it.take(own, part, bounce.as_ref()),
                };
                if let Err(error) = taken {
                    it.failed.get_or_insert(error);
                }
            }
            member.tell();
        }
        if let Some(bounce) = bounce {
            own.arena.give_back(bounce);
        }
    }

    /// Posts parts as far as there is room, and forgets groups that are left.
    pub(super) fn post_calls<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) {
        let groups: Vec<u64> = operations.groups.list.keys().copied().collect();
        for group in groups {
            while let Some(call) = operations.groups.next_call(own, group) {
                self.begin(operations, Running::Call(call));
            }
        }
        let is_over = |member: &Member<'_>| {
            member.left
                && member.collectives.is_empty()
                && !matches!(member.state, State::Joining(_))
        };
        // Dropping a group leaves it.
        operations.groups.list.retain(|_, member| !is_over(member));
    }
}

impl Member<'_> {
    fn begin(&mut self, number: u64, plan: Plan, report: Report) {
        let failed = match self.state {
            State::Ended(error) => Some(error),
            _ => None,
        };
        self.collectives.push_back(Collective {
            number,
            plan,
            report,
            posted: 0,
            under_way: 0,
            failed,
        });
    }
}

impl Collective {
    /// Takes the result of a part out of bounce memory.
    fn take(
        &self,
        own: &Process,
        part: usize,
        bounce: Option<&Bounce>,
    ) -> std::result::Result<(), (i32, i32)> {
        let Some(bounce) = bounce.filter(|_| self.plan.takes(part)) else {
            return Ok(());
        };
        let mut wire = vec![0; self.plan.wire_length(part)];
        let read = own.arena.read(bounce, 0, &mut wire);
        let taken = read.and_then(|()| self.plan.take(part, wire));
        taken.map_err(|Errno(number)| (number, 0))
    }
}

impl<'a> Groups<'a> {
    /// Posts the next part of a group; `None`: there is none, or no room.
    fn next_call(&mut self, own: &'a Process, number: u64) -> Option<PartCall<'a>> {
        let member = self.list.get_mut(&number)?;
        loop {
            member.tell();
            let State::Formed(group) = &member.state else {
                return None;
            };
            let collective = member.collectives.iter_mut().find(|it| !it.is_posted())?;
            if member.under_way >= CALLS {
                return None;
            }
            let part = collective.posted;
            match post(own, group, &collective.plan, part) {
                Ok((call, bounce)) => {
                    collective.posted += 1;
                    collective.under_way += 1;
                    member.under_way += 1;
                    return Some(PartCall {
                        call,
                        bounce,
                        group: number,
                        collective: collective.number,
                        part,
                    });
                }
                Err((libc::EAGAIN, _)) => return None,
                Err(error) => member.end(error),
            }
        }
    }
}

/// Tells the log what members have called instead of one collective.
pub(super) fn log_difference(error: &Error) {
    if let Error::Group(GroupError {
        difference: Some(difference),
        ..
    }) = error
    {
        loader::log(LOG_WARN, || explain(difference));
    }
}

/// Posts a part.
///
/// # Errors
/// [`AGAIN`]: there is no room for it now. With any other, the group is to end.
fn post<'a>(
    own: &'a Process,
    group: &Group<'a>,
    plan: &Plan,
    part: usize,
) -> std::result::Result<(Call<'a>, Option<Bounce>), (i32, i32)> {
    let errno = |Errno(number)| (number, 0);
    let length = plan.wire_length(part);
    let bounce = own.arena.take(&own.endpoint, length).map_err(errno)?;
    let posted = fill(own, plan, part, &bounce)
        .and_then(|()| own.arena.part(&bounce, length))
        .map_err(errno)
        .and_then(|memory| {
            let call = operation(group, plan.way(part), memory).label(plan.label(part));
            call.timeout(TIME_LIMIT)
                .try_post()
                .map_err(|error| reason(&error))
        });
    match posted {
        Ok(Some(call)) => Ok((call, Some(bounce))),
        Ok(None) => {
            own.arena.give_back(bounce);
            Err((libc::EAGAIN, 0))
        }
        Err(error) => {
            own.arena.give_back(bounce);
            Err(error)
        }
    }
}

/// Copies what this member gives of a part into bounce memory.
fn fill(own: &Process, plan: &Plan, part: usize, bounce: &Bounce) -> Result<()> {
    match plan.give(part)? {
        Some(wire) => own.arena.write(bounce, 0, &wire),
        None => Ok(()),
    }
}

fn operation<'a>(group: &Group<'a>, way: Carried, memory: Part<'a>) -> Collect<'a> {
    let (reduction, root) = match way {
        Carried::Barrier => return group.barrier(),
        Carried::Broadcast(root) => return group.broadcast(memory, root),
        Carried::Reduce(reduction, root) => (reduction, root),
    };
    fn reduce<'a, T: Reducible>(
        group: &Group<'a>,
        memory: Part<'a>,
        operator: qnic::group::Operator,
        root: Option<u32>,
    ) -> Collect<'a> {
        match root {
            Some(root) => group.reduce::<T>(memory, operator, root),
            None => group.allreduce::<T>(memory, operator),
        }
    }
    let operator = reduction.operator;
    match reduction.element {
        Element::U32 => reduce::<u32>(group, memory, operator, root),
        Element::I32 => reduce::<i32>(group, memory, operator, root),
        Element::U64 => reduce::<u64>(group, memory, operator, root),
        Element::I64 => reduce::<i64>(group, memory, operator, root),
        Element::F32 => reduce::<f32>(group, memory, operator, root),
        Element::F64 => reduce::<f64>(group, memory, operator, root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that are known go on.
    #[test]
    fn lists_of_members_are_bounded() {
        let mut joins = Joins::default();
        for list in 0..LISTS as u64 {
            assert_eq!(joins.of(list), Ok(0));
            joins.add(list);
        }
        assert_eq!(joins.of(LISTS as u64), Err(NO_MEMORY));
        joins.add(7);
        assert_eq!((joins.of(7), joins.of(8)), (Ok(2), Ok(1)));
    }
}
