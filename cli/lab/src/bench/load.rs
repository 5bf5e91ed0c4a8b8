//! What else the machine does: before a suite, while it runs, and after it.
//!
//! ```text
//!   1 s ── before ──►│ suite │◄── after ── 1 s
//! ```
//! While nothing of this run is under way, all time of processors is others'. While a suite runs,
//! others' is what the system has counted, less that of this process and of the programs that it
//! has started and waited for. Nothing is looked at in between, so looking disturbs nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use procfs::process::{all_processes, Process};
use procfs::{ticks_per_second, Current, CurrentSI, KernelStats, LoadAverage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How long the machine is looked at before a suite and after it.
pub(super) const SPAN: Duration = Duration::from_secs(1);

/// Part of all cores that others may use on a quiet machine.
const QUIET: f64 = 0.05;

/// Most programs that are named.
const NAMED: usize = 3;

/// Least part of a core that a program is named for.
const NAMED_CORES: f64 = 0.02;

/// What `look` finds at the begin of a span of time, and at its end.
pub(super) fn at_both_ends<T>(span: Duration, look: impl Fn() -> Result<T>) -> Result<[T; 2]> {
    let first = look()?;
    // What happens in this time is what is measured. Nothing is waited for.
    std::thread::sleep(span);
    Ok([first, look()?])
}

/// What others did in some span of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Others {
    /// Cores that other programs had, on average.
    pub(super) cores: f64,
    /// Cores that the machine below a virtual machine took for itself, on average.
    pub(super) stolen: f64,
    /// The system's average number of programs that run, over a minute; what was measured before is
    /// part of it.
    pub(super) load_average: f64,
    /// Programs that used most, and the cores that each had: the first few.
    pub(super) busiest: Vec<(String, f64)>,
}

/// The load around a suite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Load {
    /// In the second before it.
    pub(super) before: Others,
    /// From its start to its end.
    pub(super) during: Others,
    /// In the second after it.
    pub(super) after: Others,
}

impl Load {
    /// Runs `suite` on the machine; what it returns, and what else the machine did.
    pub(super) fn around<T>(suite: impl FnOnce() -> T) -> Result<(T, Load)> {
        let idle = || -> Result<(Moment, Others)> {
            let [first, last] = at_both_ends(SPAN, || Moment::now(true))?;
            let others = last.since(&first);
            Ok((last, others))
        };
        let (start, before) = idle()?;
        let result = suite();
        let during = Moment::now(false)?.since(&start);
        let (_, after) = idle()?;
        let load = Load {
            before,
            during,
            after,
        };
        Ok((result, load))
    }

    /// Why figures of a machine of so many cores are those of a busy one; empty for a quiet one.
    pub(super) fn busy(&self, cores: usize) -> Vec<String> {
        let spans = [
            ("before", &self.before),
            ("while it ran", &self.during),
            ("after", &self.after),
        ];
        let limit = cores as f64 * QUIET;
        let mut why = Vec::new();
        for (when, others) in spans {
            if others.cores > limit {
                why.push(format!(
                    "{when}, other programs used {:.2} of {cores} cores{}",
                    others.cores,
                    others.names()
                ));
            }
            if others.stolen > limit {
                why.push(format!(
                    "{when}, the machine below took {:.2} of {cores} cores",
                    others.stolen
                ));
            }
        }
        why
    }
}

impl Others {
    /// The busiest, in brackets.
    fn names(&self) -> String {
        let one = |(name, cores): &(String, f64)| format!("{name} {cores:.2}");
        let all: Vec<_> = self.busiest.iter().map(one).collect();
        match &all[..] {
            [] => String::new(),
            all => format!(" ({})", all.join(", ")),
        }
    }
}

/// What the system has counted until now, in ticks of its clock.
struct Moment {
    at: Instant,
    busy: u64,
    stolen: u64,
    own: u64,
    load_average: f64,
    /// Other programs, by process.
    programs: BTreeMap<i32, (String, u64)>,
}

impl Moment {
    fn now(with_programs: bool) -> Result<Self> {
        let total = KernelStats::current().context("read what processors did")?;
        let total = total.total;
        let known = |ticks: Option<u64>| ticks.unwrap_or(0);
        let myself = Process::myself().context("look at this process")?;
        let stat = myself.stat().context("look at this process")?;
        let children = stat.cutime.max(0) as u64 + stat.cstime.max(0) as u64;
        let load = LoadAverage::current().context("read the load average")?;
        Ok(Moment {
            at: Instant::now(),
            busy: total.user + total.nice + total.system + known(total.irq) + known(total.softirq),
            stolen: known(total.steal),
            own: stat.utime + stat.stime + children,
            load_average: f64::from(load.one),
            programs: match with_programs {
                true => programs(stat.pid),
                false => BTreeMap::new(),
            },
        })
    }

    fn since(&self, before: &Moment) -> Others {
        let seconds = (self.at - before.at).as_secs_f64();
        let cores = |ticks: u64| ticks as f64 / ticks_per_second() as f64 / seconds.max(1e-3);
        let busy = self.busy.saturating_sub(before.busy);
        let own = self.own.saturating_sub(before.own);
        let mut busiest: Vec<_> = self.programs.iter().collect();
        let used = |(process, (_, ticks)): &(&i32, &(String, u64))| {
            let then = before.programs.get(process).map_or(0, |(_, ticks)| *ticks);
            cores(ticks.saturating_sub(then))
        };
        busiest.retain(|program| used(program) >= NAMED_CORES);
        busiest.sort_by(|one, other| used(other).total_cmp(&used(one)));
        let named = busiest.iter().take(NAMED);
        Others {
            cores: cores(busy.saturating_sub(own)),
            stolen: cores(self.stolen.saturating_sub(before.stolen)),
            load_average: self.load_average,
            busiest: named
                .map(|program| (program.1 .0.clone(), used(program)))
                .collect(),
        }
    }
}

/// All programs but the process `but`, with the time that each has had. One that ends meanwhile is
/// left out.
fn programs(but: i32) -> BTreeMap<i32, (String, u64)> {
    let all = all_processes().into_iter().flatten().flatten();
    let stats = all.filter_map(|process| process.stat().ok());
    stats
        .filter(|stat| stat.pid != but)
        .map(|stat| (stat.pid, (stat.comm, stat.utime + stat.stime)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(at: Instant, busy: u64, own: u64, rustc: u64) -> Moment {
        Moment {
            at,
            busy,
            stolen: 0,
            own,
            load_average: 1.5,
            programs: BTreeMap::from([
                (7, ("rustc".to_owned(), rustc)),
                (8, ("init".to_owned(), 5)),
            ]),
        }
    }

    #[test]
    fn what_this_run_uses_is_not_others() {
        let (start, second) = (Instant::now(), ticks_per_second());
        let first = moment(start, 1000, 500, 40);
        let end = start + Duration::from_secs(2);
        let last = moment(end, 1000 + 3 * second, 500 + second, 40 + 2 * second);
        let others = last.since(&first);
        assert_eq!((others.cores, others.load_average), (1.0, 1.5));
        assert_eq!(others.busiest, [("rustc".to_owned(), 1.0)]);
        // The counters of a process that ended are added a little later than the system's.
        let last = moment(end, 1000 + second, 500 + 2 * second, 40);
        assert_eq!(last.since(&first).cores, 0.0);
    }

    #[test]
    fn a_busy_machine_is_one_that_others_use() {
        let mut load = Load::default();
        load.during.cores = 0.09;
        assert_eq!(load.busy(2), [""; 0]);
        load.during.cores = 0.5;
        load.during.busiest.push(("rustc".into(), 0.4));
        load.after.stolen = 0.3;
        assert_eq!(
            load.busy(2),
            [
                "while it ran, other programs used 0.50 of 2 cores (rustc 0.40)",
                "after, the machine below took 0.30 of 2 cores",
            ]
        );
    }

    #[test]
    fn a_program_that_was_waited_for_is_part_of_the_run() {
        let before = Moment::now(false).unwrap();
        let mut shell = std::process::Command::new("sh");
        let line = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(shell.args(["-c", line]).status().unwrap().success());
        let after = Moment::now(false).unwrap();
        let seconds = (after.own - before.own) as f64 / ticks_per_second() as f64;
        // What it takes of a processor does not depend on what else wants one.
        assert!(seconds >= 0.02, "{seconds}");
    }
}
