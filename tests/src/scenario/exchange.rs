//! Programs that exchange verified data.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_apps::report::DemoLine;

use crate::nodes::Nodes;

/// Longest time for programs that run under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// Every node writes to every other at once, and each byte is verified.
///
/// # Errors
/// A program failed.
pub fn all_pairs_exchange(nodes: &dyn Nodes, rounds: u32) -> Result<()> {
    let list: Vec<_> = (0..nodes.count()).map(|node| node.to_string()).collect();
    let list = list.join(",");
    let rounds = rounds.to_string();
    let arguments = ["exchange", "--nodes", &list, "--rounds", &rounds];
    let mut running = Vec::new();
    for node in 0..nodes.count() {
        running.push(nodes.start(node, &arguments)?);
    }
    for (node, program) in running.iter_mut().enumerate() {
        let what = format!("the exchange on node {node}");
        program.wait(LIMIT).context(what.clone())?.success(&what)?;
    }
    Ok(())
}

/// The demo between nodes 0 and 1, with these sizes; all lines of the initiator.
///
/// # Errors
/// A program failed, or a byte was wrong.
pub fn demo_pair(nodes: &dyn Nodes, sizes: &str, stream_bytes: usize) -> Result<Vec<DemoLine>> {
    demo_between(nodes, [0, 1], sizes, stream_bytes)
}

/// The demo from one node to another, as [`demo_pair`].
///
/// # Errors
/// As [`demo_pair`].
pub fn demo_between(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
    sizes: &str,
    stream_bytes: usize,
) -> Result<Vec<DemoLine>> {
    let mut target = nodes.start(to, &["demo-target"])?;
    let (stream_bytes, peer) = (stream_bytes.to_string(), to.to_string());
    let arguments = [
        "demo-initiator",
        "--peer",
        &peer,
        "--sizes",
        sizes,
        "--stream-bytes",
        &stream_bytes,
    ];
    let mut initiator = nodes.start(from, &arguments)?;
    let ended = initiator
        .wait(LIMIT)
        .context("the initiator")?
        .success("the initiator")?;
    target.wait(LIMIT)?.success("the target")?;
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
    Ok(lines)
}
