//! What locks, semaphores and wait queues promise (N21, N22, N24), checked while
//! sync workers use them.
//!
//! The checker has two sources. It sees each change that a NIC makes to an object in
//! the memory of its owner: which process joins, which one is woken, which units come
//! and go. And the workers report what the library let them do. The two must fit.
//! `docs/simulation.md` says which promises are checked, when, and which of them hold at
//! owners that are *tainted*: a process that used them has died.
//!
//! The order in which the owner's NIC executes joining operations is a FIFO queue. A
//! recovery ends it and begins another. A process that dies or gives up stays in its
//! queue for ever. Promises hold within a queue: a recovery may begin a new one under a holder
//! that was cut off. A recovery under any other holder that lives is a mistake, from the
//! moment at which the NIC gives that one the lock.
//!
//! A monitor is a lock and a wait queue, and its workers are at both: a worker that waits for
//! the condition is in its queue before the monitor's lock passes on, so no signal is lost.
//! After a recovery, a wait queue or semaphore breaks only if a process dies once more.
//!
//! | module | holds |
//! |---|---|
//! | `fifo`, `object` | the queue of a joined object; what a change of its memory means |
//! | `owner` | the objects of one worker |
//! | `changes`, `reports` | the two sources: what NICs change, what workers report |

mod changes;
mod fifo;
mod object;
mod owner;
mod reports;

use std::collections::BTreeMap;
use std::sync::Arc;

use fifo::Entry;
use owner::Owner;

use crate::machine::memory::Words;
use crate::machine::platform::Machine;
use crate::per_slot::PerSlot;
use crate::settings::Settings;
use crate::workload::Oracle;

/// Objects of an owner.
pub(crate) const OBJECTS: usize = 5;

/// What an object is; its number at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lock = 0,
    Queue = 1,
    Semaphore = 2,
    /// The lock of a monitor.
    Monitor = 3,
    /// The wait queue of the monitor's condition.
    Condition = 4,
}

impl Kind {
    const ALL: [Kind; OBJECTS] = [
        Kind::Lock,
        Kind::Queue,
        Kind::Semaphore,
        Kind::Monitor,
        Kind::Condition,
    ];

    fn is_lock(self) -> bool {
        matches!(self, Kind::Lock | Kind::Monitor)
    }
}

/// What a worker does.
#[derive(Debug, Clone)]
struct Operation {
    since: u64,
    owner: usize,
    /// Which incarnation of the owner.
    incarnation: u32,
    kind: Kind,
    /// Its entry in a queue, once the owner's NIC has executed its joining operation.
    entry: Option<Entry>,
    /// It takes the lock only if it is free.
    tries: bool,
    /// It has the lock, and has not begun to release it.
    holds: bool,
}

/// The process in a slot.
#[derive(Default)]
struct Worker {
    /// Its participant's incarnation, as entries carry it.
    incarnation: Option<u16>,
    operation: Option<Operation>,
    /// It waits for a condition, beside that operation.
    waiting: Option<Operation>,
    /// Owners whose objects it has imported, and which incarnation of them.
    imported: BTreeMap<usize, u32>,
    /// It is being killed.
    dying: bool,
}

impl Worker {
    fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.operation.iter().chain(&self.waiting)
    }

    /// Its operation at an object of that kind.
    fn operation_at(&mut self, kind: Kind) -> Option<&mut Operation> {
        let operations = self.operation.iter_mut().chain(&mut self.waiting);
        operations.into_iter().find(|found| found.kind == kind)
    }
}

/// Checks all of it.
pub(crate) struct Checker {
    workers: PerSlot<Worker>,
    owners: PerSlot<Option<Owner>>,
    incarnations: u32,
    /// A NIC was reset, a node lost its power, or a route was cut.
    disturbed: bool,
    /// Operations that workers have completed.
    completed: u64,
}

impl Checker {
    pub(crate) fn new(settings: &Settings) -> Self {
        Checker {
            workers: PerSlot::new(settings.others(), |_| Worker::default()),
            owners: PerSlot::new(settings.others(), |_| None),
            incarnations: 0,
            disturbed: false,
            completed: 0,
        }
    }

    fn owner(&mut self, slot: usize) -> Option<&mut Owner> {
        self.owners[slot].as_mut()
    }

    /// The owner in a slot, if it is still that incarnation.
    fn same_owner(&mut self, slot: usize, incarnation: u32) -> Option<&mut Owner> {
        let owner = self.owner(slot);
        owner.filter(|owner| owner.incarnation == incarnation)
    }

    fn worker(&mut self, slot: usize) -> &mut Worker {
        &mut self.workers[slot]
    }

    /// A worker has made its objects, with a semaphore of so many units.
    pub(crate) fn begin(
        &mut self,
        slot: usize,
        machine: &Arc<Machine>,
        area: (u64, u64),
        units: u32,
    ) {
        self.incarnations += 1;
        let owner = Owner::new(self.incarnations, machine, area, units);
        self.owners[slot] = Some(owner);
    }

    pub(crate) fn joined(&mut self, slot: usize, incarnation: u16) {
        self.worker(slot).incarnation = Some(incarnation);
    }

    /// A worker ends: cleanly, or in whatever it was doing.
    pub(crate) fn ended(&mut self, slot: usize, cleanly: bool) {
        let worker = std::mem::take(self.worker(slot));
        self.owners[slot] = None;
        if cleanly {
            return;
        }
        for (owner, incarnation) in worker.imported {
            if let Some(owner) = self.same_owner(owner, incarnation) {
                owner.taint();
                owner.lost += u64::from(owner.holders.remove(&slot));
            }
        }
    }

    /// Returns true if operations on an owner's objects may fail: the incarnation that
    /// the worker has imported from is gone, or a route was disturbed.
    pub(crate) fn may_fail(&self, slot: usize, owner: usize) -> bool {
        let known = self.workers[slot].imported.get(&owner);
        let there = self.owners[owner].as_ref();
        let there = there.filter(|owner| !owner.dying);
        self.disturbed || known.is_none() || there.map(|owner| &owner.incarnation) != known
    }

    /// Returns true if an object of the owner that the worker has imported may be broken.
    pub(crate) fn may_break(&self, slot: usize, owner: usize) -> bool {
        let there = self.owners[owner].as_ref();
        self.may_fail(slot, owner) || there.is_none_or(|owner| owner.tainted)
    }

    /// Operations under way, with the slots of their workers.
    fn operations(&self) -> impl Iterator<Item = (usize, &Operation)> {
        let workers = self.workers.iter();
        workers.flat_map(|(slot, worker)| worker.operations().map(move |found| (slot, found)))
    }
}

impl Oracle for Checker {
    fn killed(&mut self, slot: usize) {
        self.worker(slot).dying = true;
        if let Some(owner) = self.owner(slot) {
            owner.dying = true;
        }
        for (owner, incarnation) in self.worker(slot).imported.clone() {
            if let Some(owner) = self.same_owner(owner, incarnation) {
                owner.taint();
            }
        }
    }

    fn end(&mut self, slot: usize, _now: u64) {
        self.ended(slot, false);
    }

    fn changed(&mut self, slot: usize, object: usize, before: &Words, after: &Words) {
        self.object_changed(slot, object, before, after);
    }

    /// A NIC was reset, a node lost its power, or a route was cut.
    fn disturb_route(&mut self, _a: usize, _b: usize) {
        self.disturbed = true;
    }

    fn oldest(&self) -> Option<String> {
        let (slot, operation) = self.operations().min_by_key(|(_, found)| found.since)?;
        let owner = self.owners[operation.owner].as_ref();
        let words = owner.map(|owner| owner.peek(operation.kind));
        let Operation {
            kind, owner, since, ..
        } = operation;
        Some(format!(
            "sync worker {slot} waits at the {kind:?} of sync worker {owner} since {since} ns; \
             there stands {words:x?}"
        ))
    }

    /// Workers that wait for units of a semaphore which have died with their holders, or
    /// on their way: they wait for ever, as documented.
    fn starving(&self) -> Vec<usize> {
        let starves = |operation: &Operation| {
            let owner = self.owners[operation.owner].as_ref();
            let owner = owner.filter(|owner| owner.incarnation == operation.incarnation);
            owner.is_some_and(|owner| owner.starves(operation, self.disturbed))
        };
        let starving = self.operations().filter(|(_, found)| starves(found));
        starving.map(|(slot, _)| slot).collect()
    }

    /// Nothing of the operations may be left at the owners.
    fn audit(&self) {
        for (slot, owner) in self.owners.iter() {
            if let Some(owner) = owner {
                owner.audit(slot, self.disturbed);
            }
        }
    }

    /// Operations on locks, semaphores and wait queues.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("sync operations", self.completed)]
    }
}
