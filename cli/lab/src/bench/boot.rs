//! Part of `qnic bench vm`: how long two guests take from the command to a program that has run on
//! both, with images in the cache (P12), and what the device process costs while they are idle (P10).

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use procfs::process::Process;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::load::at_both_ends;
use super::LIMIT;

/// The span over which the processor time of a device process is counted.
const IDLE: Duration = Duration::from_secs(3);

/// Seconds to a program that has run.
const BOOT_GOAL: f64 = 5.0;

/// Percent of a core.
const IDLE_GOAL: f64 = 1.0;

/// What the guests run: it opens the NIC.
const PROGRAM: &str = "info";

/// Boots guests in each round.
pub(super) fn measure(rounds: usize) -> Result<Table> {
    let (mut boots, mut idle) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}, boot");
        let start = Instant::now();
        let nodes = VmNodes::boot("boot", &["stable"; 2])?;
        let programs = [0, 1].map(|node| (node, PROGRAM.to_owned()));
        nodes.run_all(&programs, LIMIT)?;
        boots.push(start.elapsed().as_secs_f64());
        idle.push(percent_of_core(&nodes)?);
        nodes.end()?;
    }
    Ok(table(boots, idle))
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

fn table(boots: Vec<f64>, idle: Vec<f64>) -> Table {
    let boot = Figure::with_spread("to a program that has run", "s", boots);
    let idle = Figure::with_spread("device process, idle", "% of a core", idle);
    let figures = [
        boot.goal(Goal::at_most(BOOT_GOAL).code("P12")),
        idle.goal(Goal::at_most(IDLE_GOAL).code("P10")),
    ];
    let rows = vec![Row::new("two guests", figures)];
    Table::new("boot", "Two guests from the command on, and at rest", rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_the_goal_of_its_promise() {
        let table = table(vec![4.0, 6.0, 5.5], vec![0.0, 0.3, 0.1]);
        let met: Vec<_> = table.figures().map(|figure| figure.goal.clone()).collect();
        let met: Vec<_> = met.into_iter().flatten().map(|goal| goal.met).collect();
        assert_eq!(met, [Some(false), Some(true)]);
    }
}
