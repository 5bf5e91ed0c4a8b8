//! Guests whose NIC a process drives through VFIO, beside one with the module and one without a NIC (X11).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, NicDriver, NodeSpec, OnOff};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{wait_until_all_empty, FirstNodes, Nodes, LIMIT};

use super::ethernet::reach;
use super::nodes::on_spec;
use super::shell::{no_kernel_complains, number};
use crate::harness::{cases, Case};
use crate::scenario::{self, Contenders, Load};

pub(crate) const CASES: &[Case] = cases! { "vm":
    processes_drive_their_nics_through_vfio => {
        let mut spec = VmNodes::spec("vfio", &["stable", "backports", "stable"])?;
        for node in &mut spec.nodes[..2] {
            node.driver = NicDriver::Vfio;
        }
        spec.ethernet = OnOff::on();
        spec.nodes.push(NodeSpec {
            nic: false,
            memory: ByteSize::mib(128),
            ..NodeSpec::new("n3")
        });
        on_spec(&spec, on_vfio)
    },
};

/// Guests on VFIO, one with the module, and how many have a NIC.
const ON_VFIO: [usize; 2] = [0, 1];
const WITH_MODULE: usize = 2;
const WITH_NIC: usize = 3;

/// Programs run as everywhere; then processes are killed, and refused.
fn on_vfio(all: &VmNodes) -> Result<()> {
    let nodes = &FirstNodes(all, WITH_NIC);
    for node in ON_VFIO {
        let absent = "! test -e /dev/qnic0 && ! grep -q '^qnic ' /proc/modules \
                      && ! find /lib/modules -name 'qnic*' | grep -q .";
        shell(all, node, absent).context("our module is in the guest")?;
        let name = all.node(node)?.name();
        reach((all, node, name), (all, WITH_NIC, "n3"))?;
    }
    scenario::demo_between(nodes, [0, 1], "1,8,97,4096,65536,1048576", 4 << 20)?;
    for ends in [[0, WITH_MODULE], [WITH_MODULE, 0]] {
        scenario::demo_between(nodes, ends, "1,97,4096,65537", 1 << 20)
            .with_context(|| format!("the demo from {} to {}", ends[0], ends[1]))?;
    }
    scenario::all_pairs_exchange(nodes, 20)?;
    scenario::notifications_of_every_kind(nodes, 100)?;
    let each = Contenders {
        programs: 1,
        workers: 3,
        rounds: 8,
    };
    scenario::contention(nodes, each)?;
    scenario::random_messages(nodes, 1, 100, 1)?;
    scenario::a_process_forks_between_its_transfers(nodes)?;
    wait_until_all_empty(nodes)?;
    nics_begin_anew(all)?;
    a_killed_process_does_no_more_dma(all, [WITH_MODULE, 0], First::Next)?;
    a_killed_process_does_no_more_dma(all, [0, 1], First::Peers)?;
    refusals(all)?;
    // The module keeps its own part of pools from here on.
    streams(all)?;
    no_kernel_complains(all)
}

/// All nodes of the mixed cluster are renewed: processes that have a NIC by VFIO or by the module are killed, and
/// the next ones have it.
fn nics_begin_anew(nodes: &VmNodes) -> Result<()> {
    for node in [0, WITH_MODULE] {
        let _server = nodes.start_until(node, "memory-server", "serving")?;
        for each in 0..=WITH_NIC {
            nodes.cluster().renew_nic(nodes.node(each)?)?;
        }
        shell(nodes, node, "! pidof qnic-app").context("its process lives")?;
        next_process(nodes, node)?;
    }
    scenario::all_pairs_exchange(&FirstNodes(nodes, WITH_NIC), 5)
}

/// Streams and datagram sockets, whose pools have blocks of pages that are contiguous for the NIC.
fn streams(nodes: &VmNodes) -> Result<()> {
    for (server, client) in [(1, WITH_MODULE), (WITH_MODULE, 0)] {
        let mut serving = nodes.start_until(server, "pool-server", "serving")?;
        let arguments = format!("pool-client --peer {server} --bytes 8388608 --messages 20");
        let mut client = nodes.start(client, &arguments)?;
        client.expect("checked", LIMIT)?;
        client.expect("echoed", LIMIT)?;
        client.succeed("the client", LIMIT)?;
        serving.kill()?;
        serving.wait(LIMIT)?;
        next_process(nodes, server)?;
    }
    Ok(())
}

/// A process opens the NIC of a node, and leaves it.
fn next_process(nodes: &VmNodes, node: usize) -> Result<Duration> {
    let start = Instant::now();
    shell(nodes, node, "qnic-app info").context("the next process")?;
    Ok(start.elapsed())
}

/// What happens first when a process is killed.
#[derive(PartialEq)]
enum First {
    /// Another one opens its NIC.
    Next,
    /// Its peers give it up.
    Peers,
}

/// A process that others write to is killed with signal 9. Its pages go to a file, which stays as it
/// is; the next process has the NIC at once, and the writer learns that its peer is gone.
fn a_killed_process_does_no_more_dma(
    nodes: &VmNodes,
    [from, to]: [usize; 2],
    first: First,
) -> Result<()> {
    let mut load = Load::start(nodes, [from, to])?;
    load.goes_on(nodes, to)?;
    let before = number(
        nodes,
        to,
        "awk '/^MemAvailable/ { print $2 }' /proc/meminfo",
    )?;
    let canary = "kill -9 $(pidof qnic-app) \
                  && until ! pidof qnic-app > /dev/null; do :; done; \
                  free=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo); \
                  bytes=$((free * 1024 * 3 / 4)); \
                  mount -t tmpfs -o size=100% canary /mnt; \
                  expected=$(yes canary | head -c $bytes | tee /mnt/canary | md5sum); \
                  [ \"$(stat -c %s /mnt/canary)\" = $bytes ] || exit 2; \
                  for look in 1 2; do \
                    [ \"$(md5sum < /mnt/canary)\" = \"$expected\" ] || exit 1; \
                  done; \
                  umount /mnt; echo $free";
    let after = number(nodes, to, canary).context("pages of a killed process were written to")?;
    ensure!(
        after > before + (32 << 10),
        "the killed process has freed too little: {before} KiB, then {after} KiB"
    );
    if first == First::Peers {
        load.loses_its_peer()?;
    }
    let took = next_process(nodes, to)?;
    if first == First::Next {
        load.loses_its_peer()?;
    }
    drop(load);
    next_process(nodes, from)?;
    println!("    killed under load: {after} KiB of canary whole, next process after {took:?}");
    let nodes = FirstNodes(nodes, WITH_NIC);
    scenario::all_pairs_exchange(&nodes, 5)?;
    wait_until_all_empty(&nodes)
}

/// Each refusal says what to do.
fn refusals(nodes: &VmNodes) -> Result<()> {
    let mut server = nodes.start_until(0, "memory-server", "serving")?;
    let pinned = "awk '/^VmLck/ { print $2 }' /proc/$(pidof qnic-app)/status";
    let pinned = number(nodes, 0, pinned)?;
    ensure!(pinned == 64 << 10, "{pinned} KiB are pinned, not 64 MiB");
    for (command, says) in [
        ("qnic-app info", "one process drives a NIC at a time"),
        (
            "QNIC_VFIO=0000:00:01.0 qnic-app info",
            "no PCI function 0000:00:01.0",
        ),
        (
            "/usr/bin/setpriv --reuid=65534 --clear-groups qnic-app info",
            "CAP_SYS_ADMIN",
        ),
    ] {
        let said = shell(nodes, 0, &format!("({command}) 2>&1; true"))?;
        ensure!(said.contains(says), "{command:?} says {said:?}");
    }
    server.kill()?;
    server.wait(LIMIT)?;
    let limited =
        "(/usr/bin/setpriv --bounding-set -ipc_lock prlimit --memlock=8388608 qnic-app info) 2>&1; true";
    let said = shell(nodes, 0, limited)?;
    let number = said.contains("67108864 bytes") && said.contains("RLIMIT_MEMLOCK is 8388608");
    ensure!(number, "with a limit of locked memory it says {said:?}");
    next_process(nodes, 0).map(drop)
}
