//! Options of `qnic ssh`.

use clap::Args;

use crate::ui::ClusterOption;

/// Options of `qnic ssh`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic ssh n0                            a shell, if the guest has an SSH server
  cargo qnic ssh n0 -- uname -a
  cargo qnic ssh n0 --user debian -- -L 8080:127.0.0.1:80

It starts the ssh of this machine at a port of 127.0.0.1 that is forwarded to the node. The
guest's key is neither asked for nor kept: it may change with each boot. A node with a disk
image (docs/disk-images.md) lets the key of its cluster in. The guests of qnic's own image have
no SSH server: use \"cargo qnic run\" there.

Exit status: that of ssh; 1 if the node cannot be had, 2 for a wrong command line.")]
pub struct Options {
    /// The node
    pub node: String,
    /// Port of the SSH server in the guest
    #[arg(long, short, default_value = "22", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// The user in the guest
    #[arg(long, short, default_value = "root")]
    pub user: String,
    /// The cluster; needed if several run
    #[command(flatten)]
    pub cluster: ClusterOption,
    /// Options of ssh, and the command
    #[arg(last = true)]
    pub arguments: Vec<String>,
}
