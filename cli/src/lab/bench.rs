//! Options of `qnic bench`.

use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use clap::{Args, Subcommand, ValueEnum};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// The NIC's engine without I/O: instructions, if valgrind is installed, and nanoseconds
    Engine,
    /// Transfers between processes of this machine; the floor is measured by the same process
    Host,
    /// Costs of the shadow page table, and of pages that are absent, beside NetVM's
    Memory,
    /// Notifications, atomic operations, locks, queues, semaphores, beside NetVM's
    Sync,
    /// Transfers, notifications and channels by length: the curves beside NetVM's tables
    Curves,
    /// Writes beside libfabric and UCX on this machine, and between guests beside Soft-RoCE, TCP,
    /// UDP and ivshmem, each started by the command itself
    Peers,
    /// Tagged messages, beside writes and libfabric of the same run
    Message,
    /// Collectives of 2 to 64 nodes, beside a tree of writes of the same run
    Collective,
    /// Small writes as there are more endpoints, NICs, peers and pages; messages as more receives
    /// are posted
    Growth,
    /// Processes of this machine, against loss, for each kind of link; beside iperf3
    Wire,
    /// Transfers between guests; the floor is measured natively between rounds
    Vm,
    /// Guests whose NIC a process drives through VFIO, beside guests with the module
    Vfio,
    /// Streams and datagram sockets over shared pools, beside TCP and UDP between the same guests;
    /// remote memory, beside nbd between them
    Kernel,
    /// IP over Ethernet ports, beside QEMU's own network between the same guests
    Ethernet,
    /// Open MPI between two guests, over the provider of libfabric and over TCP
    Mpi,
    /// perftest between two guests, over the NICs and over Soft-RoCE; beside the library's writes
    Verbs,
    /// The tables and curves of sync and curves, and the transfers of memory, in a guest with two NICs
    PaperGuest,
    /// What NetVM's evaluation has: memory, sync and curves, and paper-guest
    Paper,
}

impl Suite {
    /// The suites that it stands for: itself, as a rule.
    pub fn parts(&self) -> &[Suite] {
        match self {
            Suite::Paper => &[Suite::Memory, Suite::Sync, Suite::Curves, Suite::PaperGuest],
            suite => std::slice::from_ref(suite),
        }
    }
}

/// Options of `qnic bench`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  cargo qnic bench                     all suites, 19 minutes on two cores
  cargo qnic bench --json run.json --html run.html
  cargo qnic bench --tables            all suites, and docs/performance.md anew from them
  cargo qnic bench host sync           two of them
  cargo qnic bench vm --rounds 21
  cargo qnic bench paper --html p.html the tables and curves of NetVM's evaluation
  cargo qnic bench compare old.json new.json
  cargo qnic bench tables run.json     the tables of docs/performance.md from a run

All rounds are interleaved with what they are compared with, such as a memcpy
of the same size; the tables show medians, the spread of the rounds, and goals.
Programs to compare with (iperf3, fi_pingpong, ucx_perftest; in guests perftest, qperf, iperf3)
are the host's own, else packages of the distribution that are unpacked in the cache.
Ratios are what to compare between machines, absolute figures are not. What other programs do meanwhile is looked at,
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
    /// What to do with runs that were written before
    #[command(subcommand)]
    pub action: Option<Action>,
}

/// What is done with runs that were written before.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Tell what has become slower or faster between two runs, and whether that is more than chance
    Compare(Compare),
    /// Write the tables of docs/performance.md from a run, and keep the run beside it
    Tables(Tables),
}

/// Options of `qnic bench tables`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  cargo qnic bench tables run.json
  cargo qnic bench tables run.json --document results.md
  cargo qnic bench tables docs/performance.json    the same tables again
  cargo qnic bench tables docs/performance.json --html record.html

A table stands between <!-- bench SUITE/TABLE --> and <!-- /bench -->, machine and commit
between <!-- bench run --> and <!-- /bench -->. All else stays. The run is kept beside
the document, with five digits of each figure.

Exit status: 0 when written, 1 on an error, 2 for a wrong command line.")]
pub struct Tables {
    /// The run: a file of qnic bench --json
    pub run: PathBuf,
    /// The document; docs/performance.md of the checkout unless it is named
    #[arg(long, value_name = "FILE")]
    pub document: Option<PathBuf>,
    /// Write the page of the run to FILE, and no document
    #[arg(long, value_name = "FILE", conflicts_with = "document")]
    pub html: Option<PathBuf>,
}

/// Options of `qnic bench compare`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  cargo qnic bench compare old.json new.json
  cargo qnic bench compare old.json new.json --suite host --suite sync --threshold 10%
  cargo qnic bench compare old.json new.json --json comparison.json --html comparison.html

A figure regresses if it is worse by more than the threshold and if the difference is more
than chance: an exact rank test (Mann-Whitney) of the rounds of both gives p < 0.01, for
which each needs five rounds. Figures of other machines are compared by their ratios to
floors. docs/benchmark.md tells more.

Exit status: 0 if nothing regressed, 3 if something did, 4 if the files cannot be
compared, 1 on another error, 2 for a wrong command line.")]
pub struct Compare {
    /// The run to compare with: a file of qnic bench --json
    pub old: PathBuf,
    /// The run that is compared
    pub new: PathBuf,
    /// By how much a figure may be worse: 0.05 or 5%
    #[arg(long, value_name = "PART", default_value = "5%", value_parser = part)]
    pub threshold: f64,
    /// Compare this suite; without it all suites of OLD, which must be in NEW
    #[arg(long = "suite", value_name = "SUITE")]
    pub suites: Vec<String>,
    /// What of each figure is compared; figures on one machine, ratios between two, unless it is
    /// said
    #[arg(long, value_enum, value_name = "WHAT")]
    pub by: Option<By>,
    /// OLD may have been measured after NEW
    #[arg(long)]
    pub any_order: bool,
    /// Write the comparison to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with the comparison to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What of a figure is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The figure itself
    Figures,
    /// Its ratio to the floor of its own run; figures without one have no verdict
    Ratios,
}

/// A part of one, from 0 on: 0.05 or 5%.
fn part(text: &str) -> Result<f64> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    let value = number.trim().parse::<f64>().context("not a number")? * unit;
    ensure!(
        (0.0..=1e6).contains(&value),
        "not from 0 to 1,000,000 times"
    );
    Ok(value)
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
    /// Write the tables of docs/performance.md from this run of all suites, and keep it beside them
    #[arg(long, conflicts_with = "suites")]
    pub tables: bool,
    /// Rounds of each suite; without it each has a number of its own, 5 to 9
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_part_or_a_percentage() {
        assert_eq!(part("0.05").unwrap(), 0.05);
        assert_eq!(part("50%").unwrap(), 0.5);
        for text in ["", "%", "nan", "-1%", "inf", "x"] {
            assert!(part(text).is_err(), "{text}");
        }
    }
}
