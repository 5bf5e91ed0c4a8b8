//! Nodes that are QEMU guests with stock kernels and the qnic module.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use qnic_cluster::{
    BootOptions, Cancel, Cluster, ClusterSpec, GuestCommand, GuestEvent, GuestExit, GuestProcess,
    Mode, Node, NodeSpec, Progress, APP_PATH,
};
use serde_json::Value;

use super::evidence;
use crate::nodes::{Ended, Nodes, Running};

/// Signal number of `kill -9`.
const SIGKILL: u8 = 9;

/// A cluster of guests that ends with this object, or with this process.
pub struct VmNodes {
    /// Taken when it ends.
    cluster: Option<Cluster>,
    /// A case runs on it, and has not ended well.
    watched: bool,
}

/// Shows the steps of a boot on standard error.
struct Steps(Instant);

impl Progress for Steps {
    fn step(&self, message: &str) {
        eprintln!("{:>7.1} s  {message}", self.0.elapsed().as_secs_f64());
    }

    fn bytes(&self, _done: u64, _total: u64) {}

    fn node(&self, node: &str, state: &str) {
        self.step(&format!("{node}: {state}"));
    }
}

impl VmNodes {
    /// Boots one guest for each of `kernels` (`stable` or `backports`), with
    /// everything that it needs; shows the steps.
    ///
    /// # Errors
    /// See [`Cluster::boot`].
    pub fn boot(name: &str, kernels: &[&str]) -> Result<Self> {
        Self::boot_spec(&Self::spec(name, kernels)?)
    }

    /// What [`VmNodes::boot`] boots: nodes `n0`, `n1` … in a cluster of this process.
    ///
    /// # Errors
    /// There is no such kernel.
    pub fn spec(name: &str, kernels: &[&str]) -> Result<ClusterSpec> {
        let mut spec = ClusterSpec::new(format!("{name}-{}", std::process::id()));
        for (number, kernel) in kernels.iter().enumerate() {
            let mut node = NodeSpec::new(format!("n{number}"));
            node.kernel = kernel
                .parse()
                .with_context(|| format!("there is no kernel {kernel:?}: stable or backports"))?;
            spec = spec.with(node);
        }
        Ok(spec)
    }

    /// Boots a cluster.
    ///
    /// # Errors
    /// See [`Cluster::boot`].
    pub fn boot_spec(spec: &ClusterSpec) -> Result<Self> {
        Self::boot_behind(spec, Vec::new())
    }

    /// Boots a cluster with a command in front of its device processes
    /// ([`BootOptions::device_prefix`]).
    ///
    /// # Errors
    /// See [`Cluster::boot`].
    pub fn boot_behind(spec: &ClusterSpec, device_prefix: Vec<String>) -> Result<Self> {
        let mut options = BootOptions::new(Mode::Attached)?;
        options.cancel = Some(Cancel::on_signals().context("watch for Ctrl-C")?);
        options.progress = Arc::new(Steps(Instant::now()));
        options.device_prefix = device_prefix;
        Ok(VmNodes {
            cluster: Some(Cluster::boot(spec, &options)?),
            watched: false,
        })
    }

    /// A case runs on it: what its nodes do is shown if it is dropped before
    /// [`VmNodes::passed`] or [`VmNodes::end`].
    #[must_use]
    pub(super) fn watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// The case that ran on it has passed.
    ///
    /// # Errors
    /// See [`Cluster::end`].
    pub(super) fn passed(mut self) -> Result<()> {
        self.watched = false;
        self.end()
    }

    /// The cluster.
    ///
    /// # Panics
    /// Never: it is there until the end.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("there until the end")
    }

    /// A node.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn node(&self, number: usize) -> Result<&Node> {
        let nodes = self.cluster().nodes();
        nodes
            .get(number)
            .with_context(|| format!("there is no node {number}"))
    }

    /// Ends the cluster and says whether that worked.
    ///
    /// # Errors
    /// See [`Cluster::end`].
    pub fn end(mut self) -> Result<()> {
        self.watched = false;
        self.cluster
            .take()
            .map_or(Ok(()), |cluster| Ok(cluster.end()?))
    }
}

impl Drop for VmNodes {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.as_ref().filter(|_| self.watched) {
            evidence::show(cluster);
        }
    }
}

impl Nodes for VmNodes {
    fn count(&self) -> usize {
        self.cluster().nodes().len()
    }

    fn start(&self, node: usize, arguments: &str) -> Result<Box<dyn Running>> {
        let command = GuestCommand::new(APP_PATH).args(arguments.split_whitespace());
        self.spawn(node, &command)
    }

    fn device_stats(&self) -> Result<Value> {
        Ok(self.cluster().device_stats()?)
    }
}

impl VmNodes {
    /// Starts a command on a node.
    ///
    /// # Errors
    /// There is no such node, or it cannot be reached.
    pub fn spawn(&self, node: usize, command: &GuestCommand) -> Result<Box<dyn Running>> {
        let process = self.node(node)?.spawn(command)?;
        Ok(Box::new(InGuest {
            process,
            partial: Vec::new(),
            lines: VecDeque::new(),
            last: String::new(),
            errors: Vec::new(),
            exit: None,
        }))
    }
}

/// A program in a guest.
struct InGuest {
    process: GuestProcess,
    /// Output after the last line break.
    partial: Vec<u8>,
    lines: VecDeque<String>,
    /// The last of them that was taken.
    last: String,
    errors: Vec<u8>,
    exit: Option<GuestExit>,
}

impl InGuest {
    /// Takes in what the program says next.
    fn take_event(&mut self, limit: Duration) -> Result<()> {
        match self.process.next_event(Some(limit))? {
            Some(GuestEvent::Stdout(bytes)) => self.take_output(&bytes),
            Some(GuestEvent::Stderr(bytes)) => self.errors.extend(bytes),
            Some(GuestEvent::Exit(exit)) => self.exit = Some(exit),
            None => bail!(
                "nothing from the program in {limit:?} after {:?}: {}",
                self.last,
                String::from_utf8_lossy(&self.errors)
            ),
        }
        Ok(())
    }

    fn take_output(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.partial);
                self.lines
                    .push_back(String::from_utf8_lossy(&line).into_owned());
            } else {
                self.partial.push(*byte);
            }
        }
    }
}

impl Running for InGuest {
    fn line(&mut self, limit: Duration) -> Result<Option<String>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                self.last.clone_from(&line);
                return Ok(Some(line));
            }
            if self.exit.is_some() {
                return Ok(None);
            }
            self.take_event(limit)?;
        }
    }

    fn kill(&mut self) -> Result<()> {
        Ok(self.process.signal(SIGKILL)?)
    }

    fn wait(&mut self, limit: Duration) -> Result<Ended> {
        let exit = loop {
            match self.exit {
                Some(exit) => break exit,
                None => self.take_event(limit)?,
            }
        };
        Ok(Ended {
            status: match exit {
                GuestExit::Code(code) => code.into(),
                GuestExit::Signal(signal) => 128 + i32::from(signal),
            },
            lines: self.lines.drain(..).collect(),
            errors: String::from_utf8_lossy(&self.errors).into_owned(),
        })
    }
}
