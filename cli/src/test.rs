//! `qnic test`: all tests, one after the other, and one line at the end.
//!
//! The order is by price: static checks, cargo's tests, tests of several
//! processes in host mode, tests that boot virtual machines.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_tests::harness::Counts;
use qnic_tests::interrupt::Interrupt;
use qnic_tests::suite;

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
    let mut counts = Counts::default();
    if options.only.is_none() {
        checkout_tests(options, &interrupt, &mut counts)?;
    }
    let filter = options.only.as_deref().unwrap_or("");
    let chosen = cases.filter(|case| case.name.contains(filter));
    for case in chosen.take_while(|_| !interrupt.is_pulled()) {
        match options.quick && case.name.starts_with("vm::") {
            true => counts.skip(case.name, "--quick leaves out virtual machines"),
            false => counts.run(case.name, case.run),
        }
    }
    println!("\n{counts}");
    Ok(interrupt.finish(match counts.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }))
}

/// What cargo checks and tests, until a signal comes.
fn checkout_tests(options: &Options, interrupt: &Interrupt, counts: &mut Counts) -> Result<()> {
    let root = qnic_cluster::repository()
        .context("the tests need the checkout that this program was built from")?;
    static_checks(&root, interrupt, counts);
    let workspace = ["--workspace", "--features", FEATURES, "--no-fail-fast"];
    if !interrupt.is_pulled() {
        *counts += cargo_tests(&root, &workspace)?;
    }
    if !options.quick && !interrupt.is_pulled() {
        *counts += cargo_tests(&root, &["-p", "qnic-cluster", "--test", "plain_guests"])?;
    }
    Ok(())
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Formatting, lints and documentation; each is one test.
fn static_checks(root: &Path, interrupt: &Interrupt, counts: &mut Counts) {
    let lint = format!("--workspace --features {FEATURES} --all-targets --quiet -- -D warnings");
    let lint_guests = "-p qnic-cluster --test plain_guests --quiet -- -D warnings";
    let document = format!("--workspace --features {FEATURES} --no-deps --quiet");
    for (name, tool, arguments) in [
        ("static::format", "fmt", "--all --check"),
        ("static::lints", "clippy", &lint),
        ("static::lints_of_guest_tests", "clippy", lint_guests),
        ("static::documentation", "doc", &document),
    ] {
        if interrupt.is_pulled() {
            return;
        }
        if !has_tool(root, tool) {
            let why = format!("cargo has no {tool}; install that component");
            counts.skip(name, &why);
            continue;
        }
        counts.run(name, || {
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
fn cargo_tests(root: &Path, arguments: &[&str]) -> Result<Counts> {
    let mut child = cargo(root)
        .arg("test")
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo test")?;
    let output = child.stdout.take().context("cargo test has no output")?;
    let mut counts = Counts::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("read what cargo test prints")?;
        println!("{line}");
        if let Some(result) = parse_result(&line) {
            counts += result;
        }
    }
    let status = child.wait().context("wait for cargo test")?;
    if !status.success() && counts.failed == 0 {
        println!("cargo test … FAILED: {status}, see above");
        counts.failed += 1;
    }
    Ok(counts)
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn parse_result(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, numbers) = rest.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(kind)) = (words.next(), words.next()) else {
            continue;
        };
        match (number.parse(), kind) {
            (Ok(number), "passed") => counts.passed = number,
            (Ok(number), "failed") => counts.failed = number,
            (Ok(number), "ignored") => counts.skipped = number,
            _ => (),
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_cargo_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.05s";
        let counts = Counts {
            passed: 12,
            failed: 3,
            skipped: 1,
        };
        assert_eq!(parse_result(line), Some(counts));
        assert_eq!(parse_result("test a::b ... ok"), None);
    }
}
