//! `qnic matrix`: runs a program on a cluster in every combination of settings and seeds.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_cluster::{Cancel, ClusterSpec, Silent};
use qnic_trials::matrix::{carried, run as run_all, Axis, Cell, Machine, Matrix};
use qnic_trials::{Outcome, Program, Suite, Trial, Verdict};
use serde_json::{json, Value};

use crate::exec::{print_details, TrialOptions};
use crate::ui;

/// Options of `qnic matrix`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic matrix pair.toml --vary loss=0,1%,5% --seeds 3 -- ./my-test
  cargo qnic matrix pair.toml --vary loss=0,5% --vary kernel=stable,backports \\
      --junit report.xml --artifacts out -- ./my-test
  cargo qnic matrix pair.toml --vary env.SIZE=1,4096 --set loss=1% --json -- ./my-test

Keys: loss, reorder, duplicate, corrupt, delay, jitter, rate, partition (all links);
kernel, memory, cpus (all nodes, or NODE.kernel); accel; env.NAME (the program's
environment). PROGRAM is as in \"exec\".

Each cell is a cluster of its own. As many run side by side as the machine has memory
and processors for, or --jobs; the images are shared. Of each cell --artifacts keeps a
directory. What failed is listed at the end with the command that repeats it.

Exit status: 0 if every cell passed, 1 if one did not, 125 if nothing could be begun,
130 if interrupted.")]
pub(crate) struct Options {
    #[command(flatten)]
    trial: TrialOptions,
    /// What varies, and over which values
    #[arg(long, value_name = "KEY=VALUE,…")]
    vary: Vec<Axis>,
    /// How many seeds each combination is run with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// The first seed, instead of the file's
    #[arg(long)]
    seed: Option<u64>,
    /// How many clusters run side by side, instead of as many as the machine carries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Print an array of cells as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let status = try_run(options).unwrap_or_else(|error| {
        ui::tell(&error);
        Verdict::IMPOSSIBLE
    });
    Ok(ExitCode::from(status))
}

/// A matrix with what its cells need.
struct Plan<'a> {
    options: &'a Options,
    matrix: Matrix,
    cells: Vec<Cell>,
    trials: Vec<Trial>,
}

impl<'a> Plan<'a> {
    fn new(options: &'a Options) -> Result<Self> {
        let trial = &options.trial;
        let message = "a matrix does not run on Slurm yet: start its cells by \"exec --on slurm\"";
        ensure!(!trial.on_slurm(), message);
        trial.slurm.refuse()?;
        let spec = ClusterSpec::load(&trial.file)?;
        let network = spec.network.as_ref();
        let seed = options.seed.or(network.map(|network| network.seed));
        let (axes, fixed) = (options.vary.clone(), trial.set.clone());
        let matrix = Matrix::new(&spec, axes, fixed, seed.unwrap_or(0), options.seeds)?;
        let program = Program::find(&trial.program).map_err(anyhow::Error::msg)?;
        let runtime = ui::runtime()?;
        let cells = matrix.cells();
        let mut trials = Vec::new();
        for (index, cell) in cells.iter().enumerate() {
            let spec = matrix.spec_of(&spec, cell)?;
            let settings = matrix.settings_of(cell);
            let parts = (&runtime, Arc::new(Silent) as _);
            let mut prepared = trial.trial(spec, settings, &program, parts);
            prepared.cell = Some(index);
            let directory = cell.to_string().replace(' ', "_").replace('/', "-");
            prepared.artifacts = prepared.artifacts.map(|above| above.join(directory));
            prepared.check()?;
            trials.push(prepared);
        }
        Ok(Self {
            options,
            matrix,
            cells,
            trials,
        })
    }

    fn at_once(&self) -> usize {
        let specs = self.trials.iter().map(|trial| &trial.spec);
        let jobs = self.options.jobs.map(usize::from);
        jobs.unwrap_or_else(|| carried(Machine::this(), specs))
            .min(self.cells.len())
    }

    /// The command that repeats a cell.
    fn command(&self, cell: &Cell) -> String {
        let trial = &self.options.trial;
        let words = |text: &[&str]| -> Vec<OsString> { text.iter().map(OsString::from).collect() };
        let mut before = words(&["cargo", "qnic", "exec"]);
        before.push(trial.file.clone().into());
        let mut after = Vec::new();
        if trial.host {
            after.extend(words(&["--host"]));
        }
        if let Some(on) = trial.node() {
            after.extend(words(&["--on", &on]));
        }
        let seconds = trial.timeout.as_secs_f64().to_string();
        after.extend(words(&["--timeout", &seconds, "--"]));
        after.extend(trial.program.iter().cloned());
        self.matrix.command(cell, &before, &after)
    }

    fn json(&self, outcomes: &[Option<Outcome>]) -> Value {
        let cell = |(cell, outcome): (&Cell, &Option<Outcome>)| {
            let settings = cell.settings.iter();
            let settings = settings.map(|one| (one.key().to_owned(), json!(one.value())));
            json!({
                "settings": Value::Object(settings.collect()),
                "seed": cell.seed,
                "verdict": outcome.as_ref().map(|outcome| outcome.verdict.to_string()),
                "status": outcome.as_ref().map(|outcome| outcome.verdict.status()),
                "seconds": outcome.as_ref().map(|outcome| outcome.took.as_secs_f64()),
                "command": self.command(cell),
            })
        };
        self.cells.iter().zip(outcomes).map(cell).collect()
    }

    /// A row for each cell.
    fn table(&self, outcomes: &[Option<Outcome>]) -> String {
        let keys = self.matrix.keys().map(str::to_owned);
        let columns = ["seed", "seconds", "result"].map(str::to_owned);
        let mut rows: Vec<Vec<String>> = vec![keys.chain(columns).collect()];
        for (cell, outcome) in self.cells.iter().zip(outcomes) {
            let values = cell.settings.iter().map(|one| one.value().to_owned());
            let mut row: Vec<_> = values.collect();
            row.push(cell.seed.to_string());
            row.extend(match outcome {
                Some(outcome) => [
                    format!("{:.1}", outcome.took.as_secs_f64()),
                    first_line(&outcome.verdict),
                ],
                None => ["-".to_owned(), "not run".to_owned()],
            });
            rows.push(row);
        }
        ui::aligned(&rows)
    }

    /// The commands that repeat what failed.
    fn repeats(&self, outcomes: &[Option<Outcome>]) -> String {
        let both = self.cells.iter().zip(outcomes);
        let failed = both.filter(|(_, outcome)| {
            let verdict = outcome.as_ref().map(|outcome| &outcome.verdict);
            verdict.is_some_and(|verdict| !verdict.passed() && *verdict != Verdict::Interrupted)
        });
        failed
            .map(|(cell, _)| format!("  {}\n", self.command(cell)))
            .collect()
    }
}

fn first_line(verdict: &Verdict) -> String {
    let text = verdict.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

fn try_run(options: &Options) -> Result<u8> {
    let cancel = Cancel::on_signals()?;
    let plan = Plan::new(options)?;
    let report = options.trial.report()?;
    let (count, at_once) = (plan.cells.len(), plan.at_once());
    eprintln!("{count} cells, {at_once} at a time");
    let mut ended = 0;
    let outcomes = run_all(&plan.trials, at_once, &cancel, &mut |index, outcome| {
        ended += 1;
        let seconds = outcome.took.as_secs_f64();
        let (cell, verdict) = (&plan.cells[index], first_line(&outcome.verdict));
        eprintln!("[{ended}/{count}] {cell}: {verdict} ({seconds:.1} s)");
        if !outcome.verdict.passed() && outcome.verdict != Verdict::Interrupted {
            show_failure(outcome);
        }
    });
    if let Some(report) = report {
        let suites: Vec<Suite> = outcomes.iter().flatten().map(Outcome::suite).collect();
        let name = plan.trials.first().map_or("", |trial| &trial.spec.name);
        report
            .write(name, &suites)
            .context("cannot write the report")?;
    }
    ui::show(options.json, &plan.json(&outcomes), |_| {
        let repeats = plan.repeats(&outcomes);
        let table = plan.table(&outcomes);
        match repeats.is_empty() {
            true => table,
            false => format!("{table}\nwhat failed is repeated by\n{repeats}"),
        }
    })?;
    let all = outcomes.iter().flatten();
    let passed = all.filter(|outcome| outcome.verdict.passed()).count();
    Ok(match (cancel.is_cancelled(), passed == count) {
        (true, _) => Verdict::INTERRUPTED,
        (false, true) => 0,
        (false, false) => 1,
    })
}

/// Lines of what a failed program printed that are shown.
const SHOWN_LINES: usize = 20;

fn show_failure(outcome: &Outcome) {
    if !matches!(outcome.verdict, Verdict::Failed { .. }) {
        return print_details(outcome);
    }
    for case in outcome.cases.iter().filter(|case| case.has_failed()) {
        let lines: Vec<_> = case.output.lines().collect();
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            eprintln!("    {} | {line}", case.class);
        }
    }
}
