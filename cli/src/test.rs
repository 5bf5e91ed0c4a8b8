//! `qnic test`: all tests, one after the other, and one line at the end.
//!
//! The order is by price: static checks, cargo's tests, tests of several
//! processes in host mode, tests that boot virtual machines.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::Args;
use qnic_tests::harness::{self, Counts};
use qnic_tests::suite;

/// Options of `qnic test`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic test                     everything; takes a while
  cargo qnic test --quick             what needs no virtual machine
  cargo qnic test --only vm::reboot   the cases whose names contain this

Exit status: 0 if nothing failed, 1 if something did, 2 for a wrong command line.")]
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

/// Runs the tests.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.list {
        for case in suite::HOST.iter().chain(suite::VM.into_iter().flatten()) {
            println!("{}", case.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut counts = Counts::default();
    if options.only.is_none() {
        let root = qnic_cluster::repository()
            .context("the tests need the checkout that this program was built from")?;
        counts += static_checks(&root)?;
        counts += cargo_tests(
            &root,
            &["--workspace", "--features", FEATURES, "--no-fail-fast"],
        )?;
        if !options.quick {
            counts += cargo_tests(&root, &["-p", "qnic-cluster", "--test", "plain_guests"])?;
        }
    }
    let filter = options.only.as_deref().unwrap_or("");
    counts += harness::run(suite::HOST, filter);
    if options.quick {
        let cases = suite::VM.into_iter().flatten();
        for case in cases.filter(|case| case.name.contains(filter)) {
            println!(
                "test {} … SKIPPED: --quick leaves out virtual machines",
                case.name
            );
            counts.skipped += 1;
        }
    } else {
        for cases in suite::VM {
            counts += harness::run(cases, filter);
        }
    }
    println!("\n{counts}");
    Ok(if counts.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Formatting, lints and documentation; each is one test.
fn static_checks(root: &Path) -> Result<Counts> {
    let lint = format!("--workspace --features {FEATURES} --all-targets --quiet -- -D warnings");
    let lint_guests = "-p qnic-cluster --test plain_guests --quiet -- -D warnings";
    let document = format!("--workspace --features {FEATURES} --no-deps --quiet");
    let checks = [
        ("static::format", "fmt", "--all --check"),
        ("static::lints", "clippy", &lint),
        ("static::lints_of_guest_tests", "clippy", lint_guests),
        ("static::documentation", "doc", &document),
    ];
    let mut counts = Counts::default();
    for (name, tool, arguments) in checks {
        if !has_tool(root, tool) {
            println!("test {name} … SKIPPED: cargo has no {tool}; install that component");
            counts.skipped += 1;
            continue;
        }
        println!("test {name} …");
        let status = cargo(root)
            .arg(tool)
            .args(arguments.split(' '))
            .env("RUSTDOCFLAGS", "-D warnings")
            .status()
            .with_context(|| format!("start cargo {tool}"))?;
        if status.success() {
            println!("test {name} … ok");
            counts.passed += 1;
        } else {
            println!("test {name} … FAILED: see above");
            counts.failed += 1;
        }
    }
    Ok(counts)
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
