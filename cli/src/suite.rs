//! The command `test`, which the program `qnic-suite` of the package `qnic-tests` carries out. That
//! has all cases, and what they stand on: a user who boots clusters does not wait for it to be built.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_cluster::Program;

use crate::{become_program, carry_out, run, Command};

/// The program. It is built as this one is, so that both share what they stand on.
const SUITE: Program<'static> = Program::bin("qnic-tests", "qnic-suite").built_with("qnic-cli");

/// Options of `qnic test`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic test                     some 20 minutes on two idle cores
  cargo qnic test --all               the long cases, too: before a release, each night
  cargo qnic test --quick             what needs no virtual machine
  cargo qnic test --only reboots      the cases whose names contain this

Tests run side by side, each in a process of its own whose output is shown at its end; a case
that is named alone prints as it goes. What has not ended after 20 minutes, or 40 for what
cargo builds, is ended and has failed.

Ctrl-C or SIGTERM ends everything that the tests have started; a second one does not
wait for the running cases to remove their files.

Exit status: 0 if nothing failed, 1 if something did, 2 for a wrong command line,
130 if interrupted.")]
pub struct Options {
    /// Leave out what boots virtual machines
    #[arg(long)]
    pub quick: bool,
    /// Add the long cases
    #[arg(long, conflicts_with = "quick")]
    pub all: bool,
    /// Run only the host-mode and VM cases whose names contain TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// TEXT is the whole name of one case
    #[arg(long, hide = true, requires = "only")]
    pub exact: bool,
    /// List the host-mode and VM cases and do nothing
    #[arg(long)]
    pub list: bool,
    /// Write a report as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
}

/// Has `test` carry out the command `test`, and does what `qnic` does for all others: cases start
/// the program that they are in. Returns the exit status.
pub fn main(test: fn(&Options) -> Result<ExitCode>) -> ExitCode {
    carry_out(|command| match command {
        Command::Test(options) => test(options),
        command => run(command),
    })
}

/// Becomes that program, which is built first where needed.
pub(crate) fn start() -> Result<ExitCode> {
    become_program(SUITE, "building the tests of several nodes")
}
