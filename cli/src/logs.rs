//! `qnic logs`: shows what a node's console, its QEMU and the device have logged.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_cluster::{follow_logs, print_logs, Cancel, Log};

use crate::slurm;
use crate::ui::ClusterOption;

/// Options of `qnic logs`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic logs a               console of a, messages of its QEMU, device process
  cargo qnic logs a -f            and what is added, until the guest ends or Ctrl-C
  cargo qnic logs a --console     the console alone, byte for byte

Of each log the first and the last part are kept; what is missing between them is said, and so
is the end of the process that writes it.

Exit status: 0.")]
pub(crate) struct Options {
    /// The node
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
    /// Go on with what is added
    #[arg(long, short)]
    follow: bool,
    /// Only the console
    #[arg(long)]
    console: bool,
    /// Only QEMU's messages
    #[arg(long, conflicts_with = "console")]
    qemu: bool,
    /// Only the device process, which serves other nodes of the cluster as well
    #[arg(long, conflicts_with_all = ["console", "qemu"])]
    device: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    slurm::hand_over(&options.cluster, &options.node)?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let node = cluster.node(&options.node)?;
    let everything = !(options.console || options.qemu || options.device);
    let mut logs = Vec::new();
    let mut add = |wanted: bool, name: &str, path, writer| {
        if wanted || everything {
            logs.push(Log {
                name: name.to_owned(),
                path,
                writer,
            });
        }
    };
    add(options.qemu, "qemu", node.qemu_log_path(), node.qemu());
    if let Some(path) = cluster.device_log_path(node.name()) {
        add(
            options.device,
            "device",
            path,
            cluster.device_of(node.name()),
        );
    }
    add(options.console, "console", node.console_path(), None);
    let mut shown = None;
    let mut show = |index: usize, bytes: &[u8]| {
        let mut out = io::stdout().lock();
        if logs.len() > 1 && shown.replace(index) != Some(index) {
            // A reader that has gone, as head does, is no reason to complain.
            let _ = writeln!(out, "==> {} <==", logs[index].name);
        }
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    };
    if options.follow {
        follow_logs(&logs, node.qemu(), Some(&cancel), &mut show)?;
    } else {
        print_logs(&logs, &mut show)?;
    }
    Ok(ExitCode::SUCCESS)
}
