//! Nodes of two device processes that are joined by a network which can be cut.
//!
//! ```text
//!   nodes 0, 1 ── device process 0 ══ carrier ══ device process 1 ── nodes 2, 3
//! ```

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use super::death::RUNNING;
use super::exchange::demo_and_path;
use super::{all_pairs_exchange, demo_between, Load};
use crate::netns::TwoHosts;
use crate::nodes::{counter, until, until_grown, wait_until_empty, Nodes, LIMIT};

/// What a device process says of its carrier to the other.
fn carrier(nodes: &dyn Nodes, device: usize) -> Result<Value> {
    Ok(nodes.device_stats()?["network"]["carriers"][device].take())
}

/// Waits, for two minutes at most, until something holds of a device process's carrier to the
/// other; `what` names it in errors.
pub fn until_carrier(
    nodes: &dyn Nodes,
    device: usize,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let mut last = Value::Null;
    until(LIMIT, || {
        last = carrier(nodes, device)?;
        Ok((!holds(&last)).then(|| format!("not {what}: {last}")))
    })?;
    Ok(last)
}

/// Waits until both device processes say that the other answers.
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
pub fn demo_across(nodes: &dyn Nodes, kind: &str, sizes: &str, stream_bytes: usize) -> Result<()> {
    until_connected(nodes)?;
    let max_payload = demo_and_path(nodes, [0, 2], sizes, stream_bytes)?;
    demo_between(nodes, [3, 1], sizes, stream_bytes / 4)?;
    all_pairs_exchange(nodes, 10)?;
    for device in [0, 1] {
        let carrier = carrier(nodes, device)?;
        let process = &carrier["processes"][0];
        ensure!(carrier["kind"] == kind, "{carrier}");
        ensure!(process["frames_sent"].as_u64() > Some(1000), "{carrier}");
        ensure!(carrier["rejected"] == 0, "{carrier}");
        ensure!(process["malformed"] == 0, "{carrier}");
        // Frames are as long as the path takes (U5).
        ensure!(process["fragmented"] == 0, "{carrier}");
        if process["mtu"].as_u64() < Some(4096) {
            ensure!(
                max_payload == 1024,
                "{max_payload} bytes in a frame: {carrier}"
            );
        }
    }
    Ok(())
}

/// The hosts are separated while nodes transfer across: within the time that peers may be
/// silent transfers go on with every byte right, beyond it they end with an error, and
/// nothing of them is left; afterwards both sides start clean. `rounds` is how long the
/// exchange takes that the first separation must not hurt.
pub fn partition_heals_in_time_and_fails_beyond(
    nodes: &dyn Nodes,
    hosts: &TwoHosts,
    rounds: u32,
) -> Result<()> {
    until_connected(nodes)?;
    let exchange = format!("exchange --nodes 1,3 --rounds {rounds}");
    let mut verified = [nodes.start(1, &exchange)?, nodes.start(3, &exchange)?];
    let mut load = Load::start(nodes, [0, 2])?;
    until_grown(nodes, 2, "bytes_received", RUNNING)?;
    hosts.set_joined(false)?;
    let resent = || counter(&nodes.device_stats()?, 0, "resend_timeouts");
    let before = resent()?;
    until(LIMIT, || {
        Ok((resent()? == before).then(|| "the partition was not noticed".into()))
    })?;
    hosts.set_joined(true)?;
    until_grown(nodes, 2, "bytes_received", RUNNING).context("after the partition")?;
    for (program, node) in verified.iter_mut().zip([1, 3]) {
        let what = format!("the exchange on node {node}, across the partition");
        program.succeed(&what, LIMIT)?;
    }
    hosts.set_joined(false)?;
    load.loses_its_peer()?;
    load.server.kill()?;
    for node in [0, 2] {
        wait_until_empty(nodes, node).context("after the failure")?;
    }
    hosts.set_joined(true)?;
    until_connected(nodes)?;
    demo_between(nodes, [1, 3], "1,97,65537", 1 << 20)
}
