//! `qnic nic`: prints what a node's NIC holds, as tables.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use qnic_cluster::Cancel;
use serde_json::Value;

use crate::ui::{self, ClusterOption};

/// Options of `qnic nic`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic nic map a            where in SRAM is what, and which side writes it
  cargo qnic nic names a          processes of all nodes that have names
  cargo qnic nic groups a         groups of processes: state, calls under way
  cargo qnic nic queues a         command queues, posted receives, staged messages
  cargo qnic nic queue-pairs a    queue pairs of verbs: state, peer, work under way
  cargo qnic nic names a --json | jq '.rows[]'

A table has 4,096 rows at most; it says if there are more. Queue pairs of verbs are there only while
programs run on a node whose cluster file says \"verbs = true\".

Exit status: 0, or 1 if the device process does not answer.")]
pub(crate) struct Options {
    /// Which table
    table: Table,
    /// The node, or NODE.NIC for one of its NICs
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
    /// Print one JSON object: columns, rows, truncated
    #[arg(long)]
    json: bool,
}

/// What can be shown.
#[derive(Clone, Copy, ValueEnum)]
enum Table {
    /// The parts of the SRAM
    Map,
    /// Names of processes
    Names,
    /// Groups of processes
    Groups,
    /// Command queues and what stands behind them
    Queues,
    /// Queue pairs of verbs, and faults that are injected into them
    QueuePairs,
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Table::Map => "map",
            Table::Names => "names",
            Table::Groups => "groups",
            Table::Queues => "queues",
            Table::QueuePairs => "queue_pairs",
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let table = cluster.nic_table(&options.node, options.table.name())?;
    ui::show(options.json, &table, text)?;
    Ok(ExitCode::SUCCESS)
}

/// A heading and a line for each row, aligned.
pub(crate) fn text(table: &Value) -> String {
    let row = |cells: &Value| -> Vec<String> {
        let cells = cells.as_array().into_iter().flatten();
        let cells = cells.map(|cell| cell.as_str().unwrap_or_default().to_owned());
        cells.collect()
    };
    let mut rows = vec![row(&table["columns"])];
    rows.extend(table["rows"].as_array().into_iter().flatten().map(row));
    let more = match (table["truncated"].as_bool(), rows.len()) {
        (Some(true), _) => "… and more\n",
        (_, 1) => "(nothing)\n",
        _ => "",
    };
    ui::aligned(&rows) + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let mut table = serde_json::json!({
            "columns": ["application", "node"],
            "rows": [["solver", "0"], ["a", "12"]],
            "truncated": false,
        });
        assert_eq!(
            text(&table),
            "application  node\nsolver       0\na            12\n"
        );
        table["truncated"] = true.into();
        assert!(text(&table).ends_with("12\n… and more\n"));
        let empty = serde_json::json!({"columns": ["node"], "rows": [], "truncated": false});
        assert_eq!(text(&empty), "node\n(nothing)\n");
    }
}
