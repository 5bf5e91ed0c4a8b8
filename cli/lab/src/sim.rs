//! `qnic sim`: clusters under virtual time, with faults from a seed (X3).

use std::io::{BufWriter, IsTerminal};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use qnic_cli::lab::sim::Options;
use qnic_simulator::campaign::{self, Campaign, Seeds, Summary};
use qnic_simulator::{Failure, Faults, Options as Simulation};

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
        engines: options.engines,
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
            summary.total.count("transfers"),
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
        total.count("transfers"),
        total.count("transfers failed"),
        total.count("notifications"),
        total.frames,
        total.injected_faults,
        total.time as f64 / 1e9,
    );
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is run unless it is said otherwise is what the simulator takes for that.
    #[test]
    fn the_defaults_are_those_of_the_simulator() {
        use clap::{Args, FromArgMatches};
        let command = Options::augment_args(clap::Command::new("sim"));
        let options = command.get_matches_from(["sim"]);
        let options = Options::from_arg_matches(&options).unwrap();
        let default = Simulation::default();
        assert_eq!(usize::from(options.nodes), default.nodes);
        assert_eq!(options.operations, default.operations);
    }

    #[test]
    fn lists_of_faults_are_read() {
        assert_eq!(faults("all").unwrap(), Faults::all());
        assert_eq!(faults("none").unwrap(), Faults::empty());
        assert_eq!(faults("kill,evict").unwrap().names(), "evict,kill");
        assert!(faults("rust").unwrap_err().to_string().contains("rust"));
    }
}
