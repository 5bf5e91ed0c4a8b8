//! Programs that exchange verified data.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_apps::report::DemoLine;

use qnic_trials::nodes::Nodes;

/// Longest time for programs that run under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// Every node writes to every other at once, and each byte is verified.
pub(crate) fn all_pairs_exchange(nodes: &dyn Nodes, rounds: u32) -> Result<()> {
    let all: Vec<_> = (0..nodes.count()).map(|node| node.to_string()).collect();
    let exchange = format!("exchange --nodes {} --rounds {rounds}", all.join(","));
    let programs: Vec<_> = (0..all.len())
        .map(|node| (node, exchange.clone()))
        .collect();
    nodes.run_all(&programs, LIMIT)
}

/// Round trips for each latency of a demo with long streams.
const ROUND_TRIPS: usize = 1000;

/// The demo from one node to another, with these sizes. One whose streams are short has fewer
/// round trips, too.
pub(crate) fn demo_between(
    nodes: &dyn Nodes,
    ends: [usize; 2],
    sizes: &str,
    stream_bytes: usize,
) -> Result<()> {
    demo_and_path(nodes, ends, sizes, stream_bytes).map(drop)
}

/// The same; returns how many bytes a frame carries, as the demo was told.
pub(super) fn demo_and_path(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
    sizes: &str,
    stream_bytes: usize,
) -> Result<u32> {
    let mut target = nodes.start(to, "demo-target")?;
    let round_trips = stream_bytes.min(ROUND_TRIPS);
    let demo = format!(
        "demo-initiator --peer {to} --sizes {sizes} --stream-bytes {stream_bytes} \
         --latency-rounds {round_trips}"
    );
    let mut initiator = nodes.start(from, &demo)?;
    let ended = initiator.succeed("the initiator", LIMIT)?;
    target.succeed("the target", LIMIT)?;
    let mut lines = Vec::new();
    for line in &ended.lines {
        lines.push(serde_json::from_str(line).with_context(|| format!("line {line:?}"))?);
    }
    let rows = lines.iter().filter(|line| matches!(line, DemoLine::Row(_)));
    ensure!(
        rows.count() == 2 * sizes.split(',').count(),
        "the initiator printed {} lines",
        lines.len()
    );
    let path = lines.iter().find_map(|line| match line {
        DemoLine::Connected { max_payload, .. } => Some(*max_payload),
        _ => None,
    });
    path.context("the initiator did not connect")
}
