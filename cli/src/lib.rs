//! The `qnic` command: a list of commands, and a module for each with its `Options` and a `run` that
//! returns the exit status.
//!
//! Other packages carry out some of the commands. `qnic` builds the program of such a package when
//! it is given the command, and becomes it, so a user who boots clusters waits for none of them:
//!
//! | module | commands | package |
//! |---|---|---|
//! | [`lab`] | `bench`, `sim`, `fuzz` | `qnic-lab` |
//! | [`watch`] | `top`, `trace` | `qnic-watch` |
//! | [`join`] | `forward`, `ssh`, `tap` | `qnic-join` |
//! | [`suite`] | `test` | `qnic-tests` |
#![forbid(unsafe_code)]

mod capture;
mod cp;
mod demo;
mod dkms;
mod doctor;
mod down;
mod dump;
mod exec;
mod fault;
mod gdb;
mod grow;
pub mod join;
mod keys;
pub mod lab;
mod logs;
mod machine;
mod matrix;
mod mpirun;
mod name;
mod net;
mod new;
mod nic;
mod package;
mod pause;
mod ping;
mod ps;
mod reference;
mod run;
mod slurm;
mod stats;
pub mod suite;
pub mod ui;
mod up;
pub mod watch;

use std::env;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{anyhow, Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Clusters of virtual machines with qnic NICs.
#[derive(Parser)]
#[command(
    name = "qnic",
    bin_name = "cargo qnic",
    version,
    after_help = "\
Exit status: 0 if all went well, 1 if something failed, 2 for a wrong command line
or cluster file, 130 if interrupted; \"run\" gives the command's own (see its help).

Environment: QNIC_CACHE is where QEMU, kernels and images are kept (default
~/.cache/qnic), XDG_RUNTIME_DIR where running clusters are, QNIC_LOG what is logged
to standard error (such as \"debug\")."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The one list of commands: what help says of each, its options, and what carries it out.
macro_rules! commands {
    ($($(#[$help:meta])* $name:ident($options:ty) => $run:expr;)*) => {
        #[derive(Subcommand)]
        enum Command {
            $($(#[$help])* $name($options),)*
        }

        fn run(command: &Command) -> Result<ExitCode> {
            match command {
                $(Command::$name(options) => $run(options),)*
            }
        }
    };
}

commands! {
    /// Set everything up and exchange verified data between two nodes
    Demo(demo::Options) => demo::run;
    /// Boot the cluster that a file describes
    Up(up::Options) => up::run;
    /// Boot a cluster, run a program on it, take it down
    Exec(exec::Options) => exec::run;
    /// Do that in every combination of settings and seeds
    Matrix(matrix::Options) => matrix::run;
    /// Make a small project to start from
    New(new::Options) => new::run;
    /// Write the kernel module as a source package for DKMS
    Dkms(dkms::Options) => dkms::run;
    /// Write packages of the command, and of what guests have
    Package(package::Options) => |options| package::run(options, Cli::command());
    /// List the running clusters
    Ps(ps::Options) => ps::run;
    /// Run a command on one node or on all
    Run(run::Options) => run::run;
    /// Form parallel machines of nodes, and run programs on them
    Machine(machine::Options) => machine::run;
    /// Run an MPI program on the guests
    Mpirun(mpirun::Options) => mpirun::run;
    /// Reach TCP ports of guests from this machine
    Forward(join::forward::Options) => |_| join::start();
    /// Start a secure shell on a node that has a server for it
    Ssh(join::ssh::Options) => |_| join::start();
    /// Make a network interface of this machine on the Ethernet of a node
    Tap(join::tap::Options) => |_| join::start();
    /// Copy files into and out of nodes
    Cp(cp::Options) => cp::run;
    /// Show what a node's console, its QEMU and the device process have logged
    Logs(logs::Options) => logs::run;
    /// Show what a node's NIC has counted
    Stats(stats::Options) => stats::run;
    /// Show what a node's NIC holds: its memory map, names, groups, queues, queue pairs
    Nic(nic::Options) => nic::run;
    /// Inject faults into queue pairs of verbs
    Fault(fault::Options) => fault::run;
    /// Check that two nodes can talk: round trip, MTU, window
    Ping(ping::Options) => ping::run;
    /// Show rates, depths and times of all NICs, live
    Top(watch::top::Options) => |_| watch::start();
    /// Write the life of each operation across nodes, for Perfetto
    Trace(watch::trace::Options) => |_| watch::start();
    /// Stop the CPUs of a node's guest
    Pause(pause::PauseOptions) => pause::pause;
    /// Let a paused guest go on
    Resume(pause::ResumeOptions) => pause::resume;
    /// Debug the kernel of a node's guest
    Gdb(gdb::Options) => gdb::run;
    /// Write the memory of a node's guest to a file, for crash or gdb
    Dump(dump::Options) => dump::run;
    /// Add memory to a guest that runs
    Grow(grow::Options) => grow::run;
    /// End clusters and remove everything they left
    Down(down::Options) => down::run;
    /// Show and change what links do to frames: loss, delay, partition
    Net(net::Options) => net::run;
    /// Make and show the keys by which hosts know each other
    Keys(keys::Options) => keys::run;
    /// Write what runs over links as pcapng, for Wireshark
    Capture(capture::Options) => capture::run;
    /// Run all tests
    Test(suite::Options) => |_| suite::start();
    /// Simulate clusters under virtual time, with faults from a seed
    Sim(lab::sim::Options) => |_| lab::start();
    /// Fuzz what the hostile can write to, with libFuzzer
    Fuzz(lab::fuzz::Options) => |_| lab::start();
    /// Measure latency and bandwidth beside the machine's own floor
    Bench(lab::bench::Options) => |_| lab::start();
    /// Tell what was found, what will be used and what is missing
    Doctor(doctor::Options) => doctor::run;
    /// The task of a host of a job of Slurm
    #[command(hide = true)]
    SlurmHost(slurm::InJobOptions) => slurm::host;
    /// The supervisor of a job of Slurm
    #[command(hide = true)]
    SlurmJob(slurm::InJobOptions) => slurm::supervisor;
    /// Write man pages
    Man(reference::ManOptions) => |options| reference::man(options, name::in_command(Cli::command()));
    /// Print completions for a shell
    Completions(reference::CompletionsOptions) => |options| reference::completions(options, Cli::command());
}

/// Does what the command line says. Returns the exit status.
pub fn main() -> ExitCode {
    carry_out(run)
}

/// Reads the command line and has `run` do what it says. Returns the exit status.
fn carry_out(run: impl FnOnce(&Command) -> Result<ExitCode>) -> ExitCode {
    let matches = name::in_command(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    start_logging()
        .and_then(|()| run(&cli.command))
        .unwrap_or_else(|error| ui::fail(&error))
}

/// Logs to the standard error what the environment asks for, else warnings.
fn start_logging() -> Result<()> {
    let filter = match env::var("QNIC_LOG") {
        Ok(text) => log_filter(&text)?,
        Err(_) => Targets::new().with_default(LevelFilter::WARN),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    registry.with(lines).init();
    Ok(())
}

/// What `QNIC_LOG` asks for: a level for all, or for single modules.
fn log_filter(text: &str) -> Result<Targets> {
    text.parse().map_err(|error| {
        anyhow!(
            "QNIC_LOG={text}: {error}; say error, warn, info, debug or trace, or a level for single \
             modules, as in warn,qnic_cluster=debug"
        )
    })
}

/// Becomes another program of the workspace, with the same command line. It is built first where
/// needed.
fn become_program(program: qnic_cluster::Program<'_>, step: &str) -> Result<ExitCode> {
    let progress = ui::progress();
    let program = qnic_cluster::program_or_build(program, &|| progress.step(step))?;
    drop(progress);
    let mut command = std::process::Command::new(&program);
    let error = command.args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
