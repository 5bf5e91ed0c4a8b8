//! Options of `qnic bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Where the nodes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// Processes of this machine; the floor is measured by the same process
    Host,
    /// Virtual machines; the floor is measured natively between rounds
    Vm,
    /// Processes of this machine, against loss, for each kind of link; beside iperf3
    Wire,
    /// Notifications, atomic operations, locks, queues, semaphores, beside NetVM's
    Sync,
    /// Tagged messages, beside writes and libfabric of the same run
    Message,
    /// Collectives of 2 to 16 nodes, beside a tree of writes of the same run
    Collective,
    /// Small writes as there are more endpoints, NICs and peers
    Growth,
    /// Streams and datagram sockets over shared pools, beside TCP and UDP between the same guests;
    /// remote memory, beside nbd between them
    Kernel,
    /// Costs of the shadow page table, and of pages that are absent, beside NetVM's
    Memory,
}

/// Options of `qnic bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic bench host
  cargo qnic bench vm --json results.json
  cargo qnic bench wire
  cargo qnic bench memory
  cargo qnic bench sync
  cargo qnic bench message
  cargo qnic bench collective
  cargo qnic bench growth
  cargo qnic bench kernel

All rounds are interleaved with what they are compared with, such as a memcpy
of the same size; the tables show medians and the spread of the rounds. Programs
to compare with (iperf3, fi_pingpong) are the host's own, else packages of the
distribution that are unpacked in the cache. Ratios are
what to compare between machines, absolute figures are not.

Exit status: 0 when measured, 1 on an error, 2 for a wrong command line.")]
pub struct Options {
    /// Where the nodes run
    #[arg(value_enum)]
    pub nodes: Where,
    /// Write all figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Rounds for each size
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,
}
