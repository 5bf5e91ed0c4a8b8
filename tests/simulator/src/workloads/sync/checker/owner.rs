//! The objects of one worker, and what is known of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::object::{Object, Structure};
use super::{Kind, Operation, OBJECTS};
use crate::machine::memory::{words, Words};
use crate::machine::platform::Machine;

/// A worker that lives, as the owner of objects that all workers use.
pub(super) struct Owner {
    pub(super) incarnation: u32,
    machine: Arc<Machine>,
    space: u64,
    pub(super) address: u64,
    pub(super) objects: [Object; OBJECTS],
    /// Units of the semaphore, the workers that hold one, and how many units have died
    /// with their holders.
    pub(super) units: u64,
    pub(super) holders: BTreeSet<usize>,
    pub(super) lost: u64,
    /// Signals to each wait queue for which a process waited.
    pub(super) signals: [u64; OBJECTS],
    /// What the word that each lock protects is, if that is known.
    pub(super) protected: [Option<u64>; OBJECTS],
    pub(super) tainted: bool,
    /// A process that waits for the condition, and cannot enter the monitor, leaves the
    /// condition's queue out of turn.
    pub(super) monitor_is_broken: bool,
    /// Its worker is being killed, and what it has exported goes.
    pub(super) dying: bool,
}

impl Owner {
    pub(super) fn new(
        incarnation: u32,
        machine: &Arc<Machine>,
        (space, address): (u64, u64),
        units: u32,
    ) -> Self {
        Owner {
            incarnation,
            machine: machine.clone(),
            space,
            address,
            objects: std::array::from_fn(|_| Object::new()),
            units: units.into(),
            holders: BTreeSet::new(),
            lost: 0,
            signals: [0; OBJECTS],
            protected: [Some(0); OBJECTS],
            tainted: false,
            monitor_is_broken: false,
            dying: false,
        }
    }

    /// A process that used its objects dies.
    pub(super) fn taint(&mut self) {
        self.tainted = true;
        self.protected = [None; OBJECTS];
        self.objects
            .iter_mut()
            .for_each(|object| object.tainted = true);
    }

    pub(super) fn object(&mut self, kind: Kind) -> &mut Object {
        &mut self.objects[kind as usize]
    }

    /// An object as it stands in memory.
    pub(super) fn peek(&self, kind: Kind) -> Words {
        let at = self.address + kind as u64 * qnic::sync::OBJECT_BYTES;
        let bytes = self.machine.kernel.peek(self.space, at, size_of::<Words>());
        words(&bytes.expect("its owner is there"))
    }

    /// Units that are out, as far as is known.
    pub(super) fn held(&self) -> u64 {
        self.holders.len() as u64 + self.lost
    }

    /// Returns true if nothing can serve this operation any more.
    pub(super) fn starves(&self, operation: &Operation, disturbed: bool) -> bool {
        let object = &self.objects[Kind::Semaphore as usize];
        let entry = operation.entry;
        let queue = entry.and_then(|entry| Some((entry, object.queue_of(entry)?)));
        operation.kind == Kind::Semaphore
            && (self.tainted || disturbed)
            && self.holders.is_empty()
            && Structure::of(&self.peek(operation.kind)).value == 0
            && queue.is_some_and(|(entry, queue)| !queue.served(entry))
    }

    /// All operations are over: all units are back, and no process waits.
    pub(super) fn audit(&self, slot: usize, disturbed: bool) {
        let semaphore = Structure::of(&self.peek(Kind::Semaphore));
        let (value, held, units) = (semaphore.value, self.held(), self.units);
        assert!(
            value + held <= units,
            "sync worker {slot}: {value} units in the value and {held} held, but there are {units}"
        );
        if self.tainted || disturbed {
            return;
        }
        for kind in [Kind::Queue, Kind::Condition] {
            assert_eq!(
                self.signals[kind as usize],
                self.objects[kind as usize].served(),
                "sync worker {slot}: signals to the {kind:?}, and how many were woken"
            );
            let waiting = Structure::of(&self.peek(kind)).count;
            assert_eq!(waiting, 0, "sync worker {slot}: processes in the {kind:?}");
        }
        for kind in [Kind::Lock, Kind::Monitor] {
            let turns = self.peek(kind)[2] as u32;
            assert_eq!(turns, 0, "sync worker {slot}: turns of the {kind:?}");
        }
        assert_eq!(
            (value, semaphore.count),
            (units, 0),
            "sync worker {slot}: units of the semaphore, processes that wait for it"
        );
    }
}
