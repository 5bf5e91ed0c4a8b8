//! What happens to a guest while its NIC is in use (X9): it sleeps and wakes, on both kernels.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::nodes::{on, BOTH_KERNELS};
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use crate::scenario::{self, Load};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, wait_until_all_empty, wait_until_empty, Nodes};

pub(crate) const CASES: &[Case] = cases! { "vm":
    guests_sleep_and_wake_with_nics_in_use => on("sleep", BOTH_KERNELS, sleep_and_wake),
};

/// Longest time for a guest to fall asleep or to wake.
const LIMIT: Duration = Duration::from_secs(480);

/// A program that outlives the connection to its node's helper, which goes when the guest sleeps; its
/// output and status are in a file.
const LOAD: &str = "cat > /root/sleeper <<'end'\n\
                    qnic-app load --peer $1 > /run/load 2>&1\n\
                    echo ended with $? at $(cut -d' ' -f1 /proc/uptime) >> /run/load\n\
                    end\n";

/// Each guest sleeps in turn, and wakes by a key.
fn sleep_and_wake(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        shell(nodes, node, LOAD)?;
        let keyboard = "echo enabled > /sys/devices/platform/i8042/serio0/power/wakeup";
        shell(nodes, node, keyboard).context("a key wakes it")?;
        sleeps_in_use(nodes, node).with_context(|| format!("node {node}"))?;
        does_not_sleep_on_memory(nodes, node).with_context(|| format!("node {node}"))?;
        for round in 1..=2 {
            sleep(nodes, node)?;
            wake(nodes, node)?;
            let exchange = scenario::all_pairs_exchange(nodes, 10);
            exchange.with_context(|| format!("node {node}, round {round}"))?;
        }
    }
    wait_until_all_empty(nodes)?;
    no_kernel_complains(nodes)
}

/// A process of a guest that sleeps, the module that has a port there, and the process of its peer that
/// writes to it learn of it; new ones work, and nothing holds on to the NIC that was.
fn sleeps_in_use(nodes: &VmNodes, node: usize) -> Result<()> {
    let peer = 1 - node;
    let mut writer = Load::start(nodes, [peer, node])?;
    let mut server = nodes.start_until(peer, "memory-server --port 9", "serving")?;
    let start = format!(
        "insmod /root/qnic_ping.ko; sh /root/sleeper '{peer} --peer-port 9' >/dev/null 2>&1 </dev/null & \
         until grep -q loading /run/load; do :; done"
    );
    shell(nodes, node, &start)?;
    sleep(nodes, node)?;
    println!("    the peer's writer: {}", writer.failure()?);
    drop(writer);
    wake(nodes, node)?;
    let ended = "until grep -q ended /run/load; do :; done; cat /run/load /run/woke; rm /run/load";
    let said = shell(nodes, node, ended)?;
    println!("    {}", said.replace('\n', "; "));
    ensure!(
        said.contains("gone or was reset") && said.contains("ended with 3"),
        "the process says {said:?}"
    );
    server.kill()?;
    wait_until_empty(nodes, node)?;
    // It is refused while a file or a port is open.
    shell(
        nodes,
        node,
        "rmmod qnic_ping && rmmod qnic && modprobe qnic",
    )?;
    scenario::all_pairs_exchange(nodes, 10)
}

/// The pages of others would be lost: the guest stays awake, and its log says what to do.
fn does_not_sleep_on_memory(nodes: &VmNodes, node: usize) -> Result<()> {
    shell(nodes, node, "qnic-rmem serve --size 4MiB")?;
    let refused = shell(nodes, node, "echo freeze > /sys/power/state");
    ensure!(refused.is_err(), "a guest that serves memory has slept");
    shell(nodes, node, "dmesg | grep 'the guest cannot sleep'")?;
    shell(nodes, node, "qnic-rmem leave")?;
    scenario::all_pairs_exchange(nodes, 5)
}

/// Sends the guest of a node to sleep; returns when its NIC is down.
fn sleep(nodes: &VmNodes, node: usize) -> Result<()> {
    let script = "(echo freeze > /sys/power/state; cut -d' ' -f1 /proc/uptime > /run/woke) \
                  >/dev/null 2>&1 </dev/null &";
    shell(nodes, node, script)?;
    until(LIMIT, || is_not(nodes, node, "down")).context("it does not sleep")
}

/// Wakes it; returns when it runs commands. A key that comes before the guest has fallen asleep is lost.
fn wake(nodes: &VmNodes, node: usize) -> Result<()> {
    until(LIMIT, || {
        nodes.node(node)?.press_return()?;
        is_not(nodes, node, "running")
    })
    .context("it does not wake")?;
    until(LIMIT, || {
        let answer = shell(nodes, node, "until test -e /run/woke; do :; done");
        Ok(answer.err().map(|error| error.to_string()))
    })
}

/// What the NIC of a node is, unless it is what is expected.
fn is_not(nodes: &VmNodes, node: usize, expected: &str) -> Result<Option<String>> {
    let state = nodes.device_stats()?["nics"][node]["state"].take();
    Ok((state != expected).then(|| format!("the NIC is {state}, not {expected}")))
}
