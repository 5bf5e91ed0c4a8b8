//! Where the time of writes goes: the stages that the NICs time (docs/observing.md), while a suite
//! measures. In host mode a NIC forgets its times with the process of its node, so the times are asked
//! for before the programs end.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use qnic_apps::report::BenchRow;
use qnic_cluster::stages::Times;
use qnic_trials::nodes::Nodes;
use serde_json::Value;

use super::figures::{Figure, Row, Table};
use super::LIMIT;

/// The id of the table, where a suite has one.
pub(super) const TABLE: &str = "stages";

/// Rows that a program says of one size: of writes and of reads.
const ROWS: usize = 2;

/// What the stages are of.
const KIND: &str = "write ";

/// The stages of all NICs together, by name.
type Stages = BTreeMap<String, Times>;

/// Nanoseconds that half and 99 % of the samples do not exceed, a pair for each round, by length
/// and stage.
#[derive(Default)]
pub(super) struct Recorder(BTreeMap<(usize, String), [Vec<f64>; 2]>);

impl Recorder {
    /// Runs `work`, which writes so many bytes at a time, and adds its stages.
    pub(super) fn around<T>(
        &mut self,
        nodes: &dyn Nodes,
        size: usize,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let before = parse(&nodes.device_stats()?);
        let result = work()?;
        self.add(size, &before, &parse(&nodes.device_stats()?));
        Ok(result)
    }

    /// The same of transfers of `size` bytes between the first two nodes, whose NICs begin anew with
    /// the programs; returns what was measured.
    pub(super) fn of_fresh_nics(
        &mut self,
        nodes: &dyn Nodes,
        size: usize,
        options: &str,
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
        self.add(size, &Stages::new(), &parse(&nodes.device_stats()?));
        for program in [&mut initiator, &mut target] {
            program.kill()?;
            program.wait(LIMIT)?;
        }
        Ok(rows)
    }

    fn add(&mut self, size: usize, before: &Stages, after: &Stages) {
        for (name, times) in after {
            let Some(stage) = name.strip_prefix(KIND) else {
                continue;
            };
            let times = match before.get(name) {
                Some(before) => times.since(before),
                None => times.clone(),
            };
            let all = self.0.entry((size, stage.to_owned())).or_default();
            for (samples, part) in all.iter_mut().zip([500, 990]) {
                samples.extend(times.quantile(part).map(|ns| ns as f64));
            }
        }
    }

    /// The table, by its id and what it adds to the title.
    pub(super) fn table(&self, id: &str, of: &str) -> Table {
        let rows = self.0.iter().map(|((size, stage), [half, most])| {
            let figures = [
                Figure::with_spread("half within", "ns", half.clone()),
                Figure::new("99 % within", "ns", most.clone()),
            ];
            Row::new(stage.as_str(), figures).size(*size)
        });
        let title = format!(
            "Where the time of a write{of} goes, by both NICs' samples (a quarter too long at most)"
        );
        Table::new(id, title, rows.collect())
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
    use crate::bench::text::tests::words_of_row;

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
        let mut recorder = Recorder::default();
        recorder.add(8, &parse(&stats(100, 0)), &parse(&stats(101, 8)));
        recorder.add(8, &Stages::new(), &parse(&stats(3, 0)));
        let table = recorder.table(TABLE, "");
        // The first has no bound: its half is among those that are too long.
        let words = words_of_row(&table, "sending").join(" ");
        assert_eq!(words, "sending 8 32.00 (32.00 … 32.00) 64.00");
        assert_eq!(table.rows.len(), 1);
    }
}
