//! A guest whose kernel is hostile, beside three that exchange verified data (X8).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic_cluster::NodeState;
use serde_json::Value;

use super::nodes::{on, VmNodes};
use super::shell::shell;
use crate::harness::{cases, Case};
use crate::nodes::{FirstNodes, Nodes, LIMIT};
use crate::scenario::{self, Load};

pub(crate) const CASES: &[Case] = cases! { "vm":
    a_hostile_guest_harms_nobody => on("hostile", &["stable"; 4], hostile_guest),
};

/// The variable that says how many seconds the guest is hostile, and how many without it.
const SECONDS: &str = "QNIC_HOSTILE_SECONDS";
const DEFAULT_SECONDS: u64 = 60;
/// The variable with the seed of what it does.
const SEED: &str = "QNIC_HOSTILE_SEED";

/// The honest nodes are the first; the hostile one comes behind them.
const HONEST: usize = 3;

/// Messages of each node to each other in one exchange.
const ROUNDS: u32 = 20;

/// Longest time that the throughput beside a busy honest guest is measured, before and after.
const HONEST_TIME: Duration = Duration::from_secs(60);

/// Memory that the device process may take for itself, beyond what it had when all nodes had
/// exchanged data: the requests that one NIC may keep, and what the allocator does with them.
const MEMORY: u64 = 32 << 20;

/// The last guest takes its NIC from the driver and goes at it, and the others exchange data all
/// the while: every byte is right, nothing ends, nothing grows.
fn hostile_guest(nodes: &VmNodes) -> Result<()> {
    let seconds = variable(SECONDS, DEFAULT_SECONDS)?;
    let seed = variable(SEED, 1)?;
    scenario::all_pairs_exchange(nodes, ROUNDS)?;
    // What else this machine does comes and goes: measured on both sides of the attack.
    let time = HONEST_TIME.min(Duration::from_secs(seconds / 4));
    let before = beside_a_busy_guest(nodes, time)?;
    let (done, beside_hostile) = beside_the_hostile_guest(nodes, seconds, seed)?;
    for node in 0..nodes.count() {
        let state = nodes.node(node)?.state();
        ensure!(state == NodeState::Ready, "node {node} is {state}");
        shell(nodes, node, "true")?;
    }
    // The driver has the NIC again, and it serves as before.
    scenario::all_pairs_exchange(nodes, ROUNDS)?;
    let beside_honest = before.midpoint(beside_a_busy_guest(nodes, time)?);
    println!("    it did {done}");
    println!(
        "    exchanges of the others: {beside_honest:.3}/s beside a busy guest, \
         {beside_hostile:.3}/s beside the hostile one ({:.0} %)",
        100.0 * beside_hostile / beside_honest
    );
    for deed in ["mapped", "rebinds", "faults_answered", "switched_off"] {
        ensure!(done[deed] != 0, "not done: {deed} in {done}");
    }
    Ok(())
}

/// Has the honest nodes exchange data beside a guest that transfers without end.
fn beside_a_busy_guest(nodes: &VmNodes, time: Duration) -> Result<f64> {
    let busy = Load::start(nodes, [HONEST, 0])?;
    let rate = exchanges_per_second(nodes, time, || Ok(()))?;
    for mut program in [busy.writer, busy.server] {
        program.kill()?;
        program.wait(LIMIT)?;
    }
    Ok(rate)
}

/// The same beside the hostile guest; returns what that has done, too. The device process stays
/// within its memory.
fn beside_the_hostile_guest(nodes: &VmNodes, seconds: u64, seed: u64) -> Result<(Value, f64)> {
    let memory = || {
        let stats = nodes.device_stats()?;
        let own = stats["rss_anon_bytes"].as_u64();
        own.context("no memory in the statistics")
    };
    let before = memory()?;
    let attack = format!("hostile-guest --seconds {seconds} --seed {seed}");
    let mut hostile = nodes.start_until(HONEST, &attack, "attacking")?;
    let mut most = before;
    let rate = exchanges_per_second(nodes, Duration::from_secs(seconds), || {
        most = most.max(memory()?);
        ensure!(
            most <= before + MEMORY,
            "the device process has grown from {before} to {most} bytes"
        );
        Ok(())
    })?;
    println!("    memory of the device process: {before} bytes before, {most} at most");
    let done = hostile.expect("attacked", LIMIT);
    let done = done.context("the hostile guest")?;
    hostile.succeed("the hostile guest", LIMIT)?;
    Ok((done, rate))
}

/// Has the honest nodes exchange data for a time, and returns how often they did. `check` looks
/// after each exchange.
fn exchanges_per_second(
    nodes: &VmNodes,
    time: Duration,
    mut check: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let start = Instant::now();
    let mut count = 0.0;
    while start.elapsed() < time {
        scenario::all_pairs_exchange(&FirstNodes(nodes, HONEST), ROUNDS)?;
        check()?;
        count += 1.0;
    }
    Ok(count / start.elapsed().as_secs_f64())
}

fn variable(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => {
            let number = text.parse();
            number.with_context(|| format!("{name}={text}: expected a number"))
        }
    }
}
