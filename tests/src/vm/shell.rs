//! Shell commands in guests, and what the host knows about processes.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_cluster::GuestCommand;

use super::VmNodes;
use crate::nodes::Running;

/// Longest time for a shell command in an emulated guest.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a script on a node; its standard output, if it ended well.
pub(super) fn shell(nodes: &VmNodes, node: usize, script: &str) -> Result<String> {
    let output = nodes.node(node)?.run(&GuestCommand::shell(script), LIMIT)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.exit.success(),
        "{script:?} on node {node} ended with {}: {errors}",
        output.exit.code()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts a script on a node and does not wait for it.
pub(super) fn background(nodes: &VmNodes, node: usize, script: &str) -> Result<Box<dyn Running>> {
    nodes.spawn(node, &GuestCommand::shell(script))
}

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
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain spaces: fields are counted from its closing bracket.
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let ticks = |index: usize| -> Result<u64> {
        let field = fields.get(index).context("stat is too short")?;
        Ok(field.parse()?)
    };
    Ok(ticks(11)? + ticks(12)?)
}

/// Memory of a process of the host that is not shared memory, in KiB.
pub(super) fn private_kib(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| -> Result<u64> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .with_context(|| format!("no {name} in status"))?;
        let number = line.trim_start_matches(':').trim().trim_end_matches("kB");
        Ok(number.trim().parse()?)
    };
    Ok(kib("RssAnon")? + kib("RssFile")?)
}
