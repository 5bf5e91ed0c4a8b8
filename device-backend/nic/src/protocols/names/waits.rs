//! Commands that wait: lookups for a process with a name, registrations for a name without one.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::VniId;

use super::{Name, Place};
use crate::env::Time;

/// A command of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) vni: VniId,
    /// Its process knows it by that.
    pub(super) handle: u64,
    /// Names it in a trace.
    pub(super) number: u64,
}

/// What a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    /// That no process has the name.
    Free,
    /// That a process has it.
    Taken,
}

/// A command that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) call: Call,
    pub(super) name: Name,
    pub(super) awaited: Awaited,
    pub(super) deadline: Time,
}

/// All that wait; none takes longer to find than the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waiting: BTreeMap<u64, Wait>,
    by_name: BTreeSet<(Name, Awaited, u64)>,
    by_deadline: BTreeSet<(Time, u64)>,
    by_process: BTreeMap<VniId, BTreeSet<u64>>,
    /// Names that have appeared or gone, and for which commands may still wait.
    changed: BTreeSet<Name>,
    last: u64,
}

impl Waits {
    /// How many a process has.
    pub(super) fn of_process(&self, vni: VniId) -> usize {
        self.by_process.get(&vni).map_or(0, BTreeSet::len)
    }

    /// How many each process has.
    pub(super) fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_process.values().map(BTreeSet::len)
    }

    /// Lets a command wait.
    pub(super) fn push(&mut self, wait: Wait) {
        self.last += 1;
        let number = self.last;
        self.by_name.insert((wait.name, wait.awaited, number));
        self.by_deadline.insert((wait.deadline, number));
        let of_process = self.by_process.entry(wait.call.vni).or_default();
        of_process.insert(number);
        self.waiting.insert(number, wait);
    }

    fn first_for(&self, name: &Name, awaited: Awaited) -> Option<u64> {
        let range = (*name, awaited, 0)..=(*name, awaited, u64::MAX);
        let first = self.by_name.range(range).next();
        first.map(|(_, _, number)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<Wait> {
        let wait = self.waiting.remove(&number)?;
        self.by_name.remove(&(wait.name, wait.awaited, number));
        self.by_deadline.remove(&(wait.deadline, number));
        if let Some(of_process) = self.by_process.get_mut(&wait.call.vni) {
            of_process.remove(&number);
            if of_process.is_empty() {
                self.by_process.remove(&wait.call.vni);
            }
        }
        Some(wait)
    }

    /// Notes that a name has appeared, or that a process has it no more.
    pub(super) fn changed(&mut self, name: Name) {
        let range = (name, Awaited::Free, 0)..=(name, Awaited::Taken, u64::MAX);
        if self.by_name.range(range).next().is_some() {
            self.changed.insert(name);
        }
    }

    /// Returns true if there may be commands that wait no longer.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Takes a command out whose wait is over, by what `find` says of its name; with the process that
    /// has it.
    pub(super) fn pop_changed(
        &mut self,
        find: impl Fn(&Name) -> Option<Place>,
    ) -> Option<(Wait, Option<Place>)> {
        while let Some(name) = self.changed.first().copied() {
            let place = find(&name);
            let awaited = match place {
                Some(_) => Awaited::Taken,
                None => Awaited::Free,
            };
            if let Some(number) = self.first_for(&name, awaited) {
                return self.remove(number).map(|wait| (wait, place));
            }
            self.changed.remove(&name);
        }
        None
    }

    /// Takes out a registration of a name by a process, which has got it by another one.
    pub(super) fn pop_registration(&mut self, vni: VniId, name: &Name) -> Option<Wait> {
        let range = (*name, Awaited::Free, 0)..=(*name, Awaited::Free, u64::MAX);
        let of_name = self.by_name.range(range).map(|(_, _, number)| *number);
        let of_process = self.by_process.get(&vni)?;
        let number = of_name
            .into_iter()
            .find(|number| of_process.contains(number))?;
        self.remove(number)
    }

    /// Takes a command out whose time is over.
    pub(super) fn pop_expired(&mut self, now: Time) -> Option<Wait> {
        let (deadline, number) = *self.by_deadline.first()?;
        (deadline <= now).then(|| self.remove(number))?
    }

    /// When the time of the first is over.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// Forgets those of a process; returns them.
    pub(super) fn forget(&mut self, vni: VniId) -> Vec<Call> {
        let numbers = self.by_process.remove(&vni).unwrap_or_default();
        let waits = numbers.into_iter().filter_map(|number| self.remove(number));
        waits.map(|wait| wait.call).collect()
    }
}
