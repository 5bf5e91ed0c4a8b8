//! What NICs change in the memory of the owners.

use super::fifo::Entry;
use super::object::{frees_by_recovery, Structure};
use super::{Checker, Kind, Operation, Worker};
use crate::memory::Words;
use crate::process::port;

/// Offset of the epoch in an object, in words.
const EPOCH: usize = 4;

/// The bits of an epoch that are all set while a process recovers an object, and all
/// zero while it is in order.
const CLAIMED: u64 = 3;

impl Checker {
    /// A NIC has changed an object of an owner.
    pub(crate) fn changed(&mut self, slot: usize, number: usize, before: &Words, after: &Words) {
        let kinds = [Kind::Lock, Kind::Queue, Kind::Semaphore];
        let Some(kind) = kinds.get(number).copied() else {
            return;
        };
        if before[EPOCH] != after[EPOCH] {
            return self.epoch_changed(slot, kind, before[EPOCH], after[EPOCH]);
        }
        if kind == Kind::Lock && frees_by_recovery(before, after) {
            self.check_recovery(slot);
        }
        let in_flight = self.in_flight(slot);
        let Some(owner) = self.owner(slot) else {
            return;
        };
        let object = owner.object(kind);
        let joined = match kind {
            Kind::Lock => object.lock_changed(before, after),
            Kind::Queue | Kind::Semaphore => {
                let (before, after) = (Structure::of(before), Structure::of(after));
                if object.reviving && after.is_empty() {
                    object.empty();
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
        let Some(operation) = joiner.and_then(|joiner| joiner.operation.as_mut()) else {
            return;
        };
        let joining = (slot, incarnation, kind);
        if (operation.owner, operation.incarnation, operation.kind) != joining {
            return;
        }
        operation.entry = joined;
        // It has the lock from now on, whether it knows or not.
        operation.holds = kind == Kind::Lock && before[2] as u32 == 0;
        let tries = operation.tries;
        if let Some(owner) = self.owner(slot).filter(|_| tries) {
            owner.object(kind).last().join_tries();
        }
    }

    /// The worker whose participant has that entry, if it lives.
    fn worker_of(&mut self, entry: Entry) -> Option<&mut Worker> {
        let index = entry.port().checked_sub(port(self.first))?;
        let worker = self.workers.get_mut(usize::from(index));
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
        let object = owner.object(kind);
        if after & CLAIMED == CLAIMED {
            object.reviving = true;
        }
        let breaks = before & CLAIMED == 0 && after & CLAIMED != 0;
        assert!(
            !breaks || disturbed || owner.tainted,
            "the {kind:?} of sync worker {slot} breaks, but no process has died"
        );
    }

    /// A recovery frees a lock: no process that lives may hold it.
    fn check_recovery(&mut self, slot: usize) {
        let disturbed = self.disturbed;
        let Some(owner) = self.owner(slot) else {
            return;
        };
        let (incarnation, dying) = (owner.incarnation, owner.dying);
        if disturbed || dying {
            return;
        }
        let holds = |worker: &&Worker| {
            let operation = worker.operation.as_ref().filter(|_| !worker.dying);
            operation.is_some_and(|found| {
                let lock = (found.owner, found.incarnation, found.kind);
                lock == (slot, incarnation, Kind::Lock) && found.holds
            })
        };
        let holder = self.workers.iter().find(holds);
        let holder = holder.and_then(|worker| worker.operation.as_ref());
        assert!(
            holder.is_none(),
            "the lock of sync worker {slot} is recovered from a holder that lives"
        );
    }
}
