//! What workers report: what they are about to do, and what the library let them do.

use super::{Checker, Kind, Operation, Owner};

impl Checker {
    /// A worker has imported the objects of an owner.
    pub(crate) fn imported(&mut self, slot: usize, owner: usize, address: u64) {
        let there = self.owner(owner).filter(|owner| owner.address == address);
        let incarnation = there.map(|owner| owner.incarnation);
        let imported = &mut self.worker(slot).imported;
        match incarnation {
            Some(incarnation) => imported.insert(owner, incarnation),
            // That one has died meanwhile.
            None => imported.remove(&owner),
        };
    }

    /// A worker is about to join.
    pub(crate) fn enters(&mut self, now: u64, slot: usize, owner: usize, kind: Kind) {
        let incarnation = self.worker(slot).imported.get(&owner).copied();
        let operation = Some(Operation {
            since: now,
            owner,
            incarnation: incarnation.unwrap_or_default(),
            kind,
            entry: None,
            tries: false,
            holds: false,
        });
        let worker = self.worker(slot);
        match kind {
            Kind::Condition => worker.waiting = operation,
            _ => worker.operation = operation,
        }
    }

    /// What it is about to do is only to try to take the lock.
    pub(crate) fn tries(&mut self, slot: usize) {
        if let Some(operation) = &mut self.worker(slot).operation {
            operation.tries = true;
        }
    }

    /// It leaves the queue of an object out of turn, which breaks the object as a death does.
    pub(crate) fn gives_up(&mut self, slot: usize) {
        if let Some((operation, owner)) = self.operation(slot) {
            owner.tainted = true;
            let object = owner.object(operation.kind);
            object.tainted = true;
            if let Some((entry, queue)) = operation
                .entry
                .and_then(|entry| Some((entry, object.queue_of_mut(entry)?)))
            {
                queue.give_up(entry);
            }
        }
    }

    /// Its operation is complete.
    pub(crate) fn leaves(&mut self, slot: usize) {
        self.completed += 1;
        self.worker(slot).operation = None;
    }

    /// Its operation has ended with an error: its entry stays in its queue.
    pub(crate) fn failed(&mut self, slot: usize) {
        let worker = self.worker(slot);
        (worker.operation, worker.waiting) = (None, None);
    }

    /// The operation of a worker, and the owner if it is still that one.
    fn operation(&mut self, slot: usize) -> Option<(Operation, &mut Owner)> {
        let operation = self.worker(slot).operation.clone()?;
        self.with_owner(operation)
    }

    fn with_owner(&mut self, operation: Operation) -> Option<(Operation, &mut Owner)> {
        let owner = self.same_owner(operation.owner, operation.incarnation)?;
        Some((operation, owner))
    }

    /// A worker has the lock.
    pub(crate) fn holds(&mut self, slot: usize) {
        let disturbed = self.disturbed;
        let Some((operation, owner)) = self.operation(slot) else {
            return;
        };
        let Some(entry) = operation.entry else {
            panic!("sync worker {slot} holds a lock that it never joined");
        };
        let dying = owner.dying;
        let queue = owner.object(operation.kind).queue_of_mut(entry);
        let first = queue.and_then(|queue| {
            queue.pass_withdrawn(Some(entry));
            queue.first()
        });
        let (owner, kind) = (operation.owner, operation.kind);
        assert_eq!(
            first,
            Some(entry),
            "sync worker {slot} holds the {kind:?} of sync worker {owner} out of turn"
        );
        let holder = self.holder(owner, operation.incarnation, kind);
        let other = holder.filter(|holder| *holder != slot);
        assert!(
            disturbed || dying || other.is_none(),
            "sync workers {slot} and {other:?} hold the {kind:?} of sync worker {owner}"
        );
        if let Some(operation) = &mut self.worker(slot).operation {
            operation.holds = true;
        }
    }

    /// A holder reads the protected word.
    pub(crate) fn reads(&mut self, slot: usize, value: u64) {
        let disturbed = self.disturbed;
        let Some((operation, owner)) = self.operation(slot) else {
            return;
        };
        let kind = operation.kind;
        if let Some(expected) = owner.protected[kind as usize].filter(|_| !disturbed) {
            assert_eq!(
                value, expected,
                "sync worker {slot} does not see what was written under the {kind:?} of sync \
                 worker {}",
                operation.owner
            );
        }
    }

    /// A holder has written the protected word, and is about to release the lock.
    pub(crate) fn releases(&mut self, slot: usize, value: Option<u64>) {
        if let Some(operation) = &mut self.worker(slot).operation {
            operation.holds = false;
        }
        if let Some((operation, owner)) = self.operation(slot) {
            let protected = &mut owner.protected[operation.kind as usize];
            *protected = protected.and(value);
            let object = owner.object(operation.kind);
            if let Some(queue) = operation.entry.and_then(|entry| object.queue_of_mut(entry)) {
                queue.serve();
            }
        }
    }

    /// A worker has taken a unit.
    pub(crate) fn takes(&mut self, slot: usize) {
        let Some((operation, owner)) = self.operation(slot) else {
            return;
        };
        owner.holders.insert(slot);
        let (held, units) = (owner.held(), owner.units);
        assert!(
            held <= units,
            "{held} units of the semaphore of sync worker {} are out, which has {units}",
            operation.owner
        );
        if let Some(entry) = operation.entry {
            owner.object(Kind::Semaphore).check_served(slot, entry);
        }
    }

    /// A holder is about to give its unit back.
    pub(crate) fn gives(&mut self, slot: usize) {
        if let Some((_, owner)) = self.operation(slot) {
            owner.holders.remove(&slot);
        }
    }

    /// Units that no process which lives holds, as far as is known.
    pub(crate) fn units_left(&self, owner: usize) -> u32 {
        let owner = self.owners[owner].as_ref();
        owner.map_or(0, |owner| {
            owner.units.saturating_sub(owner.holders.len() as u64) as u32
        })
    }

    /// A worker has signalled a wait queue, and learnt that a process waited.
    pub(crate) fn signalled(&mut self, slot: usize, owner: usize, kind: Kind) {
        let incarnation = self.worker(slot).imported.get(&owner).copied();
        let owner = incarnation.and_then(|incarnation| self.same_owner(owner, incarnation));
        if let Some(owner) = owner {
            owner.signals[kind as usize] += 1;
        }
    }

    /// A worker in a wait queue is woken.
    pub(crate) fn woken(&mut self, slot: usize, kind: Kind) {
        let operation = self.worker(slot).operation_at(kind).cloned();
        if let Some((operation, owner)) = operation.and_then(|found| self.with_owner(found)) {
            let Some(entry) = operation.entry else {
                panic!("sync worker {slot} is woken in a queue that it never joined");
            };
            owner.object(kind).check_served(slot, entry);
        }
        if kind == Kind::Condition {
            self.worker(slot).waiting = None;
        }
    }
}
