//! What guests say when they are asked by shell commands, and what the host knows about processes.

use anyhow::{ensure, Context, Result};
use procfs::process::Process;

use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

/// What the kernel of a node has found wrong: oopses, warnings, hung tasks, with the
/// lines that follow; and allocations that failed in this project's module. (Those
/// of a disk driver that swaps out do fail at times, and are tried again.)
pub(super) fn kernel_complaints(nodes: &VmNodes, node: usize) -> Result<String> {
    const BAD: &str = "BUG|WARNING|Oops|blocked for more than|Out of memory|rcu.*stall|\
                       general protection|nobody cared";
    let script = format!(
        "dmesg | grep -E -A 60 '{BAD}'; dmesg | grep -A 60 'allocation failure' | grep qnic; true"
    );
    shell(nodes, node, &script)
}

/// Fails, with what it says, if the kernel of a node has found something wrong.
pub(super) fn no_kernel_complains(nodes: &VmNodes) -> Result<()> {
    for node in 0..nodes.count() {
        let complaints = kernel_complaints(nodes, node)?;
        ensure!(
            complaints.is_empty(),
            "the kernel of node {node}:\n{complaints}"
        );
    }
    Ok(())
}

/// A number that a script on a node prints.
pub(super) fn number(nodes: &VmNodes, node: usize, script: &str) -> Result<u64> {
    let text = shell(nodes, node, script)?;
    text.trim()
        .parse()
        .with_context(|| format!("{script:?} printed {text:?}"))
}

/// A member of the JSON line that `qnic-app info` prints on a node.
pub(super) fn info(nodes: &VmNodes, node: usize, name: &str) -> Result<u64> {
    let text = shell(nodes, node, "qnic-app info")?;
    let value: serde_json::Value = serde_json::from_str(text.trim())?;
    value[name]
        .as_u64()
        .with_context(|| format!("info has no {name}: {text}"))
}

/// Processor time that a process of the host has used, in clock ticks (1/100 s).
pub(super) fn cpu_ticks(pid: i32) -> Result<u64> {
    let stat = Process::new(pid)?.stat()?;
    Ok(stat.utime + stat.stime)
}

/// Memory of a process of the host that is not shared memory, in KiB.
pub(super) fn private_kib(pid: i32) -> Result<u64> {
    let status = Process::new(pid)?.status()?;
    let private = status.rssanon.zip(status.rssfile);
    let (anonymous, file) = private.context("status has no RssAnon and RssFile")?;
    Ok(anonymous + file)
}
