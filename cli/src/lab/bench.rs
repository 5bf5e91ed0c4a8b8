//! Options of `qnic bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Transfers between processes of this machine; the floor is measured by the same process
    Host,
    /// Costs of the shadow page table, and of pages that are absent, beside NetVM's
    Memory,
    /// Notifications, atomic operations, locks, queues, semaphores, beside NetVM's
    Sync,
    /// Tagged messages, beside writes and libfabric of the same run
    Message,
    /// Collectives of 2 to 64 nodes, beside a tree of writes of the same run
    Collective,
    /// Small writes as there are more endpoints, NICs and peers
    Growth,
    /// Processes of this machine, against loss, for each kind of link; beside iperf3
    Wire,
    /// Transfers between guests; the floor is measured natively between rounds
    Vm,
    /// Streams and datagram sockets over shared pools, beside TCP and UDP between the same guests;
    /// remote memory, beside nbd between them
    Kernel,
}

/// Options of `qnic bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic bench                     all suites, half an hour on two cores
  cargo qnic bench --json run.json --html run.html
  cargo qnic bench host sync           two of them
  cargo qnic bench vm --rounds 21

All rounds are interleaved with what they are compared with, such as a memcpy
of the same size; the tables show medians, the spread of the rounds, and goals.
Programs to compare with (iperf3, fi_pingpong) are the host's own, else packages of
the distribution that are unpacked in the cache. Ratios are what to compare between
machines, absolute figures are not. What other programs do meanwhile is looked at,
and figures of a busy machine are marked.

Files are written after each suite. docs/benchmark.md says what is in them.

Exit status: 0 when measured, 1 on an error, also of one suite, 2 for a wrong
command line.")]
pub struct Options {
    /// What to measure; all if none is named
    #[arg(value_enum, value_name = "SUITE")]
    pub suites: Vec<Suite>,
    /// What to write, and how often to measure
    #[command(flatten)]
    pub output: Output,
}

/// What a run writes, and how often it measures.
#[derive(Args, Debug, Clone, Default)]
pub struct Output {
    /// Write all figures with their samples to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with ratios, curves, tables and samples to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Rounds of each suite; without it each has a number of its own, 5 to 9
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}
