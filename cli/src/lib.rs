//! The `qnic` command: one module for each subcommand, each with its `Options` and
//! a `run` that gives the exit status.
//!
//! `bench`, `top`, `trace`, `sim` and `fuzz` are in the package `qnic-lab`, whose program is built when one of
//! them is called: [`lab`] has their options. So a user who boots clusters builds no simulator. Likewise
//! with `test` and the package `qnic-tests`: [`suite`].
#![forbid(unsafe_code)]

mod capture;
mod cp;
mod demo;
mod doctor;
mod down;
mod exec;
mod keys;
pub mod lab;
mod logs;
mod machine;
mod matrix;
mod net;
mod new;
mod nic;
mod pause;
mod ps;
mod reference;
mod run;
mod stats;
pub mod suite;
pub mod ui;
mod up;
pub mod watch;

use std::env;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{anyhow, Context, Result};
use clap::{CommandFactory, Parser, Subcommand};
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

#[derive(Subcommand)]
enum Command {
    /// Set everything up and exchange verified data between two nodes
    Demo(demo::Options),
    /// Boot the cluster that a file describes
    Up(up::Options),
    /// Boot a cluster, run a program on it, take it down
    Exec(exec::Options),
    /// Do that in every combination of settings and seeds
    Matrix(matrix::Options),
    /// Make a small project to start from
    New(new::Options),
    /// List the running clusters
    Ps(ps::Options),
    /// Run a command on one node or on all
    Run(run::Options),
    /// Form parallel machines of nodes, and run programs on them
    Machine(machine::Options),
    /// Copy files into and out of nodes
    Cp(cp::Options),
    /// Show what a node's console, its QEMU and the device process have logged
    Logs(logs::Options),
    /// Show what a node's NIC has counted
    Stats(stats::Options),
    /// Show what a node's NIC holds: its memory map, names, groups, queues
    Nic(nic::Options),
    /// Show rates, depths and times of all NICs, live
    Top(watch::top::Options),
    /// Write the life of each operation across nodes, for Perfetto
    Trace(watch::trace::Options),
    /// Stop the CPUs of a node's guest
    Pause(pause::PauseOptions),
    /// Let a paused guest go on
    Resume(pause::ResumeOptions),
    /// End clusters and remove everything they left
    Down(down::Options),
    /// Show and change what links do to frames: loss, delay, partition
    Net(net::Options),
    /// Make and show the keys by which hosts know each other
    Keys(keys::Options),
    /// Write what runs over links as pcapng, for Wireshark
    Capture(capture::Options),
    /// Run all tests
    Test(suite::Options),
    /// Simulate clusters under virtual time, with faults from a seed
    Sim(lab::sim::Options),
    /// Fuzz what the hostile can write to, with libFuzzer
    Fuzz(lab::fuzz::Options),
    /// Measure latency and bandwidth beside the machine's own floor
    Bench(lab::bench::Options),
    /// Tell what was found, what will be used and what is missing
    Doctor(doctor::Options),
    /// Write man pages
    Man(reference::ManOptions),
    /// Print completions for a shell
    Completions(reference::CompletionsOptions),
}

/// Does what the command line says. Returns the exit status.
pub fn main() -> ExitCode {
    carry_out(run)
}

/// Reads the command line and has `run` do what it says. Returns the exit status.
fn carry_out(run: impl FnOnce(&Command) -> Result<ExitCode>) -> ExitCode {
    let cli = Cli::parse();
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

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Demo(options) => demo::run(options),
        Command::Up(options) => up::run(options),
        Command::Exec(options) => exec::run(options),
        Command::Matrix(options) => matrix::run(options),
        Command::New(options) => new::run(options),
        Command::Ps(options) => ps::run(options),
        Command::Run(options) => run::run(options),
        Command::Machine(options) => machine::run(options),
        Command::Cp(options) => cp::run(options),
        Command::Logs(options) => logs::run(options),
        Command::Stats(options) => stats::run(options),
        Command::Nic(options) => nic::run(options),
        Command::Pause(options) => pause::pause(options),
        Command::Resume(options) => pause::resume(options),
        Command::Down(options) => down::run(options),
        Command::Net(options) => net::run(options),
        Command::Keys(options) => keys::run(options),
        Command::Capture(options) => capture::run(options),
        Command::Test(_) => suite::start(),
        Command::Sim(_) | Command::Fuzz(_) | Command::Bench(_) => lab::start(),
        Command::Top(_) | Command::Trace(_) => watch::start(),
        Command::Doctor(options) => doctor::run(options),
        Command::Man(options) => reference::man(options, Cli::command()),
        Command::Completions(options) => reference::completions(options, Cli::command()),
    }
}

/// Becomes another program of the workspace, with the same command line. It is built first where
/// needed.
fn become_program(program: qnic_cluster::Program<'_>, step: &str) -> Result<ExitCode> {
    let progress = ui::progress();
    progress.step(step);
    let program = qnic_cluster::program(program)?;
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
