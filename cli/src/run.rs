//! `qnic run`: runs a command on one node or on all.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::Args;
use qnic_cluster::{Cancel, Error, GuestCommand, GuestEvent, GuestInput, Node};
use qnic_trials::{Case, JunitFile, Lines, Suite};

use crate::slurm;
use crate::ui::{self, ClusterOption};

/// Exit status when time is over, as `timeout` gives it.
pub(crate) const TIMED_OUT: u8 = 124;
/// Exit status when the tool, not the command, failed.
pub(crate) const TOOL_FAILED: u8 = 125;
/// Exit status when the command is there but cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// Exit status when there is no such command.
const NOT_FOUND: u8 = 127;
/// The guest's error number for "no such file".
const ENOENT: i32 = 2;

/// Options of `qnic run`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic run a -- uname -a
  cargo qnic run all --timeout 10 -- sh -c 'cat /proc/interrupts | grep virtio'
  cargo qnic run --cluster pair a --env N=3 -- sh -c 'exit $N'
  cargo qnic run a -i -- sh -c 'cat > /root/file' < file
  cargo qnic run all --fresh-nic -- ./test-2      nothing is left of the test before

Output appears as it is written; with \"all\" each line is preceded by the node's
name. Ctrl-C and the timeout kill the command and what it started.

Exit status: the command's own, or with \"all\" the first in the order of the nodes
that is not 0. Besides, as in other tools:
  124      the time was over, before or after the command has started
  125      the command could not be run: no such node, the guest does not answer for 30 s, …
  126      the command is there but cannot be executed
  127      there is no such command in the guest
  128 + n  signal n ended the command
  130      interrupted")]
pub(crate) struct Options {
    /// The node, or "all"
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
    /// Kill the command after this many seconds; give up if it has not started by then
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Set a variable in the command's environment
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Working directory in the guest
    #[arg(long, short, value_name = "DIR")]
    dir: Option<OsString>,
    /// Let the command read standard input
    #[arg(long, short)]
    input: bool,
    /// With "all": do not precede lines with the node's name
    #[arg(long)]
    no_prefix: bool,
    /// Begin with a fresh NIC: kill the processes that use it, load the driver anew (not on VFIO), restore
    /// the links; nothing to do on a node without a NIC
    #[arg(long)]
    fresh_nic: bool,
    /// Write a report as JUnit XML, with a case for each node
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let code = try_run(options).unwrap_or_else(|error| code_of(&error));
    Ok(ExitCode::from(code))
}

fn try_run(options: &Options) -> Result<u8> {
    let cancel = Cancel::on_signals()?;
    slurm::hand_over(&options.cluster, &options.node)?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let all = options.node == "all";
    if options.input && all {
        bail!("standard input can go to one node only, not to all");
    }
    let report = options.junit.as_ref().map(|path| {
        let made = JunitFile::create(path);
        made.with_context(|| format!("cannot write the report {}", path.display()))
    });
    let report = report.transpose()?;
    let nodes: Vec<_> = match all {
        true => cluster.nodes().iter().collect(),
        false => vec![cluster.node(&options.node)?],
    };
    if options.fresh_nic {
        for node in &nodes {
            cluster.renew_nic(node)?;
        }
    }
    let prefixed = all && !options.no_prefix;
    let run_on_one = |node: &Node| {
        let start = Instant::now();
        let code = run_on(node, options, prefixed).unwrap_or_else(|error| code_of(&error));
        (code, start.elapsed())
    };
    let start = Instant::now();
    let ended: Vec<_> = std::thread::scope(|scope| {
        let started = nodes.iter().map(|node| scope.spawn(|| run_on_one(node)));
        let started: Vec<_> = started.collect();
        let ended = started.into_iter().map(|run| run.join());
        let failed = (TOOL_FAILED, start.elapsed());
        ended.map(|ended| ended.unwrap_or(failed)).collect()
    });
    if let Some(report) = report {
        let cases = nodes.iter().zip(&ended);
        let suite = Suite {
            name: cluster.name().to_owned(),
            properties: Vec::new(),
            took: start.elapsed(),
            cases: cases
                .map(|(node, (code, took))| case(cluster.name(), node, *code, *took))
                .collect(),
        };
        report
            .write(cluster.name(), &[suite])
            .context("cannot write the report")?;
    }
    let codes = ended.into_iter().map(|(code, _)| code);
    Ok(codes.into_iter().find(|code| *code != 0).unwrap_or(0))
}

/// Lines of a console in a report.
const CONSOLE_LINES: usize = 40;

fn case(cluster: &str, node: &Node, code: u8, took: Duration) -> Case {
    let case = Case::passed(format!("{cluster}.{}", node.name()), "run", took);
    match code {
        0 => case,
        _ => case.failing(format!("status {code}"), node.console_tail(CONSOLE_LINES)),
    }
}

fn run_on(node: &Node, options: &Options, prefixed: bool) -> Result<u8> {
    let start = Instant::now();
    let started = node.spawn_within(&command(options), options.timeout);
    let mut process = match (started, options.timeout) {
        (Err(error @ Error::Guest { .. }), Some(limit)) if start.elapsed() >= limit => {
            ui::tell(&error.into());
            return Ok(TIMED_OUT);
        }
        (started, _) => started?,
    };
    if options.input {
        let input = process.input();
        // A read cannot be interrupted: this thread ends with the program.
        std::thread::spawn(move || feed(&input));
    }
    let deadline = options.timeout.map(|limit| Instant::now() + limit);
    let prefix = prefixed.then(|| format!("{} | ", node.name()));
    let prefix = prefix.unwrap_or_default();
    let (mut to_out, mut to_err) = (io::stdout(), io::stderr());
    let (mut out, mut err) = (Lines::new(&*prefix), Lines::new(&*prefix));
    let code = loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match process.next_event(left)? {
            Some(GuestEvent::Stdout(bytes)) => out.write(&bytes, &mut to_out)?,
            Some(GuestEvent::Stderr(bytes)) => err.write(&bytes, &mut to_err)?,
            Some(GuestEvent::Exit(exit)) => break exit.code(),
            None => {
                let limit = options.timeout.unwrap_or_default().as_secs_f32();
                eprintln!("qnic: node {}: killed after {limit} s", node.name());
                break TIMED_OUT;
            }
        }
    };
    out.finish(&mut to_out)?;
    err.finish(&mut to_err)?;
    Ok(code)
}

fn command(options: &Options) -> GuestCommand {
    let mut command = GuestCommand::default().args(&options.command);
    for (name, value) in &options.env {
        command = command.env(name, value);
    }
    if let Some(dir) = &options.dir {
        command = command.current_dir(dir);
    }
    if options.input {
        command = command.with_input();
    }
    command
}

fn feed(input: &GuestInput) {
    let mut buffer = vec![0; 32 << 10];
    let mut stdin = io::stdin().lock();
    // A command that has ended reads no more.
    while let Ok(read @ 1..) = stdin.read(&mut buffer) {
        if input.write(&buffer[..read]).is_err() {
            return;
        }
    }
    let _ = input.close();
}

pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    ui::tell(error);
    error.downcast_ref().map_or(TOOL_FAILED, status_of)
}

/// The exit status when a command was not run, or lost.
pub(crate) fn status_of(error: &Error) -> u8 {
    match error {
        Error::NotStarted { errno: ENOENT, .. } => NOT_FOUND,
        Error::NotStarted { .. } => CANNOT_EXECUTE,
        Error::Interrupted => ui::INTERRUPTED,
        _ => TOOL_FAILED,
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_time_and_variables_are_checked() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert!(seconds("-1").is_err() && seconds("x").is_err());
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("A").is_err() && variable("=b").is_err());
    }
}
