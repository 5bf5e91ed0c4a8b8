//! Shell commands in guests.

use std::time::Duration;

use anyhow::{ensure, Result};
use qnic_cluster::GuestCommand;

use crate::nodes::vm::VmNodes;
use crate::nodes::Running;

/// Longest time for a shell command in an emulated guest: one that hangs takes longer, and one that works
/// does not, however busy the host is.
const LIMIT: Duration = Duration::from_secs(480);

/// Runs a script on a node; its standard output, if it ended well within eight minutes.
pub fn shell(nodes: &VmNodes, node: usize, script: &str) -> Result<String> {
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
pub fn background(nodes: &VmNodes, node: usize, script: &str) -> Result<Box<dyn Running>> {
    nodes.spawn(node, &GuestCommand::shell(script))
}
