//! `qnic fault`: injects faults into queue pairs of verbs, so that programs meet what is rare.

use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{ensure, Context, Result};
use clap::{Args, Subcommand};
use qnic_cluster::QueuePairFaults;
use serde_json::{json, Value};

use crate::ui::{self, ClusterOption};

/// Options of `qnic fault`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic nic queue-pairs b           which queue pairs there are
  cargo qnic fault qp b:17 --rnr 3       the next 3 messages to queue pair 17 of b find no receive
  cargo qnic fault qp b:17 --deny 1      the next access of its peer to memory of b is denied
  cargo qnic fault qp b:17 --error       it fails, as by ibv_modify_qp to IBV_QPS_ERR
  cargo qnic fault qp b.disks:17 --rnr 1 of a NIC with a name
  cargo qnic fault list b                what is injected at b, and has not happened yet

What the program at the other end sees:
  --rnr N     RC: its message waits for the receiver's timer, and is sent again; it ends with
              IBV_WC_RNR_RETRY_EXC_ERR if N is more than the rnr_retry of its queue pair, unless
              that is 7 (without end). UC, UD: N messages are lost
  --deny N    its write, read or atomic operation ends with IBV_WC_REM_ACCESS_ERR; both queue pairs fail
  --error     what it sends next ends with IBV_WC_RETRY_EXC_ERR

A message that waits counts each time that it comes. Links have faults of their own: \"cargo qnic net\".

Exit status: 0 when done, 1 if nothing was injected, 2 for a command line that cannot be read.")]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Inject faults into a queue pair, beside those that it still has
    Qp {
        /// NODE:NUMBER; for one of several NICs, NODE.NIC:NUMBER
        queue_pair: QueuePair,
        #[command(flatten)]
        faults: Faults,
        #[command(flatten)]
        cluster: ClusterOption,
    },
    /// List the queue pairs of a node with faults that have not happened yet
    List {
        /// The node, or NODE.NIC for one of its NICs
        node: String,
        #[command(flatten)]
        cluster: ClusterOption,
        /// Print one JSON object: columns, rows
        #[arg(long)]
        json: bool,
    },
}

/// What is injected.
#[derive(Args)]
struct Faults {
    /// So many messages find no receive, although one may be posted
    #[arg(long, value_name = "N", default_value = "0")]
    rnr: u32,
    /// So many writes, reads and atomic operations of its peer are denied
    #[arg(long, value_name = "N", default_value = "0")]
    deny: u32,
    /// It fails at once
    #[arg(long)]
    error: bool,
}

/// A queue pair of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct QueuePair {
    nic: String,
    number: u32,
}

impl FromStr for QueuePair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once(':');
        let (nic, number) = parts
            .filter(|(nic, _)| !nic.is_empty())
            .ok_or("expected a node and a number, such as b:17")?;
        let number = number.parse().map_err(|_| {
            format!("{number:?} is no number of a queue pair; \"cargo qnic nic queue-pairs {nic}\" lists them")
        })?;
        Ok(QueuePair {
            nic: nic.to_owned(),
            number,
        })
    }
}

impl Faults {
    fn read(&self) -> Result<QueuePairFaults> {
        let faults = QueuePairFaults {
            not_ready: self.rnr,
            denied: self.deny,
            fails: self.error,
        };
        ensure!(
            faults != QueuePairFaults::default(),
            "say what is to happen: --rnr 3, --deny 1 or --error"
        );
        Ok(faults)
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match &options.action {
        Action::Qp {
            queue_pair: QueuePair { nic, number },
            faults,
            cluster,
        } => {
            let faults = faults.read()?;
            let injected = cluster.find(None)?.inject(nic, *number, &faults);
            injected.with_context(|| format!("nothing is injected into {nic}:{number}"))?;
            println!("injected into {nic}:{number}");
        }
        Action::List {
            node,
            cluster,
            json,
        } => {
            let table = cluster.find(None)?.nic_table(node, "queue_pairs")?;
            ui::show(*json, &with_faults(&table), crate::nic::text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Number and faults of the queue pairs that have any.
fn with_faults(table: &Value) -> Value {
    let columns = table["columns"].as_array().into_iter().flatten();
    let faults = columns.take_while(|name| *name != "faults").count();
    let rows = table["rows"].as_array().into_iter().flatten();
    let rows = rows.filter(|row| row[faults] != "-");
    let rows: Vec<_> = rows.map(|row| json!([row[0], row[faults]])).collect();
    json!({
        "columns": ["queue pair", "faults"],
        "rows": rows,
        "truncated": table["truncated"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_is_named_by_its_node_and_a_number() {
        let found: QueuePair = "b.disks:17".parse().unwrap();
        assert_eq!((found.nic.as_str(), found.number), ("b.disks", 17));
        for wrong in ["b", ":17", "17", "b:", "b:x", "b:-1"] {
            let error = wrong.parse::<QueuePair>().unwrap_err();
            let helps = error.contains("such as b:17") || error.contains("queue-pairs b");
            assert!(helps, "{wrong}: {error}");
        }
    }

    #[test]
    fn something_has_to_be_injected() {
        let faults = |rnr, deny, error| Faults { rnr, deny, error };
        let error = faults(0, 0, false).read().unwrap_err().to_string();
        assert!(error.contains("--rnr 3"), "{error}");
        let read = faults(3, 1, true).read().unwrap();
        assert_eq!((read.not_ready, read.denied, read.fails), (3, 1, true));
    }

    #[test]
    fn only_queue_pairs_with_faults_are_listed() {
        let table = json!({
            "columns": ["queue pair", "state", "faults"],
            "rows": [["2", "RTS", "-"], ["17", "RTS", "rnr 3"]],
            "truncated": false,
        });
        let listed = with_faults(&table);
        assert_eq!(listed["rows"], json!([["17", "rnr 3"]]));
        assert_eq!(listed["columns"], json!(["queue pair", "faults"]));
    }
}
