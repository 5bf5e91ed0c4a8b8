//! Tests the tests: breaks the sources in a copy, one thing at a time, and runs on
//! each mutant what must notice.
//!
//! | campaign | what is broken | what must notice |
//! |---|---|---|
//! | models | every fence and every store is removed, every two stores are swapped, every ordering is weakened, on both sides of the shadow page table (N5, N6, N7) | the models of `guest-driver/core/tests/page_lock` |
//! | simulator | the bugs in [`planted`] (U10) | the simulator, in 1,000 seeds |
//!
//! ```text
//! cargo run -p qnic-mutants                      models, as a table in Markdown
//! cargo run -p qnic-mutants -- TEXT              in functions whose names contain TEXT
//! cargo run -p qnic-mutants -- simulator [TEXT]  bugs whose names contain TEXT
//! ```
//!
//! Exit status: 0 if each mutant is noticed, or known to be harmless, 1 if not.
#![forbid(unsafe_code)]

mod harmless;
mod mutant;
mod planted;
mod scratch;
mod workbench;

use std::process::ExitCode;

use anyhow::Result;
use workbench::{Outcome, Source, Workbench};

#[derive(Default)]
struct Counts {
    noticed: usize,
    harmless: usize,
    no_program: usize,
    unexpected: usize,
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let all_noticed = match arguments.first().map(String::as_str) {
        Some("simulator") => planted::campaign(arguments.get(1).map_or("", String::as_str))?,
        filter => run_models(filter.unwrap_or_default())?,
    };
    Ok(match all_noticed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The campaign of the models. Returns whether all is as expected.
fn run_models(filter: &str) -> Result<bool> {
    let bench = Workbench::new()?;
    workbench::check_sources(&bench)?;
    let mut counts = Counts::default();
    println!("| file | function | mutant | result |\n|---|---|---|---|");
    for source in Source::ALL {
        let original = source.read()?;
        for mutant in mutant::all(&original)? {
            if !mutant.function.contains(filter) {
                continue;
            }
            bench.put(source, &mutant.apply(&original))?;
            let result = judge(
                &bench.run()?,
                harmless::reason(source, &mutant),
                &mut counts,
            );
            println!(
                "| {} | {} | {} | {result} |",
                source.name(),
                mutant.function,
                mutant.what
            );
        }
        bench.put(source, &original)?;
    }
    println!(
        "\n{} mutants fail a model, {} are harmless, {} are no programs, {} UNEXPECTED",
        counts.noticed, counts.harmless, counts.no_program, counts.unexpected
    );
    Ok(counts.unexpected == 0)
}

/// The result of a mutant in words.
fn judge(outcome: &Outcome, harmless: Option<&str>, counts: &mut Counts) -> String {
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
            counts.harmless += 1;
            format!("harmless: {reason}")
        }
        (Outcome::DoesNotCompile, _) => {
            counts.no_program += 1;
            "does not compile".into()
        }
        (Outcome::Passed, None) => {
            counts.unexpected += 1;
            "**PASSES**".into()
        }
        (Outcome::Failed(models), Some(_)) => {
            counts.unexpected += 1;
            format!("**was held for harmless**, fails {}", models.join(", "))
        }
    }
}
