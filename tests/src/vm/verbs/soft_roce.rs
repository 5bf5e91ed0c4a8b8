//! Soft-RoCE (`rdma_rxe`) beside the device of libibverbs in the same guests (X18): both have the number of one
//! driver.

use anyhow::{Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, OnOff};

use super::{both_run, connections, finds_device, hears_of_the_end, user};
use crate::vm::shell::no_kernel_complains;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

/// Two guests of the kernel that has it.
pub(super) fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("soft-roce", &["generic"; 2])?;
    spec.verbs = true;
    spec.ethernet = OnOff::on();
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(512);
        // Two modules go at once.
        node.cpus = 2;
    }
    Ok(spec)
}

/// Makes a device of Soft-RoCE of the Ethernet port.
const ADD: &str =
    "modprobe crc32_generic && modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0";

/// What may not be: another device of the same name, the end of ours, and the end of our module's use of it.
const TAKES: [&str; 2] = [
    "rdma link add qnic0 type rxe netdev lo",
    "rdma link delete qnic0",
];

/// What happens to a network device, which `rdma_rxe` hears of, and looks for a device of its own.
const ETHERNET: &str =
    "ip link set eth0 mtu 1400 && ip link set eth0 mtu 1500 && ip link set eth0 down && ip link set eth0 up";

pub(super) fn works_beside(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        shell(nodes, node, ADD).context("make a device of Soft-RoCE")?;
    }
    for (device, gid) in [("rxe0", 1), ("qnic0", 0)] {
        let pong = format!("ibv_rc_pingpong -d {device} -g {gid} -c -n 100");
        both_run(nodes, 0, &pong)?;
        both_run(
            nodes,
            1,
            &format!("ib_write_bw -d {device} -s 65536 -n 100"),
        )?;
    }
    for node in [0, 1] {
        for takes in TAKES {
            shell(nodes, node, &format!("! {takes}")).context("it takes the device")?;
        }
        shell(nodes, node, ETHERNET)?;
        finds_device(nodes, node)?;
        goes(nodes, node).with_context(|| format!("rdma_rxe goes from node {node}"))?;
    }
    works_as_before(nodes)?;
    for node in [0, 1] {
        goes_at_once(nodes, node).with_context(|| format!("both go at once from node {node}"))?;
    }
    works_as_before(nodes)?;
    no_kernel_complains(nodes)
}

/// Both ports of the devices that were made again carry messages, and the second one connections.
fn works_as_before(nodes: &VmNodes) -> Result<()> {
    both_run(nodes, 0, "ibv_rc_pingpong -d qnic0 -c -n 100")?;
    connections::by_second_port(nodes).context("by the second port")
}

/// How often two go at once.
const ROUNDS: usize = 20;

/// The NIC's driver, and the module of its device, go while `rdma_rxe` goes, which ends the device from its side.
fn goes_at_once(nodes: &VmNodes, node: usize) -> Result<()> {
    let both = [
        "echo $name > unbind && echo $name > bind",
        "rmmod qnic_ib && modprobe qnic_ib",
    ];
    for goes in both {
        let rounds = format!(
            "cd /sys/bus/virtio/drivers/qnic && name=$(echo virtio*) && for round in $(seq {ROUNDS}); do \
             modprobe rdma_rxe || exit; rmmod rdma_rxe & {{ {goes}; }} && wait $! || exit; done"
        );
        shell(nodes, node, &rounds)?;
        finds_device(nodes, node)?;
    }
    Ok(())
}

/// The module is unloaded with all devices of its number. That of the NIC comes again; a program that has it open
/// hears of the end.
fn goes(nodes: &VmNodes, node: usize) -> Result<()> {
    let user = user(nodes, node)?;
    shell(nodes, node, "rmmod rdma_rxe")?;
    hears_of_the_end(nodes, node)?;
    finds_device(nodes, node)?;
    drop(user);
    shell(nodes, node, "killall -q ibv_asyncwatch; true").map(drop)
}
