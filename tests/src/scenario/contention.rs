//! Processes of all nodes that contend for locks, semaphores and monitors.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::nodes::Nodes;

/// Longest time for programs that run under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// `members` processes on each node contend for one lock, one semaphore and one
/// bounded buffer, `rounds` times each; the first node is the home of all three, and
/// checks the sums (N21 to N24).
///
/// # Errors
/// A program failed, or a sum is wrong.
pub fn contention(nodes: &dyn Nodes, members: u32, rounds: u32) -> Result<()> {
    let list: Vec<_> = (0..nodes.count()).map(|node| node.to_string()).collect();
    let list = list.join(",");
    let arguments = [
        "contend",
        "--nodes",
        &list,
        "--members",
        &members.to_string(),
        "--rounds",
        &rounds.to_string(),
    ];
    let mut running = Vec::new();
    for node in 0..nodes.count() {
        running.push(nodes.start(node, &arguments)?);
    }
    let mut lines = Vec::new();
    for (node, program) in running.iter_mut().enumerate() {
        let what = format!("contention on node {node}");
        let ended = program.wait(LIMIT).context(what.clone())?;
        lines.push(ended.success(&what)?.lines.concat());
    }
    let total = nodes.count() * members as usize * rounds as usize;
    ensure!(
        lines[0].contains(&format!("\"contended\":{total}")),
        "the home says {:?}",
        lines[0]
    );
    Ok(())
}
