//! Tagged messages beside writes, and beside libfabric's provider for shared memory, between two
//! host-mode nodes. All take turns in each round.

use std::collections::BTreeMap;

use anyhow::Result;
use qnic_apps::report::{BenchRow, Latency};
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::Nodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::libfabric::Peer;
use super::merge;
use super::point_to_point::rows_of;

const SIZES: [usize; 7] = [8, 64, 1024, 4096, 16_384, 65_536, 1 << 20];

/// What 8 bytes may cost, of a notifying write.
const LATENCY_GOAL: f64 = 1.3;

/// What the stream of 1 MiB shall be at least, of a write: expected messages, others.
const STREAM_GOALS: [(&str, f64); 2] = [("message", 0.9), ("unexpected", 0.5)];

/// What messages are compared with, beside writes.
const PEER: &str = "fi_pingpong";

/// What a message may take, of libfabric's.
const PEER_GOAL: f64 = 1.0;

/// Round trips of a size in a round.
fn balls(size: usize) -> u64 {
    ((256 << 20) / size as u64).clamp(8, 1000)
}

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let nodes = HostNodes::start(2)?;
    let mut peer = Peer::find("shm");
    if let Some(why) = peer.missing() {
        eprintln!("{PEER} is not measured: {why}");
    }
    let mut rows: Vec<BenchRow> = Vec::new();
    let mut beside = BTreeMap::<usize, Vec<f64>>::new();
    for round in 1..=rounds {
        for size in SIZES {
            eprintln!("round {round} of {rounds}, {size} bytes");
            for row in one_round(&nodes, size)? {
                merge(&mut rows, row);
            }
            let peers = peer.half_round_trip(size, balls(size));
            beside.entry(size).or_default().extend(peers);
        }
    }
    let beside = beside_peer(&rows, &beside);
    let beside = match peer.missing() {
        Some(why) => beside.note(format!("{PEER}: not measured: {why}")),
        None => beside,
    };
    Ok(vec![latencies(&rows), streams(&rows), beside])
}

/// One round of a size, and one before it that warms up.
fn one_round(nodes: &HostNodes, size: usize) -> Result<Vec<BenchRow>> {
    let side = |peer| {
        let balls = balls(size);
        format!("message-bench --peer {peer} --rounds 1 --sizes {size} --balls {balls}")
    };
    let target = nodes.start(1, &side(0))?;
    let initiator = nodes.start(0, &format!("{} --initiator", side(1)))?;
    rows_of(initiator, target)
}

fn medians(row: &BenchRow) -> Vec<f64> {
    row.latency.iter().map(|it| it.median_us).collect()
}

fn find<'a>(rows: &'a [BenchRow], operation: &str, size: usize) -> Option<&'a BenchRow> {
    let same = |row: &&BenchRow| row.operation == operation && row.size == size;
    rows.iter().find(same)
}

/// Half round trips, of a notifying write of the same size.
fn latencies(rows: &[BenchRow]) -> Table {
    let measured = rows.iter().filter(|row| !row.latency.is_empty());
    let lines = measured.map(|row| {
        let unit = find(rows, "write_notify", row.size);
        let unit = unit.map(medians).unwrap_or_default();
        let is_goal = row.operation == "message" && row.size == 8;
        let goal = is_goal.then(|| Goal::at_most(LATENCY_GOAL));
        let of_round = |pick: fn(&Latency) -> f64| row.latency.iter().map(pick).collect();
        let figures = [
            Figure::with_spread("half round trip", "µs", medians(row))
                .ratio_to("of notifying write", &unit)
                .ratio_goal(goal),
            Figure::new("99 %", "µs", of_round(|it| it.p99_us)),
            Figure::new("least", "µs", of_round(|it| it.min_us)),
        ];
        Row::new(&*row.operation, figures).size(row.size)
    });
    Table::new("latency", "Messages: latency", lines.collect())
}

/// Streams, of writes of the same size.
fn streams(rows: &[BenchRow]) -> Table {
    let measured = rows.iter().filter(|row| !row.mb_s.is_empty());
    let lines = measured.map(|row| {
        let unit = find(rows, "write", row.size).map(|unit| unit.mb_s.clone());
        let goal = STREAM_GOALS
            .iter()
            .find(|(operation, _)| *operation == row.operation);
        let goal = goal.filter(|_| row.size == 1 << 20);
        let goal = goal.map(|(_, least)| Goal::at_least(*least));
        let thousands = row.mb_s.iter().map(|mb_s| mb_s * 1e3 / row.size as f64);
        let figures = [
            Figure::with_spread("stream", "MB/s", row.mb_s.clone())
                .ratio_to("of write", &unit.unwrap_or_default())
                .ratio_goal(goal),
            Figure::new("rate", "1000/s", thousands.collect()),
        ];
        Row::new(&*row.operation, figures).size(row.size)
    });
    Table::new("streams", "Messages: streams", lines.collect())
}

/// Half round trips beside libfabric's, which knows no more than the mean of a round.
fn beside_peer(rows: &[BenchRow], peer: &BTreeMap<usize, Vec<f64>>) -> Table {
    let figures = |us: Vec<f64>, floor: &[f64]| {
        let thousands = us.iter().map(|us| 1e3 / us).collect();
        [
            Figure::with_spread("half round trip, mean", "µs", us)
                .ratio_to("of fi_pingpong", floor),
            Figure::new("one after the other", "1000/s", thousands),
        ]
    };
    let lines = peer.iter().flat_map(|(size, of_peer)| {
        let ours = find(rows, "message", *size).map(|row| row.latency.iter());
        let ours = ours.into_iter().flatten().map(|it| it.mean_us).collect();
        let mut ours = figures(ours, of_peer);
        ours[0] = ours[0]
            .clone()
            .ratio_goal(Goal::at_most(PEER_GOAL).code("P7"));
        [
            Row::new("message", ours),
            Row::new(PEER, figures(of_peer.clone(), &[])).of_peer(true),
        ]
        .map(|row| row.size(*size))
    });
    let title = "Messages beside libfabric's: fi_pingpong -p shm -e rdm -m tagged";
    Table::new("beside-libfabric", title, lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    #[test]
    fn ratios_are_to_writes_of_the_same_size() {
        let row = |operation: &str, median_us, mb_s| {
            let mut row = BenchRow::new(operation, 8);
            row.latency = vec![Latency {
                median_us,
                p99_us: 9.0,
                min_us: 1.0,
                mean_us: median_us + 1.0,
                rounds: 5,
            }];
            row.mb_s = vec![mb_s];
            row
        };
        let rows = [
            row("write", 2.0, 40.0),
            row("write_notify", 4.0, 30.0),
            row("message", 5.0, 20.0),
        ];
        let words = words_of_row(&latencies(&rows), "message").join(" ");
        assert_eq!(words, "message 8 5.00 (5.00 … 5.00) 1.25 ≤ 1.3 9.00 1.00");
        let words = words_of_row(&streams(&rows), "message").join(" ");
        assert_eq!(words, "message 8 20.00 (20.00 … 20.00) 0.50 2500");
        let beside = |of_peer| beside_peer(&rows, &BTreeMap::from([(8, of_peer)]));
        let words = words_of_row(&beside(vec![2.0, 3.0, 40.0]), "message").join(" ");
        assert_eq!(words, "message 8 6.00 (6.00 … 6.00) 2.00 ≤ 1, missed 166.7");
        let words = words_of_row(&beside(vec![2.0, 4.0, 40.0]), PEER).join(" ");
        assert_eq!(words, "fi_pingpong 8 4.00 (2.00 … 40.00) - - 250.0");
        // Not measured.
        let words = words_of_row(&beside(Vec::new()), PEER).join(" ");
        assert_eq!(words, "fi_pingpong 8 - - - -");
    }
}
