//! `cargo qnic mpirun`, as a user calls it: what it returns when a job ends, in each way that its help names.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use anyhow::{ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};

use super::nothing_is_left;
use qnic_trials::nodes::vm::VmNodes;

/// Statuses beside the program's own.
const TIMED_OUT: i32 = 124;
const NOT_CARRIED_OUT: i32 = 125;
const NO_PROGRAM: i32 = 127;
const INTERRUPTED: i32 = 130;

/// A program that takes longer than the case, and says when it runs.
const LONG: [&str; 3] = ["sh", "-c", "echo up; exec sleep 1000"];

/// Jobs that end in all ways; the nodes of these numbers are all that there are.
pub(super) fn statuses(nodes: &VmNodes, all: &[usize]) -> Result<()> {
    let source = qnic_cluster::repository().context("the checkout is gone")?;
    let source = source.join("examples/mpi/one-sided.c");
    let source = source.to_str().context("a path that is no text")?;
    let ended = call(nodes, &["-n", "3", "--mca", "pml", "ob1", source])?;
    expect(&ended, 0, "checked data in each other's memory")?;
    let failing = "[ $OMPI_COMM_WORLD_RANK != 1 ] || exit 7; exec sleep 1000";
    expect(&call(nodes, &["-n", "3", "sh", "-c", failing])?, 7, "")?;
    let missing = call(nodes, &["-n", "2", "no-such-program"])?;
    expect(&missing, NO_PROGRAM, "no-such-program")?;
    let limited = [&["-n", "3", "--timeout", "1"][..], &LONG].concat();
    expect(&call(nodes, &limited)?, TIMED_OUT, "ended after 1 s")?;
    nothing_is_left(nodes, "jobs that have ended", all)?;
    let status = interrupted(nodes, || Ok(()))?;
    ensure!(status.code() == Some(INTERRUPTED), "interrupted: {status}");
    nothing_is_left(nodes, "a job that was interrupted", all)
}

/// The first node stands still while a job runs: an interrupt ends the command all the same.
pub(super) fn first_node_stands_still(nodes: &VmNodes) -> Result<()> {
    let status = interrupted(nodes, || Ok(nodes.cluster().pause("n0")?));
    nodes.cluster().resume("n0")?;
    let status = status?;
    let expected = status.code() == Some(INTERRUPTED);
    ensure!(expected, "a node was paused: {status}");
    Ok(())
}

/// A node that stands still before a job begins is named.
pub(super) fn a_node_stands_still(nodes: &VmNodes) -> Result<()> {
    nodes.cluster().pause("n2")?;
    let ended = call(nodes, &["-n", "3", "true"]);
    nodes.cluster().resume("n2")?;
    let ended = ended?;
    expect(&ended, NOT_CARRIED_OUT, "n2")?;
    expect(&ended, NOT_CARRIED_OUT, "paused")
}

/// An interrupt, as Ctrl-C sends it, while all ranks run and something has happened.
fn interrupted(nodes: &VmNodes, happens: impl FnOnce() -> Result<()>) -> Result<ExitStatus> {
    let mut job = start(nodes, &[&["-n", "3"][..], &LONG].concat())?;
    wait_for(&mut job, 3)?;
    happens()?;
    let pid = Pid::from_raw(job.id().try_into()?).context("a process without a number")?;
    kill_process(pid, Signal::INT).context("interrupt the command")?;
    job.wait().context("wait for the command")
}

/// Waits until so many ranks have said that they run.
fn wait_for(job: &mut Child, ranks: usize) -> Result<()> {
    let output = job.stdout.as_mut().context("its output")?;
    let mut lines = BufReader::new(output).lines();
    for _ in 0..ranks {
        let line = lines.next().context("it has ended early")??;
        ensure!(line == "up", "it says {line:?}");
    }
    Ok(())
}

/// This program has the commands of `cargo qnic`.
fn command(nodes: &VmNodes, words: &[&str]) -> Result<Command> {
    let own = std::env::current_exe().context("find this program")?;
    let mut command = Command::new(own);
    command.args(["mpirun", "--cluster", nodes.cluster().name()]);
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

fn start(nodes: &VmNodes, words: &[&str]) -> Result<Child> {
    let started = command(nodes, words)?.stdout(Stdio::piped()).spawn();
    started.with_context(|| format!("start {words:?}"))
}

fn call(nodes: &VmNodes, words: &[&str]) -> Result<Output> {
    let output = command(nodes, words)?.output();
    output.with_context(|| format!("start {words:?}"))
}

/// Fails unless a command has returned this status, and has said this.
fn expect(ended: &Output, status: i32, words: &str) -> Result<()> {
    let said = [&ended.stdout[..], &ended.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let expected = ended.status.code() == Some(status) && said.contains(words);
    ensure!(
        expected,
        "expected {status} and {words:?}: {}\n{said}",
        ended.status
    );
    Ok(())
}
