//! Datagrams of modules of the kernel (H1, H6): the example of a module that uses them.

use anyhow::{ensure, Context, Result};

use super::nodes::{on, BOTH_KERNELS};
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

pub(crate) const CASES: &[Case] = cases! { "vm":
    modules_of_both_kernels_exchange_pages => on("modules", BOTH_KERNELS, modules_exchange_pages),
};

/// How often a module asks for a page.
const ASKED: u64 = 200;

/// The example asks for pages in both directions, then while both ask, and on links that lose.
/// Then its device is taken away under it.
fn modules_exchange_pages(nodes: &VmNodes) -> Result<()> {
    shell(nodes, 1, "insmod /root/qnic_ping.ko")?;
    ask(nodes, 0, 1, 1).context("node 0 asks node 1")?;
    shell(nodes, 1, "rmmod qnic_ping")?;
    ask(nodes, 1, 0, 1).context("node 1 asks node 0, whose module has asked")?;
    // Pages of 8 KiB, in both directions: two buffers each.
    shell(nodes, 0, "rmmod qnic_ping")?;
    ask(nodes, 0, 1, 2).context("node 0 asks node 1 for 8 KiB")?;
    shell(nodes, 1, "rmmod qnic_ping")?;
    ask(nodes, 1, 0, 2).context("node 1 asks node 0 for 8 KiB")?;
    for node in [0, 1] {
        let copied = datagrams(nodes, node, "bytes_copied")?;
        ensure!(
            copied == 0,
            "node {node} has copied {copied} bytes of page-ins"
        );
        let steered = datagrams(nodes, node, "pages_steered")?;
        ensure!(
            steered == 3 * ASKED,
            "{steered} pages came where they were wanted"
        );
        ensure!(
            shell(nodes, node, "rmmod qnic").is_err(),
            "the module was unloaded while another one used it"
        );
    }
    let unbind = "cd /sys/bus/virtio/drivers/qnic && echo virtio* > unbind";
    shell(nodes, 0, unbind)?;
    shell(nodes, 0, "rmmod qnic_ping && rmmod qnic")?;
    shell(nodes, 1, "rmmod qnic_ping && rmmod qnic && modprobe qnic")?;
    shell(nodes, 0, "modprobe qnic")?;
    shell(nodes, 1, "insmod /root/qnic_ping.ko")?;
    ask(nodes, 0, 1, 1).context("after both modules were loaded again")?;
    for node in [0, 1] {
        // The NIC keeps what the kernel has of it as long as the module is there.
        let unload = "rmmod qnic_ping && rmmod qnic && modprobe qnic";
        shell(nodes, node, unload)?;
    }
    no_kernel_complains(nodes)
}

/// Loads the example on a node, has it ask another one for pages of so many of the kernel's, and reads what
/// came of it.
fn ask(nodes: &VmNodes, node: usize, peer: usize, size: usize) -> Result<()> {
    let load = format!("insmod /root/qnic_ping.ko peer={peer} count={ASKED} size={size}");
    shell(nodes, node, &load)?;
    let line = shell(nodes, node, "dmesg | grep 'qnic_ping: node' | tail -n 1")?;
    let all = format!("node {node} asked node {peer}: {ASKED} of {ASKED} pages, 0 wrong, 0 lost");
    ensure!(line.contains(&all), "{line:?}");
    Ok(())
}

/// A counter of the datagrams of a node.
fn datagrams(nodes: &VmNodes, node: usize, name: &str) -> Result<u64> {
    let text = shell(nodes, node, "qnic-app info")?;
    let value: serde_json::Value = serde_json::from_str(text.trim())?;
    let counter = value["datagrams"][name].as_u64();
    counter.with_context(|| format!("info has no datagrams.{name}: {text}"))
}
