//! Tests the tests: breaks the sources in a copy, one thing at a time, and runs on
//! each mutant what must notice.
//!
//! | campaign | what is broken | what must notice |
//! |---|---|---|
//! | a [`suite`] | every fence and every store is removed, every two stores are swapped, every ordering is weakened, in files that models run (N5, N6, N7, N16) | the models |
//! | simulator | the bugs in `planted.txt` (U10) | the simulator, in 2,000 seeds |
//! | remote-memory | the bugs in `planted_remote_memory.txt` (H9) | the virtual cluster, in 300 seeds |
//! | streams | the bugs in `planted_streams.txt` (S2, S6) | the tests of streams and pools |
//! | library | the bugs in `planted_library.txt` (N3, Q12, Q14) | the tests of the library with the device process |
//!
//! ```text
//! cargo run --bin qnic-mutants                      all suites
//! cargo run --bin qnic-mutants -- SUITE [TEXT]      one, in functions whose names contain TEXT
//! cargo run --bin qnic-mutants -- simulator [TEXT]  bugs whose names contain TEXT
//! cargo run --bin qnic-mutants -- remote-memory [TEXT]  the same
//! ```
//! A campaign prints its table; without TEXT it also writes it to `docs/proofs`.
//!
//! Exit status: 0 if each mutant is noticed, or known to pass, 1 if not, 2 if it could not run.
#![forbid(unsafe_code)]

mod harmless;
mod mutant;
mod planted;
mod report;
mod scratch;
mod suite;
mod workbench;

use std::process::ExitCode;

use anyhow::{bail, Result};
use clap::Parser;
use planted::CAMPAIGNS;
use report::Report;
use suite::{Suite, SUITES};
use workbench::{Outcome, Workbench};

#[derive(Default)]
struct Counts {
    noticed: usize,
    known: usize,
    no_program: usize,
    unexpected: usize,
}

/// Tests the tests: breaks the sources in a copy, one thing at a time, and runs what must notice.
#[derive(Parser)]
#[command(
    name = "qnic-mutants",
    after_help = "\
Examples:
  cargo run --bin qnic-mutants                       all suites of models
  cargo run --bin qnic-mutants -- queues must_ring   one, in the functions of that name
  cargo run --bin qnic-mutants -- simulator probe    planted bugs that name a probe

A campaign prints its table; without TEXT it also writes it to docs/proofs.

Exit status: 0 if each mutant is noticed, or known to pass, 1 if not, 2 if it could not run."
)]
struct Options {
    /// page-table, queues, pools, ring, simulator, remote-memory, streams, or library; without it all but the last four
    suite: Option<String>,
    /// Only functions, or planted bugs, whose names contain this
    #[arg(default_value = "")]
    text: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether all is as expected.
fn run(options: &Options) -> Result<bool> {
    let filter = options.text.as_str();
    let name = options.suite.as_deref();
    let campaign = CAMPAIGNS.iter().find(|it| Some(it.name) == name);
    match (campaign, name) {
        (Some(campaign), _) => planted::run(campaign, filter),
        (None, name) => {
            let chosen = |suite: &&Suite| name.is_none_or(|name| suite.name == name);
            let suites: Vec<_> = SUITES.iter().filter(chosen).collect();
            if suites.is_empty() {
                let names = SUITES.map(|suite| suite.name).join(", ");
                let campaigns = CAMPAIGNS.map(|campaign| campaign.name).join(", ");
                bail!("the suites are {names}, {campaigns}");
            }
            let mut all_noticed = true;
            for suite in suites {
                all_noticed &= run_models(suite, filter)?;
            }
            Ok(all_noticed)
        }
    }
}

/// The campaign of one suite. Returns whether all is as expected.
fn run_models(suite: &'static Suite, filter: &str) -> Result<bool> {
    let bench = Workbench::new(suite)?;
    bench.check_sources()?;
    let mut counts = Counts::default();
    let columns = ["file", "function", "mutant", "result"];
    let mut report = Report::new(suite.name, suite.title, &columns);
    for source in suite.sources {
        let original = source.read()?;
        for mutant in mutant::all(&original)? {
            if !source.is_run(&mutant.function) || !mutant.function.contains(filter) {
                continue;
            }
            bench.put(source, &mutant.apply(&original))?;
            let reason = harmless::reason(source, &mutant);
            let result = classify(&bench.run()?, reason, &mut counts);
            report.row(&[source.path, &mutant.function, &mutant.what, &result]);
        }
        bench.put(source, &original)?;
    }
    let Counts {
        noticed,
        known,
        no_program,
        unexpected,
    } = counts;
    let summary = format!(
        "{noticed} mutants fail a model, {known} pass for a known reason, {no_program} are no \
         programs, {unexpected} are unexpected."
    );
    report.finish(&summary, filter.is_empty())?;
    Ok(unexpected == 0)
}

/// The result of a mutant in words.
fn classify(outcome: &Outcome, harmless: Option<&str>, counts: &mut Counts) -> String {
    match (outcome, harmless) {
        (Outcome::Failed(models), None) => {
            counts.noticed += 1;
            let others = models.len() - 1;
            let first = models.first().map_or("", String::as_str);
            match others {
                0 => format!("fails {first}"),
                _ => format!("fails {first} and {others} more"),
            }
        }
        (Outcome::Passed, Some(reason)) => {
            counts.known += 1;
            reason.to_owned()
        }
        (Outcome::DoesNotCompile(_), _) => {
            counts.no_program += 1;
            "does not compile".into()
        }
        (Outcome::Passed, None) => {
            counts.unexpected += 1;
            "**PASSES**".into()
        }
        (Outcome::Failed(models), Some(_)) => {
            counts.unexpected += 1;
            format!("**was thought to pass**, fails {}", models.join(", "))
        }
    }
}
