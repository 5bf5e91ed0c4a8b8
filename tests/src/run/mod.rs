//! `qnic test`: all tests, side by side, and one line at the end.
//!
//! ```text
//!   static checks, builds ─▶ programs of tests ─┐  jobs: processes of their own, as many at a time
//!   cases in host mode, cases that boot guests ─┘  as crate::schedule finds room for
//! ```
//! A case runs by `qnic test --exact --only CASE`, and cases that share guests (`suite::SHARED`) by the same with
//! all their names; one that is asked for alone runs in this process, and prints as it goes. What failed is said again
//! at the end, where the reader of a long log looks first.

mod cargo_output;
mod checkout;
mod jobs;

use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Error, Result};
use qnic_cli::suite::Options;
use qnic_trials::{Case, Ended, JunitFile, Suite};

use crate::harness::{self, Results};
use crate::interrupt::Interrupt;
use crate::schedule::{Load, Room};
use crate::{slurm, suite, vm};
use cargo_output::CargoTests;
use checkout::Built;
use jobs::{show, Done, Job, Kind, LIMIT};

/// Memory that a case takes at most: that of its guests, what their QEMU takes beside it, and
/// device processes.
const CASE_MEBIBYTES: u64 = 3072;

/// Lines of a job that hangs which are shown again.
const TAIL: usize = 40;

/// Status of a check that cannot be done here.
const NOT_HERE: i32 = 77;

/// Runs what the options say; the exit status is 1 if something failed.
///
/// # Errors
/// Returns an error if it cannot begin: no such case, no checkout, no room for the report.
pub fn run(options: &Options) -> Result<ExitCode> {
    let chosen = chosen(options);
    if options.list {
        chosen.iter().for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let only = options.only.as_deref();
    let named = only.map_or(1, |only| only.split(',').count());
    let is_missing = chosen.is_empty() || options.exact && chosen.len() < named;
    if let Some(only) = only.filter(|_| is_missing) {
        bail!("no case is named {only:?}, or like it: cargo qnic test --list shows their names");
    }
    if options.all {
        // Before any thread: all programs of tests inherit it.
        std::env::set_var(harness::LONG, "1");
    }
    let interrupt = Interrupt::watch()?;
    let report = options.junit.as_ref().map(|path| {
        let made = JunitFile::create(path);
        made.with_context(|| format!("cannot write the report {}", path.display()))
    });
    let report = report.transpose()?;
    let start = Instant::now();
    let mut results = Results::default();
    match &chosen[..] {
        [case] if options.only.is_some() => run_here(case, options, &mut results),
        cases if options.exact => {
            vm::share();
            let last = cases.last().map(|case| case.name);
            for case in cases {
                results.run(case.name, || {
                    (case.run)()?;
                    if Some(case.name) == last {
                        vm::end_shared()?;
                    }
                    Ok(())
                });
            }
        }
        _ => run_all(&chosen, options, &interrupt, &mut results)?,
    }
    if options.exact {
        // The process that started this one reads how the case ended.
        return Ok(interrupt.finish(status(&results)));
    }
    for case in results.cases.iter().filter(|case| case.has_failed()) {
        print!("{}", failure(case));
    }
    println!("\n{}", results.counts);
    let status = status(&results);
    if let Some(report) = report {
        let suite = Suite {
            name: "qnic".to_owned(),
            properties: Vec::new(),
            took: start.elapsed(),
            cases: results.cases,
        };
        report
            .write("qnic test", &[suite])
            .context("cannot write the report")?;
    }
    Ok(interrupt.finish(status))
}

fn status(results: &Results) -> ExitCode {
    match results.counts.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The cases that the options name.
fn chosen(options: &Options) -> Vec<&'static harness::Case> {
    let only = options.only.as_deref().unwrap_or("");
    let cases = suite::HOST.iter().chain(slurm::CASES);
    let cases = cases.chain(suite::VM.into_iter().flatten());
    let names: Vec<_> = only.split(',').collect();
    let chosen = cases.filter(|case| match options.exact {
        true => names.contains(&case.name),
        false => case.name.contains(only),
    });
    let mut chosen: Vec<_> = chosen.collect();
    if options.exact {
        chosen.sort_by_key(|case| names.iter().position(|name| *name == case.name));
    }
    chosen
}

/// Returns true if the case is left out, which it counts.
fn is_left_out(case: &harness::Case, options: &Options, results: &mut Results) -> bool {
    let is_named = options.all || options.only.is_some();
    let why = match case.name {
        name if options.quick && name.starts_with("vm::") => "--quick leaves out virtual machines",
        name if !is_named && suite::LONG.contains(&name) => "a long case: --all adds it",
        _ => return false,
    };
    results.skip(case.name, why);
    true
}

fn run_here(case: &harness::Case, options: &Options, results: &mut Results) {
    if !is_left_out(case, options, results) {
        results.run(case.name, case.run);
    }
}

/// Runs the cases, and all that cargo checks and tests unless only cases are asked for.
fn run_all(
    cases: &[&'static harness::Case],
    options: &Options,
    interrupt: &Interrupt,
    results: &mut Results,
) -> Result<()> {
    let mut jobs = Vec::new();
    let root = qnic_cluster::repository();
    if options.only.is_none() {
        let root = root.as_deref();
        let root = root.context("the tests load the checkout that this program was built from")?;
        jobs = checkout::jobs(root, results);
    }
    let this = std::env::current_exe().context("find this program")?;
    let cases = cases.iter().copied();
    let cases: Vec<_> = cases
        .filter(|case| !is_left_out(case, options, results))
        .collect();
    jobs.extend(rows(&cases).iter().map(|row| job(row, &this)));
    let root = root.unwrap_or_default();
    jobs::run(jobs, Room::of_this_machine(), interrupt, |done| {
        finish(&done, &root, options.quick, results)
    })
}

/// The cases that run one after the other, in their order: most are alone.
fn rows(cases: &[&'static harness::Case]) -> Vec<Vec<&'static harness::Case>> {
    let shared = |case: &harness::Case| suite::SHARED.iter().find(|row| row.contains(&case.name));
    let mut rows: Vec<Vec<&harness::Case>> = Vec::new();
    for case in cases {
        let row = shared(case);
        let others = |other: &&mut Vec<&harness::Case>| row.is_some() && shared(other[0]) == row;
        match rows.iter_mut().find(others) {
            Some(others) => others.push(case),
            None => rows.push(vec![case]),
        }
    }
    for row in &mut rows {
        let names = shared(row[0]).copied().unwrap_or_default();
        row.sort_by_key(|case| names.iter().position(|name| *name == case.name));
    }
    rows
}

/// Cases in a process of their own.
fn job(row: &[&harness::Case], this: &Path) -> Job {
    let names: Vec<_> = row.iter().map(|case| case.name).collect();
    let name = names.join(",");
    let mut command = Command::new(this);
    command.args(["test", "--exact", "--only", &name]);
    let processors = row.iter().map(|case| case.processors).max();
    Job {
        name,
        load: Load {
            processors: processors.unwrap_or_default(),
            mebibytes: CASE_MEBIBYTES,
            lane: None,
        },
        command,
        kind: Kind::Case,
        limit: LIMIT,
    }
}

/// Shows and counts how a job ended; the jobs that follow from it.
fn finish(done: &Done, root: &Path, quick: bool, results: &mut Results) -> Result<Vec<Job>> {
    let Done {
        name,
        kind,
        status,
        took,
        output,
        ..
    } = done;
    let heading = match kind {
        Kind::Check => format!("test {name} …"),
        Kind::Case => String::new(),
        Kind::Tests | Kind::Build { .. } => format!("\n{name} ({:.1} s)", took.as_secs_f64()),
    };
    let mut jobs = Vec::new();
    if let (Kind::Build { lints }, None) = (*kind, done.hung) {
        let built = checkout::built(root, output, quick)?;
        show(&heading, &built.said);
        if let Some(name) = lints {
            count_lints(name, &built, *took, results);
        }
        jobs = built.programs;
    } else {
        show(&heading, output);
    }
    println!(
        "busy: {name} ({:.1} s of processors)",
        done.busy.as_secs_f64()
    );
    match kind {
        _ if done.hung.is_some() => count_hung(done, results),
        Kind::Check if status.code() == Some(NOT_HERE) => {
            results.skip(name, output.lines().last().unwrap_or_default());
        }
        Kind::Check => {
            let result = status.success().then_some(()).context("see above");
            results.count(name, *took, result);
        }
        Kind::Case => match &name.split(',').collect::<Vec<_>>()[..] {
            [name] => results.add_output(name, *took, output, status.success()),
            names => {
                // The status is that of all of them: each has said how it has ended, or has not come so far.
                let took = *took / names.len() as u32;
                for name in names {
                    results.add_output(name, took, output, true);
                }
            }
        },
        Kind::Tests => cargo_tests(name, output, *status, results),
        Kind::Build { .. } => cargo_tests(name, "", *status, results),
    }
    Ok(jobs)
}

/// Counts the lints of a build.
fn count_lints(name: &str, built: &Built, took: Duration, results: &mut Results) {
    let result = match built.complaints {
        0 => Ok(()),
        complaints => Err(anyhow!("{complaints} warnings and errors: see above")),
    };
    results.count(name, took, result);
}

/// Counts a job that was ended by its limit as failed, with the end of what it printed.
fn count_hung(done: &Done, results: &mut Results) {
    let limit = done.hung.unwrap_or_default().as_secs_f64();
    if done.kind == Kind::Tests {
        let mut tests = CargoTests::default();
        done.output.lines().for_each(|line| tests.read(line));
        results.add(tests.counts, tests.cases);
    }
    let lines: Vec<_> = done.output.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
    let why = format!("it hangs: it had not ended after {limit} s, and was ended");
    results.count(&done.name, done.took, Err(Error::msg(tail).context(why)));
}

/// Counts what a program of tests, or cargo with several, has printed.
fn cargo_tests(name: &str, output: &str, status: ExitStatus, results: &mut Results) {
    let mut tests = CargoTests::default();
    output.lines().for_each(|line| tests.read(line));
    let CargoTests {
        mut counts,
        mut cases,
        ..
    } = tests;
    if !status.success() && counts.failed == 0 {
        println!("{name} … FAILED: {status}, see above");
        counts.failed += 1;
        let case = Case::passed("cargo", name, Duration::ZERO);
        cases.push(case.failing(status.to_string(), "see its output"));
    }
    results.add(counts, cases);
}

/// The name of a case that failed, with why and with the end of what it printed.
fn failure(case: &Case) -> String {
    let Ended::Failed { message, details } = &case.ended else {
        return String::new();
    };
    let mut text = format!("\nFAILED {}::{}: {message}\n", case.class, case.name);
    for line in details.lines().filter(|line| *line != message) {
        text.push_str(&format!("    {line}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            quick: false,
            all: false,
            only: None,
            exact: false,
            list: false,
            junit: None,
        }
    }

    #[test]
    fn cases_that_share_guests_run_in_their_order() {
        let all = chosen(&options());
        let together = rows(&all);
        assert_eq!(together.iter().map(Vec::len).sum::<usize>(), all.len());
        for names in suite::SHARED {
            let row = together.iter().find(|row| row[0].name == names[0]);
            let found: Vec<_> = row.unwrap().iter().map(|case| case.name).collect();
            assert_eq!(found, *names);
            let exact = Options {
                only: Some(names.join(",")),
                exact: true,
                ..options()
            };
            let found: Vec<_> = chosen(&exact).iter().map(|case| case.name).collect();
            assert_eq!(found, *names);
        }
    }

    #[test]
    fn long_cases_run_with_all_others_or_by_name() {
        let all = chosen(&options());
        for name in suite::LONG {
            let case = all.iter().find(|case| case.name == *name);
            let case = case.expect("a case of that name");
            let mut results = Results::default();
            assert!(is_left_out(case, &options(), &mut results));
            assert_eq!(results.counts.skipped, 1);
            let with = |all, only: Option<&str>| Options {
                all,
                only: only.map(str::to_owned),
                ..options()
            };
            assert!(!is_left_out(case, &with(true, None), &mut results));
            assert!(!is_left_out(case, &with(false, Some(name)), &mut results));
        }
    }

    /// In a pipeline, a name that no test has any more would be green for ever.
    #[test]
    fn tests_that_no_name_chooses_are_no_success() {
        let options = Options {
            only: Some("nowhere".to_owned()),
            ..options()
        };
        let error = run(&options).unwrap_err().to_string();
        assert!(error.starts_with("no case is named \"nowhere\""), "{error}");
    }

    #[test]
    fn a_failure_is_said_with_its_cause() {
        let case = Case::passed("host", "pools_open", Duration::ZERO);
        assert_eq!(failure(&case), "");
        let failed = case.failing("no packet", "no packet\nthe queue is empty");
        let said = "\nFAILED host::pools_open: no packet\n    the queue is empty\n";
        assert_eq!(failure(&failed), said);
    }

    #[test]
    fn a_job_that_hangs_has_failed_and_shows_its_last_lines() {
        let printed: Vec<_> = (0..TAIL + 5).map(|line| line.to_string()).collect();
        let mut done = Done {
            name: "host::waits".to_owned(),
            kind: Kind::Case,
            status: ExitStatus::default(),
            took: Duration::from_secs(60),
            busy: Duration::ZERO,
            hung: Some(Duration::from_secs(60)),
            output: printed.join("\n"),
        };
        let mut results = Results::default();
        finish(&done, Path::new(""), false, &mut results).unwrap();
        let why = "it hangs: it had not ended after 60 s, and was ended";
        let details = format!("{why}\n{}", printed[5..].join("\n"));
        let expected = Case::passed("host", "waits", done.took).failing(why, details);
        assert_eq!(results.cases, [expected]);
        // The tests that have ended before count, too.
        done.kind = Kind::Tests;
        done.output = "test a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored".to_owned();
        finish(&done, Path::new(""), false, &mut results).unwrap();
        assert_eq!(results.counts.to_string(), "1 passed, 2 failed, 0 skipped");
    }
}
