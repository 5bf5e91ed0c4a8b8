//! Programs that attack (X8).

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_apps::report::KeysReport;

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
    let mut victim = nodes.start(to, &["memory-server"])?;
    victim.expect("serving", LIMIT).context("the victim")?;
    let peer = to.to_string();
    let mut attack = vec!["isolation-probe", "--peer", &peer];
    if let Some(device) = device {
        attack.extend(["--device", device]);
    }
    let mut intruder = nodes.start(from, &attack)?;
    intruder.wait(LIMIT)?.success("the intruder")?;
    let mut last = nodes.start(from, &["isolation-probe", "--peer", &peer, "--release"])?;
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
    let mut scribbler = nodes.start(scribble_on, &["queue-fuzzer", "--milliseconds", "3000"])?;
    super::all_pairs_exchange(&FirstNodes(nodes, exchanging), 20)?;
    scribbler.wait(LIMIT)?.success("the scribbler")?;
    Ok(())
}

/// Wrong, stale and insufficient keys at both ends: memory is untouched, the issuer
/// learns of it, and the NIC that refused has counted it (N11).
///
/// # Errors
/// An attempt was not refused, memory changed, or a counter is wrong.
pub fn keys_are_checked_at_both_ends(nodes: &dyn Nodes, from: usize, to: usize) -> Result<()> {
    let mut owner = nodes.start(to, &["key-owner"])?;
    owner.expect("owning", LIMIT).context("the owner")?;
    let mut tester = nodes.start(from, &["key-tester", "--peer", &to.to_string()])?;
    let report = tester.expect("keys", LIMIT).context("the tester")?;
    tester.wait(LIMIT)?.success("the tester")?;
    let counted_there = owner.expect("unchanged", LIMIT).context("the owner")?;
    owner.wait(LIMIT)?.success("the owner")?;
    let report: KeysReport = serde_json::from_value(report)?;
    println!("    {report:?}, counted there: {counted_there}");
    let counted_there = counted_there.as_u64().context("a count of refusals")?;
    // The NIC of the issuer refuses commands, the owner's frames: an attempt has two,
    // and the second leaves unless the first was refused in time.
    let frames = report.refused_there..=2 * report.refused_there;
    ensure!(
        report.counted_here == report.refused_here && frames.contains(&counted_there),
        "the NICs counted otherwise: {report:?}, there {counted_there}"
    );
    Ok(())
}
