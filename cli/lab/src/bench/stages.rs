//! Where the time of writes goes: the stages that the NICs time (docs/observing.md), while a suite
//! measures. In host mode a NIC forgets its times with the process of its node, so the times are asked
//! for before the programs end.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use qnic_apps::report::BenchRow;
use qnic_cluster::stages::Times;
use qnic_trials::nodes::Nodes;
use serde_json::Value;

use super::figures::bytes;
use super::limits::LIMIT;
use super::tables::Tables;

/// Rows that a program says of one size: of writes and of reads.
const ROWS: usize = 2;

/// What the stages are of.
const KIND: &str = "write ";

/// The stages of all NICs together, by name.
type Stages = BTreeMap<String, Times>;

/// Runs `work`, which writes `size` bytes at a time, and adds its stages to a table: nanoseconds that half
/// and 99 % of the samples do not exceed.
pub(super) fn around<T>(
    nodes: &dyn Nodes,
    size: usize,
    to: (&str, &mut Tables),
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let before = parse(&nodes.device_stats()?);
    let result = work()?;
    add(size, &before, &parse(&nodes.device_stats()?), to);
    Ok(result)
}

/// The same of transfers between the first two nodes, whose NICs begin anew with the programs; returns
/// what was measured.
pub(super) fn of_fresh_nics(
    nodes: &dyn Nodes,
    size: usize,
    options: &str,
    to: (&str, &mut Tables),
) -> Result<Vec<BenchRow>> {
    let mut target = nodes.start(1, "demo-target")?;
    let bench = format!("bench --peer 1 --stay --sizes {size} {options}");
    let mut initiator = nodes.start(0, &bench)?;
    let mut rows = Vec::new();
    for _ in 0..ROWS {
        let line = initiator.line(LIMIT).context("the initiator")?;
        let line = line.context("the initiator ends before all is measured")?;
        rows.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
    }
    add(size, &Stages::new(), &parse(&nodes.device_stats()?), to);
    for program in [&mut initiator, &mut target] {
        program.kill()?;
        program.wait(LIMIT)?;
    }
    Ok(rows)
}

fn add(size: usize, before: &Stages, after: &Stages, (table, tables): (&str, &mut Tables)) {
    for (name, times) in after {
        let Some(stage) = name.strip_prefix(KIND) else {
            continue;
        };
        let times = match before.get(name) {
            Some(before) => times.since(before),
            None => times.clone(),
        };
        let row = tables.row(table, stage, bytes(size));
        for (figure, part) in [("half within [ns]", 500), ("99 % within [ns]", 990)] {
            row.add(figure, times.quantile(part).map(|ns| ns as f64));
        }
    }
}

/// The stages of all NICs in an answer of their device processes.
fn parse(stats: &Value) -> Stages {
    let mut all = Stages::new();
    let nics = stats["nics"].as_array().into_iter().flatten();
    for (name, times) in nics.filter_map(|nic| nic["stages"].as_object()).flatten() {
        let Some(times) = Times::parse(times) else {
            continue;
        };
        let sum: &mut Times = all.entry(name.clone()).or_default();
        sum.sum = sum.sum.saturating_add(times.sum);
        for (bound, count) in times.buckets {
            match sum.buckets.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => sum.buckets.push((bound, count)),
            }
        }
        // None, which has no end, is the last one.
        sum.buckets
            .sort_by_key(|(bound, _)| bound.unwrap_or(u64::MAX));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stages_of_both_nics_are_those_of_the_work_alone() {
        let stats = |sent: u64, long: u64| {
            let nic = |buckets: Value| {
                json!({"stages": {
                    "write sending": {"sum": sent * 64, "buckets": buckets},
                    "read sending": {"sum": 9, "buckets": [[64, 1]]},
                }})
            };
            json!({"nics": [nic(json!([[64, sent], [null, long]])), nic(json!([[32, sent]]))]})
        };
        let mut tables = Tables::default();
        add(
            8,
            &parse(&stats(100, 0)),
            &parse(&stats(101, 8)),
            ("stages", &mut tables),
        );
        add(
            8,
            &Stages::new(),
            &parse(&stats(3, 0)),
            ("stages", &mut tables),
        );
        // The first has no bound: its half is among those that are too long.
        let samples = |figure| tables.samples("stages", "sending", bytes(8), figure);
        assert_eq!(samples("half within [ns]"), [32.0]);
        assert_eq!(samples("99 % within [ns]"), [64.0]);
        assert_eq!(
            tables.samples("stages", "read sending", bytes(8), "half within [ns]"),
            [0.0; 0]
        );
    }
}
