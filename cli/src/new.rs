//! `qnic new`: makes a small project to start from.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use qnic_trials::create_project;

/// Options of `qnic new`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic new ~/src/my-test
  cd ~/src/my-test && cargo test     boots its cluster and runs its program there

The project is a package that uses the library, with a cluster file, a test and a
workflow for CI. It finds this checkout of qnic by the link .qnic.

Exit status: 0 when it is there, 1 if it cannot be made; nothing is left then.")]
pub(crate) struct Options {
    /// The directory to make; its name is that of the package
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let checkout = qnic_cluster::repository()
        .context("a project needs the checkout that this program was built from")?;
    let name = create_project(&options.dir, &checkout)?;
    let dir = options.dir.display();
    println!("{name} is in {dir}: \"cd {dir} && cargo test\" runs it on two guests");
    Ok(ExitCode::SUCCESS)
}
