//! `qnic sim`: clusters under virtual time, with faults from a seed (X3).

use std::io::{BufWriter, IsTerminal};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use qnic_cli::lab::sim::Options;
use qnic_simulator::campaign::{self, Campaign, Seeds, Summary};
use qnic_simulator::{Failure, Faults, Mix, Mode, Options as Simulation};

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

fn modes(list: &str) -> Result<Vec<Mode>> {
    if list == "all" {
        return Ok(Mode::ALL.to_vec());
    }
    let named = |name| {
        Mode::named(name).with_context(|| {
            let names = Mode::ALL.map(Mode::name).join(", ");
            format!("there is no mode \"{name}\"; there are {names} and all")
        })
    };
    list.split(',').map(named).collect()
}

/// What the options say that is simulated.
fn mix(options: &Options) -> Result<Mix> {
    let others = Simulation {
        operations: options.operations,
        faults: faults(&options.faults)? - faults(&options.without)?,
        lossless: options.lossless,
        engines: options.engines,
        ..Simulation::default()
    };
    let mut mix = Mix::from(others);
    if options.fresh {
        mix.nodes = Mix::fresh().nodes;
        // Where a single mode is not asked for.
        if !options.lossless {
            mix.modes = Mix::fresh().modes;
        }
    }
    if let Some(nodes) = &options.nodes {
        mix.nodes = nodes.clone();
    }
    if let Some(list) = &options.modes {
        mix.modes = modes(list)?;
    }
    Ok(mix)
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mix = match mix(options) {
        Ok(mix) => mix,
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(2));
        }
    };
    let failure = match options.seed {
        Some(seed) if options.shrink => campaign::run(seed, &mix.of(seed)).err(),
        Some(seed) => one(seed, &mix.of(seed)),
        None => many(options, mix).failures.into_iter().next(),
    };
    let Some(failure) = failure else {
        return Ok(ExitCode::SUCCESS);
    };
    if options.seed.is_some() {
        report(&failure);
    }
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

/// How often a campaign says how far it is, where there is no terminal.
const SAY: Duration = Duration::from_secs(60);

/// Seeds until a time, or so many, with progress.
struct Progress {
    seeds: Seeds,
    until: Option<Instant>,
    bar: indicatif::ProgressBar,
    said: Mutex<Said>,
}

/// What was said of a campaign.
struct Said {
    failures: usize,
    /// When the next line of a log is due.
    due: Instant,
}

impl Campaign for Progress {
    fn next(&self) -> Option<(u64, Simulation)> {
        match self.until {
            Some(until) if Instant::now() >= until => None,
            _ => self.seeds.next(),
        }
    }

    fn done(&self, summary: &Summary) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        for failure in &summary.failures[said.failures..] {
            self.bar.suspend(|| report(failure));
        }
        let (seeds, failures) = (summary.seeds, summary.failures.len());
        said.failures = failures;
        let now = Instant::now();
        if self.bar.is_hidden() && now >= said.due {
            said.due = now + SAY;
            eprintln!("{seeds} seeds, {failures} failures so far");
        }
        let transfers = summary.total.count("transfers");
        self.bar.set_position(seeds);
        self.bar
            .set_message(format!("{transfers} transfers, {failures} failures"));
    }
}

/// The first seed of a campaign.
fn first(options: &Options) -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let clock = since_1970.map_or(0, |since| since.as_millis() as u64);
    options
        .first
        .unwrap_or(if options.fresh { clock } else { 0 })
}

fn many(options: &Options, mix: Mix) -> Summary {
    let count = match (options.seeds, options.time) {
        (Some(count), _) => count,
        (None, Some(_)) => u64::MAX,
        (None, None) => 1000,
    };
    let first = first(options);
    if options.fresh {
        // Before they run: one may hang.
        let (least, most) = (mix.nodes.start(), mix.nodes.end());
        let modes: Vec<_> = mix.modes.iter().map(|mode| mode.name()).collect();
        let modes = modes.join(", ");
        println!("seeds from {first} on, {least} to {most} nodes, {modes}");
    }
    let bar = match std::io::stderr().is_terminal() {
        false => indicatif::ProgressBar::hidden(),
        true if count == u64::MAX => indicatif::ProgressBar::new_spinner(),
        true => indicatif::ProgressBar::new(count),
    };
    let start = Instant::now();
    let progress = Progress {
        seeds: Seeds::new(first, count, mix),
        until: options.time.and_then(|time| start.checked_add(time)),
        bar,
        said: Mutex::new(Said {
            failures: 0,
            due: start + SAY,
        }),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = campaign::campaign(threads, options.failures, &progress);
    progress.bar.finish_and_clear();
    let total = &summary.total;
    let modes = summary.by_mode.iter();
    let modes: Vec<_> = modes
        .map(|(mode, seeds)| format!("{seeds} {}", mode.name()))
        .collect();
    let modes = modes.join(", ");
    println!(
        "{} seeds ({modes}), {} failures in {:.1} s: {} transfers, {} refused or given up, {} \
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

    fn parsed(line: &[&str]) -> Options {
        use clap::{Args, FromArgMatches};
        let command = Options::augment_args(clap::Command::new("sim"));
        let options = command.get_matches_from([&["sim"], line].concat());
        Options::from_arg_matches(&options).unwrap()
    }

    /// What is run unless it is said otherwise is what the simulator takes for that.
    #[test]
    fn the_defaults_are_those_of_the_simulator() {
        let default = Mix::from(Simulation::default());
        assert_eq!(mix(&parsed(&[])).unwrap(), default);
        assert_eq!(first(&parsed(&[])), 0);
        let fresh = parsed(&["--fresh"]);
        assert_eq!(mix(&fresh).unwrap(), Mix::fresh());
        assert!(first(&fresh) > 1_700_000_000_000);
    }

    #[test]
    fn what_is_asked_for_goes_before_what_fresh_seeds_have() {
        let options = parsed(&["--fresh", "--nodes", "7", "--lossless", "--first", "9"]);
        let asked = Simulation {
            nodes: 7,
            lossless: true,
            ..Simulation::default()
        };
        assert!((0..9).all(|seed| mix(&options).unwrap().of(seed) == asked));
        assert_eq!(first(&options), 9);
        let two = mix(&parsed(&["--modes", "engines,lossy"])).unwrap();
        assert_eq!(two.modes, [Mode::Engines, Mode::Lossy]);
        assert!(mix(&parsed(&["--modes", "wet"])).is_err());
    }

    /// The command that repeats a seed of a mix repeats its simulation.
    #[test]
    fn a_failure_of_a_mix_is_repeated() {
        for seed in 0..100 {
            let options = Mix::fresh().of(seed);
            let failure = Failure {
                seed,
                options,
                message: String::new(),
            };
            let command = failure.replay();
            let line: Vec<_> = command.split(' ').skip(3).collect();
            let again = parsed(&line);
            assert_eq!(again.seed, Some(seed));
            assert_eq!(mix(&again).unwrap().of(seed), options);
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
