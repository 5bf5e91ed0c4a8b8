//! What the program `qnic-join` does: joins the Ethernet of a cluster. It is built from the package of
//! that name when it is wanted, and takes the same command line.

pub mod forward;
pub mod ssh;
pub mod tap;

use std::process::ExitCode;

use anyhow::{bail, Result};
use qnic_cluster::Program;

use crate::{become_program, carry_out, Command};

/// The program, built as the tool was: what both stand on is there already.
const JOIN: Program<'static> = Program::bin("qnic-join", "qnic-join").built_with("qnic-cli");

/// Carries out the commands that are not in this package.
pub trait Join {
    /// Forwards ports.
    fn forward(options: &forward::Options) -> Result<ExitCode>;
    /// Starts a secure shell.
    fn ssh(options: &ssh::Options) -> Result<ExitCode>;
    /// Makes an interface.
    fn tap(options: &tap::Options) -> Result<ExitCode>;
}

/// Has `J` do what the command line says. Returns the exit status.
pub fn main<J: Join>() -> ExitCode {
    carry_out(|command| match command {
        Command::Forward(options) => J::forward(options),
        Command::Ssh(options) => J::ssh(options),
        Command::Tap(options) => J::tap(options),
        _ => bail!("this is a command of the program qnic"),
    })
}

/// Becomes that program, which is built first where needed.
pub(crate) fn start() -> Result<ExitCode> {
    become_program(JOIN, "building what joins the Ethernet")
}
