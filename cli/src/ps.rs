//! `qnic ps`: lists the running clusters.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use indicatif::HumanBytes;
use qnic_cluster::{overview, ClusterOverview, Mode, NodeState, ProcessOverview};

use crate::ui;

/// Options of `qnic ps`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic ps
  cargo qnic ps --json | jq -r '.[].nodes[].name'

States: ready (the guest agent is up), booting, paused (its CPUs are stopped), dead
(its QEMU has ended), silent (its QEMU does not answer). MEMORY is what the process
uses now; the guest's memory is shared between QEMU and the device process and
counts in both.

Exit status: 0.")]
pub(crate) struct Options {
    /// Print a JSON array of clusters
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let clusters = overview(&ui::runtime()?);
    if options.json {
        println!("{}", serde_json::to_string(&clusters)?);
    } else {
        print!("{}", table(&clusters));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(clusters: &[ClusterOverview]) -> String {
    let head = [
        "CLUSTER", "NODE", "STATE", "KERNEL", "CPUS", "RAM", "PID", "UPTIME", "MEMORY",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for cluster in clusters {
        let mode = if cluster.mode == Mode::Attached {
            " (attached)"
        } else {
            ""
        };
        let name = format!("{}{mode}", cluster.name);
        for node in &cluster.nodes {
            let [pid, uptime, memory] = process(node.qemu.as_ref());
            let cpus = format!("{} {}", node.cpus, cluster.accel);
            let ram = HumanBytes(node.memory_bytes).to_string();
            let state = state(node.state).to_owned();
            let kernel = node.kernel.to_owned();
            rows.push([
                name.clone(),
                node.name.clone(),
                state,
                kernel,
                cpus,
                ram,
                pid,
                uptime,
                memory,
            ]);
        }
        for device in &cluster.devices {
            let [pid, uptime, memory] = process(Some(&device.process));
            let state = if device.process.alive {
                "running"
            } else {
                "dead"
            }
            .to_owned();
            let none = || "-".to_owned();
            rows.push([
                name.clone(),
                format!("({})", device.name),
                state,
                none(),
                none(),
                none(),
                pid,
                uptime,
                memory,
            ]);
        }
    }
    aligned(&rows)
}

fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Ready => "ready",
        NodeState::Booting => "booting",
        NodeState::Paused => "paused",
        NodeState::Dead => "dead",
        NodeState::Silent => "silent",
    }
}

fn process(process: Option<&ProcessOverview>) -> [String; 3] {
    match process {
        Some(process) if process.alive => [
            process.pid.to_string(),
            duration(process.uptime_seconds),
            HumanBytes(process.resident_bytes).to_string(),
        ],
        _ => ["-", "-", "-"].map(str::to_owned),
    }
}

fn duration(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds:02}s"),
        _ => format!("{hours}h{minutes:02}m"),
    }
}

fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["A", "B"], ["long", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "A     B\nlong  x\n");
    }

    #[test]
    fn durations_are_short() {
        assert_eq!([5, 65, 3700].map(duration), ["5s", "1m05s", "1h01m"]);
    }
}
