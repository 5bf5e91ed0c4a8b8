//! Removes every fence and every store, swaps every two stores and weakens every
//! ordering of the shadow page table's two sides, one at a time, and runs the
//! models of `guest-driver/core/tests/page_lock` on each mutant (N5, N6, N7).
//!
//! ```text
//! cargo run -p qnic-mutants            all, as a table in Markdown
//! cargo run -p qnic-mutants -- TEXT    those of functions whose names contain TEXT
//! ```
//!
//! Exit status: 0 if each mutant fails a model or is known to be harmless, 1 if not.
#![forbid(unsafe_code)]

mod harmless;
mod mutant;
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
    let filter = std::env::args().nth(1).unwrap_or_default();
    let bench = Workbench::new()?;
    workbench::check_sources(&bench)?;
    let mut counts = Counts::default();
    println!("| file:line | function | mutant | result |\n|---|---|---|---|");
    for source in Source::ALL {
        let original = source.read()?;
        for mutant in mutant::all(&original)? {
            if !mutant.function.contains(&filter) {
                continue;
            }
            bench.put(source, &mutant.apply(&original))?;
            let result = judge(
                &bench.run()?,
                harmless::reason(source, &mutant),
                &mut counts,
            );
            println!(
                "| {}:{} | {} | {} | {result} |",
                source.name(),
                mutant.line,
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
    Ok(if counts.unexpected == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
