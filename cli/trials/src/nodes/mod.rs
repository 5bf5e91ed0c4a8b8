//! Nodes on which programs run, whatever they are made of.
//!
//! ```text
//!   demo, cases, benchmarks ── on Nodes: start a program on a node, read its lines, wait, kill
//!                                │
//!          host::HostNodes ──────┴────── vm::VmNodes
//!          processes beside a            QEMU guests with
//!          device process (no VM)        stock kernels
//! ```

mod evidence;
pub mod host;
pub mod keys;
pub mod shell;
pub mod vm;

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

/// Longest time for a program to get ready, for a node to be empty again, and for whatever else
/// takes seconds on an idle machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Signal number of `kill -9`.
const SIGKILL: u8 = 9;

/// Nodes of one cluster, numbered from 0.
pub trait Nodes {
    /// How many there are.
    fn count(&self) -> usize;

    /// Starts `qnic-app` on a node with the words of `arguments`, for the NIC with this name, or
    /// else the first.
    fn start_on(&self, node: usize, nic: Option<&str>, arguments: &str)
        -> Result<Box<dyn Running>>;

    /// Starts `qnic-app` on a node with the words of `arguments`.
    fn start(&self, node: usize, arguments: &str) -> Result<Box<dyn Running>> {
        self.start_on(node, None, arguments)
    }

    /// The same; waits until it says `key`, for two minutes at most.
    fn start_until(&self, node: usize, arguments: &str, key: &str) -> Result<Box<dyn Running>> {
        let mut program = self.start(node, arguments)?;
        let said = program.expect(key, LIMIT);
        said.with_context(|| format!("{arguments} on node {node}"))?;
        Ok(program)
    }

    /// Runs a program on each of several nodes until all have ended well, each within `limit`.
    fn run_all(&self, programs: &[(usize, String)], limit: Duration) -> Result<()> {
        let started = programs.iter();
        let started = started.map(|(node, arguments)| self.start(*node, arguments));
        let running: Vec<_> = started.collect::<Result<_>>()?;
        for (mut program, (node, arguments)) in running.into_iter().zip(programs) {
            program.succeed(&format!("{arguments} on node {node}"), limit)?;
        }
        Ok(())
    }

    /// Counters of the device process, as it gives them.
    fn device_stats(&self) -> Result<Value>;
}

/// The first nodes of a cluster, as a cluster of their own.
pub struct FirstNodes<'a>(pub &'a dyn Nodes, pub usize);

impl Nodes for FirstNodes<'_> {
    fn count(&self) -> usize {
        self.1.min(self.0.count())
    }

    fn start_on(
        &self,
        node: usize,
        nic: Option<&str>,
        arguments: &str,
    ) -> Result<Box<dyn Running>> {
        self.0.start_on(node, nic, arguments)
    }

    fn device_stats(&self) -> Result<Value> {
        self.0.device_stats()
    }
}

/// Nodes on which each program gets the NIC with this name.
pub struct OnNic<'a>(pub &'a dyn Nodes, pub &'a str);

impl Nodes for OnNic<'_> {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn start_on(
        &self,
        node: usize,
        nic: Option<&str>,
        arguments: &str,
    ) -> Result<Box<dyn Running>> {
        self.0.start_on(node, nic.or(Some(self.1)), arguments)
    }

    fn device_stats(&self) -> Result<Value> {
        self.0.device_stats()
    }
}

/// A program that runs on a node.
pub trait Running {
    /// The next line of its standard output, within `limit`; `None` at its end.
    fn line(&mut self, limit: Duration) -> Result<Option<String>>;

    /// Sends it a signal.
    fn signal(&mut self, number: u8) -> Result<()>;

    /// Ends it as `kill -9` does.
    fn kill(&mut self) -> Result<()> {
        self.signal(SIGKILL)
    }

    /// Waits for its end, for `limit` at most.
    fn wait(&mut self, limit: Duration) -> Result<Ended>;
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit status; 128 + the signal if a signal ended it.
    pub status: i32,
    /// Lines of standard output that were not read.
    pub lines: Vec<String>,
    /// The end of its standard error.
    pub errors: String,
}

impl Ended {
    /// Fails, with what the program said, unless it ended with status 0.
    pub fn success(self, what: &str) -> Result<Self> {
        if self.status == 0 {
            return Ok(self);
        }
        bail!(
            "{what} ended with status {}: {}\n{}",
            self.status,
            self.errors.trim(),
            self.lines.join("\n")
        );
    }
}

impl dyn Running + '_ {
    /// Waits, for `limit` at most, until it has ended with status 0; `what` says in errors which
    /// program it is.
    pub fn succeed(&mut self, what: &str, limit: Duration) -> Result<Ended> {
        let ended = self.wait(limit).with_context(|| what.to_owned())?;
        ended.success(what)
    }

    /// Reads lines, each within `limit` of the one before, until one is a JSON object with
    /// member `key`; returns its value.
    pub fn expect(&mut self, key: &str, limit: Duration) -> Result<Value> {
        let mut seen = Vec::new();
        while let Some(line) = self
            .line(limit)
            .with_context(|| format!("wait for the line {key:?} after {seen:?}"))?
        {
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(found) = value.get(key) {
                return Ok(found.clone());
            }
            seen.push(line);
        }
        let ended = self.wait(limit)?;
        bail!(
            "the program ended with status {} before it said {key:?}: {}\n{}",
            ended.status,
            ended.errors.trim(),
            seen.join("\n")
        );
    }
}

/// A counter of one NIC in [`Nodes::device_stats`].
pub fn counter(stats: &Value, node: usize, name: &str) -> Result<u64> {
    let nics = stats["nics"].as_array().context("stats have no nics")?;
    let nic = nics
        .iter()
        .find(|nic| nic["node"].as_u64() == Some(node as u64))
        .with_context(|| format!("stats have no node {node}"))?;
    let groups = [&nic["counters"], &nic["statistics"]];
    let value = groups.iter().find_map(|group| group.get(name));
    value
        .and_then(Value::as_u64)
        .with_context(|| format!("node {node} has no counter {name}: {nic}"))
}

/// What a NIC keeps of something that has a bound, in [`Nodes::device_stats`]: how much, and how
/// much that may be.
pub fn budget(stats: &Value, node: usize, name: &str) -> Result<[u64; 2]> {
    let nics = stats["nics"].as_array().context("stats have no nics")?;
    let mut nics = nics.iter();
    let nic = nics.find(|nic| nic["node"].as_u64() == Some(node as u64));
    let budget = &nic.with_context(|| format!("stats have no node {node}"))?["budgets"][name];
    let values = ["used", "limit"].map(|key| budget[key].as_u64());
    match values {
        [Some(used), Some(limit)] => Ok([used, limit]),
        _ => bail!("node {node} has no budget {name}"),
    }
}

/// Asks again and again, for `limit` at most, until nothing is missing.
pub fn until(limit: Duration, mut missing: impl FnMut() -> Result<Option<String>>) -> Result<()> {
    let start = Instant::now();
    while let Some(missing) = missing()? {
        ensure!(start.elapsed() < limit, "after {limit:?}: {missing}");
    }
    Ok(())
}

/// Waits, for two minutes at most, until a byte counter of a node has grown by so much.
pub fn until_grown(nodes: &dyn Nodes, node: usize, name: &str, bytes: u64) -> Result<()> {
    let count = || counter(&nodes.device_stats()?, node, name);
    let enough = count()? + bytes;
    until(LIMIT, || {
        let count = count()?;
        Ok((count < enough).then(|| format!("{name} of node {node} is {count}, not {enough}")))
    })
}

/// Waits as [`wait_until_empty`] for all nodes.
pub fn wait_until_all_empty(nodes: &dyn Nodes) -> Result<()> {
    (0..nodes.count()).try_for_each(|node| wait_until_empty(nodes, node))
}

/// Waits, for two minutes at most, until the counters of `node` are those of a NIC without
/// processes.
pub fn wait_until_empty(nodes: &dyn Nodes, node: usize) -> Result<()> {
    const HELD: [&str; 7] = [
        "processes",
        "segments",
        "operations",
        "parked_imports",
        "faults_pending",
        "frames_held",
        "bounce_bytes",
    ];
    until(LIMIT, || {
        let stats = nodes.device_stats()?;
        for name in HELD {
            let value = counter(&stats, node, name)?;
            if value != 0 {
                return Ok(Some(format!("node {node} still holds {value} {name}")));
            }
        }
        Ok(None)
    })
}
