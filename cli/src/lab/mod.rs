//! What the program `qnic-lab` does: measures, simulates, fuzzes. It is built from the package of
//! that name when it is wanted, and takes the same command line.

pub mod bench;
pub mod fuzz;
pub mod sim;

use std::process::ExitCode;

use anyhow::{bail, Result};
use qnic_cluster::Program;

use crate::{become_program, carry_out, Command};

/// The program.
const LAB: Program<'static> = Program::bin("qnic-lab", "qnic-lab").in_profile("lab");

/// Carries out the commands that are not in this package.
pub trait Lab {
    /// Measures.
    fn bench(options: &bench::Options) -> Result<ExitCode>;
    /// Simulates.
    fn sim(options: &sim::Options) -> Result<ExitCode>;
    /// Fuzzes.
    fn fuzz(options: &fuzz::Options) -> Result<ExitCode>;
}

/// Has `L` do what the command line says. Returns the exit status.
pub fn main<L: Lab>() -> ExitCode {
    carry_out(|command| match command {
        Command::Bench(options) => L::bench(options),
        Command::Sim(options) => L::sim(options),
        Command::Fuzz(options) => L::fuzz(options),
        _ => bail!("this is a command of the program qnic"),
    })
}

/// Becomes that program, which is built first where needed.
pub(crate) fn start() -> Result<ExitCode> {
    become_program(LAB, "building what measures, simulates and fuzzes")
}
