//! What NICs change in the memory of the owners.

use super::fifo::Entry;
use super::object::{frees_by_recovery, Structure};
use super::{Checker, Kind, Operation, Worker};
use crate::machine::memory::Words;
use crate::settings::port;

/// Offset of the epoch in an object, in words.
const EPOCH: usize = 4;

/// The bits of an epoch that are all set while a process recovers an object, and all
/// zero while it is in order.
const CLAIMED: u64 = 3;

impl Checker {
    /// A NIC has changed an object of an owner.
    pub(super) fn object_changed(
        &mut self,
        slot: usize,
        number: usize,
        before: &Words,
        after: &Words,
    ) {
        let Some(kind) = Kind::ALL.get(number).copied() else {
            return;
        };
        if before[EPOCH] != after[EPOCH] {
            return self.epoch_changed(slot, kind, before[EPOCH], after[EPOCH]);
        }
        if kind.is_lock() && frees_by_recovery(before, after) {
            self.check_recovery(slot, kind);
        } else if kind == Kind::Monitor {
            self.check_leaves_to_wait(slot, before, after);
        }
        let in_flight = self.in_flight(slot);
        let Some(owner) = self.owner(slot) else {
            return;
        };
        let monitor_is_broken = owner.monitor_is_broken;
        let object = owner.object(kind);
        let joined = match kind {
            Kind::Lock | Kind::Monitor => object.lock_changed(before, after),
            Kind::Queue | Kind::Semaphore | Kind::Condition => {
                let (before, after) = (Structure::of(before), Structure::of(after));
                if before.generation != after.generation {
                    object.empty();
                    if kind == Kind::Condition {
                        object.tainted = monitor_is_broken;
                    }
                    if kind == Kind::Semaphore {
                        // Operations under way may have taken units, or bring some.
                        owner.units = after.value + owner.holders.len() as u64 + in_flight;
                        owner.lost = 0;
                    }
                    return;
                }
                object.queue_changed(kind, &before, &after)
            }
        };
        let incarnation = owner.incarnation;
        let joiner = joined.and_then(|entry| self.worker_of(entry));
        let Some(operation) = joiner.and_then(|joiner| joiner.operation_at(kind)) else {
            return;
        };
        if (operation.owner, operation.incarnation) != (slot, incarnation) {
            return;
        }
        operation.entry = joined;
        // It has the lock from now on, whether it knows or not.
        operation.holds = kind.is_lock() && before[2] as u32 == 0;
        let tries = operation.tries;
        if let Some(owner) = self.owner(slot).filter(|_| tries) {
            owner.object(kind).last().join_tries();
        }
    }

    /// The worker whose participant has that entry, if it lives.
    fn worker_of(&mut self, entry: Entry) -> Option<&mut Worker> {
        let slot = entry.port().checked_sub(port(0))?;
        let worker = self.workers.get_mut(slot.into());
        worker.filter(|worker| worker.incarnation == Some(entry.incarnation()))
    }

    /// Operations under way at the semaphore of an owner.
    fn in_flight(&self, owner: usize) -> u64 {
        let concerned = |found: &Operation| found.kind == Kind::Semaphore && found.owner == owner;
        let operations = self.operations();
        operations.filter(|(_, found)| concerned(found)).count() as u64
    }

    fn epoch_changed(&mut self, slot: usize, kind: Kind, before: u64, after: u64) {
        let disturbed = self.disturbed;
        let Some(owner) = self.owner(slot) else {
            return;
        };
        // One that was thrown away may not break the next one.
        let tainted = match kind.is_lock() {
            true => owner.tainted,
            false => owner.object(kind).tainted,
        };
        let breaks = before & CLAIMED == 0 && after & CLAIMED != 0;
        assert!(
            !breaks || disturbed || tainted,
            "the {kind:?} of sync worker {slot} breaks, but no process has died"
        );
        if kind == Kind::Monitor {
            owner.monitor_is_broken = after & CLAIMED != 0;
            owner.object(Kind::Condition).tainted |= breaks;
        }
    }

    /// A monitor passes on: the process that was in it, if it waits for the condition, is in
    /// the condition's queue.
    fn check_leaves_to_wait(&mut self, slot: usize, before: &Words, after: &Words) {
        let passes_on = after[2] as u32 == 0 || after[0] != before[0];
        let disturbed = self.disturbed;
        let owner = self.owner(slot);
        let Some(owner) = owner.filter(|owner| !owner.tainted && !owner.dying) else {
            return;
        };
        let incarnation = owner.incarnation;
        if disturbed || !passes_on || before[2] as u32 == 0 {
            return;
        }
        let leaves = Entry::of(before[0]).and_then(|entry| self.worker_of(entry));
        let waiting = leaves.and_then(|worker| worker.waiting.as_ref());
        let waits = waiting.filter(|found| (found.owner, found.incarnation) == (slot, incarnation));
        assert!(
            waits.is_none_or(|waiting| waiting.entry.is_some()),
            "a process leaves the monitor of sync worker {slot} before it waits for the condition"
        );
    }

    /// A recovery frees a lock: no process that lives may hold it.
    fn check_recovery(&mut self, slot: usize, kind: Kind) {
        let disturbed = self.disturbed;
        let Some(owner) = self.owner(slot) else {
            return;
        };
        let (incarnation, dying) = (owner.incarnation, owner.dying);
        if disturbed || dying {
            return;
        }
        assert_eq!(
            self.holder(slot, incarnation, kind),
            None,
            "the {kind:?} of sync worker {slot} is recovered from a holder that lives"
        );
    }

    /// The worker that holds a lock, and lives.
    pub(super) fn holder(&self, slot: usize, incarnation: u32, kind: Kind) -> Option<usize> {
        let mut operations = self.operations();
        let holds = |(worker, found): &(usize, &Operation)| {
            let lock = (found.owner, found.incarnation, found.kind);
            lock == (slot, incarnation, kind) && found.holds && !self.workers[*worker].dying
        };
        operations.find(holds).map(|(worker, _)| worker)
    }
}
