//! Nodes that are QEMU guests with stock kernels and the qnic module.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{
    BootOptions, Cancel, Cluster, ClusterSpec, GuestCommand, GuestEvent, GuestExit, GuestProcess,
    Links, Mode, NetworkSpec, Node, NodeSpec, OnOff, Program, Progress, APP_PATH,
};

use serde_json::{json, Value};

use crate::nodes::evidence;

use crate::nodes::{Ended, Nodes, Running};

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
    pub fn boot(name: &str, kernels: &[&str]) -> Result<Self> {
        Self::boot_behind(&Self::spec(name, kernels)?, Vec::new())
    }

    /// The same with arguments for each guest's QEMU.
    pub fn boot_with(name: &str, kernels: &[&str], qemu_args: &[Vec<String>]) -> Result<Self> {
        let mut spec = Self::spec(name, kernels)?;
        for (node, arguments) in spec.nodes.iter_mut().zip(qemu_args) {
            node.qemu_args.extend(arguments.iter().cloned());
        }
        Self::boot_behind(&spec, Vec::new())
    }

    /// Boots a cluster that [`VmNodes::spec`] was the start of; shows the steps.
    pub fn boot_spec(spec: &ClusterSpec) -> Result<Self> {
        Self::boot_behind(spec, Vec::new())
    }

    /// What [`VmNodes::boot`] boots: nodes `n0`, `n1` … in a cluster of this process, joined by
    /// a lossless wire, without Ethernet ports.
    pub fn spec(name: &str, kernels: &[&str]) -> Result<ClusterSpec> {
        let mut spec = ClusterSpec::new(format!("{name}-{}", std::process::id()));
        spec.network = Some(NetworkSpec::lossless());
        spec.ethernet = OnOff::Off;
        for (number, kernel) in kernels.iter().enumerate() {
            let mut node = NodeSpec::new(format!("n{number}"));
            node.kernel = kernel
                .parse()
                .with_context(|| format!("there is no kernel {kernel:?}: stable or backports"))?;
            spec = spec.with(node);
        }
        Ok(spec)
    }

    /// The same with another program than [`APP`](qnic_cluster::APP) on the nodes.
    pub fn boot_program(app: Program<'static>, name: &str, kernels: &[&str]) -> Result<Self> {
        let more = |options: &mut BootOptions| options.app = app;
        Self::boot_options(&Self::spec(name, kernels)?, more)
    }

    /// Boots a cluster with a command in front of its device processes
    /// ([`BootOptions::device_prefix`]).
    pub fn boot_behind(spec: &ClusterSpec, device_prefix: Vec<String>) -> Result<Self> {
        Self::boot_options(spec, |options| options.device_prefix = device_prefix)
    }

    fn boot_options(spec: &ClusterSpec, more: impl FnOnce(&mut BootOptions)) -> Result<Self> {
        let mut options = BootOptions::new(Mode::Attached)?;
        options.cancel = Some(Cancel::on_signals().context("watch for Ctrl-C")?);
        options.progress = Arc::new(Steps(Instant::now()));
        more(&mut options);
        Ok(VmNodes {
            cluster: Some(Cluster::boot(spec, &options)?),
            watched: false,
        })
    }

    /// A case runs on it: what its nodes do is shown if it is dropped before
    /// [`VmNodes::end`].
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// The cluster, which is there until the end.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("there until the end")
    }

    /// One of its nodes.
    ///
    /// # Errors
    /// Returns an error if there is none of that number.
    pub fn node(&self, number: usize) -> Result<&Node> {
        let nodes = self.cluster().nodes();
        nodes
            .get(number)
            .with_context(|| format!("there is no node {number}"))
    }

    /// From now on each fault meets so many percent of the frames on all links; returns how
    /// many directions of links have changed.
    pub fn make_links_bad(&self, percent: u32) -> Result<u64> {
        let part = format!("{percent}%");
        let change = serde_json::from_value(json!({
            "loss": part, "reorder": part, "duplicate": part, "corrupt": part, "delay": "50us"
        }))?;
        Ok(self.cluster().set_links(&Links::All, Some(&change))?)
    }

    /// How many frames the first link has lost: more than `before`.
    pub fn lost_frames(&self, before: u64) -> Result<u64> {
        let network = self.device_stats()?["network"].take();
        let lost = network["links"][0]["counters"]["lost"].as_u64();
        let lost = lost.context("no count of lost frames")?;
        ensure!(lost > before, "nothing was lost: {network}");
        Ok(lost)
    }

    /// Starts a command on a node.
    pub fn spawn(&self, node: usize, command: &GuestCommand) -> Result<Box<dyn Running>> {
        let process = self.node(node)?.spawn(command)?;
        Ok(Box::new(InGuest {
            process,
            output: Vec::new(),
            last: String::new(),
            errors: Vec::new(),
            exit: None,
        }))
    }

    /// Ends the cluster and says whether that worked.
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

    fn start_on(
        &self,
        node: usize,
        nic: Option<&str>,
        arguments: &str,
    ) -> Result<Box<dyn Running>> {
        let command = GuestCommand::new(APP_PATH).args(arguments.split_whitespace());
        let command = nic
            .iter()
            .fold(command, |command, nic| command.env("QNIC_NIC", nic));
        self.spawn(node, &command)
    }

    fn device_stats(&self) -> Result<Value> {
        Ok(self.cluster().device_stats()?)
    }
}

/// A program in a guest.
struct InGuest {
    process: GuestProcess,
    /// Output that was not taken.
    output: Vec<u8>,
    /// The last line that was taken.
    last: String,
    errors: Vec<u8>,
    exit: Option<GuestExit>,
}

impl InGuest {
    /// Takes in what the program says next.
    fn take_event(&mut self, limit: Duration) -> Result<()> {
        match self.process.next_event(Some(limit))? {
            Some(GuestEvent::Stdout(bytes)) => self.output.extend(bytes),
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

    /// Takes the next line, if all of it has come.
    fn take_line(&mut self) -> Option<String> {
        let end = self.output.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<_> = self.output.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

impl Running for InGuest {
    fn line(&mut self, limit: Duration) -> Result<Option<String>> {
        loop {
            if let Some(line) = self.take_line() {
                self.last.clone_from(&line);
                return Ok(Some(line));
            }
            if self.exit.is_some() {
                return Ok(None);
            }
            self.take_event(limit)?;
        }
    }

    fn signal(&mut self, number: u8) -> Result<()> {
        Ok(self.process.signal(number)?)
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
            lines: std::iter::from_fn(|| self.take_line()).collect(),
            errors: String::from_utf8_lossy(&self.errors).into_owned(),
        })
    }
}
