//! `qnic bench host` and `qnic bench vm`: latency and bandwidth over size, beside the floor that
//! the same machine gives in the same run.

use super::boot;
use super::floor::Floor;
use anyhow::{Context, Result};
use qnic_apps::report::{BenchRow, Latency};
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{Nodes, Running};

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::stages::{self, Recorder};
use super::LIMIT;

const SIZES: [usize; 8] = [8, 64, 512, 4096, 16_384, 65_536, 262_144, 1 << 20];

/// Bytes of streams from which on the stages of single transfers tell something.
const STAGES_FROM: usize = 65_536;

/// Parts of memcpy's bandwidth that a stream shall have: operation, bytes, part, code.
type Goals = [(&'static str, usize, f64, &'static str)];

const HOST_GOALS: &Goals = &[("write", 4096, 0.6, "P2"), ("write", 1 << 20, 0.9, "P1")];
const VM_GOALS: &Goals = &[("write", 65_536, 0.8, "P4"), ("write", 1 << 20, 0.9, "P1")];

/// Thousands of 8-byte writes in a second that one guest shall make (P13).
const RATE_GOAL: f64 = 2000.0;

/// One round of all sizes after the other; the process that writes measures the floor between them.
pub(super) fn host(rounds: usize) -> Result<Vec<Table>> {
    let nodes = HostNodes::start(2)?;
    let sizes = SIZES.map(|size| size.to_string()).join(",");
    let options = format!("--floor --rounds 1 --sizes {sizes}");
    let (mut all, mut stages) = (Vec::new(), Recorder::default());
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for row in transfers_between(&nodes, &options)? {
            merge(&mut all, row);
        }
        for (_, size, ..) in HOST_GOALS {
            stages.of_fresh_nics(&nodes, *size, "--rounds 1")?;
        }
    }
    Ok(vec![
        table(all, HOST_GOALS, None),
        stages.table(stages::TABLE, ""),
    ])
}

/// One round of all sizes after the other, the floor natively between them.
pub(super) fn vm(rounds: usize) -> Result<Vec<Table>> {
    let nodes = VmNodes::boot("bench", &["stable"; 2])?;
    let floor = Floor::new(2 << 20)?;
    let (mut all, mut stages) = (Vec::new(), Recorder::default());
    for round in 1..=rounds {
        latency_stages(&nodes, &mut stages)?;
        for size in SIZES {
            eprintln!("round {round} of {rounds}, {size} bytes");
            let before = floor.memcpy_mb_s(size);
            let rows = one_size(&nodes, &mut stages, size)?;
            let floor_mb_s = before.max(floor.memcpy_mb_s(size));
            for mut row in rows {
                row.memcpy_mb_s.push(floor_mb_s);
                merge(&mut all, row);
            }
        }
    }
    nodes.end()?;
    Ok(vec![
        table(all, VM_GOALS, Some(RATE_GOAL)),
        stages.table(stages::TABLE, ""),
        boot::measure(rounds)?,
    ])
}

/// Stages of the smallest writes, one after the other. Those of streams are longer: there each
/// waits for those before it.
fn latency_stages(nodes: &dyn Nodes, stages: &mut Recorder) -> Result<()> {
    let options = format!("--rounds 0 --sizes {}", SIZES[0]);
    let measure = || transfers_between(nodes, &options).map(drop);
    stages.around(nodes, SIZES[0], measure)
}

/// A round of one size; the stages of longer transfers.
fn one_size(nodes: &dyn Nodes, stages: &mut Recorder, size: usize) -> Result<Vec<BenchRow>> {
    let measure = || transfers_between(nodes, &format!("--rounds 1 --sizes {size}"));
    match size >= STAGES_FROM {
        true => stages.around(nodes, size, measure),
        false => measure(),
    }
}

/// Adds the figures of one round to those of the rounds before.
pub(super) fn merge(all: &mut Vec<BenchRow>, row: BenchRow) {
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

/// Measures between the first two nodes.
pub(super) fn transfers_between(nodes: &dyn Nodes, options: &str) -> Result<Vec<BenchRow>> {
    let target = nodes.start(1, "demo-target")?;
    let initiator = nodes.start(0, &format!("bench --peer 1 {options}"))?;
    rows_of(initiator, target)
}

/// What an initiator says, a row in each line, until both have ended well.
pub(super) fn rows_of(
    mut initiator: Box<dyn Running>,
    mut target: Box<dyn Running>,
) -> Result<Vec<BenchRow>> {
    let mut rows = Vec::new();
    while let Some(line) = initiator.line(LIMIT).context("the initiator")? {
        rows.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
    }
    initiator.succeed("the initiator", LIMIT)?;
    target.succeed("the target", LIMIT)?;
    Ok(rows)
}

fn table(rows: Vec<BenchRow>, goals: &Goals, rate_goal: Option<f64>) -> Table {
    let rows = rows.into_iter().map(|row| {
        let of_round = |pick: fn(&Latency) -> f64| row.latency.iter().map(pick).collect();
        let same = |(operation, size, ..): &&(&str, usize, f64, &str)| {
            *operation == row.operation && *size == row.size
        };
        let goal = goals.iter().find(same);
        let goal = goal.map(|(.., part, code)| Goal::at_least(*part).code(code));
        let is_small_write = row.operation == "write" && row.size == 8;
        let rate_goal = rate_goal.filter(|_| is_small_write);
        let rate_goal = rate_goal.map(|rate| Goal::at_least(rate).code("P13"));
        let thousands = row.mb_s.iter().map(|mb_s| mb_s * 1e3 / row.size as f64);
        let figures = [
            Figure::with_spread("half round trip", "µs", of_round(|it| it.median_us)),
            Figure::new("99 %", "µs", of_round(|it| it.p99_us)),
            Figure::new("least", "µs", of_round(|it| it.min_us)),
            Figure::with_spread("stream", "MB/s", row.mb_s.clone())
                .ratio_to("of memcpy", &row.memcpy_mb_s)
                .ratio_goal(goal),
            Figure::new("rate", "1000/s", thousands.collect()).goal(rate_goal),
            Figure::new("memcpy", "MB/s", row.memcpy_mb_s.clone()).of_peer(),
        ];
        Row::new(&*row.operation, figures).size(row.size)
    });
    Table::new("transfers", "Transfers", rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

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
        let goals = [("write", 8, 0.3, "P2")];
        let words = words_of_row(&table(all, &goals, Some(300.0)), "write").join(" ");
        assert_eq!(
            words,
            "write 8 - - - - 3.00 (1.00 … 3.00) 0.25 ≥ 0.3, missed 375.0 ≥ 300 12.00"
        );
    }
}
