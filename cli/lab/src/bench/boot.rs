//! Part of `qnic bench vm`: how long two guests take from the command to a program that has run on
//! both, with images in the cache (P12), and what the device process costs while they are idle (P10).

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use procfs::process::Process;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

use super::limits::LIMIT;
use super::load::at_both_ends;
use super::tables::Tables;

/// The span over which the processor time of a device process is counted.
const IDLE: Duration = Duration::from_secs(3);

/// What the guests run: it opens the NIC.
const PROGRAM: &str = "info";

/// Boots guests in each round.
pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    tables.rounds(rounds, ", boot", false, |round| {
        let start = Instant::now();
        let nodes = VmNodes::boot("boot", &["stable"; 2])?;
        let programs = [0, 1].map(|node| (node, PROGRAM.to_owned()));
        nodes.run_all(&programs, LIMIT)?;
        let boot = start.elapsed().as_secs_f64();
        let row = round.row("boot", "two guests", None);
        row.add("to a program that has run [s]", [boot]);
        row.add(
            "device process, idle [% of a core]",
            [percent_of_core(&nodes)?],
        );
        nodes.end()
    })
}

/// What the device process takes of a core.
fn percent_of_core(nodes: &VmNodes) -> Result<f64> {
    let device = nodes.cluster().device().context("no device process")?;
    let process = Process::new(device.pid)?;
    let [(from, before), (to, after)] = at_both_ends(IDLE, || {
        let stat = process.stat()?;
        Ok((Instant::now(), stat.utime + stat.stime))
    })?;
    let seconds = (after - before) as f64 / procfs::ticks_per_second() as f64;
    Ok(seconds / (to - from).as_secs_f64() * 100.0)
}
