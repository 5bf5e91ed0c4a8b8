//! Imports of peers that wait here for a name to be exported, and an [`Agenda`]: what is to be done,
//! by number and by time.
//!
//! A peer has a quota, and each of its processes a smaller one; an import beyond it is refused.
//! Parked imports are found by name, importer and deadline: no frame, export or poll looks through
//! those of others (X8).

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::{Port, Secret, SegmentName};

use crate::config::Limits;
use crate::env::Time;
use crate::ids::PeerIndex;

/// An import of a peer that waits for a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parked {
    pub(super) peer: PeerIndex,
    /// Number of the request's frame.
    pub(super) sequence: u64,
    pub(super) importer: Port,
    /// What the importer calls it.
    pub(super) number: u64,
    pub(super) port: Port,
    pub(super) name: SegmentName,
    /// What the importer presents.
    pub(super) secret: Secret,
    pub(super) deadline: Time,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct ParkedImports {
    next: u64,
    agenda: Agenda<Parked>,
    names: BTreeSet<(Port, SegmentName, u64)>,
    importers: BTreeSet<(PeerIndex, Port, u64)>,
    /// How many are of each peer.
    of_peers: BTreeMap<PeerIndex, u32>,
    /// How many are of each process of a peer.
    of_processes: BTreeMap<(PeerIndex, Port), u32>,
}

impl ParkedImports {
    /// Returns true if there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.agenda.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.agenda.len()
    }

    /// How many there are of each peer that has any.
    pub(super) fn of_peers(&self) -> impl Iterator<Item = u32> + '_ {
        self.of_peers.values().copied()
    }

    /// Returns true if another import of a process of a peer may wait here.
    pub(super) fn has_room(&self, limits: &Limits, peer: PeerIndex, importer: Port) -> bool {
        let all = self.of_peers.get(&peer).copied().unwrap_or(0);
        let own = self.of_processes.get(&(peer, importer)).copied();
        all < limits.parked_imports_per_peer && own.unwrap_or(0) < limits.parked_imports
    }

    /// Lets an import wait; there is room for it.
    pub(super) fn push(&mut self, parked: Parked) {
        let (peer, importer, number) = (parked.peer, parked.importer, self.next);
        self.next += 1;
        self.names.insert((parked.port, parked.name, number));
        self.importers.insert((peer, importer, number));
        *self.of_peers.entry(peer).or_default() += 1;
        *self.of_processes.entry((peer, importer)).or_default() += 1;
        self.agenda.insert(number, parked.deadline, parked);
    }

    /// When the next deadline is.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.agenda.first_due()
    }

    /// Takes one out whose deadline has passed.
    pub(super) fn pop_expired(&mut self, now: Time) -> Option<Parked> {
        let number = self.agenda.next_due(now)?;
        self.remove(number)
    }

    /// Takes the first one out that waits for a name.
    pub(super) fn pop_named(&mut self, port: Port, name: SegmentName) -> Option<Parked> {
        let range = (port, name, 0)..=(port, name, u64::MAX);
        let (_, _, number) = *self.names.range(range).next()?;
        self.remove(number)
    }

    /// Returns true if any waits for a name.
    pub(super) fn wants(&self, port: Port, name: SegmentName) -> bool {
        let range = (port, name, 0)..=(port, name, u64::MAX);
        self.names.range(range).next().is_some()
    }

    /// Forgets those of a peer.
    pub(super) fn forget_peer(&mut self, peer: PeerIndex) {
        let range = (peer, Port(0), 0)..=(peer, Port(u16::MAX), u64::MAX);
        while let Some(&(_, _, number)) = self.importers.range(range.clone()).next() {
            self.remove(number);
        }
    }

    /// Forgets those of a process of a peer that came with frames up to `sequence`.
    pub(super) fn forget_process(&mut self, peer: PeerIndex, importer: Port, sequence: u64) {
        let range = (peer, importer, 0)..=(peer, importer, u64::MAX);
        let numbers = self.importers.range(range).map(|(_, _, number)| *number);
        let void = |number: &u64| {
            let parked = self.agenda.get(*number);
            parked.is_some_and(|parked| parked.sequence <= sequence)
        };
        let numbers: Vec<u64> = numbers.filter(void).collect();
        for number in numbers {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Parked> {
        let parked = self.agenda.remove(number)?;
        let (peer, importer) = (parked.peer, parked.importer);
        self.names.remove(&(parked.port, parked.name, number));
        self.importers.remove(&(peer, importer, number));
        count_down(&mut self.of_peers, peer);
        count_down(&mut self.of_processes, (peer, importer));
        Some(parked)
    }
}

/// One less of a kind; nothing is kept of one that has none.
pub(super) fn count_down<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// Entries that have a number and a time at which something is to be done about them. Each
/// is found by either; no access takes longer than the logarithm of their number.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    entries: BTreeMap<u64, (Time, T)>,
    due: BTreeSet<(Time, u64)>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Agenda {
            entries: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }
}

impl<T> Agenda<T> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of that number.
    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.entries.get(&number).map(|(_, entry)| entry)
    }

    /// Puts an entry in; there is none of that number.
    pub(super) fn insert(&mut self, number: u64, due: Time, entry: T) {
        self.due.insert((due, number));
        self.entries.insert(number, (due, entry));
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let (due, entry) = self.entries.remove(&number)?;
        self.due.remove(&(due, number));
        Some(entry)
    }

    /// When something is to be done next.
    pub(super) fn first_due(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The number of the entry about which something is to be done next, if that is by now.
    pub(super) fn next_due(&self, now: Time) -> Option<u64> {
        let (due, number) = *self.due.first()?;
        (due <= now).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parked(peer: u16, importer: u16, name: u64, deadline: u64) -> Parked {
        Parked {
            peer: PeerIndex(peer),
            sequence: deadline,
            importer: Port(importer),
            number: 0,
            port: Port(1),
            name: SegmentName(name),
            secret: Secret::default(),
            deadline: Time(deadline),
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(u16, u16, u64, u64),
        Expire(u64),
        Export(u64),
        Peer(u16),
        Process(u16, u16, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (peer, importer, name, time) = (0u16..3, 1u16..4, 0u64..4, 0u64..20);
        prop_oneof![
            6 => (peer.clone(), importer.clone(), name.clone(), time.clone())
                .prop_map(|(peer, importer, name, time)| Step::Push(peer, importer, name, time)),
            1 => time.clone().prop_map(Step::Expire),
            1 => name.prop_map(Step::Export),
            1 => peer.clone().prop_map(Step::Peer),
            1 => (peer, importer, time)
                .prop_map(|(peer, importer, time)| Step::Process(peer, importer, time)),
        ]
    }

    proptest! {
        /// The same as a list that is looked through.
        #[test]
        fn all_ways_find_the_same(steps in prop::collection::vec(step(), 0..100)) {
            let limits = Limits {
                parked_imports_per_peer: 6,
                parked_imports: 3,
                ..Limits::default()
            };
            let mut imports = ParkedImports::default();
            let mut list: Vec<Parked> = Vec::new();
            for step in steps {
                match step {
                    Step::Push(peer, importer, name, time) => {
                        let new = parked(peer, importer, name, time);
                        let of_peer = list.iter().filter(|other| other.peer == new.peer);
                        let own = of_peer.clone().filter(|other| other.importer == new.importer);
                        let room = of_peer.count() < 6 && own.count() < 3;
                        prop_assert_eq!(imports.has_room(&limits, new.peer, new.importer), room);
                        if room {
                            imports.push(new);
                            list.push(new);
                        }
                    }
                    Step::Expire(now) => {
                        while let Some(expired) = imports.pop_expired(Time(now)) {
                            prop_assert!(expired.deadline.0 <= now);
                        }
                        list.retain(|parked| parked.deadline.0 > now);
                    }
                    Step::Export(name) => {
                        let name = SegmentName(name);
                        let waits = list.iter().any(|parked| parked.name == name);
                        prop_assert_eq!(imports.wants(Port(1), name), waits);
                        while imports.pop_named(Port(1), name).is_some() {}
                        list.retain(|parked| parked.name != name);
                    }
                    Step::Peer(peer) => {
                        imports.forget_peer(PeerIndex(peer));
                        list.retain(|parked| parked.peer.0 != peer);
                    }
                    Step::Process(peer, importer, sequence) => {
                        imports.forget_process(PeerIndex(peer), Port(importer), sequence);
                        let stays = |parked: &Parked| {
                            (parked.peer.0, parked.importer.0) != (peer, importer)
                                || parked.sequence > sequence
                        };
                        list.retain(stays);
                    }
                }
                prop_assert_eq!(imports.len(), list.len());
                let first = list.iter().map(|parked| parked.deadline).min();
                prop_assert_eq!(imports.deadline(), first);
                prop_assert_eq!(imports.of_peers().sum::<u32>() as usize, list.len());
            }
            if list.is_empty() {
                prop_assert!(imports.names.is_empty() && imports.importers.is_empty());
                prop_assert!(imports.of_peers.is_empty() && imports.of_processes.is_empty());
            }
        }
    }
}
