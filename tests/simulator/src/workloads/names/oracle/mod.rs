//! What names of processes promise (Q14; docs/names.md), checked while name workers register,
//! withdraw and look up.
//!
//! The oracle learns of each command when it is issued, and looks at each completion when the NIC
//! stores it. What a process does to its own names its NIC does in their order, so what each
//! Register and Withdraw must say of them is known. What a NIC knows of the names of others it
//! learns a while later: a [`Claim`](claims::Claim) says from when on a NIC must know it, and until
//! when it may.
//!
//! # What is certain
//! | of a name on | a NIC knows it | and forgets it |
//! |---|---|---|
//! | its own node | when Register completes | when Withdraw does, or the process is gone |
//! | another node | [`claims::NEWS`] later, if the route is whole | [`claims::NEWS`] later, if it is whole all the time |
//! | another node, by a route that was disturbed | when the route counts as whole again | [`claims::STALE`] later |
//!
//! A lookup may find a process that has, or may have, the name at some time while it runs. If one is
//! known when it begins, it must find one; otherwise it ends soon after one must be known. Of several that
//! must be known, those on higher nodes are not found.
//!
//! # What it cannot see
//! When within these times a NIC learns, and the order in which it learns of several nodes. Before
//! the end, answers about nodes behind a route that was disturbed are bounded by
//! [`claims::STALE`] only. When all is drained, all workers look all names up, and the answers must
//! be exact; and what each NIC shows as its table of names must be what processes have.
//!
//! | module | holds |
//! |---|---|
//! | `claims` | which process has which name since when, and which NICs must and may know |
//! | `completions` | what a completion says |

mod claims;
mod completions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::process_names::ProcessName;
use qnic_nic::Limits;

use self::claims::{Claim, NEWS, STALE};
use crate::machine::platform::Machine;
use crate::per_slot::PerSlot;
use crate::process::watched::Watched;
use crate::routes::Routes;
use crate::settings::Settings;
use crate::workload::Oracle;

/// Names that workers use.
pub(crate) const NAMES: usize = 12;

const APPLICATIONS: [&str; 4] = ["a", "ab", "grün", "sixteen bytes ok"];

/// Node and port of a process.
type Place = (u16, u16);

/// The name of that number.
pub(crate) fn process_name(name: usize) -> ProcessName {
    let application = APPLICATIONS[name % APPLICATIONS.len()];
    let number = (name / APPLICATIONS.len()) as u32;
    ProcessName::new(application, number).expect("a good name")
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// It waits for so many nanoseconds until the name is free.
    Register(u64),
    Withdraw,
    /// It waits for so many nanoseconds.
    LookUp(u64),
}

impl What {
    fn waits(self) -> bool {
        matches!(self, What::Register(1..) | What::LookUp(1..))
    }
}

/// A command under way.
#[derive(Debug, Clone, Copy)]
struct Command {
    name: usize,
    what: What,
    issued: u64,
    /// Commands of its process that may have waited when it was issued.
    waiting: usize,
}

/// The process in a slot, or what is left of it.
#[derive(Default)]
struct Process {
    watched: Watched,
    open: BTreeMap<u64, Command>,
    /// It has looked all names up when it was certain what it must find.
    looked: bool,
}

impl Process {
    fn new(watched: Watched) -> Self {
        Process {
            watched,
            ..Process::default()
        }
    }
}

/// Checks all names of one simulation.
pub(crate) struct NameOracle {
    processes: PerSlot<Process>,
    /// By name.
    claims: Vec<Vec<Claim>>,
    routes: Routes,
    limits: Limits,
    next: u64,
    registered: u64,
    found: u64,
    /// Malformed commands that workers of each node have issued.
    malformed: BTreeMap<usize, u64>,
}

impl NameOracle {
    pub(super) fn new(settings: &Settings, routes: &Routes) -> Self {
        let process = |slot| Process::new(Watched::new(slot, settings.slots[slot]));
        NameOracle {
            processes: PerSlot::new(settings.others(), process),
            claims: vec![Vec::new(); NAMES],
            routes: routes.clone(),
            limits: settings.limits.clone(),
            next: 0,
            registered: 0,
            found: 0,
            malformed: BTreeMap::new(),
        }
    }

    /// A process begins in a slot.
    pub(crate) fn begin(&mut self, slot: usize, machine: &Arc<Machine>, space: u64) {
        let process = &mut self.processes[slot];
        *process = Process::new(process.watched.next(machine, space));
    }

    /// The process in a slot is gone: its NIC has ended it, or has ended itself.
    pub(crate) fn gone(&mut self, slot: usize, now: u64) {
        for claim in self.claims_of(slot) {
            claim.until.get_or_insert(now);
        }
    }

    /// Claims of processes in a slot that have not ended.
    fn claims_of(&mut self, slot: usize) -> impl Iterator<Item = &mut Claim> {
        let claims = self.claims.iter_mut().flatten();
        claims.filter(move |claim| claim.slot == slot && claim.until.is_none())
    }

    /// A process issues a command now. Returns its handle.
    pub(crate) fn issue(&mut self, slot: usize, name: usize, what: What, now: u64) -> u64 {
        self.next += 1;
        let handle = self.next;
        let process = &self.processes[slot];
        let place = process.watched.name();
        let waiting = |command: &&Command| command.what.waits();
        let command = Command {
            name,
            what,
            issued: now,
            waiting: process.open.values().filter(waiting).count(),
        };
        match what {
            What::Register(_) => self.claims[name].push(Claim::new(slot, place, handle, now)),
            What::Withdraw => {
                let claims = self.claims[name].iter_mut();
                for claim in claims.filter(|claim| claim.slot == slot) {
                    claim.leaving.get_or_insert(now);
                }
            }
            What::LookUp(_) => {}
        }
        self.processes[slot].open.insert(handle, command);
        handle
    }

    /// A process issues a malformed command now.
    pub(crate) fn malform(&mut self, slot: usize) {
        let node = self.processes[slot].watched.node;
        *self.malformed.entry(node).or_default() += 1;
    }

    /// The queue of a process was reset: its commands that wait are forgotten.
    ///
    /// # Panics
    /// If the NIC has not executed other commands that were in front of the malformed one.
    pub(crate) fn queue_reset(&mut self, slot: usize) {
        for (handle, command) in std::mem::take(&mut self.processes[slot].open) {
            self.claims[command.name].retain(|claim| claim.handle != handle);
            assert!(
                command.what.waits(),
                "process {slot}: command {handle} has not ended: {command:?}"
            );
        }
    }

    /// The process has looked up all names since it is certain what it must find.
    pub(crate) fn looked(&mut self, slot: usize) {
        self.processes[slot].looked = true;
    }

    /// Returns true if it is certain what each lookup must find.
    pub(crate) fn is_certain(&self, now: u64) -> bool {
        let nodes: BTreeSet<usize> = self.living().map(|process| process.watched.node).collect();
        let whole = |a: usize| nodes.iter().all(|b| self.routes.whole_since(a, *b) <= now);
        let certain = |claim: &Claim| match (claim.since, claim.leaving, claim.until) {
            (_, _, Some(until)) => until + STALE <= now,
            (Some(since), None, None) => since + NEWS <= now,
            _ => false,
        };
        nodes.iter().all(|node| whole(*node)) && self.claims.iter().flatten().all(certain)
    }

    /// Processes that live.
    fn living(&self) -> impl Iterator<Item = &Process> {
        let all = self.processes.values();
        all.filter(|process| process.watched.is_registered())
    }

    /// The names that processes have for sure, and those that have them.
    fn had(&self) -> impl Iterator<Item = (usize, &Claim)> {
        let all = self.claims.iter().enumerate();
        let all = all.flat_map(|(name, claims)| claims.iter().map(move |claim| (name, claim)));
        all.filter(|(_, claim)| claim.is_had())
    }
}

impl Oracle for NameOracle {
    fn registered(&mut self, slot: usize, frames: [u32; HOST_PAGES]) {
        self.processes[slot].watched.registered(frames);
    }

    /// No process has to find it any more.
    fn end(&mut self, slot: usize, now: u64) {
        let process = &mut self.processes[slot];
        process.watched.end();
        process.open.clear();
        for claim in self.claims_of(slot) {
            claim.leaving.get_or_insert(now);
        }
    }

    fn stored(&mut self, slot: usize, offset: usize, value: u64, now: u64) {
        for entry in self.processes[slot].watched.completions(offset, value) {
            self.ended(slot, &entry, now);
        }
    }

    fn budget(&self, node: usize, name: &str) -> Option<u64> {
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        for (_, claim) in self.had() {
            let of_node = usize::from(claim.place.0);
            let key = match name {
                "names_of_process" if of_node == node => claim.slot,
                "names_of_node" => of_node,
                _ => continue,
            };
            *counts.entry(key).or_default() += 1;
        }
        counts.into_values().max()
    }

    fn names(&self) -> BTreeSet<Vec<String>> {
        let row = |(name, claim): (usize, &Claim)| {
            let name = process_name(name);
            vec![
                name.application().to_owned(),
                name.process.to_string(),
                claim.place.0.to_string(),
                claim.place.1.to_string(),
            ]
        };
        self.had().map(row).collect()
    }

    fn malformed(&self, node: usize) -> u64 {
        self.malformed.get(&node).copied().unwrap_or(0)
    }

    /// All processes that live have looked all names up at the end.
    fn is_settled(&self) -> bool {
        self.living().all(|process| process.looked)
    }

    fn oldest(&self) -> Option<String> {
        let open = self.processes.values().flat_map(|process| &process.open);
        let oldest = open.min_by_key(|(handle, _)| **handle);
        oldest.map(|(handle, command)| format!("command {handle} does not end: {command:?}"))
    }

    fn audit(&self) {
        let open = self.oldest();
        assert!(open.is_none(), "{open:?}");
    }

    /// Names that were registered, and lookups that found one.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("names", self.registered), ("names found", self.found)]
    }
}
