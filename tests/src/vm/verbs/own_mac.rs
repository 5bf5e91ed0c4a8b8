//! A node whose Ethernet port has a MAC of its own, beside one whose MAC the cluster has given (X18). No node's number
//! is in it, so rdma_cm finds no way there, and says so; the first port is as always.

use anyhow::{ensure, Result};
use qnic_cluster::{ByteSize, ClusterSpec, OnOff, PortSpec};

use super::{both_run, finds_device};
use crate::vm::shell::no_kernel_complains;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

/// No address of a node's number.
const MAC: &str = "02:00:00:00:00:77";

pub(super) fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("own-mac", &["stable"; 2])?;
    spec.verbs = true;
    spec.ethernet = OnOff::on();
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(384);
    }
    let port = PortSpec {
        mac: Some(MAC.parse()?),
        ..PortSpec::default()
    };
    spec.nodes[1].ethernet = Some(OnOff::On(port));
    Ok(spec)
}

pub(super) fn has_the_first_port(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        finds_device(nodes, node)?;
    }
    both_run(nodes, 0, "ibv_rc_pingpong -d qnic0 -c -n 100")?;
    let said = shell(nodes, 1, "ibv_devinfo -i 2")?;
    ensure!(said.contains("PORT_DOWN"), "the second port: {said}");
    // From its side, and from that of the other node, once each has asked for the other's MAC.
    for (node, address, says) in [
        (1, "10.71.0.1", "RDMA_CM_EVENT_ADDR_ERROR"),
        (0, "10.71.0.2", "No route to host"),
    ] {
        shell(nodes, node, &format!("ping -c 1 {address}"))?;
        let said = shell(
            nodes,
            node,
            &format!("! rping -d -c -a {address} -C 1 2>&1"),
        )?;
        ensure!(said.contains(says), "rping on node {node}: {said}");
    }
    no_kernel_complains(nodes)
}
