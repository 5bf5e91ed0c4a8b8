//! `qnic test`: all tests, one after the other, and one line at the end.
//!
//! The order is by price: static checks, cargo's tests, tests of several
//! processes in host mode, tests that boot virtual machines. What failed is said again at the
//! end, where the reader of a long log looks first.

mod cargo_output;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_cluster::cargo;
use qnic_tests::harness::Results;
use qnic_tests::interrupt::Interrupt;
use qnic_tests::suite;
use qnic_trials::{Case, Ended, JunitFile, Suite};

use self::cargo_output::CargoTests;

/// Options of `qnic test`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic test                     everything; takes a while
  cargo qnic test --quick             what needs no virtual machine
  cargo qnic test --only reboots      the cases whose names contain this

Ctrl-C or SIGTERM ends everything that the tests have started; a second one does not
wait for the running case to remove its files.

Exit status: 0 if nothing failed, 1 if something did, 2 for a wrong command line,
130 if interrupted.")]
pub(crate) struct Options {
    /// Leave out what boots virtual machines
    #[arg(long)]
    quick: bool,
    /// Run only the host-mode and VM cases whose names contain TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// List the host-mode and VM cases and do nothing
    #[arg(long)]
    list: bool,
    /// Write a report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// What is left out unless asked for.
const FEATURES: &str = "qnic/tokio";

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let vm = suite::VM.into_iter().flatten();
    let cases = suite::HOST.iter().chain(vm);
    if options.list {
        cases.for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let interrupt = Interrupt::watch()?;
    let report = options.junit.as_ref().map(|path| {
        let made = JunitFile::create(path);
        made.with_context(|| format!("cannot write the report {}", path.display()))
    });
    let report = report.transpose()?;
    let start = Instant::now();
    let mut results = Results::default();
    if options.only.is_none() {
        checkout_tests(options, &interrupt, &mut results)?;
    }
    let filter = options.only.as_deref().unwrap_or("");
    let chosen = cases.filter(|case| case.name.contains(filter));
    for case in chosen.take_while(|_| !interrupt.is_pulled()) {
        match options.quick && case.name.starts_with("vm::") {
            true => results.skip(case.name, "--quick leaves out virtual machines"),
            false => results.run(case.name, case.run),
        }
    }
    for case in results.cases.iter().filter(|case| case.has_failed()) {
        print!("{}", failure(case));
    }
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
    println!("\n{}", results.counts);
    Ok(interrupt.finish(match results.counts.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }))
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

/// What cargo checks and tests, until a signal comes.
fn checkout_tests(options: &Options, interrupt: &Interrupt, results: &mut Results) -> Result<()> {
    let root = qnic_cluster::repository()
        .context("the tests need the checkout that this program was built from")?;
    static_checks(&root, interrupt, results);
    // Both with all features of the workspace: what is built for the one serves the other.
    let workspace = ["--workspace", "--features", FEATURES, "--no-fail-fast"];
    if !interrupt.is_pulled() {
        cargo_tests(&root, &workspace, results)?;
    }
    if !options.quick && !interrupt.is_pulled() {
        let guests = ["--test", "plain_guests"];
        cargo_tests(&root, &[&workspace[..], &guests].concat(), results)?;
    }
    Ok(())
}

/// Formatting, lints and documentation; each is one test.
fn static_checks(root: &Path, interrupt: &Interrupt, results: &mut Results) {
    let lint = format!("--workspace --features {FEATURES} --all-targets --quiet -- -D warnings");
    let lint_guests =
        format!("--workspace --features {FEATURES} --test plain_guests --quiet -- -D warnings");
    let document = format!("--workspace --features {FEATURES} --no-deps --quiet");
    for (name, tool, arguments) in [
        ("static::format", "fmt", "--all --check"),
        ("static::lints", "clippy", &lint),
        ("static::lints_of_guest_tests", "clippy", &lint_guests),
        ("static::documentation", "doc", &document),
    ] {
        if interrupt.is_pulled() {
            return;
        }
        if !has_tool(root, tool) {
            let why = format!("cargo has no {tool}; install that component");
            results.skip(name, &why);
            continue;
        }
        results.run(name, || {
            let status = cargo(root)
                .arg(tool)
                .args(arguments.split(' '))
                .env("RUSTDOCFLAGS", "-D warnings")
                .status()
                .with_context(|| format!("start cargo {tool}"))?;
            ensure!(status.success(), "see above");
            Ok(())
        });
    }
}

fn has_tool(root: &Path, tool: &str) -> bool {
    cargo(root)
        .args([tool, "--help"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// `cargo test`: unit, property and model tests, and those of the tooling that
/// boot guests.
fn cargo_tests(root: &Path, arguments: &[&str], results: &mut Results) -> Result<()> {
    let mut child = cargo(root)
        .arg("test")
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo test")?;
    let output = child.stdout.take().context("cargo test has no output")?;
    let mut tests = CargoTests::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("read what cargo test prints")?;
        println!("{line}");
        tests.read(&line);
    }
    let status = child.wait().context("wait for cargo test")?;
    let CargoTests {
        mut counts,
        mut cases,
        ..
    } = tests;
    if !status.success() && counts.failed == 0 {
        println!("cargo test … FAILED: {status}, see above");
        counts.failed += 1;
        let case = Case::passed("cargo", "test", Duration::ZERO);
        cases.push(case.failing(status.to_string(), "see the output of cargo test"));
    }
    results.add(counts, cases);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_said_with_its_cause() {
        let case = Case::passed("host", "pools_open", Duration::ZERO);
        assert_eq!(failure(&case), "");
        let failed = case.failing("no packet", "no packet\nthe queue is empty");
        let said = "\nFAILED host::pools_open: no packet\n    the queue is empty\n";
        assert_eq!(failure(&failed), said);
    }
}
