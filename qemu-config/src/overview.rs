//! What runs: every cluster of this user, its nodes and its device process.

use std::path::PathBuf;

use serde::Serialize;

use crate::accel::Accel;
use crate::cluster::Cluster;
use crate::manifest::{now_seconds, Mode};
use crate::monitor::{Monitor, STATE_SECONDS};
use crate::node::Node;
use crate::node_state::NodeState;
use crate::process::ProcessId;
use crate::qmp::QUERY_MEMORY_DEVICES;
use crate::state::Runtime;
use crate::wait::Deadline;
use crate::{EthernetPort, Result};

/// A cluster as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterOverview {
    /// Its name.
    pub name: String,
    /// Where its files are: logs, sockets, what it was made from.
    pub directory: PathBuf,
    /// What ends it.
    pub mode: Mode,
    /// What runs its guests.
    pub accel: Accel,
    /// Process that booted it, if that still runs.
    pub owner: Option<i32>,
    /// Seconds since it was booted.
    pub age_seconds: u64,
    /// Its nodes.
    pub nodes: Vec<NodeOverview>,
    /// Its device processes; none without NICs.
    pub devices: Vec<DeviceOverview>,
    /// The block devices in the memory of others that it was booted with.
    pub remote_memory: Vec<RemoteMemoryOverview>,
}

/// A block device that the cluster file puts into the memory of other nodes.
#[derive(Clone, Debug, Serialize)]
pub struct RemoteMemoryOverview {
    /// Its node.
    pub node: String,
    /// Its path there.
    pub device: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// On how many servers each block is kept.
    pub replicas: u16,
    /// Names of its servers.
    pub servers: Vec<String>,
}

/// A node as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct NodeOverview {
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: NodeState,
    /// Kernel series it boots.
    pub kernel: &'static str,
    /// Its virtual CPUs.
    pub cpus: u32,
    /// Its memory in bytes, with what was added; without if its QEMU does not answer.
    pub memory_bytes: u64,
    /// The addresses of its Ethernet port.
    pub ethernet: Option<EthernetPort>,
    /// Its QEMU.
    pub qemu: Option<ProcessOverview>,
}

/// A device process as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceOverview {
    /// What it is called.
    pub name: String,
    /// The process.
    #[serde(flatten)]
    pub process: ProcessOverview,
}

/// A process as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessOverview {
    /// Process number.
    pub pid: i32,
    /// True if it runs.
    pub alive: bool,
    /// Seconds since it started; 0 if it does not run.
    pub uptime_seconds: u64,
    /// Memory in use, shared parts included; 0 if it does not run.
    pub resident_bytes: u64,
}

/// Names of the clusters that another version of qnic has booted, with that version.
pub fn of_other_versions(runtime: &Runtime) -> Vec<(String, String)> {
    let names = runtime.names().into_iter();
    let others = names.filter_map(|name| {
        let manifest = runtime.dir(&name).read_manifest()?;
        manifest
            .check_version(&name)
            .is_err()
            .then_some((name, manifest.version))
    });
    others.collect()
}

/// Every cluster that this version of qnic has booted. One that is just being made or removed is left out.
pub fn overview(runtime: &Runtime) -> Vec<ClusterOverview> {
    let names = runtime.names().into_iter();
    let clusters = names.filter_map(|name| Cluster::open(runtime, &name, None).ok());
    clusters
        .map(|cluster| ClusterOverview::of(&cluster))
        .collect()
}

impl ClusterOverview {
    /// Returns true if all its nodes are well ([`NodeState::is_well`]) and its device processes
    /// run.
    pub fn is_well(&self) -> bool {
        let nodes = self.nodes.iter().all(|node| node.state.is_well());
        nodes && self.devices.iter().all(|device| device.process.alive)
    }

    /// What `cluster` is like now.
    pub fn of(cluster: &Cluster) -> Self {
        let nodes = std::thread::scope(|scope| {
            // In parallel: each node may take a while to answer.
            let nodes = cluster.nodes().iter();
            let asked = nodes.map(|node| scope.spawn(move || NodeOverview::of(cluster, node)));
            let asked: Vec<_> = asked.collect();
            asked
                .into_iter()
                .filter_map(|asked| asked.join().ok())
                .collect()
        });
        let devices = cluster.devices().into_iter();
        let devices = devices.map(|(name, process)| DeviceOverview {
            name,
            process: ProcessOverview::of(process),
        });
        let remote_memory = cluster.spec().remote_memory();
        let remote_memory = remote_memory.map(|(device, memory)| RemoteMemoryOverview {
            node: memory.on.clone(),
            device,
            size_bytes: memory.size.0,
            replicas: memory.replicas,
            servers: memory.servers.clone(),
        });
        let owner = cluster.manifest.owner.filter(|owner| owner.is_alive());
        Self {
            name: cluster.name().to_owned(),
            directory: cluster.dir.path().to_owned(),
            mode: cluster.manifest.mode,
            accel: cluster.manifest.accel,
            owner: owner.map(|owner| owner.pid),
            age_seconds: now_seconds().saturating_sub(cluster.manifest.created),
            nodes,
            devices: devices.collect(),
            remote_memory: remote_memory.collect(),
        }
    }
}

impl NodeOverview {
    fn of(cluster: &Cluster, node: &Node) -> Self {
        let spec = node.spec();
        Self {
            name: spec.name.clone(),
            state: node.state(),
            kernel: match spec.image {
                Some(_) => "image",
                None => spec.kernel.as_str(),
            },
            cpus: spec.cpus,
            memory_bytes: spec.memory.0 + added_memory(node).unwrap_or(0),
            ethernet: cluster.spec().ethernet_port(&spec.name),
            qemu: node.qemu().map(ProcessOverview::of),
        }
    }
}

/// Bytes that were added to the memory of a guest while it runs.
fn added_memory(node: &Node) -> Result<u64> {
    // QEMU is asked only where memory can have been added.
    if node.spec().memory_max.is_none() || !node.is_guest() {
        return Ok(0);
    }
    let mut monitor = Monitor::connect(&node.dir, Deadline::seconds(STATE_SECONDS))?;
    let added = monitor.execute(&QUERY_MEMORY_DEVICES)?;
    let sizes = added
        .iter()
        .filter_map(|device| device["data"]["size"].as_u64());
    Ok(sizes.sum())
}

impl ProcessOverview {
    fn of(process: ProcessId) -> Self {
        let alive = process.is_alive();
        Self {
            pid: process.pid,
            alive,
            uptime_seconds: process.age_seconds().filter(|_| alive).unwrap_or(0),
            resident_bytes: process.resident_bytes().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Asked, TestDir};
    use crate::{ByteSize, NodeSpec};

    #[test]
    fn memory_that_was_added_counts() {
        let test = TestDir::new();
        let _owned = test.create(Mode::Attached).unwrap();
        let (cluster, dir) = (
            Cluster::open(&test.runtime, "c", None).unwrap(),
            test.node(),
        );
        let spec = NodeSpec {
            memory_max: Some(ByteSize::mib(768)),
            ..NodeSpec::new("a")
        };
        let booted = spec.memory.0;
        let node = Node {
            spec,
            dir: dir.clone(),
            cancel: None,
            host: None,
        };
        // Its QEMU does not answer.
        assert_eq!(NodeOverview::of(&cluster, &node).memory_bytes, booted);
        let dimm = json!({ "type": "dimm", "data": { "size": ByteSize::mib(128).0 } });
        let _qemu = Asked::qemu(&dir, move |asked| match asked {
            "query-memory-devices" => json!([dimm, dimm]),
            _ => json!({}),
        });
        let grown = NodeOverview::of(&cluster, &node).memory_bytes;
        assert_eq!(grown, booted + ByteSize::mib(256).0);
    }
}
