//! `qnic stats`: prints what a node's NIC has counted.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_cluster::stages::{self, Times};
use qnic_cluster::Cancel;
use serde_json::Value;

use crate::net;
use crate::slurm;
use crate::ui::{self, ClusterOption};

/// Options of `qnic stats`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic stats a                                   one counter a line
  cargo qnic stats a --json | jq .statistics.bounces

docs/metrics.md says what the counters mean. N of M is a budget:
what guests and peers make the NIC keep, and how much that may be; for one of many
processes or peers, that of the one that uses most. Lines such as \"write queued\" say how long
sampled operations were in a stage (docs/observing.md). Processes and peers are in --json, and in
cargo qnic top. What the guest's driver counts: cargo qnic run a -- qnic-app info

Exit status: 0.")]
pub(crate) struct Options {
    /// The node, or NODE.NIC for one of its NICs
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    slurm::hand_over(&options.cluster, &options.node)?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let nic = cluster.nic_stats(&options.node)?;
    ui::show(options.json, &nic, lines)?;
    Ok(ExitCode::SUCCESS)
}

/// One line for each counter and each budget, aligned.
fn lines(nic: &Value) -> String {
    let mut rows = Vec::new();
    for (name, value) in nic.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(group) => rows.extend(group.iter()),
            // A row for each of its processes and peers would be longer than all others together.
            None if value.is_array() => {}
            None => rows.push((name, value)),
        }
    }
    let row = |(name, value): (&String, &Value)| {
        let [used, limit] = ["used", "limit"].map(|key| value.get(key));
        let shown = match (used, limit, Times::parse(value)) {
            (Some(used), Some(limit), _) => format!("{used} of {limit}"),
            (.., Some(times)) => format!(
                "half within {}, 99 % within {}, of {}",
                stages::quantile(&times, 500),
                stages::quantile(&times, 990),
                times.count()
            ),
            _ => net::plain(value),
        };
        [name.clone(), shown]
    };
    let rows: Vec<_> = rows.into_iter().map(row).collect();
    ui::aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_become_lines() {
        let nic = serde_json::json!({"name": "a", "state": "running", "statistics": {"bounces": 5},
             "budgets": {"peers": {"used": 3, "limit": 1024}},
             "processes": [{"vni": 1, "port": 7}],
             "stages": {"write queued": {"sum": 128, "buckets": [[64, 2], [5120, 1]]}}});
        assert_eq!(
            lines(&nic),
            "peers         3 of 1024\nname          a\n\
             write queued  half within 64 ns, 99 % within 5.2 µs, of 3\n\
             state         running\nbounces       5\n"
        );
    }
}
