//! A guest whose kernel is hostile, beside three that exchange verified data (X8).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic_cluster::NodeState;

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

/// Memory that the device process may take for itself, beyond what it had when all nodes had
/// exchanged data: the requests that one NIC may keep, and what the allocator does with them.
const MEMORY: u64 = 128 << 20;

/// The last guest takes its NIC from the driver and goes at it, and the others exchange data all
/// the while: every byte is right, nothing ends, nothing grows.
fn hostile_guest(nodes: &VmNodes) -> Result<()> {
    let seconds = variable(SECONDS, DEFAULT_SECONDS)?;
    let seed = variable(SEED, 1)?;
    scenario::all_pairs_exchange(nodes, ROUNDS)?;
    let beside_honest = {
        let _busy = Load::start(nodes, [HONEST, 0])?;
        let time = Duration::from_secs(seconds.min(30));
        exchanges_per_second(nodes, |start| start.elapsed() < time)?
    };
    let memory = || {
        let stats = nodes.device_stats()?;
        stats["rss_anon_bytes"]
            .as_u64()
            .context("no memory in the statistics")
    };
    let before = memory()?;
    let attack = format!("hostile-guest --seconds {seconds} --seed {seed}");
    let mut hostile = nodes.start_until(HONEST, &attack, "attacking")?;
    let time = Duration::from_secs(seconds);
    let mut most = before;
    let beside_hostile = exchanges_per_second(nodes, |start| {
        most = most.max(memory().unwrap_or(u64::MAX));
        start.elapsed() < time
    })?;
    let done = hostile
        .expect("attacked", LIMIT)
        .context("the hostile guest")?;
    hostile.succeed("the hostile guest", LIMIT)?;
    println!("    it did {done}");
    println!(
        "    exchanges of the others: {beside_honest:.2}/s beside a busy guest, \
         {beside_hostile:.2}/s beside the hostile one ({:.0} %)",
        100.0 * beside_hostile / beside_honest
    );
    println!("    memory of the device process: {before} bytes before, {most} at most");
    ensure!(
        most <= before + MEMORY,
        "the device process has grown from {before} to {most} bytes"
    );
    ensure!(done["mapped"] != 0, "it never got its SRAM: {done}");
    for node in 0..nodes.count() {
        let state = nodes.node(node)?.state();
        ensure!(state == NodeState::Ready, "node {node} is {state}");
        shell(nodes, node, "true")?;
    }
    // The driver has the NIC again, and it serves as before.
    scenario::all_pairs_exchange(nodes, ROUNDS)
}

/// Has the honest nodes exchange data as long as `goes_on`, and returns how often they did.
fn exchanges_per_second(nodes: &VmNodes, mut goes_on: impl FnMut(Instant) -> bool) -> Result<f64> {
    let start = Instant::now();
    let mut count = 0.0;
    while goes_on(start) {
        scenario::all_pairs_exchange(&FirstNodes(nodes, HONEST), ROUNDS)?;
        count += 1.0;
    }
    Ok(count / start.elapsed().as_secs_f64())
}

fn variable(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name}={text}: expected a number")),
    }
}
