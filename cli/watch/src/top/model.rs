//! What has happened between two snapshots.

use qnic_cluster::stages::Times;
use serde::Serialize;

use crate::top::occupants::{self, PeerRow, ProcessRow};
use crate::top::snapshot::{Between, NodeSnapshot, Snapshot};

/// What is shown of a node. `None` is not known: without an earlier snapshot, or when a counter has
/// begun anew in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its name.
    pub node: String,
    /// The state of its NIC; `gone` if it was there before.
    pub state: String,
    /// Commands per second.
    pub operations_per_second: Option<u64>,
    /// Payload bytes per second that it has sent.
    pub sent_per_second: Option<u64>,
    /// Payload bytes per second that it has received.
    pub received_per_second: Option<u64>,
    /// Frames per second that were sent again.
    pub resent_per_second: Option<u64>,
    /// Operations that are not complete.
    pub depth: u64,
    /// Registered processes.
    pub processes: u64,
    /// Fragments that peers may have under way to it, and the most that it may grant.
    pub credits: Option<(u64, u64)>,
    /// Page-table hits of 1,000 lookups in between; `None` if there were none.
    pub hits_of_thousand: Option<u64>,
    /// Stages with times in between.
    pub stages: Vec<StageRow>,
    /// Its processes, the busiest first.
    pub by_process: Vec<ProcessRow>,
    /// The NICs that it talks to.
    pub by_peer: Vec<PeerRow>,
}

/// What is shown of one kind of operation and one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageRow {
    /// Kind and stage, such as `write queued`.
    pub stage: String,
    /// Times that were taken.
    pub count: u64,
    /// Half of them are not longer, in nanoseconds; `None`: longer than 4 s.
    pub half: Option<u64>,
    /// 99 % of them are not longer.
    pub most: Option<u64>,
}

/// Counters of lookups: all, and those that hit.
const LOOKUPS: [&str; 4] = [
    "source_hits",
    "destination_hits",
    "source_misses",
    "destination_misses",
];

/// A row for each node of either snapshot, by name.
pub fn rows(before: Option<&Snapshot>, now: &Snapshot) -> Vec<Row> {
    let elapsed = before.map_or(0, |before| {
        now.taken.saturating_duration_since(before.taken).as_nanos()
    });
    let earlier = |name: &str| before.and_then(|before| before.nodes.get(name));
    let present = now.nodes.iter();
    let present = present.map(|(name, node)| row(name, earlier(name), (node, now), elapsed));
    let gone = before.into_iter().flat_map(|before| &before.nodes);
    let gone = gone.filter(|(name, _)| !now.nodes.contains_key(*name));
    let gone = gone.map(|(name, _)| Row {
        state: "gone".to_owned(),
        ..row(name, None, (&NodeSnapshot::default(), now), 0)
    });
    let mut rows: Vec<_> = present.chain(gone).collect();
    rows.sort_by(|one, other| one.node.cmp(&other.node));
    rows
}

fn row(
    name: &str,
    before: Option<&NodeSnapshot>,
    (now, snapshot): (&NodeSnapshot, &Snapshot),
    elapsed: u128,
) -> Row {
    let between = Between {
        before: before.map(|before| &before.counters),
        now: &now.counters,
        elapsed,
    };
    let rate = |counter| between.rate(counter);
    let lookups = LOOKUPS.map(|counter| between.increase(counter));
    let hits = lookups[..2].iter().copied().sum::<Option<u64>>();
    let all = lookups.iter().copied().sum::<Option<u64>>();
    let hits_of_thousand = hits.zip(all).and_then(|(hits, all)| {
        let share = (u128::from(hits) * 1000).checked_div(u128::from(all))?;
        u64::try_from(share).ok()
    });
    let stages = now.stages.iter().map(|(stage, times)| {
        let earlier = before.and_then(|before| before.stages.get(stage));
        let times = earlier.map_or_else(|| times.clone(), |earlier| times.since(earlier));
        stage_row(stage, &times)
    });
    Row {
        node: name.to_owned(),
        state: now.state.clone(),
        operations_per_second: rate("commands"),
        sent_per_second: rate("bytes_sent"),
        received_per_second: rate("bytes_received"),
        resent_per_second: rate("frames_resent"),
        depth: now.counter("operations"),
        processes: now.counter("processes"),
        credits: now.budgets.get("windows").copied(),
        hits_of_thousand,
        stages: stages.filter(|stage| stage.count > 0).collect(),
        by_process: occupants::processes(before, now, elapsed),
        by_peer: occupants::peers(before, now, snapshot, elapsed),
    }
}

fn stage_row(stage: &str, times: &Times) -> StageRow {
    StageRow {
        stage: stage.to_owned(),
        count: times.count(),
        half: times.quantile(500),
        most: times.quantile(990),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    /// A snapshot `seconds` after `start`: each node has its name, commands and hits.
    pub(crate) fn snapshot(start: Instant, seconds: u64, nodes: &[(&str, u64, u64)]) -> Snapshot {
        let nics = nodes.iter().map(|(name, commands, hits)| {
            json!({
                "name": name, "node": 0, "state": "running",
                "statistics": {
                    "commands": commands, "bytes_sent": commands * 8, "bytes_received": 0,
                    "operations": 3, "processes": 2, "frames_resent": 0,
                    "source_hits": hits, "source_misses": 1,
                },
                "budgets": {"windows": {"used": 256, "limit": 4096}},
                "processes": (1..31).map(|vni| json!({
                    "vni": vni, "port": 7, "pid": 40, "name": format!("ring {vni}"), "queue": "active",
                    "commands": commands + hits * (vni == 4) as u64, "completions": 4, "notifications": 5,
                })).collect::<Vec<_>>(),
                "peers": [{"node": 9, "session": "open", "under_way": 12, "window": 256}],
                "stages": {"write queued": {"sum": commands * 64, "buckets": [[64, commands]]}},
            })
        });
        let stats = json!({ "nics": nics.collect::<Vec<_>>() });
        Snapshot::parse(&stats, start + Duration::from_secs(seconds))
    }

    #[test]
    fn rates_are_what_has_come_in_between() {
        let start = Instant::now();
        let before = snapshot(start, 0, &[("a", 1_000, 5)]);
        let after = snapshot(start, 2, &[("a", 4_000, 14)]);
        let rows = rows(Some(&before), &after);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(row.operations_per_second, Some(1_500));
        assert_eq!(row.sent_per_second, Some(12_000));
        assert_eq!(row.received_per_second, Some(0));
        assert_eq!(row.hits_of_thousand, Some(1_000), "misses did not grow");
        assert_eq!((row.depth, row.credits), (3, Some((256, 4096))));
        let stage = &row.stages[0];
        assert_eq!(
            (stage.count, stage.half, stage.most),
            (3_000, Some(64), Some(64))
        );
    }

    #[test]
    fn nothing_is_known_of_the_first_snapshot_and_of_none_in_between() {
        let start = Instant::now();
        let first = snapshot(start, 0, &[("a", 1_000, 5)]);
        let row = &rows(None, &first)[0];
        assert_eq!(
            (row.operations_per_second, row.hits_of_thousand),
            (None, None)
        );
        assert_eq!(row.stages[0].count, 1_000, "all times so far");
        let same = &rows(Some(&first), &first)[0];
        assert_eq!(same.operations_per_second, None, "no time has passed");
        assert_eq!((same.hits_of_thousand, same.stages.len()), (None, 0));
    }

    #[test]
    fn counters_that_begin_anew_give_no_rate() {
        let start = Instant::now();
        let before = snapshot(start, 0, &[("a", 1_000, 5)]);
        let after = snapshot(start, 1, &[("a", 10, 0)]);
        let row = &rows(Some(&before), &after)[0];
        assert_eq!(
            (row.operations_per_second, row.hits_of_thousand),
            (None, None)
        );
        assert_eq!(row.stages[0].count, 10, "what the new counters have");
    }

    #[test]
    fn nodes_that_vanish_are_gone_and_new_ones_have_no_rate() {
        let start = Instant::now();
        let before = snapshot(start, 0, &[("a", 1, 1), ("b", 1, 1)]);
        let after = snapshot(start, 1, &[("b", 2, 1), ("c", 5, 1)]);
        let rows = rows(Some(&before), &after);
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (&row.node[..], &row.state[..], row.operations_per_second))
            .collect();
        assert_eq!(
            shown,
            [
                ("a", "gone", None),
                ("b", "running", Some(1)),
                ("c", "running", None)
            ]
        );
    }

    #[test]
    fn an_answer_of_another_shape_is_no_panic() {
        for stats in [
            json!(null),
            json!({"nics": [{"name": 3}, 7, {"name": "a", "statistics": []}]}),
        ] {
            let snapshot = Snapshot::parse(&stats, Instant::now());
            assert!(rows(None, &snapshot).len() <= 1);
        }
    }
}
