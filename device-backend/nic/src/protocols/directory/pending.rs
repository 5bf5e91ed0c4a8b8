//! Imports of local processes that were not answered, by their numbers.
//!
//! ```text
//!   to be sent ──ImportRequest──► asked ──ImportResponse──► the process has its reply
//!       ▲                           │
//!       └──── no route, or the ─────┘
//!             session has ended
//! ```

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::{NodeId, Port, Secret, SegmentName, VniId};

use super::parked::{count_down, Agenda};
use super::GRACE;
use crate::env::Time;

/// An import of a local process that was not answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    /// Names the request of the driver.
    pub(super) token: u64,
    pub(super) vni: VniId,
    pub(super) node: NodeId,
    pub(super) port: Port,
    pub(super) name: SegmentName,
    pub(super) secret: Secret,
    /// The time that the process gave is over.
    pub(super) deadline: Time,
    pub(super) waits: bool,
    /// When to send the request; `None`: it is on its way.
    pub(super) send_at: Option<Time>,
}

impl Pending {
    /// When something has to be done about it.
    fn due(&self) -> Time {
        match self.send_at {
            None => self.deadline.after(GRACE),
            Some(send_at) => self.deadline.min(send_at),
        }
    }

    /// Returns true if its time is over.
    pub(super) fn has_ended(&self, now: Time) -> bool {
        self.due() <= now && (self.send_at.is_none() || self.deadline <= now)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct PendingImports {
    /// The number of the newest; it names it in frames.
    newest: u64,
    agenda: Agenda<Pending>,
    /// By node, and whether they were sent.
    nodes: BTreeSet<(NodeId, bool, u64)>,
    processes: BTreeSet<(VniId, u64)>,
    /// How many are of each process.
    of_processes: BTreeMap<VniId, u32>,
}

impl PendingImports {
    /// Returns true if there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.agenda.is_empty()
    }

    /// How many a process has.
    pub(super) fn of_process(&self, vni: VniId) -> u32 {
        self.of_processes.get(&vni).copied().unwrap_or(0)
    }

    /// How many there are of each process that has any.
    pub(super) fn of_processes(&self) -> impl Iterator<Item = u32> + '_ {
        self.of_processes.values().copied()
    }

    /// The number of the newest, if it is still here.
    pub(super) fn newest(&self) -> Option<u64> {
        self.get(self.newest).map(|_| self.newest)
    }

    /// The import of that number.
    pub(super) fn get(&self, number: u64) -> Option<&Pending> {
        self.agenda.get(number)
    }

    /// Adds one; returns its number.
    pub(super) fn push(&mut self, pending: Pending) -> u64 {
        self.newest += 1;
        self.insert(self.newest, pending);
        self.newest
    }

    fn insert(&mut self, number: u64, pending: Pending) {
        let sent = pending.send_at.is_none();
        self.nodes.insert((pending.node, sent, number));
        self.processes.insert((pending.vni, number));
        *self.of_processes.entry(pending.vni).or_default() += 1;
        self.agenda.insert(number, pending.due(), pending);
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, number: u64) -> Option<Pending> {
        let pending = self.agenda.remove(number)?;
        let sent = pending.send_at.is_none();
        self.nodes.remove(&(pending.node, sent, number));
        self.processes.remove(&(pending.vni, number));
        count_down(&mut self.of_processes, pending.vni);
        Some(pending)
    }

    /// Notes when to send one, or with `None` that it was sent.
    pub(super) fn set_send_at(&mut self, number: u64, send_at: Option<Time>) {
        if let Some(pending) = self.remove(number) {
            self.insert(number, Pending { send_at, ..pending });
        }
    }

    /// When something has to be done about any.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.agenda.first_due()
    }

    /// The number of the next about which something has to be done by now.
    pub(super) fn next_due(&self, now: Time) -> Option<u64> {
        self.agenda.next_due(now)
    }

    /// Returns true if a node was asked, and has not answered.
    pub(super) fn awaits(&self, node: NodeId) -> bool {
        let asked = (node, true, 0)..=(node, true, u64::MAX);
        self.nodes.range(asked).next().is_some()
    }

    /// Numbers of those that ask a node: of those that were sent, or of the others.
    pub(super) fn of_node(&self, node: NodeId, sent: bool) -> Vec<u64> {
        let range = (node, sent, 0)..=(node, sent, u64::MAX);
        let numbers = self.nodes.range(range);
        numbers.map(|(_, _, number)| *number).collect()
    }

    /// Nodes that are still to be asked.
    pub(super) fn unasked(&self) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut from = Some(NodeId(0));
        while let Some(node) = from {
            let mut rest = self.nodes.range((node, false, 0)..);
            let Some((node, sent, _)) = rest.next() else {
                break;
            };
            if !sent {
                found.push(*node);
            }
            from = node.0.checked_add(1).map(NodeId);
        }
        found
    }

    /// Numbers of those of a process.
    pub(super) fn numbers_of(&self, vni: VniId) -> Vec<u64> {
        let range = (vni, 0)..=(vni, u64::MAX);
        let numbers = self.processes.range(range);
        numbers.map(|(_, number)| *number).collect()
    }
}
