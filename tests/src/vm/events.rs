//! What happens to a guest while its NIC is in use (X9), on both kernels: it sleeps and wakes; memory is added,
//! a balloon takes memory away, a processor goes offline.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{qmp, ByteSize};
use serde_json::json;

use super::nodes::{on, on_spec, BOTH_KERNELS};
use super::shell::{no_kernel_complains, number};
use crate::harness::{cases, Case};
use crate::scenario::{self, Load};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, wait_until_all_empty, wait_until_empty, FirstNodes, Nodes};

pub(crate) const CASES: &[Case] = cases! { "vm":
    guests_sleep_and_wake_with_nics_in_use => on("sleep", BOTH_KERNELS, sleep_and_wake),
    memory_and_processors_come_and_go => {
        let mut spec = VmNodes::spec("hotplug", &["stable", "backports", "stable"])?;
        for node in &mut spec.nodes[..2] {
            node.cpus = 2;
            node.memory_max = Some(ByteSize::mib(256 + ADDED_MIB));
            node.qemu_args = ["-device", "virtio-balloon-pci"].map(Into::into).into();
        }
        spec.nodes[2].qemu_args = ["-m", "256M,slots=1,maxmem=512M"].map(Into::into).into();
        on_spec(&spec, come_and_go)
    },
};

/// What is added to a guest, and what its processes export then: more than it had.
const ADDED_MIB: u64 = 384;
const EXPORTED_MIB: u64 = 300;

/// What the balloon leaves of it.
const KEPT_MIB: u64 = 400;

/// Longest time for a guest to fall asleep, to wake, or to take memory into use.
const LIMIT: Duration = Duration::from_secs(480);

/// Bytes that a peer writes to a guest which falls asleep.
const MUCH: usize = 64 << 20;

/// A program that outlives the connection to its node's helper, which goes when the guest sleeps; its
/// output and status are in a file.
const LOAD: &str = "cat > /root/sleeper <<'end'\n\
                    qnic-app load --peer $1 > /run/load 2>&1\n\
                    echo ended with $? at $(cut -d' ' -f1 /proc/uptime) >> /run/load\n\
                    end\n";

/// Each guest sleeps in turn, and wakes by its power button.
fn sleep_and_wake(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        shell(nodes, node, LOAD)?;
        shell(nodes, node, "modprobe button").context("the power button wakes it")?;
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
    let mut server = nodes.start_until(peer, "memory-server --port 9", "serving")?;
    let start = format!(
        "insmod /root/qnic_ping.ko; sh /root/sleeper '{peer} --peer-port 9' >/dev/null 2>&1 </dev/null & \
         until grep -q loading /run/load; do :; done"
    );
    shell(nodes, node, &start)?;
    // No page of it is there yet: the NIC asks for one after the other while the guest falls asleep.
    let server_of_much = format!("memory-server --size {MUCH}");
    let mut writer = Load {
        server: nodes.start_until(node, &server_of_much, "serving")?,
        writer: nodes.start_until(
            peer,
            &format!("load --peer {node} --size {MUCH}"),
            "loading",
        )?,
    };
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
    scenario::all_pairs_exchange(nodes, 2).context("before the module is loaded again")?;
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
pub(super) fn sleep(nodes: &VmNodes, node: usize) -> Result<()> {
    let script = "(echo freeze > /sys/power/state; cut -d' ' -f1 /proc/uptime > /run/woke) \
                  >/dev/null 2>&1 </dev/null &";
    // It may be asleep before it has said that the command has ended.
    let said = shell(nodes, node, script);
    let asleep = until(LIMIT, || is_not(nodes, node, "down"));
    asleep.with_context(|| format!("it does not sleep, and says {said:?}"))
}

/// Wakes it; returns when it runs commands. A guest whose button is pressed before it has fallen asleep stays
/// awake.
pub(super) fn wake(nodes: &VmNodes, node: usize) -> Result<()> {
    until(LIMIT, || {
        nodes.node(node)?.press_power_button()?;
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

/// Nodes 0 and 1 may have more memory, node 2 may not.
fn come_and_go(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        let machine = nodes.node(node)?;
        let beyond = machine.add_memory(ByteSize::mib(ADDED_MIB + 128));
        let beyond = beyond.err().context("more than memory_max")?.to_string();
        ensure!(beyond.contains("leaves 384MiB"), "{beyond}");
        // One that stands still finds it when it goes on.
        nodes.cluster().pause(machine.name())?;
        machine.add_memory(ByteSize::mib(128))?;
        nodes.cluster().resume(machine.name())?;
        machine.add_memory(ByteSize::mib(ADDED_MIB - 128))?;
        has_memory(nodes, node, |mib| mib > 256 + ADDED_MIB - 128)?;
    }
    let refused = nodes.node(2)?.add_memory(ByteSize::mib(128));
    let refused = refused.err().context("without memory_max")?.to_string();
    ensure!(refused.contains("set memory_max"), "{refused}");
    export_more_than_there_was(nodes).context("with memory that was added")?;
    balloons(nodes).context("a balloon")?;
    processors_go_offline(nodes).context("processors go offline")?;
    beyond_the_page_table(nodes).context("memory that the NIC does not cover")?;
    wait_until_all_empty(nodes)?;
    no_kernel_complains(nodes)
}

/// Waits until the kernel of a node counts so much memory.
fn has_memory(nodes: &VmNodes, node: usize, enough: impl Fn(u64) -> bool) -> Result<()> {
    until(LIMIT, || {
        let mib = number(
            nodes,
            node,
            "awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo",
        )?;
        Ok((!enough(mib)).then(|| format!("node {node} has {mib} MiB")))
    })
}

/// Each writes to and reads from more of the other's memory than that had.
fn export_more_than_there_was(nodes: &VmNodes) -> Result<()> {
    for [from, to] in [[0, 1], [1, 0]] {
        let server = format!("memory-server --size {}", EXPORTED_MIB << 20);
        let mut server = nodes.start_until(to, &server, "serving")?;
        let load = format!("load --peer {to} --size {} --rounds 1", EXPORTED_MIB << 19);
        let mut load = nodes.start(from, &load)?;
        load.succeed("a writer", LIMIT)?;
        server.kill()?;
        wait_until_empty(nodes, to)?;
    }
    scenario::demo_between(nodes, [0, 1], "1,97,4096,1048576", 1 << 20)
}

/// The balloon takes memory while data is exchanged, and gives it back.
fn balloons(nodes: &VmNodes) -> Result<()> {
    let exchange = "exchange --nodes 0,1 --rounds 200";
    let mut programs = [nodes.start(0, exchange)?, nodes.start(1, exchange)?];
    for mib in [KEPT_MIB, 256 + ADDED_MIB] {
        for node in [0, 1] {
            let value = json!({ "value": ByteSize::mib(mib).0 });
            nodes
                .node(node)?
                .monitor()?
                .execute(&qmp::BALLOON.with(value))?;
        }
        for node in [0, 1] {
            has_memory(nodes, node, |has| (has > KEPT_MIB) == (mib > KEPT_MIB))?;
        }
    }
    for program in &mut programs {
        program.succeed("an exchange around a balloon", LIMIT)?;
    }
    Ok(())
}

/// The second processor of each guest goes offline and comes back, while data is exchanged.
fn processors_go_offline(nodes: &VmNodes) -> Result<()> {
    let exchange = "exchange --nodes 0,1 --rounds 200";
    let mut programs = [nodes.start(0, exchange)?, nodes.start(1, exchange)?];
    for online in [0, 1, 0, 1] {
        for node in [0, 1] {
            let set = format!("echo {online} > /sys/devices/system/cpu/cpu1/online");
            shell(nodes, node, &set)?;
        }
    }
    for program in &mut programs {
        program.succeed("an exchange around processors", LIMIT)?;
    }
    Ok(())
}

/// Memory is added behind the back of the NIC: kernels take all from there first. What a process
/// exports is refused, with the reason; the NIC itself works.
fn beyond_the_page_table(nodes: &VmNodes) -> Result<()> {
    let mut monitor = nodes.node(2)?.monitor()?;
    let memory = json!({
        "qom-type": "memory-backend-memfd", "id": "more", "size": ByteSize::mib(256).0, "share": true,
    });
    monitor.execute(&qmp::OBJECT_ADD.with(memory))?;
    let dimm = json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "more" });
    monitor.execute(&qmp::DEVICE_ADD.with(dimm))?;
    drop(monitor);
    has_memory(nodes, 2, |mib| mib > 256)?;
    let export = "qnic-app memory-server --size 4194304 2>&1; test $? != 0";
    let said = shell(nodes, 2, export)?;
    ensure!(said.contains("does not cover"), "the process says {said:?}");
    shell(nodes, 2, "dmesg | grep 'qnic.*memory_max'").context("the log says nothing")?;
    shell(nodes, 2, "qnic-app ping 0")?;
    let reload = "rmmod qnic && modprobe qnic; test -c /dev/qnic0";
    ensure!(
        shell(nodes, 2, reload).is_err(),
        "a driver that starts then works"
    );
    shell(nodes, 0, reload).context("a driver that starts where memory was added")?;
    scenario::all_pairs_exchange(&FirstNodes(nodes, 2), 5)
}
