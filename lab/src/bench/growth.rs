//! What a write of 8 bytes costs as there is more beside it (P9): endpoints of one process that
//! take turns, NICs of one device process that do nothing, peers that take turns. Host mode.

use anyhow::{Context, Result};
use qnic_apps::report::{BenchRow, Latency, ServerLine};
use qnic_tests::host::HostNodes;
use qnic_tests::nodes::Nodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::{merge, LIMIT};

/// Something that grows, and what one write may cost at most of what it costs with the first
/// count.
struct Sweep {
    id: &'static str,
    /// What there is more of.
    grows: &'static str,
    title: &'static str,
    counts: &'static [usize],
    goal: f64,
    /// NICs, endpoints and peers for a count.
    plan: fn(usize) -> (usize, usize, usize),
}

const SWEEPS: [Sweep; 3] = [
    Sweep {
        id: "endpoints",
        grows: "endpoints",
        title: "Endpoints of one process that take turns",
        counts: &[1, 16, 120],
        goal: 1.2,
        plan: |count| (2, count, 1),
    },
    Sweep {
        id: "idle-nics",
        grows: "NICs",
        title: "NICs of one device process, all but two idle",
        counts: &[2, 16, 64],
        goal: 1.1,
        plan: |count| (count, 1, 1),
    },
    Sweep {
        id: "peers",
        grows: "peers",
        title: "Peers that take turns",
        counts: &[1, 16, 63],
        goal: 1.2,
        plan: |count| (count + 1, 1, count),
    },
];

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let mut all: Vec<Vec<Vec<BenchRow>>> = Vec::new();
    for sweep in &SWEEPS {
        all.push(vec![Vec::new(); sweep.counts.len()]);
    }
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for (sweep, rows) in SWEEPS.iter().zip(&mut all) {
            for (count, rows) in sweep.counts.iter().zip(rows) {
                for row in one_round((sweep.plan)(*count))? {
                    merge(rows, row);
                }
            }
        }
    }
    Ok(SWEEPS.iter().zip(&all).map(table).collect())
}

/// One round, between nodes of its own.
fn one_round((nics, endpoints, peers): (usize, usize, usize)) -> Result<Vec<BenchRow>> {
    let nodes = HostNodes::start(nics)?;
    let start = |node| -> Result<_> {
        let mut server = nodes.start(node, "memory-server")?;
        let line = server.line(LIMIT)?.context("the server says nothing")?;
        serde_json::from_str::<ServerLine>(&line).with_context(|| format!("line {line:?}"))?;
        Ok(server)
    };
    let servers: Vec<_> = (1..=peers).map(start).collect::<Result<_>>()?;
    let peers: Vec<_> = (1..=peers).map(|node| node.to_string()).collect();
    let peers = peers.join(",");
    let words = format!("growth-bench --endpoints {endpoints} --peers {peers}");
    let mut writer = nodes.start(0, &words)?;
    let mut rows = Vec::new();
    while let Some(line) = writer.line(LIMIT).context("the writer")? {
        rows.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
    }
    writer.succeed("the writer", LIMIT)?;
    for mut server in servers {
        server.succeed("a memory server", LIMIT)?;
    }
    Ok(rows)
}

fn table((sweep, rows): (&Sweep, &Vec<Vec<BenchRow>>)) -> Table {
    let times = |rows: &[BenchRow], name: &str| -> Vec<f64> {
        let row = rows.iter().find(|row| row.operation == name);
        let all = row.into_iter().flat_map(|row| &row.latency);
        all.map(|latency: &Latency| latency.median_us).collect()
    };
    let lines = sweep.counts.iter().zip(rows).map(|(count, own)| {
        let goal = (*count > sweep.counts[0]).then(|| Goal::at_most(sweep.goal).code("P9"));
        let figure = |name: &str| {
            Figure::with_spread(name, "µs", times(own, name))
                .ratio_to("of the first", &times(&rows[0], name))
                .ratio_goal(goal.clone())
        };
        let figures = [figure("fenced"), figure("streamed")];
        Row::new("write of 8 bytes", figures).at(sweep.grows, *count as f64)
    });
    Table::new(sweep.id, sweep.title, lines.collect())
}
