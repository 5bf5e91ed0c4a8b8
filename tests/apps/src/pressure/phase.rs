//! A phase of the transfers: what happens besides them, and what the machine has done meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use anyhow::{bail, ensure, Context, Result};
use qnic::{CounterSource, Nic};
use qnic_apps::report::PressureReport;

use super::Pressure;
use crate::proc_status::{locked_and_pinned, pages_compacted, pages_of_files, pages_swapped};

/// What a write to it makes the kernel do: compact all memory.
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// What happens besides the transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Besides {
    /// Nothing.
    Nothing,
    /// The kernel compacts memory all the time.
    Compact,
    /// This process forks again and again.
    Fork,
}

/// A phase, as the command line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) besides: Besides,
    /// Rounds of transfers: work, so that a phase does the same on a busy machine.
    pub(super) rounds: u64,
}

impl Phase {
    /// `KIND=ROUNDS`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (kind, rounds) = text.split_once('=').context("expected KIND=ROUNDS")?;
        let besides = match kind {
            "plain" => Besides::Nothing,
            "compact" => Besides::Compact,
            "fork" => Besides::Fork,
            _ => bail!("no such kind: {kind:?}; expected plain, compact or fork"),
        };
        let rounds = rounds.parse().context("the rounds are no number")?;
        ensure!(rounds > 0, "a phase has at least one round");
        Ok(Phase { besides, rounds })
    }
}

impl Pressure<'_> {
    /// Transfers for a phase. Returns what it and the machine did meanwhile.
    pub(super) fn phase(&mut self, nic: &Nic, phase: Phase) -> Result<PressureReport> {
        let before = counters(nic)?;
        let (exported_kib, ram_kib) = (self.report.exported_kib, self.report.ram_kib);
        self.report = PressureReport {
            exported_kib,
            ram_kib,
            ..Default::default()
        };
        self.look_at_swap()?;
        match phase.besides {
            Besides::Compact => compacting(|| self.transfer(phase))?,
            _ => self.transfer(phase)?,
        }
        let after = counters(nic)?;
        let during = |pick: fn(&PressureReport) -> u64| pick(&after).saturating_sub(pick(&before));
        let report = &mut self.report;
        report.swapped_in = during(|at| at.swapped_in);
        report.swapped_out = during(|at| at.swapped_out);
        report.read_again = during(|at| at.read_again);
        report.written_back = during(|at| at.written_back);
        report.compacted = during(|at| at.compacted);
        report.faults_served = during(|at| at.faults_served);
        report.bounces = during(|at| at.bounces);
        report.pages_invalidated = during(|at| at.pages_invalidated);
        report.lock_conflicts = during(|at| at.lock_conflicts);
        (report.locked_kib, report.pinned_kib) = locked_and_pinned()?;
        Ok(report.clone())
    }
}

/// What the machine and the NIC have counted so far.
fn counters(nic: &Nic) -> Result<PressureReport> {
    let [swapped_in, swapped_out] = pages_swapped()?;
    let [read_again, written_back] = pages_of_files()?;
    let driver = nic.counters(CounterSource::Driver)?;
    Ok(PressureReport {
        swapped_in,
        swapped_out,
        read_again,
        written_back,
        compacted: pages_compacted()?,
        faults_served: driver["faults_served"],
        bounces: nic.counters(CounterSource::Nic)?["bounces"],
        pages_invalidated: driver["pages_invalidated"],
        lock_conflicts: driver["lock_conflicts"],
        ..Default::default()
    })
}

/// Has the kernel compact memory without end while `action` runs.
fn compacting(action: impl FnOnce() -> Result<()>) -> Result<()> {
    let over = AtomicBool::new(false);
    scope(|threads| {
        let compact = || -> Result<()> {
            // A flag without data.
            while !over.load(Ordering::Relaxed) {
                std::fs::write(COMPACT, "1").context("compact memory")?;
            }
            Ok(())
        };
        let compact = threads.spawn(compact);
        let result = action();
        over.store(true, Ordering::Relaxed);
        let compacted = compact.join();
        result?;
        compacted.unwrap_or_else(|_| bail!("the thread that compacts has panicked"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_from_the_command_line() {
        let phase = |besides, rounds| Phase { besides, rounds };
        assert_eq!(
            Phase::parse("plain=25").unwrap(),
            phase(Besides::Nothing, 25)
        );
        assert_eq!(
            Phase::parse("compact=1").unwrap(),
            phase(Besides::Compact, 1)
        );
        assert_eq!(Phase::parse("fork=7").unwrap(), phase(Besides::Fork, 7));
        for wrong in [
            "plain", "25", "forks=1", "fork=", "fork=x", "fork=-1", "fork=0",
        ] {
            assert!(Phase::parse(wrong).is_err(), "{wrong}");
        }
    }
}
