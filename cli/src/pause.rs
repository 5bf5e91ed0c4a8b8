//! `qnic pause` and `qnic resume`: stop the CPUs of a node's guest, and let them go on.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::ui::ClusterOption;

/// Options of `qnic pause`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic pause a                   stop the CPUs of node a
  cargo qnic ps                        it is \"paused\" now
  cargo qnic resume a                  it goes on where it was
  cargo qnic pause a --cluster pair    needed if several clusters run

The NIC of a paused guest keeps its state and goes on serving its peers, as far as that
needs nothing of the guest: what waits for a page of it waits. A guest whose NIC no driver has
started, or that sleeps, is paused, too. A guest that is stopped by
other means (QMP, a debugger) keeps its state, too, but its NIC is suspended: peers wait.

Exit status: 0 when done, 1 if there is no such guest or it does not answer, 2 for a
wrong command line.")]
pub(crate) struct PauseOptions {
    /// Name of the node
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
}

/// Options of `qnic resume`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic resume a                  let a paused guest go on
  cargo qnic resume a --cluster pair   needed if several clusters run

A guest that runs already goes on running. One whose kernel has panicked cannot go on.

Exit status: 0 when done, 1 if there is no such guest or it does not answer, 2 for a
wrong command line.")]
pub(crate) struct ResumeOptions {
    /// Name of the node
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
}

pub(crate) fn pause(options: &PauseOptions) -> Result<ExitCode> {
    options.cluster.find(None)?.pause(&options.node)?;
    println!("{}: paused", options.node);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn resume(options: &ResumeOptions) -> Result<ExitCode> {
    options.cluster.find(None)?.resume(&options.node)?;
    println!("{}: goes on", options.node);
    Ok(ExitCode::SUCCESS)
}
