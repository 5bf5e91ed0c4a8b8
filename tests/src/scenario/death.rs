//! Processes that are killed while transfers run.

use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::SIGCONT;
use qnic_trials::nodes::{counter, until, until_grown, wait_until_empty, Nodes, Running, LIMIT};

/// Bytes after which transfers are called running.
pub(super) const RUNNING: u64 = 4 << 20;

/// A writer that transfers without end, and the server of the memory that it uses.
pub(crate) struct Load {
    /// On the node that is written to.
    pub server: Box<dyn Running>,
    /// On the node that writes.
    pub writer: Box<dyn Running>,
}

impl Load {
    /// Starts both.
    pub(crate) fn start(nodes: &dyn Nodes, [from, to]: [usize; 2]) -> Result<Self> {
        let server = nodes.start_until(to, "memory-server", "serving")?;
        let writer = nodes.start_until(from, &format!("load --peer {to}"), "loading")?;
        Ok(Load { server, writer })
    }

    /// Waits until `node`, which is written to, has received as much as says that transfers run;
    /// fails at once, with its words, if the writer ends.
    pub(crate) fn goes_on(&mut self, nodes: &dyn Nodes, node: usize) -> Result<()> {
        let received = || counter(&nodes.device_stats()?, node, "bytes_received");
        let enough = received()? + RUNNING;
        until(LIMIT, || {
            // It says nothing while it runs.
            if let Ok(said) = self.writer.line(Duration::from_millis(20)) {
                bail!("the writer has ended, and said {said:?}");
            }
            let received = received()?;
            Ok((received < enough).then(|| format!("{received} bytes, not {enough}")))
        })
    }

    /// Waits for the error with which the writer ends; returns its message.
    pub(crate) fn failure(&mut self) -> Result<String> {
        let failed = self.writer.expect("failed", LIMIT).context("the writer")?;
        let message = failed.as_str().unwrap_or_default();
        ensure!(!message.is_empty(), "no message: {failed}");
        Ok(message.to_owned())
    }

    /// The same; the message says that the other end is gone.
    pub(crate) fn loses_its_peer(&mut self) -> Result<()> {
        let message = self.failure()?;
        let says_so = message.contains("peer") || message.contains("node");
        ensure!(says_so, "the writer's error: {message}");
        Ok(())
    }

    /// The same as [`Load::failure`]; the writer ends with the status of a failure.
    pub(crate) fn ends_with_failure(&mut self) -> Result<String> {
        let message = self.failure()?;
        let status = self.writer.wait(LIMIT)?.status;
        ensure!(status == 3, "the writer ended with status {status}");
        Ok(message)
    }
}

/// A process under load is killed with signal 9: its node's NIC holds nothing of it
/// afterwards, and the process it wrote to goes on.
pub(crate) fn a_killed_process_leaves_nothing(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
) -> Result<()> {
    let mut load = Load::start(nodes, [from, to])?;
    until_grown(nodes, from, "bytes_sent", RUNNING)?;
    load.writer.kill()?;
    load.writer.wait(LIMIT).context("the killed process")?;
    wait_until_empty(nodes, from)?;
    let mut last = nodes.start(from, &format!("isolation-probe --peer {to} --release"))?;
    last.succeed("a transfer after the kill", LIMIT)?;
    load.server.succeed("the server", LIMIT)?;
    wait_until_empty(nodes, to)
}

/// A process that others write to is killed: they get an error that says so.
pub(crate) fn peers_of_a_killed_process_learn_of_it(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
) -> Result<()> {
    // In host mode the node goes with its process.
    const EXPECTED: [&str; 4] = ["no process", "process ended", "unexported", "no such node"];
    let mut load = Load::start(nodes, [from, to])?;
    until_grown(nodes, from, "bytes_sent", RUNNING)?;
    load.server.kill()?;
    let message = load.ends_with_failure()?;
    ensure!(
        EXPECTED.iter().any(|part| message.contains(part)),
        "the message does not say what happened: {message:?}"
    );
    wait_until_empty(nodes, to)
}

/// A process with many requests under way resets its queue, is paused, and is killed: each request is
/// told once, of its own operation, and those of its heir are the heir's own (N12, X9).
pub(crate) fn requests_are_told_once(nodes: &dyn Nodes, [from, to]: [usize; 2]) -> Result<()> {
    let mut server = nodes.start_until(to, "memory-server", "serving")?;
    let begin = |how| nodes.start_until(from, &format!("requests --peer {to}{how}"), "begun");
    let mut paused = begin(" --stop")?;
    let mut quiet = (0, 0);
    until(LIMIT, || {
        let sent = counter(&nodes.device_stats()?, from, "bytes_sent")?;
        quiet = match quiet.1 == sent {
            true => (quiet.0 + 1, sent),
            false => (0, sent),
        };
        Ok((quiet.0 < 10).then(|| "its NIC goes on, although it takes no completions".to_owned()))
    })?;
    until(LIMIT, || {
        // It may not have stopped yet, or have ended.
        drop(paused.signal(SIGCONT));
        let said = paused.line(Duration::from_millis(100));
        Ok(said.err().map(|error| error.to_string()))
    })?;
    paused.succeed("the paused process", LIMIT)?;
    let mut killed = begin(" --stay")?;
    until_grown(nodes, from, "bytes_sent", RUNNING)?;
    killed.kill()?;
    killed.wait(LIMIT).context("the killed process")?;
    wait_until_empty(nodes, from)?;
    begin("")?.succeed("its heir", LIMIT)?;
    server.kill()?;
    server.wait(LIMIT).context("the server")?;
    wait_until_empty(nodes, to)
}

/// A process of each node forks children that end, call and drop what they have of its NIC: what it
/// transfers stays exact, and each call of a child is refused (X9).
pub(crate) fn a_process_forks_between_its_transfers(nodes: &dyn Nodes) -> Result<()> {
    let each = (0..nodes.count()).map(|node| (node, "forked".to_owned()));
    nodes.run_all(&each.collect::<Vec<_>>(), LIMIT)
}
