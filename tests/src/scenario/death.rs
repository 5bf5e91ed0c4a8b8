//! Processes that are killed while transfers run.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::nodes::{counter, wait_until_empty, Nodes};

const LIMIT: Duration = Duration::from_secs(120);

/// Waits until a node has moved this many bytes since it was asked first.
fn wait_for_traffic(nodes: &dyn Nodes, node: usize, bytes: u64) -> Result<()> {
    let start = std::time::Instant::now();
    let first = counter(&nodes.device_stats()?, node, "bytes_sent")?;
    while counter(&nodes.device_stats()?, node, "bytes_sent")? < first + bytes {
        ensure!(start.elapsed() < LIMIT, "no traffic on node {node}");
    }
    Ok(())
}

/// A process under load is killed with signal 9: its node's NIC holds nothing of
/// it afterwards, and the process it wrote to goes on.
///
/// # Errors
/// Something was left.
pub fn a_killed_process_leaves_nothing(nodes: &dyn Nodes, from: usize, to: usize) -> Result<()> {
    let mut holder = nodes.start(to, &["memory-server"])?;
    holder.expect("serving", LIMIT)?;
    let peer = to.to_string();
    let mut load = nodes.start(from, &["load", "--peer", &peer])?;
    load.expect("loading", LIMIT)?;
    wait_for_traffic(nodes, from, 4 << 20)?;
    load.kill()?;
    load.wait(LIMIT).context("the killed process")?;
    wait_until_empty(nodes, from, LIMIT)?;
    let mut last = nodes.start(from, &["isolation-probe", "--peer", &peer, "--release"])?;
    last.wait(LIMIT)?.success("a transfer after the kill")?;
    holder.wait(LIMIT)?.success("the holder")?;
    wait_until_empty(nodes, to, LIMIT)
}

/// A process that others write to is killed: they get an error that says so.
///
/// # Errors
/// They did not.
pub fn peers_of_a_killed_process_learn_of_it(
    nodes: &dyn Nodes,
    from: usize,
    to: usize,
) -> Result<()> {
    let mut holder = nodes.start(to, &["memory-server"])?;
    holder.expect("serving", LIMIT)?;
    let peer = to.to_string();
    let mut load = nodes.start(from, &["load", "--peer", &peer])?;
    load.expect("loading", LIMIT)?;
    wait_for_traffic(nodes, from, 4 << 20)?;
    holder.kill()?;
    let failed = load.expect("failed", LIMIT)?;
    let message = failed.as_str().unwrap_or_default();
    ensure!(
        // In host mode the node goes with its process.
        ["no process", "process ended", "unexported", "no such node"]
            .iter()
            .any(|part| message.contains(part)),
        "the message does not say what happened: {message:?}"
    );
    let ended = load.wait(LIMIT)?;
    ensure!(
        ended.status == 3,
        "the load ended with status {}",
        ended.status
    );
    wait_until_empty(nodes, to, LIMIT)
}
