//! Unmodified programs of libibverbs on the NIC (X18): the distribution's, with the library of Soft-RoCE.

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, OnOff};

use super::nodes::{on_spec, BOTH_KERNELS};
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Running, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    programs_of_libibverbs_run_over_the_nics => on_spec(&spec()?, verbs),
};

/// How often messages go to and fro.
const ROUNDS: u32 = 100;

/// A guest of each kernel.
fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("verbs", BOTH_KERNELS)?;
    spec.verbs = true;
    // Programs tell each other of their queue pairs over TCP.
    spec.ethernet = OnOff::on();
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(384);
    }
    Ok(spec)
}

fn verbs(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        finds_device(nodes, node)?;
    }
    for (server, options) in [(0, "-s 1"), (1, "-s 65536"), (0, "-e"), (1, "-e -s 65536")] {
        ping_pong(nodes, server, options)
            .with_context(|| format!("ibv_rc_pingpong {options}, the server on node {server}"))?;
    }
    for node in [0, 1] {
        module_goes(nodes, node).with_context(|| format!("node {node}"))?;
        device_goes(nodes, node).with_context(|| format!("node {node}"))?;
    }
    no_kernel_complains(nodes)
}

/// `ibv_devinfo` shows the NIC.
fn finds_device(nodes: &VmNodes, node: usize) -> Result<()> {
    let said = shell(nodes, node, "ibv_devinfo -v")?;
    let words: Vec<_> = said.split_whitespace().collect();
    let lid = format!("{}", node + 1);
    for wanted in [
        ["hca_id:", "qnic0"],
        ["state:", "PORT_ACTIVE"],
        ["port_lid:", &lid],
        ["link_layer:", "InfiniBand"],
    ] {
        let found = words.windows(2).any(|pair| pair == wanted);
        ensure!(found, "ibv_devinfo on node {node} lacks {wanted:?}: {said}");
    }
    is_used(nodes, node, false)
}

/// Messages go from a guest to the other and back, and are what was sent.
fn ping_pong(nodes: &VmNodes, server: usize, options: &str) -> Result<()> {
    let pong = format!("ibv_rc_pingpong -d qnic0 -c -n {ROUNDS} {options}");
    let mut serves = background(nodes, server, &format!("exec {pong}"))?;
    // It is refused until the server listens.
    let client = format!(
        "tries=100; until {pong} n{server}; do tries=$((tries - 1)); [ $tries -gt 0 ] || exit; done"
    );
    let said = shell(nodes, 1 - server, &client)?;
    ensure!(
        said.contains(&format!("{ROUNDS} iters in")),
        "it says {said}"
    );
    serves.succeed("the server of ibv_rc_pingpong", LIMIT)?;
    (0..nodes.count()).try_for_each(|node| is_used(nodes, node, false))
}

/// Checks whether a program has objects of the device.
fn is_used(nodes: &VmNodes, node: usize, wanted: bool) -> Result<()> {
    until(LIMIT, || {
        let said = shell(nodes, node, "rdma resource show qnic0")?;
        let mut words = said
            .split_whitespace()
            .skip_while(|word| *word != "qnic0:")
            .skip(1);
        let mut used = false;
        while let (Some(object), Some(count)) = (words.next(), words.next()) {
            // The count of connections of the kernel's own has no number here.
            used |= object != "cm_id" && count != "0";
        }
        Ok((used != wanted).then(|| format!("node {node}: {said}")))
    })
}

/// A program with an open context.
fn user(nodes: &VmNodes, node: usize) -> Result<Box<dyn Running>> {
    let user = background(nodes, node, "exec ibv_asyncwatch -d qnic0")?;
    is_used(nodes, node, true)?;
    Ok(user)
}

/// The module of the device can be unloaded while a program has it open, and be loaded again.
fn module_goes(nodes: &VmNodes, node: usize) -> Result<()> {
    let user = user(nodes, node)?;
    shell(nodes, node, "rmmod qnic_ib")?;
    ensure!(
        shell(nodes, node, "ibv_devinfo").is_err(),
        "there is a device without its module"
    );
    shell(nodes, node, "modprobe qnic_ib")?;
    finds_device(nodes, node)?;
    drop(user);
    shell(nodes, node, "killall -q ibv_asyncwatch; true").map(drop)
}

/// The device goes with its NIC, and comes with it.
fn device_goes(nodes: &VmNodes, node: usize) -> Result<()> {
    let user = user(nodes, node)?;
    let driver = "cd /sys/bus/virtio/drivers/qnic && name=$(echo virtio*)";
    let again = format!("{driver} && echo $name > unbind && ! ibv_devinfo && echo $name > bind");
    shell(nodes, node, &again)?;
    finds_device(nodes, node)?;
    drop(user);
    shell(nodes, node, "killall -q ibv_asyncwatch; true").map(drop)
}
