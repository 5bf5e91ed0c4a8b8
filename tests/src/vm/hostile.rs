//! A guest whose kernel is hostile, beside three that exchange verified data (X8), two of them by verbs too (X18).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic_cluster::{NodeState, OnOff};
use serde_json::{Map, Value};

use super::ethernet::reach;
use super::nodes::on_spec;
use super::verbs::{both_run, connect_once};
use crate::harness::{cases, is_long, Case};
use crate::scenario::{self, Load};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{counter, until, FirstNodes, Nodes, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    a_hostile_guest_harms_nobody => {
        let mut spec = VmNodes::spec("hostile", &["stable"; 4])?;
        spec.ethernet = OnOff::on();
        spec.verbs = true;
        on_spec(&spec, hostile_guest)
    },
};

/// The variable that says how many seconds the guest is hostile, and how many without it; in a run with `--all`.
const SECONDS: &str = "QNIC_HOSTILE_SECONDS";
const DEFAULT_SECONDS: u64 = 24;
const DEFAULT_SECONDS_LONG: u64 = 240;
/// The variable with the seed of what it does.
const SEED: &str = "QNIC_HOSTILE_SEED";

/// The honest nodes are the first; the hostile one comes behind them.
const HONEST: usize = 3;

/// How long the hostile guest floods connection managers, and how many messages have come before others connect: more
/// than a node takes at once.
const FLOOD_TIME: Duration = Duration::from_secs(10);
const FLOOD_BEGINS: u64 = 1000;

/// Messages of each node to each other in one exchange.
const ROUNDS: u32 = 20;

/// Longest time that the guest is hostile before the throughput beside an honest one is measured
/// again.
const ATTACK: u64 = 180;

/// How many times as long it is hostile at most, until it has done all of its deeds.
const AGAIN: u64 = 5;

/// What it does at least once.
const DEEDS: [&str; 9] = [
    "mapped",
    "rebinds",
    "faults_answered",
    "switched_off",
    "completions",
    "contexts_done",
    "work_requests",
    "pairs_connected",
    "pairs_failed",
];

/// Longest time that the throughput beside a busy honest guest is measured, before and after, and
/// its part of the time that the guest is hostile. It is for the reader: no verdict depends on it.
const HONEST_TIME: Duration = Duration::from_secs(30);
const HONEST_PART: u64 = 12;

/// Memory that the device process may take for itself, beyond what it had when all nodes had
/// exchanged data: the requests that one NIC may keep, and what the allocator does with them.
const MEMORY: u64 = 32 << 20;

/// What the hostile guest does to its Ethernet port meanwhile: it sends as fast as it can, also to all, and
/// takes the port from its driver again and again.
const FLOOD: &str = "device=$(readlink -f /sys/class/net/eth0/device); device=${device##*/}; \
                     cd /sys/bus/virtio/drivers/virtio_net; \
                     while :; do \
                         ip addr add 10.71.0.4/16 brd + dev eth0; ip link set eth0 up; \
                         timeout 1 ping -i 0.0001 -s 60000 10.71.0.1; \
                         timeout 1 ping -i 0.0001 -s 1400 10.71.255.255; \
                         echo $device > unbind; echo $device > bind; \
                     done > /dev/null 2>&1";

/// The last guest takes its NIC from the driver and goes at it, and the others exchange data all
/// the while: every byte is right, nothing ends, nothing grows.
fn hostile_guest(nodes: &VmNodes) -> Result<()> {
    let default = if is_long() {
        DEFAULT_SECONDS_LONG
    } else {
        DEFAULT_SECONDS
    };
    let seconds = variable(SECONDS, default)?;
    let seed = variable(SEED, 1)?;
    scenario::all_pairs_exchange(nodes, ROUNDS)?;
    let memory = Memory::new(nodes)?;
    if is_long() {
        connection_managers_are_flooded(nodes).context("a flood of connection managers")?;
    }
    // What else this machine does comes and goes: each attack is compared with what was before
    // and after it.
    let time = HONEST_TIME.min(Duration::from_secs(seconds / HONEST_PART));
    let attacks = seconds.div_ceil(ATTACK);
    let mut before = beside_a_busy_guest(nodes, time)?;
    let mut shares = Vec::new();
    let mut done = Map::new();
    // On a busy machine the guest comes to less in its time: it has more then.
    for attack in 0..AGAIN * attacks {
        if attack >= attacks && not_done(&done).is_none() {
            break;
        }
        let part = seconds * (attack + 1) / attacks - seconds * attack / attacks;
        let beside_hostile =
            beside_the_hostile_guest(nodes, (part, seed + attack), &memory, &mut done)?;
        let after = beside_a_busy_guest(nodes, time)?;
        let beside_honest = before.midpoint(after);
        println!(
            "    exchanges of the others: {beside_honest:.3}/s beside a busy guest, \
             {beside_hostile:.3}/s beside the hostile one ({:.0} %)",
            100.0 * beside_hostile / beside_honest
        );
        shares.push(100.0 * beside_hostile / beside_honest);
        before = after;
    }
    for node in 0..nodes.count() {
        let state = nodes.node(node)?.state();
        ensure!(state == NodeState::Ready, "node {node} is {state}");
        shell(nodes, node, "true")?;
    }
    // The driver has the NIC again, and it serves as before.
    scenario::all_pairs_exchange(nodes, ROUNDS)?;
    reach((nodes, 0, "n0"), (nodes, 2, "n2")).context("Ethernet")?;
    shares.sort_by(f64::total_cmp);
    println!(
        "    it did {}; median of {}: {:.0} %",
        Value::Object(done.clone()),
        shares.len(),
        shares[shares.len() / 2]
    );
    let missing = not_done(&done);
    ensure!(missing.is_none(), "not done: {missing:?}");
    Ok(())
}

/// The last guest floods the connection managers of the others, from an address that they know: two of these connect
/// meanwhile, again and again.
fn connection_managers_are_flooded(nodes: &VmNodes) -> Result<()> {
    for node in 1..=HONEST {
        shell(nodes, HONEST, &format!("ping -c 1 10.71.0.{node}"))?;
    }
    // With and without a buffer.
    let received = || -> Result<u64> {
        let stats = nodes.device_stats()?;
        let of = |name| counter(&stats, 0, name);
        Ok(of("datagrams_received")? + of("datagrams_dropped")?)
    };
    let before = received()?;
    let seconds = FLOOD_TIME.as_secs();
    let flood = format!("hostile-guest --flood --seconds {seconds}");
    let mut flood = nodes.start_until(HONEST, &flood, "attacking")?;
    until(LIMIT, || {
        let come = received()? - before;
        Ok((come < FLOOD_BEGINS).then(|| format!("{come} messages have come")))
    })?;
    let (begun, mut connected) = (Instant::now(), 0);
    while connected == 0 || begun.elapsed() < FLOOD_TIME {
        connect_once(nodes, 0, 1)?;
        connected += 1;
    }
    let done = flood.expect("attacked", LIMIT)?;
    flood.succeed("the hostile guest", LIMIT)?;
    let messages = &done["management_messages"];
    println!("    {connected} connections beside a flood of {messages} messages");
    Ok(())
}

/// What the hostile guest was to do and has not done.
fn not_done(done: &Map<String, Value>) -> Option<&'static str> {
    let times = |deed: &str| done.get(deed).and_then(Value::as_u64);
    let mut deeds = DEEDS.into_iter();
    deeds.find(|deed| times(deed).is_none_or(|times| times == 0))
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

/// The memory of the device process.
struct Memory<'a> {
    nodes: &'a VmNodes,
    before: u64,
}

impl<'a> Memory<'a> {
    fn new(nodes: &'a VmNodes) -> Result<Self> {
        let before = own_memory(nodes)?;
        Ok(Memory { nodes, before })
    }

    /// Returns how much it is now, unless it has grown beyond [`MEMORY`].
    fn check(&self) -> Result<u64> {
        let (before, now) = (self.before, own_memory(self.nodes)?);
        ensure!(
            now <= before + MEMORY,
            "the device process has grown from {before} to {now} bytes"
        );
        Ok(now)
    }
}

fn own_memory(nodes: &VmNodes) -> Result<u64> {
    let stats = nodes.device_stats()?;
    let own = stats["rss_anon_bytes"].as_u64();
    own.context("no memory in the statistics")
}

/// The same beside the hostile guest, for so many seconds with a seed; adds what that has done to
/// `done`. The device process stays within its memory.
fn beside_the_hostile_guest(
    nodes: &VmNodes,
    (seconds, seed): (u64, u64),
    memory: &Memory<'_>,
    done: &mut Map<String, Value>,
) -> Result<f64> {
    let attack = format!("hostile-guest --seconds {seconds} --seed {seed}");
    let mut hostile = nodes.start_until(HONEST, &attack, "attacking")?;
    let mut flood = background(nodes, HONEST, FLOOD)?;
    let mut most = memory.before;
    let rate = exchanges_per_second(nodes, Duration::from_secs(seconds), || {
        most = most.max(memory.check()?);
        Ok(())
    })?;
    let before = memory.before;
    println!("    memory of the device process: {before} bytes before, {most} at most");
    let deeds = hostile.expect("attacked", LIMIT);
    let deeds = deeds.context("the hostile guest")?;
    hostile.succeed("the hostile guest", LIMIT)?;
    flood.kill()?;
    flood.wait(LIMIT)?;
    for (deed, times) in deeds.as_object().into_iter().flatten() {
        let sum = done.get(deed).and_then(Value::as_u64).unwrap_or(0);
        let sum = sum + times.as_u64().unwrap_or(0);
        done.insert(deed.clone(), sum.into());
    }
    Ok(rate)
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
        verbs_run(nodes)?;
        check()?;
        count += 1.0;
    }
    Ok(count / start.elapsed().as_secs_f64())
}

/// Messages to and fro between queue pairs of two honest nodes, with checked data.
fn verbs_run(nodes: &VmNodes) -> Result<()> {
    both_run(nodes, 0, "ibv_rc_pingpong -d qnic0 -e -c -n 20")
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
