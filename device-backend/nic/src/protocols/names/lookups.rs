//! Lookups that wait for a name to appear.

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

/// A lookup of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookup {
    pub(super) call: Call,
    pub(super) name: Name,
    pub(super) deadline: Time,
}

/// All that wait; none takes longer to find than the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    waiting: BTreeMap<u64, Lookup>,
    by_name: BTreeSet<(Name, u64)>,
    by_deadline: BTreeSet<(Time, u64)>,
    by_process: BTreeMap<VniId, BTreeSet<u64>>,
    /// Names that have appeared, and for which lookups may still wait.
    appeared: BTreeSet<Name>,
    last: u64,
}

impl Lookups {
    /// How many a process has.
    pub(super) fn of_process(&self, vni: VniId) -> usize {
        self.by_process.get(&vni).map_or(0, BTreeSet::len)
    }

    /// How many each process has.
    pub(super) fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_process.values().map(BTreeSet::len)
    }

    /// Lets a lookup wait.
    pub(super) fn push(&mut self, lookup: Lookup) {
        self.last += 1;
        let number = self.last;
        self.by_name.insert((lookup.name, number));
        self.by_deadline.insert((lookup.deadline, number));
        let of_process = self.by_process.entry(lookup.call.vni).or_default();
        of_process.insert(number);
        self.waiting.insert(number, lookup);
    }

    fn first_for(&self, name: &Name) -> Option<u64> {
        let mut range = self.by_name.range((*name, 0)..=(*name, u64::MAX));
        range.next().map(|(_, number)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<Lookup> {
        let lookup = self.waiting.remove(&number)?;
        self.by_name.remove(&(lookup.name, number));
        self.by_deadline.remove(&(lookup.deadline, number));
        if let Some(of_process) = self.by_process.get_mut(&lookup.call.vni) {
            of_process.remove(&number);
            if of_process.is_empty() {
                self.by_process.remove(&lookup.call.vni);
            }
        }
        Some(lookup)
    }

    /// Notes that a name has appeared.
    pub(super) fn appeared(&mut self, name: Name) {
        if self.first_for(&name).is_some() {
            self.appeared.insert(name);
        }
    }

    /// Returns true if there may be lookups that have found their name.
    pub(super) fn has_appeared(&self) -> bool {
        !self.appeared.is_empty()
    }

    /// Takes a lookup out whose name has appeared, with what `find` says of it. A name that is
    /// gone again is waited for further.
    pub(super) fn pop_appeared(
        &mut self,
        find: impl Fn(&Name) -> Option<Place>,
    ) -> Option<(Lookup, Place)> {
        while let Some(name) = self.appeared.first().copied() {
            if let (Some(number), Some(place)) = (self.first_for(&name), find(&name)) {
                return Some((self.remove(number)?, place));
            }
            self.appeared.remove(&name);
        }
        None
    }

    /// Takes a lookup out whose time is over.
    pub(super) fn pop_expired(&mut self, now: Time) -> Option<Lookup> {
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
        let lookups = numbers.into_iter().filter_map(|number| self.remove(number));
        lookups.map(|lookup| lookup.call).collect()
    }
}
