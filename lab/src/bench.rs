//! `qnic bench`: latency and bandwidth over size, beside the floor that the same machine
//! gives in the same run.
//!
//! A suite returns [`figures::Table`]s; one printer shows them, and `--json` writes them.

mod collective;
mod figures;
mod growth;
mod guest_network;
mod kernel;
mod libfabric;
mod memory;
mod message;
mod netvm;
mod remote_memory;
mod series;
mod sync;
mod table_ops;
mod transfers;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_apps::report::{BenchRow, Latency};
use qnic_cli::lab::bench::{Options, Where};
use qnic_tests::floor::Floor;
use qnic_tests::host::HostNodes;
use qnic_tests::nodes::Nodes;
use qnic_tests::vm::VmNodes;

use figures::{Figure, Row, Table};

const SIZES: [usize; 8] = [8, 64, 512, 4096, 16_384, 65_536, 262_144, 1 << 20];

/// Memory of a node in this process.
const MEMORY: usize = 16 << 20;

/// Longest time for one size.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let rounds = options.rounds;
    ensure!(rounds > 0, "--rounds must not be 0");
    let tables = match options.nodes {
        Where::Host => vec![table(host(rounds)?)],
        Where::Vm => vec![table(vm(rounds)?)],
        Where::Wire => wire::measure(rounds)?,
        Where::Sync => sync::measure(rounds)?,
        Where::Message => message::measure(rounds)?,
        Where::Collective => collective::measure(rounds)?,
        Where::Growth => growth::measure(rounds)?,
        Where::Kernel => [kernel::measure(rounds)?, remote_memory::measure(rounds)?].concat(),
        Where::Memory => memory::measure(rounds)?,
    };
    for table in &tables {
        println!("{table}");
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&tables)?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn host(rounds: usize) -> Result<Vec<BenchRow>> {
    let nodes = HostNodes::start(2)?;
    let sizes = SIZES.map(|size| size.to_string()).join(",");
    let options = format!("--floor --rounds {rounds} --sizes {sizes}");
    transfers_between(&nodes, &options, |rows| {
        eprintln!("{rows} of {} rows", 2 * SIZES.len());
    })
}

/// One round of all sizes after the other, the floor natively between them.
fn vm(rounds: usize) -> Result<Vec<BenchRow>> {
    let nodes = VmNodes::boot("bench", &["stable"; 2])?;
    let floor = Floor::new(2 << 20)?;
    let mut all: Vec<BenchRow> = Vec::new();
    for round in 1..=rounds {
        for size in SIZES {
            eprintln!("round {round} of {rounds}, {size} bytes");
            let before = floor.memcpy_mb_s(size);
            let rows = transfers_between(&nodes, &format!("--rounds 1 --sizes {size}"), |_| ())?;
            let floor_mb_s = before.max(floor.memcpy_mb_s(size));
            for mut row in rows {
                row.memcpy_mb_s.push(floor_mb_s);
                merge(&mut all, row);
            }
        }
    }
    Ok(all)
}

/// Adds the figures of one round to those of the rounds before.
fn merge(all: &mut Vec<BenchRow>, row: BenchRow) {
    let same = |known: &&mut BenchRow| known.size == row.size && known.operation == row.operation;
    match all.iter_mut().find(same) {
        Some(known) => {
            known.latency.extend(row.latency);
            known.mb_s.extend(row.mb_s);
            known.memcpy_mb_s.extend(row.memcpy_mb_s);
        }
        None => all.push(row),
    }
}

/// Measures between the first two nodes; calls `progress` with the number of rows after
/// each.
fn transfers_between(
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

fn table(rows: Vec<BenchRow>) -> Table {
    let rows = rows.into_iter().map(|row| {
        let latency = |what, pick: fn(&Latency) -> f64| {
            Figure::new(what, "µs", row.latency.iter().map(pick).collect())
        };
        let floor = Figure::new("memcpy", "MB/s", row.memcpy_mb_s);
        let stream = Figure::with_spread("stream", "MB/s", row.mb_s);
        let figures = [
            latency("latency", |latency| latency.median_us),
            latency("99 %", |latency| latency.p99_us),
            latency("least", |latency| latency.min_us),
            stream.ratio_to("of memcpy", floor.median()),
            floor,
        ];
        Row::new(row.operation, figures).size(row.size)
    });
    Table::new("Transfers", rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_one_size_are_merged() {
        let row = |size, mb_s, memcpy_mb_s| BenchRow {
            mb_s: vec![mb_s],
            memcpy_mb_s: vec![memcpy_mb_s],
            ..BenchRow::new("write", size)
        };
        let mut all = Vec::new();
        merge(&mut all, row(8, 1.0, 10.0));
        merge(&mut all, row(64, 2.0, 10.0));
        merge(&mut all, row(8, 3.0, 12.0));
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].mb_s, [1.0, 3.0]);
        assert_eq!(all[0].memcpy_mb_s, [10.0, 12.0]);
        let words = figures::tests::words_of_row(&table(all), "write").join(" ");
        assert_eq!(words, "write 8 - - - 3.00 (1.00 … 3.00) 0.25 12.00");
    }
}
