//! `qnic grow`: adds memory to a guest while it runs.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_cluster::ByteSize;

use crate::ui::ClusterOption;

#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic grow a 256MiB             node a has so much more, as soon as its kernel has taken it
  cargo qnic run a -- free -m          shows it

The node's [[node]] in the cluster file says how much it may have in all, as the page table of its
NIC has to cover it: memory_max = \"1GiB\". Memory comes in multiples of 128MiB, and stays: it
is not taken away again before the cluster ends.

Exit status: 0 when done, 1 if there is no such guest, or it may not have as much, 2 for a wrong
command line.")]
pub(crate) struct Options {
    /// Name of the node
    node: String,
    /// How much is added
    size: ByteSize,
    #[command(flatten)]
    cluster: ClusterOption,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cluster = options.cluster.find(None)?;
    cluster.guest(&options.node)?.add_memory(options.size)?;
    println!("{}: {} more", options.node, options.size);
    Ok(ExitCode::SUCCESS)
}
