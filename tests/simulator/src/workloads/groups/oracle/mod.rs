//! What groups and collectives promise (Q14, Q15, N26; docs/collectives.md), checked while
//! collective workers form groups and take part in collectives.
//!
//! The oracle knows which processes are to be members of each group, and what each call gives and gets
//! ([`plan`]). It learns of each command when it is issued, and looks at each completion, and at
//! the memory of the call, when the NIC stores it. So it sees at that instant whether all members
//! have called, and whether each byte is right.
//!
//! # What excuses a failure
//! A completion names the process that is the reason. The oracle knows what each member has done:
//! that it has died or left, that its time is over, that it has revoked its memory, that it has
//! called something else, or what must be refused: that ends the group at all. What a member has completed itself excuses nothing: its result was on
//! its way to all others when whatever happened to this member was told. A node as a whole is a
//! reason only if a route between nodes of the group was disturbed.
//!
//! # What it cannot see
//! When a NIC reads a call: calls that are issued count as made. Which part of the memory of a
//! call that fails has been written.
//!
//! | module | holds |
//! |---|---|
//! | `plan` | groups: members, calls, and what these give and get |
//! | `reduction` | how elements are combined |
//! | `completions` | what a completion says |
//! | `excuses` | what excuses a failure |
//! | `letters` | multicasts, and what members receive |

mod completions;
mod excuses;
mod letters;
mod plan;
mod reduction;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::{Status, PAGE_SIZE};
use qnic_nic::Limits;

use self::letters::Letters;
pub(crate) use self::letters::{LETTER, PLACE, RECEIVES};
use self::plan::Plan;
pub(crate) use self::plan::{Call, Join, Name, Shape, CALL_TIMEOUT};
use crate::expected_bytes::{ExpectedBytes, Range};
use crate::machine::platform::Machine;
use crate::per_slot::PerSlot;
use crate::process::watched::{UnavailablePage, Watched};
use crate::routes::Routes;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::workload::Oracle;

/// Bytes of the segment of a collective worker.
pub(crate) const MEMORY: u64 = CALLS + RECEIVES * PLACE;

/// The first of them are for what it calls and sends.
pub(crate) const CALLS: u64 = 48 * PAGE_SIZE as u64;

/// A member: its group, and its rank.
pub(crate) type Member = (usize, u32);

/// What a command was issued for.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Join(Member),
    Leave(Member),
    /// The n-th call of a member.
    Call(Member, usize),
    /// A call that must be refused; its memory may have been revoked meanwhile.
    Wrong(Member, Status, bool),
    Multicast(Member),
    /// A join of a process that is no member.
    Stranger,
}

/// The process in a slot, or what is left of it.
struct Process {
    watched: Watched,
    /// First address of its segment.
    address: u64,
    /// What must stand there.
    memory: ExpectedBytes,
    /// Commands under way.
    open: BTreeMap<u64, Purpose>,
    /// Receives of multicasts, and where their memory begins.
    receives: BTreeMap<u64, u64>,
    /// Groups that it is to join.
    invitations: VecDeque<Member>,
}

impl Process {
    fn new(watched: Watched, address: u64, invitations: VecDeque<Member>) -> Self {
        Process {
            watched,
            address,
            memory: ExpectedBytes::new(MEMORY),
            open: BTreeMap::new(),
            receives: BTreeMap::new(),
            invitations,
        }
    }

    /// What stands in its segment; `None` if it is dead.
    fn peek(&self, (start, length): Range) -> Option<Vec<u8>> {
        self.watched.peek(self.address + start, length)
    }

    /// Joins under way to groups of others.
    fn strangers(&self) -> usize {
        let open = self.open.values();
        open.filter(|purpose| matches!(purpose, Purpose::Stranger))
            .count()
    }
}

/// Checks all groups of one simulation.
pub(crate) struct CollectiveOracle {
    processes: PerSlot<Process>,
    plans: Vec<Plan>,
    letters: Letters,
    routes: Routes,
    limits: Limits,
    next: u64,
    completed: u64,
    bytes: u64,
}

impl CollectiveOracle {
    pub(super) fn new(settings: &Settings, routes: &Routes) -> Self {
        let watched = |slot| Watched::new(slot, settings.slots[slot]);
        let process = |slot| Process::new(watched(slot), 0, VecDeque::new());
        CollectiveOracle {
            processes: PerSlot::new(settings.others(), process),
            plans: Vec::new(),
            letters: Letters::default(),
            routes: routes.clone(),
            limits: settings.limits.clone(),
            next: 0,
            completed: 0,
            bytes: 0,
        }
    }

    /// Node and port of the process in a slot.
    pub(crate) fn name(&self, slot: usize) -> Name {
        self.processes[slot].watched.name()
    }

    /// A process begins in a slot, with a segment at this address.
    pub(crate) fn begin(&mut self, slot: usize, machine: &Arc<Machine>, space: u64, address: u64) {
        let process = &mut self.processes[slot];
        let watched = process.watched.next(machine, space);
        let invitations = std::mem::take(&mut process.invitations);
        *process = Process::new(watched, address, invitations);
    }

    /// The seats that processes in a slot have taken.
    fn seats_of(&mut self, slot: usize) -> impl Iterator<Item = &mut plan::Seat> {
        let seats = self.plans.iter_mut().flat_map(|plan| &mut plan.seats);
        seats.filter(move |seat| seat.slot == slot && seat.join.is_some())
    }

    /// Plans a group of these slots, by rank; each is to join.
    pub(crate) fn found(&mut self, name: u64, seed: u64, slots: &[usize]) {
        let members: Vec<_> = slots.iter().map(|slot| (*slot, self.name(*slot))).collect();
        for (rank, slot) in (0..).zip(slots) {
            let member = (self.plans.len(), rank);
            self.processes[*slot].invitations.push_back(member);
        }
        self.plans.push(Plan::new(name, seed, members.into_iter()));
    }

    /// The next group that a process is to join; each once.
    pub(crate) fn invitation(&mut self, slot: usize) -> Option<Member> {
        self.processes[slot].invitations.pop_front()
    }

    /// Some group that a process is no member of.
    pub(crate) fn strange(&self, slot: usize, choice: usize) -> Option<Member> {
        let last = self.plans.len().checked_sub(1 + choice)?;
        let plan = &self.plans[last];
        let member = plan.seats.iter().any(|seat| seat.slot == slot);
        (!member).then_some((last, 0))
    }

    /// Home, name, key and size of a group.
    pub(crate) fn terms(&self, (plan, _): Member) -> (Name, u64, u64, u32) {
        let plan = &self.plans[plan];
        let size = plan.seats.len() as u32;
        (plan.seats[0].name, plan.name, plan.key, size)
    }

    /// Names a command that is going to be issued.
    pub(crate) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Tries to reserve memory for a call.
    pub(crate) fn reserve(&mut self, slot: usize, handle: u64, range: Range) -> bool {
        self.processes[slot].memory.reserve(range, handle)
    }

    /// The process has read the completion of a call.
    pub(crate) fn release(&mut self, slot: usize, handle: u64) {
        self.processes[slot].memory.release(handle);
    }

    /// What a member calls as its n-th, and the bytes that its memory must have; `None` if
    /// there is no such call.
    pub(crate) fn script(&self, (plan, rank): Member, number: u32) -> Option<(Shape, Vec<u8>)> {
        let plan = &self.plans[plan];
        let shape = (number < plan.calls).then(|| plan.shape(number))?;
        let bytes = match shape.gives(rank) {
            true => plan.given(number, rank),
            // Anything, to be replaced.
            false => vec![rank as u8; shape.length as usize],
        };
        Some((shape, bytes))
    }

    /// A member joins now.
    pub(crate) fn join(&mut self, member: Member, handle: u64, mut join: Join) {
        let (number, rank) = member;
        let slot = self.plans[number].seats[rank as usize].slot;
        let seats = self.seats_of(slot);
        let others = seats.filter(|seat| {
            let end = seat.join.and_then(|join| join.end);
            !seat.gone && end.is_none_or(|end| end == Status::Ok)
        });
        let others = others.count() + self.processes[slot].strangers();
        join.full = others >= self.limits.groups as usize;
        let unsettled = self.unsettled(number, join.issued);
        let plan = &mut self.plans[number];
        plan.disturbed.extend(unsettled);
        plan.seats[rank as usize].join = Some(join);
        self.processes[slot]
            .open
            .insert(handle, Purpose::Join(member));
    }

    /// Nodes of a group between which routes may still be disturbed.
    fn unsettled(&self, plan: usize, now: u64) -> Vec<usize> {
        let seats = &self.plans[plan].seats;
        let nodes: BTreeSet<usize> = seats.iter().map(|seat| seat.name.0.into()).collect();
        let unsettled = |a: usize| {
            let mut others = nodes.iter().filter(|b| **b != a);
            others.any(|b| self.routes.are_unsettled(a, *b, now))
        };
        nodes.iter().copied().filter(|a| unsettled(*a)).collect()
    }

    /// A process that is no member joins now.
    pub(crate) fn intrude(&mut self, slot: usize, handle: u64) {
        self.processes[slot].open.insert(handle, Purpose::Stranger);
    }

    /// A member leaves now.
    pub(crate) fn leave(&mut self, member: Member, handle: u64) {
        let seat = &mut self.plans[member.0].seats[member.1 as usize];
        seat.gone = true;
        let slot = seat.slot;
        self.processes[slot]
            .open
            .insert(handle, Purpose::Leave(member));
    }

    /// There is no memory for the next call of a member.
    pub(crate) fn finds_no_room(&mut self, (number, rank): Member) {
        let seat = &mut self.plans[number].seats[rank as usize];
        seat.without_room = Some(seat.calls.len());
    }

    /// A member calls now.
    pub(crate) fn call(&mut self, member: Member, handle: u64, call: Call) {
        let (number, rank) = member;
        let plan = &mut self.plans[number];
        let seat = &plan.seats[rank as usize];
        let (slot, place) = (seat.slot, seat.calls.len());
        plan.mistaken |= call.shape != plan.shape(place as u32);
        let process = &self.processes[slot];
        let lacks = process.watched.lacks_pages(call.issued);
        let seat = &mut self.plans[number].seats[rank as usize];
        seat.lacked |= lacks;
        seat.calls.push(call);
        let process = &mut self.processes[slot];
        if call.shape.wants(rank) {
            process.memory.open(call.range.0, call.range.1);
        }
        process.open.insert(handle, Purpose::Call(member, place));
    }

    /// A member calls now what must be refused; `takes_number`: the present time, if the call is one
    /// of its group.
    pub(crate) fn call_wrongly(
        &mut self,
        member: Member,
        handle: u64,
        status: Status,
        takes_number: Option<u64>,
    ) {
        let plan = &mut self.plans[member.0];
        let seat = &plan.seats[member.1 as usize];
        let (slot, place) = (seat.slot, seat.calls.len());
        if let Some(now) = takes_number {
            let call = Call::new(now, CALL_TIMEOUT, plan.shape(place as u32), 0);
            let calls = &mut plan.seats[member.1 as usize].calls;
            calls.push(Call {
                wrong: true,
                ..call
            });
        }
        let purpose = Purpose::Wrong(member, status, false);
        self.processes[slot].open.insert(handle, purpose);
    }

    /// This stands in the memory of a process.
    pub(crate) fn wrote(&mut self, slot: usize, start: u64, bytes: &[u8]) {
        self.processes[slot].memory.set(start, bytes);
    }
}

impl Oracle for CollectiveOracle {
    fn registered(&mut self, slot: usize, frames: [u32; HOST_PAGES]) {
        self.processes[slot].watched.registered(frames);
    }

    fn end(&mut self, slot: usize, _now: u64) {
        let process = &mut self.processes[slot];
        process.watched.end();
        process.open.clear();
        process.receives.clear();
        for seat in self.seats_of(slot) {
            seat.gone = true;
            seat.dead = true;
        }
    }

    fn stored(&mut self, slot: usize, offset: usize, value: u64, now: u64) {
        for entry in self.processes[slot].watched.completions(offset, value) {
            self.ended(slot, &entry, now);
        }
    }

    fn disturb_route(&mut self, a: usize, b: usize) {
        for plan in &mut self.plans {
            if plan.has_node(a) && plan.has_node(b) {
                plan.disturbed.extend([a, b]);
            }
        }
    }

    fn has_pages(&self) -> bool {
        true
    }

    fn make_unavailable(&mut self, slot: usize, schedule: &Schedule) -> Option<UnavailablePage> {
        let process = &mut self.processes[slot];
        let address = process.address;
        let address = || address + schedule.range(0..MEMORY);
        let page = process.watched.make_unavailable(address)?;
        for seat in self.seats_of(slot) {
            seat.lacked = true;
        }
        Some(page)
    }

    fn make_available(&mut self, page: UnavailablePage, now: u64) {
        self.processes[page.slot].watched.make_available(page, now);
    }

    fn budget(&self, node: usize, name: &str) -> Option<u64> {
        let here = self.processes.values();
        let here = here.filter(|it| it.watched.node == node && it.watched.is_registered());
        let most = here.map(|process| process.receives.len() as u64).max();
        (name == "receives_of_process").then_some(most.unwrap_or(0))
    }

    fn oldest(&self) -> Option<String> {
        let open = self.processes.values().flat_map(|process| &process.open);
        let (handle, purpose) = open.min_by_key(|(handle, _)| **handle)?;
        let detail = match purpose {
            Purpose::Join((plan, rank)) | Purpose::Leave((plan, rank)) => {
                format!("{:?}", self.plans[*plan].seats[*rank as usize])
            }
            Purpose::Call((plan, rank), number) => {
                format!(
                    "{:?}",
                    self.plans[*plan].seats[*rank as usize].calls[*number]
                )
            }
            Purpose::Multicast((plan, rank)) => {
                format!("{:?}", self.plans[*plan].seats[*rank as usize])
            }
            Purpose::Wrong(..) | Purpose::Stranger => String::new(),
        };
        Some(format!(
            "command {handle} does not end: {purpose:?}: {detail}"
        ))
    }

    fn audit(&self) {
        for (slot, process) in self.processes.iter() {
            if process.watched.is_registered() {
                assert!(process.open.is_empty(), "{:?}", self.oldest());
                let memory = process.peek((0, MEMORY)).expect("it is alive");
                process
                    .memory
                    .audit(slot, "the memory of its calls", &memory);
            }
        }
    }

    /// Calls of members that ended well, and bytes that these have got.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("collectives", self.completed),
            ("collective bytes", self.bytes),
            ("multicasts", self.letters.received),
            ("multicasts in pieces", self.letters.received_in_pieces),
        ]
    }
}
