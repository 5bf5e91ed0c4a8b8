//! Nodes of two device processes that are joined by a network which can be cut.
//!
//! ```text
//!   nodes 0, 1 ── device process 0 ══ carrier ══ device process 1 ── nodes 2, 3
//! ```

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

use super::{all_pairs_exchange, demo_between};
use crate::netns::TwoHosts;
use crate::nodes::{counter, wait_until_empty, Nodes};

const LIMIT: Duration = Duration::from_secs(120);

/// Bytes after which traffic is called running.
const RUNNING: u64 = 4 << 20;

/// What a device process says of its way to the other.
fn carrier(nodes: &dyn Nodes, device: usize) -> Result<Value> {
    Ok(nodes.device_stats()?["network"]["carriers"][device].take())
}

/// Asks until something holds of a device process's way to the other.
///
/// # Errors
/// It does not in two minutes; `what` should hold.
pub fn until_carrier(
    nodes: &dyn Nodes,
    device: usize,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let start = Instant::now();
    loop {
        let carrier = carrier(nodes, device)?;
        if holds(&carrier) {
            return Ok(carrier);
        }
        ensure!(
            start.elapsed() < LIMIT,
            "not {what} after {LIMIT:?}: {carrier}"
        );
    }
}

/// Waits until both device processes say that the other answers.
///
/// # Errors
/// They do not.
pub fn until_connected(nodes: &dyn Nodes) -> Result<()> {
    for device in [0, 1] {
        until_carrier(nodes, device, "connected", |carrier| {
            carrier["processes"][0]["connected"] == true
        })?;
    }
    Ok(())
}

/// The demo runs across in both directions, and all pairs of the four nodes exchange
/// data; a carrier of this kind has brought all of it, and nothing that it had to refuse.
///
/// # Errors
/// A byte was wrong, or something was refused.
pub fn demo_across(nodes: &dyn Nodes, kind: &str, sizes: &str, stream_bytes: usize) -> Result<()> {
    until_connected(nodes)?;
    demo_between(nodes, [0, 2], sizes, stream_bytes)?;
    demo_between(nodes, [3, 1], sizes, stream_bytes / 4)?;
    all_pairs_exchange(nodes, 10)?;
    for device in [0, 1] {
        let carrier = carrier(nodes, device)?;
        let process = &carrier["processes"][0];
        ensure!(carrier["kind"] == kind, "{carrier}");
        ensure!(process["frames_sent"].as_u64() > Some(1000), "{carrier}");
        ensure!(carrier["rejected"] == 0, "{carrier}");
        ensure!(process["malformed"] == 0, "{carrier}");
    }
    Ok(())
}

/// Waits until a node has received so many bytes more.
fn wait_for_bytes(nodes: &dyn Nodes, node: usize) -> Result<()> {
    let received = || counter(&nodes.device_stats()?, node, "bytes_received");
    let (start, first) = (Instant::now(), received()?);
    while received()? < first + RUNNING {
        ensure!(start.elapsed() < LIMIT, "no traffic to node {node}");
    }
    Ok(())
}

/// The hosts are separated while nodes transfer across: within the time that peers may be
/// silent transfers go on with every byte right, beyond it they end with an error, and
/// nothing of them is left; afterwards both sides start clean. `rounds` is how long the
/// exchange takes that the first separation must not hurt.
///
/// # Errors
/// Something else happened.
pub fn partition_heals_in_time_and_fails_beyond(
    nodes: &dyn Nodes,
    hosts: &TwoHosts,
    rounds: u32,
) -> Result<()> {
    until_connected(nodes)?;
    let rounds = rounds.to_string();
    let arguments = ["exchange", "--nodes", "1,3", "--rounds", &rounds];
    let mut verified = Vec::new();
    for node in [1, 3] {
        verified.push(nodes.start(node, &arguments)?);
    }
    let mut holder = nodes.start(2, &["memory-server"])?;
    holder.expect("serving", LIMIT)?;
    let mut load = nodes.start(0, &["load", "--peer", "2"])?;
    load.expect("loading", LIMIT)?;
    wait_for_bytes(nodes, 2)?;
    hosts.set_joined(false)?;
    let resent = || counter(&nodes.device_stats()?, 0, "resend_timeouts");
    let (start, before) = (Instant::now(), resent()?);
    while resent()? == before {
        ensure!(start.elapsed() < LIMIT, "the partition was not noticed");
    }
    hosts.set_joined(true)?;
    wait_for_bytes(nodes, 2).context("after the partition")?;
    for (program, node) in verified.iter_mut().zip([1, 3]) {
        let what = format!("the exchange on node {node}, across the partition");
        program.wait(LIMIT).context(what.clone())?.success(&what)?;
    }
    hosts.set_joined(false)?;
    let failed = load.expect("failed", LIMIT).context("the writer")?;
    let Some(message) = failed.as_str() else {
        bail!("no message: {failed}");
    };
    ensure!(
        message.contains("peer") || message.contains("node"),
        "{message}"
    );
    holder.kill()?;
    for node in [0, 2] {
        wait_until_empty(nodes, node, LIMIT).context("after the failure")?;
    }
    hosts.set_joined(true)?;
    until_connected(nodes)?;
    demo_between(nodes, [1, 3], "1,97,65537", 1 << 20)?;
    Ok(())
}
