//! `qnic gdb`: a debugger on the kernel of a node's guest.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use qnic_cluster::{Cancel, Debugger};

use crate::ui::ClusterOption;

#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic gdb a                           the guest stops where it is; \"continue\" lets it go on
  cargo qnic gdb a -- -ex 'break qnic_open'  arguments of gdb
  cargo qnic gdb a -- -batch -ex bt          one question
  cargo qnic gdb a --print > a.gdb           the commands alone, for gdb -x or an IDE
  cargo qnic gdb a --off                     QEMU listens no more

Symbols come from the guest: kernel and modules, also the functions of qnic.ko, with the addresses at
which they are. A guest that does not answer has none. Lines of C are shown where the module was
built with them: make KCFLAGS=-g. While the guest stands still its NIC is suspended: peers wait for
it, up to peer_timeout. A guest that was paused before is paused afterwards; it runs for a moment in
between, and has no symbols. A guest has one debugger at a time: a second is refused. With --print QEMU
listens until --off.

Exit status: that of gdb; 1 if there is no such guest or no gdb, 2 for a wrong command line.")]
pub(crate) struct Options {
    /// The node
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
    /// Print the commands for gdb, and run none
    #[arg(long)]
    print: bool,
    /// Have QEMU listen no more
    #[arg(long, conflicts_with = "print")]
    off: bool,
    /// Arguments of gdb
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cluster = options.cluster.find(None)?;
    let node = cluster.guest(&options.node)?;
    if options.off {
        node.end_debugger()?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.print {
        let debugger = node.debugger()?;
        tell_missing(&debugger);
        let script = fs::read_to_string(&debugger.script);
        print!("{}", script.context("read the commands for gdb")?);
        return Ok(ExitCode::SUCCESS);
    }
    let status = cluster.debug(&options.node, |debugger| {
        tell_missing(debugger);
        // Ctrl-C is for gdb: it stops the guest.
        Cancel::left_to_child()?;
        let mut gdb = Command::new("gdb");
        gdb.arg("-q").arg("-x").arg(&debugger.script);
        gdb.args(&options.arguments).status()
    })?;
    let status = status.context("start gdb: install it, or use --print with another debugger")?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

fn tell_missing(debugger: &Debugger) {
    if let Some(reason) = &debugger.without_symbols {
        eprintln!("qnic: there are no symbols: {reason}");
    }
}
