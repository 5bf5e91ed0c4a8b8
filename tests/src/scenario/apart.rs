//! Nodes of two device processes that are joined by a network which can be cut.
//!
//! ```text
//!   nodes 0, 1 ── device process 0 ══ carrier ══ device process 1 ── nodes 2, 3
//! ```

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

use super::death::RUNNING;
use super::exchange::demo_and_path;
use super::{all_pairs_exchange, demo_between, Load};
use crate::netns::TwoHosts;
use qnic_trials::nodes::{counter, until, until_grown, wait_until_empty, Nodes, LIMIT};

/// What a device process says of its carrier to the other.
fn carrier(nodes: &dyn Nodes, device: usize) -> Result<Value> {
    Ok(nodes.device_stats()?["network"]["carriers"][device].take())
}

/// Waits, for two minutes at most, until something holds of a device process's carrier to the
/// other; `what` names it in errors.
pub(crate) fn until_carrier(
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
pub(crate) fn until_connected(nodes: &dyn Nodes) -> Result<()> {
    for device in [0, 1] {
        until_carrier(nodes, device, "connected", |carrier| {
            carrier["processes"][0]["connected"] == true
        })?;
    }
    Ok(())
}

/// The demo runs across in both directions, and all pairs of the four nodes exchange
/// data; a carrier of this kind has brought all of it, and nothing that it had to refuse.
pub(crate) fn demo_across(
    nodes: &dyn Nodes,
    kind: &str,
    sizes: &str,
    stream_bytes: usize,
) -> Result<()> {
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

/// Longest separation that must do no harm: half the time that the peers of the cases may be
/// silent, as their next retransmission may come that long after it.
const SHORT_CUT: Duration = Duration::from_millis(1500);

/// How often a separation is made, at most, until one is no longer than that.
const CUTS: u32 = 20;

/// The hosts are separated while nodes transfer across: within the time that peers may be
/// silent transfers go on with every byte right, beyond it they end with an error, and
/// nothing of them is left; afterwards both sides start clean. `rounds` is how long the
/// exchange takes that the first separation must not hurt.
pub(crate) fn partition_heals_in_time_and_fails_beyond(
    nodes: &dyn Nodes,
    hosts: &TwoHosts,
    rounds: u32,
) -> Result<()> {
    let mut load = load_across_a_short_cut(nodes, hosts, rounds)?;
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

/// Separates the hosts until a node notices; all programs survive it. Returns the one that
/// transfers on.
fn load_across_a_short_cut(nodes: &dyn Nodes, hosts: &TwoHosts, rounds: u32) -> Result<Load> {
    let exchange = format!("exchange --nodes 1,3 --rounds {rounds}");
    for _ in 0..CUTS {
        until_connected(nodes)?;
        let mut verified = [nodes.start(1, &exchange)?, nodes.start(3, &exchange)?];
        let mut load = Load::start(nodes, [0, 2])?;
        until_grown(nodes, 2, "bytes_received", RUNNING)?;
        let cut = cut_until_noticed(nodes, hosts)?;
        if cut <= SHORT_CUT {
            load.goes_on(nodes, 2)
                .with_context(|| format!("after a partition of {cut:?}"))?;
            for (program, node) in verified.iter_mut().zip([1, 3]) {
                let what = format!("the exchange on node {node}, across a partition of {cut:?}");
                program.succeed(&what, LIMIT)?;
            }
            return Ok(load);
        }
        // A busy machine made it longer than promised: some may have lost their peers.
        let [first, second] = &mut verified;
        for program in [first, second, &mut load.writer, &mut load.server] {
            program.kill()?;
            program.wait(LIMIT)?;
        }
        (0..4).try_for_each(|node| wait_until_empty(nodes, node))?;
    }
    bail!("{CUTS} separations took longer than {SHORT_CUT:?} each")
}

/// Separates the hosts, and joins them again as soon as node 0 or 2 has sent something again.
/// Returns how long they were apart, at most.
fn cut_until_noticed(nodes: &dyn Nodes, hosts: &TwoHosts) -> Result<Duration> {
    // Either may be the one with frames that are not acknowledged: of data or of replies.
    let resent = || -> Result<u64> {
        let stats = nodes.device_stats()?;
        Ok(counter(&stats, 0, "resend_timeouts")? + counter(&stats, 2, "resend_timeouts")?)
    };
    let start = Instant::now();
    hosts.set_joined(false)?;
    let before = resent()?;
    until(LIMIT, || {
        Ok((resent()? == before).then(|| "the partition was not noticed".into()))
    })?;
    hosts.set_joined(true)?;
    Ok(start.elapsed())
}
