//! `qnic bench`: latency and bandwidth over size, beside the floor that the same
//! machine gives in the same run.

mod memory;
mod netvm;
mod sync;
mod table_ops;
mod transfers;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic_apps::report::{BenchRow, Latency};
use qnic_tests::host::HostNodes;
use qnic_tests::nodes::Nodes;
use qnic_tests::vm::VmNodes;
use serde::Serialize;

use crate::bench_wire;

/// Where the nodes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Where {
    /// Processes of this machine; the floor is measured by the same process
    Host,
    /// Virtual machines; the floor is measured natively between rounds
    Vm,
    /// Processes of this machine, against loss, for each kind of link; beside iperf3
    Wire,
    /// Notifications, atomic operations, locks, queues, semaphores, beside NetVM's
    Sync,
    /// Costs of the shadow page table, and of pages that are absent, beside NetVM's
    Memory,
}

/// Options of `qnic bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic bench host
  cargo qnic bench vm --json results.json
  cargo qnic bench wire
  cargo qnic bench memory
  cargo qnic bench sync

All rounds are interleaved with a memcpy of the same size; the table shows
medians and the spread of the rounds. Ratios are what to compare between
machines, absolute figures are not.

Exit status: 0 when measured, 1 on an error, 2 for a wrong command line.")]
pub(crate) struct Options {
    /// Where the nodes run
    #[arg(value_enum)]
    nodes: Where,
    /// Write all figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds for each size
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

const SIZES: [usize; 8] = [8, 64, 512, 4096, 16_384, 65_536, 262_144, 1 << 20];

/// Longest time for one size.
const LIMIT: Duration = Duration::from_secs(300);

/// Measures.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    ensure!(options.rounds > 0, "--rounds must not be 0");
    let figures = match options.nodes {
        Where::Host => show(&host(options.rounds)?[..], table)?,
        Where::Vm => show(&vm(options.rounds)?[..], table)?,
        Where::Wire => bench_wire::run(options.rounds)?,
        Where::Sync => show(&sync::measure(options.rounds)?, sync::Report::table)?,
        Where::Memory => show(&memory::measure(options.rounds)?, memory::Report::table)?,
    };
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints results as a table; gives them as JSON.
fn show<T: Serialize + ?Sized>(
    results: &T,
    table: impl Fn(&T) -> String,
) -> Result<serde_json::Value> {
    print!("{}", table(results));
    Ok(serde_json::to_value(results)?)
}

fn host(rounds: usize) -> Result<Vec<BenchRow>> {
    let nodes = HostNodes::start(2)?;
    let sizes: Vec<_> = SIZES.iter().map(ToString::to_string).collect();
    let options = format!("--floor --rounds {rounds} --sizes {}", sizes.join(","));
    measure(&nodes, &options, |rows| {
        say(format_args!("{rows} of {} rows", 2 * SIZES.len()));
    })
}

/// One round of all sizes after the other, the floor natively between them.
fn vm(rounds: usize) -> Result<Vec<BenchRow>> {
    let nodes = VmNodes::boot("bench", &["stable", "stable"])?;
    let floor = qnic_tests::floor::Floor::new(2 << 20)?;
    let mut all: Vec<BenchRow> = Vec::new();
    for round in 1..=rounds {
        for size in SIZES {
            say(format_args!("round {round} of {rounds}, {size} bytes"));
            let before = floor.memcpy_mb_s(size);
            let rows = measure(&nodes, &format!("--rounds 1 --sizes {size}"), |_| ())?;
            let floor_mb_s = before.max(floor.memcpy_mb_s(size));
            for row in rows {
                merge(&mut all, row, floor_mb_s);
            }
        }
    }
    Ok(all)
}

/// Adds the figures of one round to those of the rounds before.
fn merge(all: &mut Vec<BenchRow>, mut row: BenchRow, floor_mb_s: f64) {
    row.memcpy_mb_s.push(floor_mb_s);
    let known = all
        .iter_mut()
        .find(|known| known.size == row.size && known.operation == row.operation);
    match known {
        Some(known) => {
            known.latency.extend(row.latency);
            known.mb_s.extend(row.mb_s);
            known.per_second.extend(row.per_second);
            known.memcpy_mb_s.extend(row.memcpy_mb_s);
        }
        None => all.push(row),
    }
}

/// Says how far a benchmark is.
pub(crate) fn say(progress: std::fmt::Arguments<'_>) {
    eprintln!("{progress}");
}

/// Measures between the first two nodes; tells `progress` how many rows there are, after each.
pub(crate) fn measure(
    nodes: &dyn Nodes,
    options: &str,
    progress: impl Fn(usize),
) -> Result<Vec<BenchRow>> {
    let mut target = nodes.start(1, "demo-target")?;
    let mut initiator = nodes.start(0, &format!("bench --peer 1 {options}"))?;
    let mut rows = Vec::new();
    while let Some(line) = initiator.line(LIMIT).context("the initiator")? {
        rows.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
        progress(rows.len());
    }
    initiator.succeed("the initiator", LIMIT)?;
    target.succeed("the target", LIMIT)?;
    Ok(rows)
}

/// Median, smallest and largest.
pub(crate) fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some((
        *sorted.get(sorted.len() / 2)?,
        *sorted.first()?,
        *sorted.last()?,
    ))
}

fn table(rows: &[BenchRow]) -> String {
    let mut text = format!(
        "{:<6} {:>9} {:>11} {:>11} {:>11} {:>25} {:>12} {:>9}\n",
        "", "bytes", "latency µs", "99 % µs", "MB/s", "(spread)", "memcpy MB/s", "of memcpy"
    );
    for row in rows {
        let Some((median, low, high)) = spread(&row.mb_s) else {
            continue;
        };
        let time = |pick: fn(&Latency) -> f64| {
            let times: Vec<_> = row.latency.iter().map(pick).collect();
            spread(&times).map_or_else(|| "-".into(), |(median, ..)| format!("{median:.2}"))
        };
        let (floor, ratio) = match spread(&row.memcpy_mb_s) {
            Some((floor, ..)) => (format!("{floor:.0}"), format!("{:.2}", median / floor)),
            None => ("-".into(), "-".into()),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<6} {:>9} {:>11} {:>11} {:>11.1} {:>25} {:>12} {:>9}",
            row.operation,
            row.size,
            time(|latency| latency.median_us),
            time(|latency| latency.p99_us),
            median,
            format!("({low:.1} … {high:.1})"),
            floor,
            ratio
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: usize, mb_s: f64) -> BenchRow {
        BenchRow {
            operation: "write".into(),
            size,
            latency: Vec::new(),
            mb_s: vec![mb_s],
            per_second: vec![1.0],
            memcpy_mb_s: Vec::new(),
        }
    }

    #[test]
    fn rounds_of_one_size_are_merged() {
        let mut all = Vec::new();
        merge(&mut all, row(8, 1.0), 10.0);
        merge(&mut all, row(64, 2.0), 10.0);
        merge(&mut all, row(8, 3.0), 12.0);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].mb_s, [1.0, 3.0]);
        assert_eq!(all[0].memcpy_mb_s, [10.0, 12.0]);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert!(table(&all).contains("0.25"), "{}", table(&all));
    }
}
