//! Names of processes of this node, and the log of their changes.
//!
//! ```text
//!   log, by number:   3 (a, 0) on port 7 │ 5 (b, 1) withdrawn │ 6 (b, 2) on port 9
//!                                        ▲
//!                     a node that was told up to 4 is told 5 and 6
//! ```
//! Each name stands in the log once, at its last change. [`WITHDRAWN`] withdrawn names stay there
//! at most; a node that has not been told of one that was dropped is told all from the start.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::process_names::{NameEntry, NAME_WITHDRAWN};
use qnic_abi::{Port, VniId};

use super::Name;

/// Most withdrawn names that are kept for nodes that have not been told.
const WITHDRAWN: usize = 1024;

/// Where a name is in the log.
#[derive(Debug, Clone, Copy)]
struct Own {
    number: u64,
    vni: VniId,
}

/// How far a node has been told.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Position {
    /// The number of the last change that it knows.
    pub(super) upto: u64,
    /// What was [`OwnNames::dropped`] when it was told from the start: what was dropped before, it
    /// has never known.
    dropped: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct OwnNames {
    names: BTreeMap<Name, Own>,
    of_process: BTreeMap<VniId, usize>,
    /// Where withdrawn names are in the log.
    withdrawn: BTreeMap<Name, u64>,
    /// By number: a name, and its port unless it is withdrawn.
    log: BTreeMap<u64, (Name, Option<Port>)>,
    newest: u64,
    /// A withdrawn name of this number, and none above, was dropped.
    dropped: u64,
}

impl OwnNames {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// How many a process has.
    pub(super) fn of_process(&self, vni: VniId) -> usize {
        self.of_process.get(&vni).copied().unwrap_or(0)
    }

    /// How many each process has.
    pub(super) fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.of_process.values().copied()
    }

    /// The process that has a name.
    pub(super) fn owner(&self, name: &Name) -> Option<VniId> {
        self.names.get(name).map(|own| own.vni)
    }

    /// The names of a process.
    pub(super) fn names_of(&self, vni: VniId) -> Vec<Name> {
        if self.of_process(vni) == 0 {
            return Vec::new();
        }
        let own = self.names.iter().filter(|(_, own)| own.vni == vni);
        own.map(|(name, _)| *name).collect()
    }

    /// The first name of each process that has any.
    pub(super) fn first_names(&self) -> impl Iterator<Item = (VniId, Name)> + '_ {
        let mut seen = BTreeSet::new();
        let names = self.names.iter().map(|(name, own)| (own.vni, *name));
        names.filter(move |(vni, _)| seen.insert(*vni))
    }

    /// The number of the last change.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Adds a name that no process of this node has.
    pub(super) fn register(&mut self, name: Name, vni: VniId, port: Port) {
        if let Some(number) = self.withdrawn.remove(&name) {
            self.log.remove(&number);
        }
        self.newest += 1;
        let number = self.newest;
        self.names.insert(name, Own { number, vni });
        *self.of_process.entry(vni).or_default() += 1;
        self.log.insert(number, (name, Some(port)));
    }

    /// Takes a name out.
    pub(super) fn withdraw(&mut self, name: Name) {
        let Some(own) = self.names.remove(&name) else {
            return;
        };
        if let Some(count) = self.of_process.get_mut(&own.vni) {
            *count -= 1;
            if *count == 0 {
                self.of_process.remove(&own.vni);
            }
        }
        self.log.remove(&own.number);
        self.newest += 1;
        self.log.insert(self.newest, (name, None));
        self.withdrawn.insert(name, self.newest);
        if self.withdrawn.len() > WITHDRAWN {
            let mut log = self.log.iter();
            let oldest = log.find(|(_, (_, port))| port.is_none());
            if let Some((number, name)) = oldest.map(|(number, (name, _))| (*number, *name)) {
                self.log.remove(&number);
                self.withdrawn.remove(&name);
                self.dropped = self.dropped.max(number);
            }
        }
    }

    /// What a node is told next: up to so many changes, how far it is told then, and whether
    /// that begins from the start.
    pub(super) fn news(
        &self,
        told: Option<Position>,
        most: usize,
    ) -> (Vec<NameEntry>, Position, bool) {
        let told = told.filter(|told| told.upto.max(told.dropped) >= self.dropped);
        let from = told.map_or(0, |told| told.upto);
        let later = self.log.range(from + 1..);
        // No node has to forget what it was not told.
        let wanted = later.filter(|(_, (_, port))| told.is_some() || port.is_some());
        let mut upto = self.newest;
        let mut entries = Vec::new();
        for (number, ((application, process), port)) in wanted {
            if entries.len() == most {
                break;
            }
            upto = *number;
            let flags = if port.is_none() { NAME_WITHDRAWN } else { 0 };
            entries.push(NameEntry {
                application: *application,
                process: (*process).into(),
                port: port.map_or(0, |port| port.0).into(),
                flags: flags.into(),
            });
        }
        if entries.len() < most {
            upto = self.newest;
        }
        let dropped = told.map_or(self.dropped, |told| told.dropped);
        (entries, Position { upto, dropped }, told.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that knows a withdrawn name which the log has dropped is told all from the start;
    /// one that has known none of what was dropped is not, even while it is told.
    #[test]
    fn a_node_that_missed_what_was_dropped_begins_anew() {
        let name = |number| ([1; 16], number);
        let churn = |own: &mut OwnNames| {
            for number in 1..=WITHDRAWN as u32 + 1 {
                own.register(name(number), VniId(1), Port(1));
                own.withdraw(name(number));
            }
        };
        let mut own = OwnNames::default();
        own.register(name(0), VniId(1), Port(1));
        let (_, knows, first) = own.news(None, 10);
        assert!(first);
        own.withdraw(name(0));
        churn(&mut own);
        own.register(name(5), VniId(1), Port(2));
        own.register(name(6), VniId(1), Port(2));
        let (entries, position, first) = own.news(Some(knows), 1);
        assert!(first, "it would keep the name");
        assert_eq!(entries[0].process.get(), 5);
        let (entries, position, first) = own.news(Some(position), 10);
        assert!(!first && entries.iter().any(|entry| entry.process.get() == 6));
        assert_eq!(position.upto, own.newest());
        assert!(own.log.len() <= WITHDRAWN + own.len());
    }
}
