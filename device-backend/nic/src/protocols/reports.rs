//! What protocols hold, for people; and what these do to it.

use std::collections::BTreeMap;

use qnic_abi::VniId;

use super::{Context, Protocols};
use crate::env::Host;
use crate::injection::QueuePairFaults;
use crate::table::Table;

impl Protocols {
    /// Imports of peers that wait here for a name.
    pub(crate) fn parked_imports(&self) -> usize {
        self.directory.parked_imports()
    }

    /// Names of processes that are known, for people.
    pub(crate) fn name_table(&self) -> Table {
        self.names.table()
    }

    /// The first name of each process of this node that has registered any.
    pub(crate) fn first_names(&self) -> BTreeMap<VniId, String> {
        self.names.first_names()
    }

    /// Groups of this node, for people.
    pub(crate) fn group_table(&self) -> Table {
        self.collectives.table()
    }

    /// Queue pairs of verbs, for people.
    pub(crate) fn queue_pair_table(&self) -> Table {
        self.verbs.table()
    }

    /// Injects faults into a queue pair of verbs. Returns false if there is none of that number.
    pub(crate) fn inject<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        number: u32,
        faults: QueuePairFaults,
    ) -> bool {
        self.verbs.inject(cx, number, faults)
    }

    /// What a process receives: receives posted, messages that wait, their bytes.
    pub(crate) fn inbox_cells(&self, vni: VniId) -> [u64; 3] {
        self.messages.inbox_counts(vni)
    }
}
