//! The clock of a guest, which boots while the machine is busy with other cases.
//!
//! ```text
//!   host:    before ──────────── inner ─────────────── after
//!                 └─ asks ─┘                 └─ asks ─┘
//!   guest:            first ──────────────────── last
//! ```
//! Between two readings, a guest's clock has gone on for no less than the time from the first answer to
//! the second question, and no more than that from the first question to the second answer.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::shell::number;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

/// What clocks of guest and host may differ by, in parts of a thousand: a frequency that was measured
/// while the guest stood still is wrong by a tenth or more.
const PER_MILLE: u32 = 10;
/// The guest's clock is read in hundredths of a second.
const STEP: Duration = Duration::from_millis(20);

/// A reading of a guest's clock, and when it was taken.
struct Reading {
    asked: Instant,
    answered: Instant,
    guest: Duration,
}

impl Reading {
    fn of(nodes: &VmNodes, node: usize) -> Result<Self> {
        let asked = Instant::now();
        let script = "awk '{ printf \"%d\", $1 * 100 }' /proc/uptime";
        let hundredths = number(nodes, node, script)?;
        Ok(Reading {
            asked,
            answered: Instant::now(),
            guest: Duration::from_millis(hundredths * 10),
        })
    }

    /// Fails if the guest's time has not passed as the host's has.
    fn agrees_with(&self, later: &Reading) -> Result<()> {
        let guest = later.guest.saturating_sub(self.guest);
        let least = later.asked - self.answered;
        let most = later.answered - self.asked;
        let part = most * PER_MILLE / 1000 + STEP;
        ensure!(
            guest + part >= least && guest <= most + part,
            "{guest:?} by the guest's clock are {least:?} to {most:?} by the host's"
        );
        Ok(())
    }
}

/// Clocks of all guests before a case.
pub(super) struct Clocks(Vec<Reading>);

impl Clocks {
    /// Reads them.
    pub(super) fn read(nodes: &VmNodes) -> Result<Self> {
        let all = (0..nodes.count()).map(|node| Reading::of(nodes, node));
        Ok(Clocks(all.collect::<Result<_>>()?))
    }

    /// Reads them once more: time has passed in each as on the host. An emulated guest has the clock
    /// that its command line calls reliable, and its kernel has found nothing wrong with it.
    pub(super) fn have_kept_time(&self, nodes: &VmNodes) -> Result<()> {
        for (node, first) in self.0.iter().enumerate() {
            let agrees = first.agrees_with(&Reading::of(nodes, node)?);
            agrees.with_context(|| format!("the clock of node {node}"))?;
            if number(nodes, node, "grep -c tsc=reliable /proc/cmdline; true")? == 0 {
                continue;
            }
            let source = "cat /sys/devices/system/clocksource/clocksource0/current_clocksource";
            let source = shell(nodes, node, source)?;
            ensure!(
                source.trim() == "tsc",
                "node {node} has the clock {source:?}"
            );
            let unstable = "dmesg | grep -i -E 'tsc.*unstable|clocksource.*(skew|watchdog)'; true";
            let unstable = shell(nodes, node, unstable)?;
            ensure!(unstable.is_empty(), "the kernel of node {node}: {unstable}");
        }
        Ok(())
    }
}
