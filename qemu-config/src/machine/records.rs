//! The machines of a cluster: records that are replaced whole, under a lock.

use std::fmt;
use std::fs;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ports::{runners, RunSlot};
use crate::config::check_name;
use crate::dirs::{write, ClusterDir};
use crate::lock::LockFile;
use crate::{ClusterSpec, Error, MachineError, Result, MAX_MACHINES};

/// By what the processes of a machine reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interface {
    /// The process drives the NIC: RDMA and messages, by a window of its own.
    #[default]
    Qnic,
    /// The kernel drives the NIC: datagrams and streams over shared pools.
    Pool,
}

/// A parallel machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name, by the rule of names of clusters.
    pub name: String,
    /// Its nodes, in the order in which ranks go round them.
    pub nodes: Vec<String>,
    /// By which NIC of each node its programs reach each other; `None`: by the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// What its programs use.
    pub interface: Interface,
    /// No other machine may have these nodes.
    pub exclusive: bool,
}

/// A machine, and the processes that run programs on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineOverview {
    /// The machine.
    #[serde(flatten)]
    pub machine: Machine,
    /// The processes of this host whose runs are under way.
    pub runs: Vec<u32>,
}

/// The machines of a running cluster.
#[derive(Clone, Debug)]
pub struct Machines {
    dir: ClusterDir,
    spec: ClusterSpec,
}

impl Interface {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qnic => "qnic",
            Self::Pool => "pool",
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Interface {
    type Err = MachineError;

    fn from_str(text: &str) -> Result<Self, MachineError> {
        let both = [Self::Qnic, Self::Pool];
        let named = both.into_iter().find(|one| one.name() == text);
        named.ok_or_else(|| MachineError::NoSuchInterface(text.to_owned()))
    }
}

impl Machine {
    /// The address of its NIC on a node.
    pub(super) fn nic_of(&self, node: &str) -> String {
        match &self.nic {
            Some(nic) => format!("{node}.{nic}"),
            None => node.to_owned(),
        }
    }
}

impl Machines {
    /// The machines of the cluster in `dir`.
    pub(crate) fn new(dir: &ClusterDir, spec: &ClusterSpec) -> Self {
        Self {
            dir: dir.clone(),
            spec: spec.clone(),
        }
    }

    /// Makes a machine.
    ///
    /// # Errors
    /// [`Error::Config`] for a wrong name, [`Error::NoSuchNode`], or [`Error::Machine`]: the
    /// name is taken, a node has no such NIC, the NICs are on different networks, or a node is held
    /// by another machine, which is named.
    pub fn create(&self, machine: Machine) -> Result<()> {
        check_name(&machine.name, "machine")?;
        self.check_nodes(&machine)?;
        let _lock = self.lock()?;
        let mut machines = self.read()?;
        check_new(&machine, &machines)?;
        machines.push(machine);
        self.replace(&machines)
    }

    /// Removes a machine on which nothing runs.
    ///
    /// # Errors
    /// [`Error::Machine`]: there is no such machine, or a program runs on it.
    pub fn remove(&self, name: &str) -> Result<()> {
        let _lock = self.lock()?;
        let mut machines = self.read()?;
        let index = index_of(&machines, name)?;
        let mut runners = runners(&self.dir)?.into_iter();
        if let Some(runner) = runners.find(|runner| runner.machine == name) {
            return Err(Error::Machine(MachineError::Running {
                name: name.to_owned(),
                pid: runner.pid,
            }));
        }
        machines.remove(index);
        self.replace(&machines)
    }

    /// All machines, in the order in which they were made, and their runs.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn list(&self) -> Result<Vec<MachineOverview>> {
        let _lock = self.lock()?;
        let runners = runners(&self.dir)?;
        let overview = |machine: Machine| {
            let ours = runners
                .iter()
                .filter(|runner| runner.machine == machine.name);
            let runs = ours.map(|runner| runner.pid).collect();
            MachineOverview { machine, runs }
        };
        Ok(self.read()?.into_iter().map(overview).collect())
    }

    /// Begins a run on a machine, which is not removed until the slot is dropped.
    pub(super) fn begin_run(&self, name: &str) -> Result<(Machine, RunSlot)> {
        let _lock = self.lock()?;
        let mut machines = self.read()?;
        let machine = machines.swap_remove(index_of(&machines, name)?);
        Ok((machine, RunSlot::take(&self.dir, name)?))
    }

    fn check_nodes(&self, machine: &Machine) -> Result<()> {
        let nodes = &machine.nodes;
        let mut networks = Vec::new();
        if nodes.is_empty() {
            return Err(MachineError::NoNodes.into());
        }
        for (index, name) in nodes.iter().enumerate() {
            let Some(node) = self.spec.nodes.iter().find(|node| node.name == *name) else {
                let known = self.spec.nodes.iter().map(|node| node.name.clone());
                return Err(Error::NoSuchNode {
                    cluster: self.spec.name.clone(),
                    name: name.clone(),
                    known: known.collect(),
                });
            };
            if !node.nic {
                return Err(MachineError::NoNic(name.clone()).into());
            }
            if nodes[..index].contains(name) {
                return Err(MachineError::NodeTwice(name.clone()).into());
            }
            let nic = self.spec.nic_at(&machine.nic_of(name));
            let nic = nic.ok_or_else(|| MachineError::NoSuchNic {
                node: name.clone(),
                nic: machine.nic.clone().unwrap_or_default(),
                known: node.nics.iter().map(|nic| nic.name.clone()).collect(),
            })?;
            if networks.first().is_some_and(|first| *first != nic.network) {
                return Err(MachineError::Apart([nodes[0].clone(), name.clone()]).into());
            }
            networks.push(nic.network);
        }
        Ok(())
    }

    /// Keeps others from reading and replacing records, and from beginning runs.
    fn lock(&self) -> Result<LockFile> {
        LockFile::lock(&self.dir.machines_lock())
    }

    fn read(&self) -> Result<Vec<Machine>> {
        let path = self.dir.machines();
        if !path.exists() {
            return Ok(Vec::new());
        }
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&text)
            .map_err(|error| Error::Host(format!("{}: {error}", path.display())))
    }

    /// A program that is killed here leaves the old records.
    fn replace(&self, machines: &[Machine]) -> Result<()> {
        let path = self.dir.machines();
        let new = path.with_extension("new");
        let text = serde_json::to_vec(machines).map_err(|error| Error::Host(error.to_string()))?;
        write(&new, &text)?;
        fs::rename(&new, &path).map_err(Error::io("replace", &path))
    }
}

fn index_of(machines: &[Machine], name: &str) -> Result<usize, MachineError> {
    let found = machines.iter().position(|machine| machine.name == name);
    found.ok_or_else(|| MachineError::NoSuchMachine {
        name: name.to_owned(),
        known: machines
            .iter()
            .map(|machine| machine.name.clone())
            .collect(),
    })
}

/// Fails if `new` cannot be beside `machines`.
fn check_new(new: &Machine, machines: &[Machine]) -> Result<(), MachineError> {
    if index_of(machines, &new.name).is_ok() {
        return Err(MachineError::Exists(new.name.clone()));
    }
    if machines.len() >= MAX_MACHINES {
        return Err(MachineError::TooMany);
    }
    for other in machines {
        let Some(node) = new.nodes.iter().find(|node| other.nodes.contains(node)) else {
            continue;
        };
        let (node, holder) = (node.clone(), other.name.clone());
        if other.exclusive {
            return Err(MachineError::Held { node, holder });
        }
        if new.exclusive {
            return Err(MachineError::Used { node, holder });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
