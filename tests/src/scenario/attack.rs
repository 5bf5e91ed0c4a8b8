//! Programs that attack (X8).

use anyhow::{ensure, Context, Result};
use qnic_apps::report::KeysReport;

use qnic_trials::nodes::{FirstNodes, Nodes, LIMIT};

/// A process on one node tries to reach memory of a process on another that it must not
/// reach; the victim's memory is whole at the end.
pub(crate) fn isolation_probe_is_refused(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
    device: Option<&str>,
) -> Result<()> {
    let mut victim = nodes.start_until(to, "memory-server", "serving")?;
    let probe = format!("isolation-probe --peer {to}");
    let device = device.map_or(String::new(), |path| format!(" --device {path}"));
    for more in [&device, " --release"] {
        let mut probe = nodes.start(from, &format!("{probe}{more}"))?;
        probe.succeed("the probe", LIMIT)?;
    }
    victim.succeed("the victim", LIMIT)?;
    Ok(())
}

/// A process writes random bytes over its whole window while the first `exchanging` nodes
/// exchange data.
pub(crate) fn queue_fuzzer_harms_nobody(
    nodes: &dyn Nodes,
    on: usize,
    exchanging: usize,
) -> Result<()> {
    let mut fuzzer = nodes.start(on, "queue-fuzzer --milliseconds 3000")?;
    super::all_pairs_exchange(&FirstNodes(nodes, exchanging), 20)?;
    fuzzer.succeed("the fuzzer", LIMIT)?;
    Ok(())
}

/// Wrong, stale and insufficient keys at both ends: memory is untouched, the issuer
/// learns of it, and the NIC that refused has counted it (N11).
pub(crate) fn keys_are_checked_at_both_ends(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
) -> Result<()> {
    let mut owner = nodes.start_until(to, "key-owner", "owning")?;
    let mut tester = nodes.start(from, &format!("key-tester --peer {to}"))?;
    let report = tester.expect("keys", LIMIT).context("the tester")?;
    tester.succeed("the tester", LIMIT)?;
    let counted_there = owner.expect("unchanged", LIMIT).context("the owner")?;
    owner.succeed("the owner", LIMIT)?;
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
