//! A guest whose kernel answers no page fault any more, as another guest sees it over each kind
//! of link (N13): the cases that boot such a link call this at their end.

use anyhow::{ensure, Result};
use qnic_cluster::{GuestCommand, NodeState};

use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Nodes, LIMIT};

/// Fault timeout of clusters that have a section `[network]`: much longer than a kernel under
/// emulation takes on a busy machine.
pub(super) const FAULT_TIMEOUT: &str = "10s";

/// A process that no other one on the guest's processor can interrupt: threads of the kernel
/// starve, the driver's among them. Linux keeps time back for those in two ways.
const STUCK: &str = "\
    mount -t debugfs none /sys/kernel/debug; \
    for cpu in /sys/kernel/debug/sched/fair_server/*; do echo 0 > $cpu/runtime; done; \
    echo -1 > /proc/sys/kernel/sched_rt_runtime_us; \
    exec chrt -f 99 sh -c 'while :; do :; done'";

/// The kernel of node `to` is stuck when a process there has exported memory that has no pages
/// yet. A process that writes there from node `from` learns after the fault timeout that the receiver
/// is not ready, although its NIC answers. `guests` has booted node `to`, as its node `number`.
pub(super) fn a_stuck_kernel_is_given_up(
    nodes: &dyn Nodes,
    ends: [usize; 2],
    guests: (&VmNodes, usize),
) -> Result<()> {
    while_a_kernel_is_stuck(nodes, ends, guests, || Ok(()))
}

/// The same; `meanwhile` is called while the process waits.
pub(super) fn while_a_kernel_is_stuck(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
    (guests, number): (&VmNodes, usize),
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let _server = nodes.start_until(to, "memory-server", "serving")?;
    let _stuck = guests.spawn(number, &GuestCommand::shell(STUCK))?;
    let node = guests.node(number)?;
    until(LIMIT, || {
        let state = node.state();
        Ok((state != NodeState::NotAnswering).then(|| format!("{} is {state}", node.name())))
    })?;
    let mut writer = nodes.start(from, &format!("load --peer {to} --size 4096"))?;
    meanwhile()?;
    let failed = writer.expect("failed", LIMIT)?;
    let message = failed.as_str().unwrap_or_default();
    ensure!(message.contains("receiver not ready"), "failed: {failed}");
    Ok(())
}
