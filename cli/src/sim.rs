//! `qnic sim`: clusters under virtual time, with faults from a seed (X3).

use std::io::{BufWriter, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_sim::campaign::{self, Campaign, Seeds, Summary};
use qnic_sim::{Failure, Faults, Options as Simulation};

/// Options of `qnic sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
Faults: loss, delay, reorder, duplicate, corrupt, partition, evict, unavailable, kill,
revoke, reset, crash, slow; all; none.

Examples:
  cargo qnic sim --seed 42                    one simulation; its trace on stdout,
                                              byte for byte the same each time
  cargo qnic sim --seeds 1000                 a campaign on all cores
  cargo qnic sim --hours 8 --nodes 6          until morning
  cargo qnic sim --seeds 200 --without crash  all faults but one
  cargo qnic sim --seeds 200 --lossless       the wire within one device process
  cargo qnic sim --seed 42 --faults evict,kill --shrink
                                              make a failure smaller

A failure prints its seed, what went wrong, and the command that repeats it.

Exit status: 0 if every promise was kept, 1 if one was broken, 2 for a wrong command
line.")]
pub(crate) struct Options {
    /// Run this seed alone, and print its trace
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "hours"])]
    seed: Option<u64>,
    /// Run so many seeds
    #[arg(long, value_name = "N", conflicts_with = "hours")]
    seeds: Option<u64>,
    /// Run seeds for so long; fractions are fine
    #[arg(long, value_name = "HOURS", value_parser = hours)]
    hours: Option<Duration>,
    /// First seed of a campaign
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = Simulation::default().nodes as u16,
          value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,
    /// Transfers that each process issues
    #[arg(long, value_name = "N", default_value_t = Simulation::default().operations)]
    operations: u32,
    /// Faults that happen, separated by commas
    #[arg(long, value_name = "LIST", default_value = "all")]
    faults: String,
    /// Faults that do not happen after all, separated by commas
    #[arg(long, value_name = "LIST", default_value = "none")]
    without: String,
    /// The wire is the one within a device process: nothing is lost or late, and spans
    /// of pages travel in a frame; loss, delay, reorder, duplicate, corrupt, partition
    /// and crash do not happen
    #[arg(long)]
    lossless: bool,
    /// Look for a smaller simulation that fails, too
    #[arg(long)]
    shrink: bool,
    /// Go on after a failure, up to so many
    #[arg(long, value_name = "N", default_value_t = 1)]
    failures: usize,
}

/// A time in hours, up to a thousand years.
fn hours(text: &str) -> Result<Duration> {
    let hours: f64 = text.parse().context("not a number")?;
    ensure!(
        (0.0..=1e7).contains(&hours),
        "not between 0 and 10,000,000 hours"
    );
    Ok(Duration::from_secs_f64(hours * 3600.0))
}

fn faults(list: &str) -> Result<Faults> {
    let named = |name| match name {
        "all" => Ok(Faults::all()),
        "none" => Ok(Faults::empty()),
        _ => Faults::named(name).with_context(|| {
            let names = Faults::all().names();
            format!("there is no fault \"{name}\"; there are {names}, all and none")
        }),
    };
    list.split(',').map(named).collect()
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let faults = match (faults(&options.faults), faults(&options.without)) {
        (Ok(with), Ok(without)) => with - without,
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(2));
        }
    };
    let simulation = Simulation {
        nodes: options.nodes.into(),
        operations: options.operations,
        faults,
        lossless: options.lossless,
    };
    let failures = match options.seed {
        Some(seed) if options.shrink => campaign::run(seed, &simulation).err(),
        Some(seed) => one(seed, &simulation),
        None => {
            let found = many(options, &simulation).failures;
            for failure in found.iter().skip(1) {
                report(failure);
            }
            found.into_iter().next()
        }
    };
    let Some(failure) = failures else {
        return Ok(ExitCode::SUCCESS);
    };
    report(&failure);
    if options.shrink {
        let tell = &mut |smaller: &Failure| eprintln!("still fails: {}", smaller.replay());
        let smallest = campaign::shrink(failure, tell);
        eprintln!("the smallest that was found:");
        report(&smallest);
    }
    Ok(ExitCode::FAILURE)
}

fn report(failure: &Failure) {
    eprintln!("FAILED {failure}");
    eprintln!("    repeat it: {}", failure.replay());
}

/// One seed with its trace.
fn one(seed: u64, simulation: &Simulation) -> Option<Failure> {
    let trace = BufWriter::with_capacity(1 << 20, std::io::stdout());
    match campaign::run_traced(seed, simulation, trace) {
        Ok(report) => {
            eprintln!("seed {seed}: {report:?}");
            None
        }
        Err(failure) => Some(failure),
    }
}

/// Seeds until a time, or so many, with progress.
struct Progress {
    seeds: Seeds,
    until: Option<Instant>,
    bar: indicatif::ProgressBar,
}

impl Campaign for Progress {
    fn next(&self) -> Option<u64> {
        match self.until {
            Some(until) if Instant::now() >= until => None,
            _ => self.seeds.next(),
        }
    }

    fn done(&self, summary: &Summary) {
        self.bar.set_position(summary.seeds);
        self.bar.set_message(format!(
            "{} transfers, {} failures",
            summary.total.complete,
            summary.failures.len()
        ));
    }
}

fn many(options: &Options, simulation: &Simulation) -> Summary {
    let count = match (options.seeds, options.hours) {
        (Some(count), _) => count,
        (None, Some(_)) => u64::MAX,
        (None, None) => 1000,
    };
    let bar = match std::io::stderr().is_terminal() {
        false => indicatif::ProgressBar::hidden(),
        true if count == u64::MAX => indicatif::ProgressBar::new_spinner(),
        true => indicatif::ProgressBar::new(count),
    };
    let start = Instant::now();
    let progress = Progress {
        seeds: Seeds::new(options.first, count),
        until: options.hours.map(|hours| start + hours),
        bar,
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = campaign::campaign(simulation, threads, options.failures, &progress);
    progress.bar.finish_and_clear();
    let total = &summary.total;
    println!(
        "{} seeds, {} failures in {:.1} s: {} transfers, {} refused or given up, {} \
         notifications, {} frames, {} injected faults, {:.0} s of virtual time",
        summary.seeds,
        summary.failures.len(),
        start.elapsed().as_secs_f64(),
        total.complete,
        total.failed,
        total.notifications,
        total.frames,
        total.injected_faults,
        total.time as f64 / 1e9,
    );
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_finite() {
        assert_eq!(hours("0.5").unwrap(), Duration::from_secs(1800));
        for text in ["nan", "inf", "-1", "1e8", "x"] {
            assert!(hours(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_of_faults_are_read() {
        assert_eq!(faults("all").unwrap(), Faults::all());
        assert_eq!(faults("none").unwrap(), Faults::empty());
        assert_eq!(faults("kill,evict").unwrap().names(), "evict,kill");
        assert!(faults("rust").unwrap_err().to_string().contains("rust"));
    }
}
