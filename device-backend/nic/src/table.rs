//! Tables of what a NIC holds, for people (Q9, Q17): its memory, names, groups, queues.

/// Most rows of a table: what one engine formats while others wait.
pub const MAX_ROWS: usize = 4096;

/// Which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// The parts of the SRAM, and which side may write to each.
    Map,
    /// Names of processes, of all nodes, that this NIC knows.
    Names,
    /// Groups with members on this node, and such that form here.
    Groups,
    /// Command queues and what stands behind them, by process.
    Queues,
    /// Queue pairs of verbs.
    QueuePairs,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// Cells; as many in each row as there are columns.
    pub rows: Vec<Vec<String>>,
    /// There are more rows than [`MAX_ROWS`].
    pub truncated: bool,
}

impl Table {
    /// A table of the first rows.
    pub(crate) fn new(
        columns: &[&'static str],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        let mut rows = rows.into_iter();
        let first: Vec<_> = rows.by_ref().take(MAX_ROWS).collect();
        Table {
            columns: columns.to_vec(),
            rows: first,
            truncated: rows.next().is_some(),
        }
    }
}
