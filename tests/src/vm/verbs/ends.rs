//! What ends under queue pairs that work: a process, links, the module, the device, a guest (X18). Nothing of the
//! programs is left behind.

use anyhow::{ensure, Context, Result};
use qnic_cluster::{Links, NodeState};

use super::{
    both_run, connections, cut, finds_device, hears_of_the_end, is_used, port_is, user, with_all,
    LISTENS, ROUNDS,
};
use crate::harness::is_long;
use crate::vm::events::{sleep, wake};
use crate::vm::shell::{kernel_complaints, no_kernel_complains};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, LIMIT};

/// Something happens to node 1 while two queue pairs there work, one of them connected by rdma_cm. Afterwards neither
/// node that is left has an object of the programs, and both have the device.
fn under_traffic(
    nodes: &VmNodes,
    left: &[usize],
    happens: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let pong = "ibv_rc_pingpong -d qnic0 -e -n 1000000000";
    let server = background(nodes, 0, &format!("exec {pong}"))?;
    shell(nodes, 0, LISTENS)?;
    let client = background(nodes, 1, &format!("exec {pong} n0"))?;
    let connected = connections::endless(nodes)?;
    until(LIMIT, || {
        let said = shell(
            nodes,
            1,
            "rdma resource show qp | grep ibv_rc_pingpong || true",
        )?;
        Ok((!said.contains("state RTS")).then_some(said))
    })?;
    happens()?;
    for node in left.iter().copied() {
        shell(nodes, node, "killall -q -9 ibv_rc_pingpong rping; true")?;
        is_used(nodes, node, false)?;
        finds_device(nodes, node)?;
    }
    drop((server, client, connected));
    Ok(())
}

/// Waits until a program has failed by itself on one node, at least: that on the other may wait for its message.
fn one_fails(nodes: &VmNodes, program: &str) -> Result<()> {
    until(LIMIT, || {
        let runs = |node| shell(nodes, node, &format!("pidof {program}")).is_ok();
        Ok((runs(0) && runs(1)).then(|| format!("{program} still runs on both nodes")))
    })
}

/// Waits until a program connected by rdma_cm has ended by itself on both nodes: one hears of the other's end.
fn both_end(nodes: &VmNodes) -> Result<()> {
    [0, 1].into_iter().try_for_each(|node| {
        until(LIMIT, || {
            let runs = shell(nodes, node, "pidof rping").is_ok();
            Ok(runs.then(|| format!("rping still runs on node {node}")))
        })
    })
}

/// Processes, links, module, device and guest end under queue pairs that work. Nothing may come behind it: the last
/// guest has panicked.
pub(super) fn pass(nodes: &VmNodes) -> Result<()> {
    under_traffic(nodes, &[0, 1], || {
        shell(nodes, 1, "killall -9 ibv_rc_pingpong rping").map(drop)
    })
    .context("a process is killed")?;
    under_traffic(nodes, &[0, 1], || {
        cut(nodes)?;
        one_fails(nodes, "ibv_rc_pingpong")?;
        one_fails(nodes, "rping")?;
        nodes.cluster().set_links(&Links::All, None)?;
        port_is(nodes, "PORT_ACTIVE", "")
    })
    .context("a partition")?;
    let reload = "rmmod qnic_ib && ! ibv_devinfo && modprobe qnic_ib";
    under_traffic(nodes, &[0, 1], || {
        shell(nodes, 1, reload)?;
        both_end(nodes)
    })
    .context("the module is unloaded")?;
    if is_long() {
        under_traffic(nodes, &[0, 1], || {
            shell(nodes, 1, "modprobe button").context("the power button wakes it")?;
            sleep(nodes, 1)?;
            wake(nodes, 1)
        })
        .context("a guest sleeps")?;
    }
    let pong = format!("ibv_rc_pingpong -d qnic0 -c -n {ROUNDS}");
    both_run(nodes, 0, &pong)?;
    // Without --all, one each on one kernel.
    for node in with_all(&[0], &[1]) {
        module_goes(nodes, *node).with_context(|| format!("node {node}"))?;
    }
    for node in with_all(&[1], &[0]) {
        device_goes(nodes, *node).with_context(|| format!("node {node}"))?;
    }
    no_kernel_complains(nodes)?;
    a_guest_panics(nodes)
}

/// Its peer hears of it, and keeps nothing.
fn a_guest_panics(nodes: &VmNodes) -> Result<()> {
    let mut panics = None;
    under_traffic(nodes, &[0], || {
        panics = Some(background(nodes, 1, "echo c > /proc/sysrq-trigger")?);
        let node = nodes.node(1)?;
        until(LIMIT, || {
            let state = node.state();
            Ok((state != NodeState::Panicked).then(|| format!("node 1 is {state}")))
        })
    })
    .context("a guest panics")?;
    let complaints = kernel_complaints(nodes, 0)?;
    ensure!(complaints.is_empty(), "after a panic: {complaints}");
    Ok(())
}

/// The module of the device can be unloaded while a program has it open, and be loaded again.
fn module_goes(nodes: &VmNodes, node: usize) -> Result<()> {
    let user = user(nodes, node)?;
    shell(nodes, node, "rmmod qnic_ib")?;
    hears_of_the_end(nodes, node)?;
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
    hears_of_the_end(nodes, node)?;
    finds_device(nodes, node)?;
    drop(user);
    shell(nodes, node, "killall -q ibv_asyncwatch; true").map(drop)
}
