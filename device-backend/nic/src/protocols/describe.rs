//! What the protocols hold and have counted, for people.

use std::collections::BTreeMap;

use qnic_abi::control::Statistics;
use qnic_abi::VniId;

use super::{Protocol, Protocols};
use crate::budget::Budget;
use crate::config::Limits;
use crate::table::Table;

impl Protocols {
    /// Names of processes that are known.
    pub(crate) fn name_table(&self) -> Table {
        self.names.table()
    }

    /// The first name of each process of this node that has registered any.
    pub(crate) fn first_names(&self) -> BTreeMap<VniId, String> {
        self.names.first_names()
    }

    /// Groups of this node.
    pub(crate) fn group_table(&self) -> Table {
        self.collectives.table()
    }

    /// What a process receives: receives posted, messages that wait, their bytes.
    pub(crate) fn inbox_cells(&self, vni: VniId) -> [u64; 3] {
        self.messages.inbox_counts(vni)
    }

    /// What all keep for others, and how much that may be.
    pub(crate) fn budgets(&self, limits: &Limits) -> Vec<Budget> {
        let mut budgets = Vec::new();
        self.directory.budgets(limits, &mut budgets);
        self.messages.budgets(limits, &mut budgets);
        self.collectives.budgets(limits, &mut budgets);
        self.names.budgets(limits, &mut budgets);
        self.datagrams.budgets(limits, &mut budgets);
        budgets
    }

    /// Adds what all count.
    pub(crate) fn statistics(&self, statistics: &mut Statistics) {
        self.rdma.statistics(statistics);
        self.atomic.statistics(statistics);
        self.directory.statistics(statistics);
        self.messages.statistics(statistics);
        self.collectives.statistics(statistics);
        self.names.statistics(statistics);
        self.datagrams.statistics(statistics);
        #[cfg(test)]
        self.echo.statistics(statistics);
    }
}
