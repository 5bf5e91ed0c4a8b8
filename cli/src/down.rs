//! `qnic down`: ends clusters.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_cluster::Error;

use crate::{slurm, ui};

/// Options of `qnic down`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic down           end the only cluster
  cargo qnic down pair      end the cluster \"pair\"
  cargo qnic down --all     end every cluster that \"up\" has booted

Works on clusters that are whole, half booted or broken. Afterwards no process,
socket or file of the cluster is left. A cluster of a running program, such as
\"demo\", ends with that program.

Exit status: 0 if that is so, 1 if not.")]
pub(crate) struct Options {
    /// Names of the clusters; none means the only one
    names: Vec<String>,
    /// End every cluster that "up" has booted
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let runtime = ui::runtime()?;
    let mut known = runtime.detached_names();
    known.extend(slurm::names());
    let names = match (&options.names[..], &known[..]) {
        ([], []) if !options.all => return Err(Error::NoCluster.into()),
        ([], [_, _, ..]) if !options.all => return Err(Error::WhichCluster { known }.into()),
        ([], _) => &known,
        _ => &options.names,
    };
    let mut status = ExitCode::SUCCESS;
    for name in names {
        let spinner = ui::spinner(&format!("ending {name}"));
        let ended = match slurm::down(name) {
            Ok(false) => qnic_cluster::down(&runtime, name).map_err(Into::into),
            ended => ended.map(drop),
        };
        spinner.finish_and_clear();
        match ended {
            Ok(()) => println!("{name}: ended"),
            Err(error) => status = ui::fail(&error),
        }
    }
    Ok(status)
}
