//! `qnic dump`: the memory of a node's guest, as a file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use indicatif::HumanBytes;
use qnic_cluster::{Cancel, Error, Node};

use crate::ui::{spinner, ClusterOption};

#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic dump a                          writes a.core
  cargo qnic dump a -o /var/tmp/stuck.core   elsewhere; there must be room for the guest's RAM
  crash vmlinux a.core                       with the distribution's debug package of the kernel
  gdb vmlinux a.core

The file is ELF with the guest's memory and the state of its CPUs. The guest stands still while it is
written, then goes on; a guest that has panicked, or hangs, can be dumped too. The file is as secret
as the guest: it has all keys and data.

Exit status: 0 when done, 1 if there is no such guest, or the file cannot be written, 2 for a wrong
command line, 130 if interrupted: QEMU goes on writing NODE.core.part: remove it when the guest runs
again. Until then a second dump of the guest is refused.")]
pub(crate) struct Options {
    /// The node
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
    /// The file to write; NODE.core unless set
    #[arg(long, short)]
    output: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let node = cluster.guest(&options.node)?;
    let named = || PathBuf::from(format!("{}.core", options.node));
    let file = options.output.clone().unwrap_or_else(named);
    let bar = spinner("dump");
    let dumped = node.dump(&file, |done, all| {
        bar.set_message(format!("{} of {}", HumanBytes(done), HumanBytes(all)));
        bar.tick();
    });
    bar.finish_and_clear();
    if let Err(Error::Interrupted) = dumped {
        let part = Node::dump_part(&file);
        eprintln!(
            "qnic: QEMU goes on writing {}: remove it when the guest runs again",
            part.display()
        );
    }
    dumped?;
    println!("{}: {}", options.node, file.display());
    Ok(ExitCode::SUCCESS)
}
