//! MPI on the guests of a cluster: Open MPI of the distribution, whose messages go over the NICs by libfabric, and
//! whose processes are started over the Ethernet ports (X15).
//!
//! ```text
//!   mpirun ── SSH, Ethernet ports ──► prted ─► rank        on each other guest
//!     │                                         │
//!     └─► rank ── libfabric ── NICs ────────────┘
//! ```
//! Programs and the provider are in the guest image if the cluster file says `mpi = true` ([`files`]). A guest gets
//! the key of the cluster, and an SSH server that lets in whatever has it, when the cluster has booted and again by
//! [`Mpi::set_up`]: one that boots again has neither.

mod files;

pub use files::PROVIDER;
pub(crate) use files::{files, provider};

use std::num::NonZero;
use std::time::Duration;

use crate::boot_options::BootOptions;
use crate::guest_command::{GuestCommand, GuestOutput};
use crate::guest_process::GuestProcess;
use crate::node::Node;
use crate::{ClusterSpec, Error, Result};

/// Prints the key of the cluster.
const KEY: &str = include_str!("key.sh");
/// Prepares a guest.
const SET_UP: &str = include_str!("set-up.sh");
/// Runs mpirun.
const RUN: &str = include_str!("run.sh");
/// Runs a rank.
const RANK: &str = "/usr/local/bin/qnic-mpi-rank";
/// Longest time that each takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// What Open MPI uses over TCP instead of the NIC.
const TCP: [&str; 6] = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"];

/// What carries the messages of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MpiTransport {
    /// The NICs.
    #[default]
    Nic,
    /// TCP over the Ethernet ports, to compare with.
    Tcp,
}

/// Starts MPI programs on the guests of a cluster.
pub struct Mpi<'a> {
    nodes: Vec<&'a Node>,
}

impl<'a> Mpi<'a> {
    /// Starts programs on those of `nodes` that have MPI in a cluster that has it.
    pub(crate) fn new(nodes: &'a [Node]) -> Self {
        let nodes = nodes.iter();
        Self {
            nodes: nodes.filter(|node| node.spec().has_module()).collect(),
        }
    }

    /// The nodes that ranks go round, in their order: those with a guest image and a NIC.
    pub fn nodes(&self) -> &[&'a Node] {
        &self.nodes
    }

    /// The node on which [`Mpi::command`] runs.
    ///
    /// # Errors
    /// [`Error::Host`] if there is none.
    pub fn first(&self) -> Result<&'a Node> {
        let none = "no node of the cluster has a guest image and a NIC: MPI needs both";
        let first = self.nodes.first().copied();
        first.ok_or_else(|| Error::Host(none.to_owned()))
    }

    /// Gives all nodes the key of the cluster, and starts an SSH server where none runs.
    ///
    /// # Errors
    /// [`Error::Failed`] with what a guest said; as [`Node::run`]. [`Error::Guest`] at once for a node that stands still.
    pub fn set_up(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.check_runs())?;
        let key = self.key()?;
        let (key, public) = key.split_once('\n').unwrap_or((&key, ""));
        let command = GuestCommand::shell(SET_UP).env("KEY", key);
        let names: Vec<_> = self.nodes.iter().map(|node| node.name()).collect();
        let command = command.env("PUBLIC", public.trim());
        let command = command.env("NODES", names.join(" "));
        self.on_all(&command).map(drop)
    }

    /// The key of the cluster and its public half, by lines. Nodes that have booted again get that which others have.
    fn key(&self) -> Result<String> {
        let first = self.first()?;
        let there = self.on_all(&GuestCommand::shell(KEY))?;
        if let Some(key) = there.into_iter().find(|key| !key.is_empty()) {
            return Ok(key);
        }
        let make = GuestCommand::shell(KEY).env("MAKE", "1");
        said_by(first, &first.run(&make, LIMIT)?)
    }

    /// Runs a script on all nodes at once; what each has said.
    fn on_all(&self, command: &GuestCommand) -> Result<Vec<String>> {
        let nodes = self.nodes.iter();
        let processes = nodes.map(|node| Ok((node, node.spawn(command)?)));
        let processes = processes.collect::<Result<Vec<_>>>()?;
        let said =
            |(node, process): (&&Node, GuestProcess)| said_by(node, &process.wait(Some(LIMIT))?);
        processes.into_iter().map(said).collect()
    }

    /// Starts so many ranks of `program`, round the nodes. `options` are mpirun's, and its exit status is the
    /// command's, but for 1 if rank 0 has not returned 0.
    pub fn command(
        &self,
        ranks: NonZero<usize>,
        over: MpiTransport,
        options: &[String],
        program: &GuestCommand,
    ) -> GuestCommand {
        let slots = ranks.get().div_ceil(self.nodes.len().max(1));
        let hosts = self.nodes.iter();
        let hosts: Vec<_> = hosts
            .map(|node| format!("{}:{slots}", node.name()))
            .collect();
        let mut command = GuestCommand::shell(RUN)
            .arg("mpirun")
            .args([
                "--allow-run-as-root",
                "--bind-to",
                "none",
                "--map-by",
                "node",
            ])
            .args(["--host", &hosts.join(","), "-n", &ranks.to_string()]);
        if over == MpiTransport::Tcp {
            command = command.args(TCP);
        }
        command.args(options).arg(RANK).with_program(program)
    }
}

/// Prepares the guests of a cluster that has just booted.
pub(crate) fn set_up(spec: &ClusterSpec, nodes: &[Node], options: &BootOptions) -> Result<()> {
    if !spec.mpi {
        return Ok(());
    }
    options.progress.step("preparing the guests for MPI");
    Mpi::new(nodes).set_up()
}

/// What a script that ended well has printed.
fn said_by(node: &Node, output: &GuestOutput) -> Result<String> {
    if output.exit.success() {
        return Ok(output.text());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(unprepared(node, why.trim()))
}

fn unprepared(node: &Node, why: &str) -> Error {
    Error::Failed {
        subject: format!("node {}", node.name()),
        what: format!("it cannot be prepared for MPI: {why}"),
        log: String::new(),
    }
}
