//! `qnic run`: runs a command on one node or on all.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use clap::Args;
use qnic_cluster::{Cancel, Error, GuestCommand, GuestEvent, GuestInput, Node};

use crate::ui::{self, ClusterOption};

/// Exit status when time is over, as `timeout` gives it.
const TIMED_OUT: u8 = 124;
/// Exit status when the tool, not the command, failed.
const TOOL_FAILED: u8 = 125;
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

Output appears as it is written; with \"all\" each line is preceded by the node's
name. Ctrl-C and the timeout kill the command and what it started.

Exit status: the command's own, or with \"all\" the first in the order of the nodes
that is not 0. Besides, as in other tools:
  124      the time was over
  125      the command could not be run: no such node, the guest does not answer, …
  126      the command is there but cannot be executed
  127      there is no such command in the guest
  128 + n  signal n ended the command
  130      interrupted")]
pub(crate) struct Options {
    /// The node, or "all"
    node: String,
    #[command(flatten)]
    cluster: ClusterOption,
    /// Kill the command after this many seconds
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
    let cluster = options.cluster.find(Some(&cancel))?;
    let all = options.node == "all";
    if options.input && all {
        bail!("standard input can go to one node only, not to all");
    }
    if !all {
        return run_on(cluster.node(&options.node)?, options, false);
    }
    let run_on_one = |node: &Node| {
        run_on(node, options, !options.no_prefix).unwrap_or_else(|error| code_of(&error))
    };
    let codes: Vec<u8> = std::thread::scope(|scope| {
        let nodes = cluster.nodes().iter();
        let started: Vec<_> = nodes
            .map(|node| scope.spawn(move || run_on_one(node)))
            .collect();
        let codes = started.into_iter().map(|run| run.join());
        codes.map(|code| code.unwrap_or(TOOL_FAILED)).collect()
    });
    Ok(codes.into_iter().find(|code| *code != 0).unwrap_or(0))
}

fn run_on(node: &Node, options: &Options, prefixed: bool) -> Result<u8> {
    let mut process = node.spawn(&command(options))?;
    if options.input {
        let input = process.input();
        // Ends with this program at the latest: nothing else can interrupt a read.
        std::thread::spawn(move || feed(&input));
    }
    let deadline = options.timeout.map(|limit| Instant::now() + limit);
    let prefix = prefixed.then(|| format!("{} | ", node.name()));
    let prefix = prefix.unwrap_or_default();
    let mut out = Lines::new(&prefix, io::stdout());
    let mut err = Lines::new(&prefix, io::stderr());
    let code = loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match process.next_event(left)? {
            Some(GuestEvent::Stdout(bytes)) => out.write(&bytes)?,
            Some(GuestEvent::Stderr(bytes)) => err.write(&bytes)?,
            Some(GuestEvent::Exit(exit)) => break exit.code(),
            None => {
                let limit = options.timeout.unwrap_or_default().as_secs_f32();
                eprintln!("qnic: node {}: killed after {limit} s", node.name());
                break TIMED_OUT;
            }
        }
    };
    out.finish()?;
    err.finish()?;
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
    // A command that has ended reads no more: what is left has nowhere to go.
    while let Ok(read @ 1..) = stdin.read(&mut buffer) {
        if input.write(&buffer[..read]).is_err() {
            return;
        }
    }
    let _ = input.close();
}

fn code_of(error: &anyhow::Error) -> u8 {
    eprintln!("qnic: {error:#}");
    match error.downcast_ref::<Error>() {
        Some(Error::NotStarted { errno: ENOENT, .. }) => NOT_FOUND,
        Some(Error::NotStarted { .. }) => CANNOT_EXECUTE,
        Some(Error::Interrupted) => ui::INTERRUPTED,
        _ => TOOL_FAILED,
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Output of one node. With a prefix, only whole lines are written, so that those of
/// several nodes do not mix.
struct Lines<'a, W> {
    prefix: &'a str,
    to: W,
    partial: Vec<u8>,
}

impl<'a, W: Write> Lines<'a, W> {
    fn new(prefix: &'a str, to: W) -> Self {
        Self {
            prefix,
            to,
            partial: Vec::new(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.prefix.is_empty() {
            self.to.write_all(bytes)?;
            return self.to.flush();
        }
        let mut whole = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part);
            if part.ends_with(b"\n") {
                whole.extend_from_slice(self.prefix.as_bytes());
                whole.append(&mut self.partial);
            }
        }
        self.to.write_all(&whole)?;
        self.to.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.partial.is_empty() {
            return Ok(());
        }
        self.write(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(prefix: &str, parts: &[&[u8]]) -> Vec<u8> {
        let mut to = Vec::new();
        let mut lines = Lines::new(prefix, &mut to);
        for part in parts {
            lines.write(part).unwrap();
        }
        lines.finish().unwrap();
        to
    }

    #[test]
    fn whole_lines_are_prefixed_and_the_last_is_completed() {
        assert_eq!(
            written("a | ", &[b"one\ntw", b"o\nthree"]),
            b"a | one\na | two\na | three\n"
        );
    }

    #[test]
    fn without_a_prefix_bytes_pass_unchanged() {
        assert_eq!(written("", &[b"\0\xff", b"x"]), b"\0\xffx");
    }

    #[test]
    fn options_of_time_and_variables_are_checked() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert!(seconds("-1").is_err() && seconds("x").is_err());
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("A").is_err() && variable("=b").is_err());
    }
}
