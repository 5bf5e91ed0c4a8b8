//! Barriers and reductions of the NICs beside a tree of the library's own writes, between
//! host-mode nodes.

use anyhow::{Context, Result};
use qnic_apps::report::{BenchRow, Latency};
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::Nodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::LIMIT;

const NODES: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Where a tree of writes shall take at least so many times as long.
const GOAL: (usize, f64) = (16, 2.0);

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for count in NODES {
        eprintln!("{count} nodes");
        rows.extend(on(count, rounds)?);
    }
    Ok(vec![
        table("Barriers", "barrier", &rows),
        table("Allreduce of 8 bytes", "allreduce", &rows),
    ])
}

fn on(count: usize, rounds: usize) -> Result<Vec<BenchRow>> {
    let nodes = HostNodes::start(count)?;
    let all: Vec<_> = (0..count).map(|node| node.to_string()).collect();
    let words = format!(
        "collective-bench --nodes {} --rounds {rounds}",
        all.join(",")
    );
    let start = |node| nodes.start(node, &words);
    let mut running: Vec<_> = (0..count).map(start).collect::<Result<_>>()?;
    let mut rows = Vec::new();
    while let Some(line) = running[0].line(LIMIT).context("process 0")? {
        rows.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
    }
    for mut program in running {
        program.succeed("a member", LIMIT)?;
    }
    Ok(rows)
}

fn medians(row: &BenchRow) -> Vec<f64> {
    row.latency.iter().map(|it| it.median_us).collect()
}

fn table(title: &str, operation: &str, rows: &[BenchRow]) -> Table {
    let find = |name: &str, count: usize| {
        let same = |row: &&BenchRow| row.operation == name && row.size == count;
        rows.iter().find(same)
    };
    let by_writes = format!("{operation}_by_writes");
    let lines = NODES.iter().flat_map(|count| {
        let nic = find(operation, *count).map(medians).unwrap_or_default();
        let both = [(operation, "in the NICs"), (&*by_writes, "by writes")];
        both.into_iter().filter_map(move |(name, shown)| {
            let row = find(name, *count)?;
            let is_goal = name != operation && *count == GOAL.0;
            let goal = is_goal.then(|| Goal::at_least(GOAL.1).code("Q15"));
            let of_round = |pick: fn(&Latency) -> f64| row.latency.iter().map(pick).collect();
            let figures = [
                Figure::with_spread("median", "µs", medians(row))
                    .ratio_to("of that in NICs", &nic)
                    .ratio_goal(goal),
                Figure::new("99 %", "µs", of_round(|it| it.p99_us)),
                Figure::new("least", "µs", of_round(|it| it.min_us)),
            ];
            Some(Row::new(shown, figures).at("nodes", *count as f64))
        })
    });
    Table::new(operation, title, lines.collect())
}
