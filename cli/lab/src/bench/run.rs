//! Runs suites, shows what they say, and writes it to files after each.

use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{ensure, Result};
use qnic_cli::lab::bench::{Output, Suite};

use super::document;
use super::load::Load;
use super::machine::{Machine, Sources};
use super::page;
use super::plan::{Plan, Planned};
use super::record::{check_writable, write_whole, Run, SuiteRun};
use super::tables::Tables;

/// Runs the suites `wanted`; all if none is named.
pub(super) fn suites(wanted: &[Suite], output: &Output) -> Result<ExitCode> {
    ensure!(output.rounds != Some(0), "--rounds must not be 0");
    for path in output.json.iter().chain(&output.html) {
        check_writable(path)?;
    }
    if output.tables {
        // What cannot be written should show now, and a mark that names nothing.
        document::renew_is_possible(&document::default_document()?)?;
    }
    let mut plan = Plan::new(wanted, output.rounds);
    eprint!("{}", plan.show());
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let begun = Instant::now();
    let mut run = Run::new(started, Machine::of_this_run(), Sources::of_this_run());
    for planned in plan.suites.clone() {
        eprintln!("{}", plan.progress());
        let start = Instant::now();
        let suite = measure(&planned, run.machine.cores)?;
        plan.ended(start.elapsed().as_secs_f64());
        show(&suite);
        run.suites.push(suite);
        run.seconds = begun.elapsed().as_secs_f64();
        // A run that is interrupted later keeps what it has.
        if let Some(path) = &output.json {
            run.write(path)?;
        }
        if let Some(path) = &output.html {
            write_whole(path, &page::of_run(&run))?;
        }
    }
    if output.tables {
        document::renew(&run, &document::default_document()?)?;
    }
    Ok(match run.has_failed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Runs a suite. One that fails is part of the run, with the reason.
fn measure(planned: &Planned, cores: usize) -> Result<SuiteRun> {
    let Planned {
        spec,
        measure,
        rounds,
    } = *planned;
    let start = Instant::now();
    let ((measured, took), load) = Load::around(|| {
        let mut tables = Tables::default();
        let measured = measure(rounds, &mut tables).map(|()| tables);
        (measured, start.elapsed())
    })?;
    let error = measured.as_ref().err().map(|error| format!("{error:#}"));
    Ok(SuiteRun {
        id: spec.id.clone(),
        title: spec.title.clone(),
        rounds,
        seconds: took.as_secs_f64(),
        busy: load.busy(cores),
        load,
        error,
        tables: measured.map_or_else(|_| Vec::new(), |tables| tables.finish(spec)),
    })
}

/// Prints a suite.
fn show(suite: &SuiteRun) {
    println!("{}: {}", suite.id, suite.title);
    if !suite.busy.is_empty() {
        println!("A BUSY MACHINE: only ratios say something, and they less than usual:");
        suite.busy.iter().for_each(|why| println!("  {why}"));
    }
    if let Some(error) = &suite.error {
        println!("It ended with an error: {error}");
    }
    println!();
    for table in &suite.tables {
        println!("{table}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::spec;

    fn planned(measure: fn(usize, &mut Tables) -> Result<()>) -> Planned {
        Planned {
            spec: &spec::suites()[0],
            measure,
            rounds: 3,
        }
    }

    #[test]
    fn a_suite_that_fails_says_why_and_ends_no_run() {
        let suite = measure(&planned(|_, _| anyhow::bail!("no such machine")), 2).unwrap();
        assert_eq!(suite.error.as_deref(), Some("no such machine"));
        assert_eq!((suite.rounds, suite.tables.len()), (3, 0));
    }

    #[test]
    fn figures_of_a_suite_have_names_and_one_sample_a_round() {
        let suite = measure(
            &planned(|rounds, tables| {
                // The first warms up, and does not count.
                tables.rounds(rounds, "", true, |round| {
                    for ns in [1.0, 3.0, 5.0] {
                        round.add("trip", "row", "both NICs [ns]", ns);
                    }
                    Ok(())
                })
            }),
            2,
        );
        let suite = suite.unwrap();
        let figure = suite.figures().next().unwrap();
        assert_eq!(figure.id, "engine/trip/row/both-nics-ns");
        assert_eq!(figure.samples, [3.0; 3]);
    }

    #[test]
    fn a_file_that_cannot_be_written_shows_at_once() {
        let output = Output {
            json: Some("/no/such/directory/run.json".into()),
            ..Output::default()
        };
        let error = format!("{:#}", suites(&[Suite::Host], &output).unwrap_err());
        assert!(error.contains("/no/such/directory"), "{error}");
    }
}
