//! Programs that attack.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::nodes::{FirstNodes, Nodes};

const LIMIT: Duration = Duration::from_secs(120);

/// A process on node `from` tries to reach memory of a process on node `to` that
/// it must not reach; the victim's memory is whole at the end.
///
/// # Errors
/// An attempt was not refused, or the victim's memory changed.
pub fn intruder_is_refused(
    nodes: &dyn Nodes,
    from: usize,
    to: usize,
    device: Option<&str>,
) -> Result<()> {
    let mut victim = nodes.start(to, &["hold"])?;
    victim.expect("holding", LIMIT).context("the victim")?;
    let peer = to.to_string();
    let mut attack = vec!["intruder", "--peer", &peer];
    if let Some(device) = device {
        attack.extend(["--device", device]);
    }
    let mut intruder = nodes.start(from, &attack)?;
    intruder.wait(LIMIT)?.success("the intruder")?;
    let mut last = nodes.start(from, &["intruder", "--peer", &peer, "--release"])?;
    last.wait(LIMIT)?.success("the last intruder")?;
    victim.wait(LIMIT)?.success("the victim")?;
    Ok(())
}

/// A process writes garbage over its whole window while the first `exchanging`
/// nodes exchange data.
///
/// # Errors
/// The exchange failed, or the scribbler did.
pub fn scribbler_harms_nobody(
    nodes: &dyn Nodes,
    scribble_on: usize,
    exchanging: usize,
) -> Result<()> {
    let mut scribbler = nodes.start(scribble_on, &["scribble", "--milliseconds", "3000"])?;
    super::all_pairs_exchange(&FirstNodes(nodes, exchanging), 20)?;
    scribbler.wait(LIMIT)?.success("the scribbler")?;
    Ok(())
}
