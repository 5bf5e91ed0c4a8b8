//! What the program `qnic-watch` does: shows what happens on a cluster's NICs. It is built from
//! the package of that name when it is wanted, and takes the same command line.

pub mod top;
pub mod trace;

use std::process::ExitCode;

use anyhow::{bail, Result};
use qnic_cluster::Program;

use crate::{become_program, carry_out, Command};

/// The program, built as the tool was: what both stand on is there already.
const WATCH: Program<'static> = Program::bin("qnic-watch", "qnic-watch").built_with("qnic-cli");

/// Carries out the commands that are not in this package.
pub trait Watch {
    /// Watches.
    fn top(options: &top::Options) -> Result<ExitCode>;
    /// Traces.
    fn trace(options: &trace::Options) -> Result<ExitCode>;
}

/// Has `W` do what the command line says. Returns the exit status.
pub fn main<W: Watch>() -> ExitCode {
    carry_out(|command| match command {
        Command::Top(options) => W::top(options),
        Command::Trace(options) => W::trace(options),
        _ => bail!("this is a command of the program qnic"),
    })
}

/// Becomes that program, which is built first where needed.
pub(crate) fn start() -> Result<ExitCode> {
    become_program(WATCH, "building what watches and traces")
}
