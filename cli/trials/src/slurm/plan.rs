//! Which nodes run on which host.
//!
//! ```text
//!   nodes in the order of the file:  n0 n1 │ n2 n3 │ n4 n5
//!                                    host 0│ host 1│ host 2
//! ```
//! - Each host has nodes that follow each other in the file, so neighbours of a ring or of a row of a torus stay
//!   together, and each host has at least one.
//! - The hosts have about the same memory. A job asks for the same on each of its hosts: as much as the largest part.

use std::fmt::Write;

use anyhow::{bail, ensure, Result};
use qnic_cluster::{ByteSize, ClusterSpec, NodeSpec};

/// What QEMU takes beside the memory of its guest.
const QEMU: ByteSize = ByteSize::mib(128);
/// What the device process and the task of a host take.
const HOST: ByteSize = ByteSize::mib(256);
/// Processors of the device process.
const DEVICE_CPUS: usize = 1;

/// What a host has for a job; what is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Processors.
    pub cpus: Option<usize>,
    /// Memory.
    pub memory: Option<ByteSize>,
}

/// What one node takes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Load {
    name: String,
    cpus: usize,
    memory: u64,
}

/// The parts of a cluster, one for each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    parts: Vec<Vec<Load>>,
}

impl Plan {
    /// Divides the nodes of `spec` among `hosts`; without, among as few as carry them when each has `capacity`.
    ///
    /// # Errors
    /// Says why they cannot be divided so.
    pub fn new(
        spec: &ClusterSpec,
        guests: bool,
        hosts: Option<usize>,
        capacity: Capacity,
    ) -> Result<Self> {
        let loads: Vec<_> = spec.nodes.iter().map(|node| load(node, guests)).collect();
        if let Some(hosts) = hosts {
            let nodes = loads.len();
            ensure!(
                (1..=nodes).contains(&hosts),
                "{nodes} nodes cannot be divided among {hosts} hosts: each host has at least one"
            );
            return Ok(Self::divide(&loads, hosts));
        }
        for hosts in 1..=loads.len() {
            let plan = Self::divide(&loads, hosts);
            if plan.fits(capacity) {
                return Ok(plan);
            }
        }
        let Some(largest) = loads.iter().max_by_key(|load| (load.memory, load.cpus)) else {
            bail!("the cluster has no nodes");
        };
        let alone = Self::divide(std::slice::from_ref(largest), 1);
        bail!(
            "node \"{}\" takes {} processors and {} on a host of its own, and a host of the partition has {}: choose \
             another with --partition, or say how many hosts it shall be with --hosts",
            largest.name,
            alone.cpus(),
            alone.memory(),
            capacity
        )
    }

    fn divide(loads: &[Load], hosts: usize) -> Self {
        let mut left: u64 = loads.iter().map(|load| load.memory).sum();
        let mut loads = loads.iter().peekable();
        let mut parts = Vec::new();
        for others in (0..hosts as u64).rev() {
            // As near to an even share of what is left as whole nodes come.
            let share = left / (others + 1);
            let (mut part, mut used) = (Vec::new(), 0);
            loop {
                let few = loads.len() as u64 <= others;
                let Some(next) = loads.peek() else { break };
                let must = part.is_empty() || others == 0;
                let enough = used + next.memory / 2 > share || few;
                if enough && !must {
                    break;
                }
                used += next.memory;
                part.extend(loads.next().cloned());
            }
            left -= used;
            parts.push(part);
        }
        Self { parts }
    }

    fn fits(&self, capacity: Capacity) -> bool {
        capacity.cpus.is_none_or(|cpus| self.cpus() <= cpus)
            && capacity.memory.is_none_or(|memory| self.memory() <= memory)
    }

    /// Names of the nodes of each host.
    pub fn parts(&self) -> Vec<Vec<String>> {
        let names = |part: &Vec<Load>| part.iter().map(|load| load.name.clone()).collect();
        self.parts.iter().map(names).collect()
    }

    /// Processors that the job asks for on each host.
    pub fn cpus(&self) -> usize {
        self.parts
            .iter()
            .map(|part| cpus_of(part))
            .max()
            .unwrap_or(0)
    }

    /// Memory that it asks for on each host.
    pub fn memory(&self) -> ByteSize {
        let memory = self.parts.iter().map(|part| memory_of(part));
        ByteSize(memory.max().unwrap_or(0))
    }

    /// The plan, to be read.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (host, part) in self.parts.iter().enumerate() {
            let names: Vec<_> = part.iter().map(|load| load.name.as_str()).collect();
            let (cpus, memory) = (cpus_of(part), ByteSize(memory_of(part)));
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "host {host}: {} ({cpus} CPUs, {memory})",
                names.join(", ")
            );
        }
        let (hosts, cpus, memory) = (self.parts.len(), self.cpus(), self.memory());
        let _ = writeln!(
            text,
            "asks for {hosts} hosts with {cpus} CPUs and {memory} each"
        );
        text
    }
}

impl std::fmt::Display for Capacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpus = self
            .cpus
            .map_or("any number of".to_owned(), |cpus| cpus.to_string());
        match self.memory {
            Some(memory) => write!(f, "{cpus} processors and {memory}"),
            None => write!(f, "{cpus} processors"),
        }
    }
}

fn load(node: &NodeSpec, guests: bool) -> Load {
    let most = node.memory_max.unwrap_or(node.memory).0;
    Load {
        name: node.name.clone(),
        cpus: node.cpus as usize,
        memory: most + if guests { QEMU.0 } else { 0 },
    }
}

fn cpus_of(part: &[Load]) -> usize {
    DEVICE_CPUS + part.iter().map(|load| load.cpus).sum::<usize>()
}

fn memory_of(part: &[Load]) -> u64 {
    HOST.0 + part.iter().map(|load| load.memory).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(sizes: &[u64]) -> ClusterSpec {
        let nodes = sizes.iter().enumerate();
        nodes.fold(ClusterSpec::new("c"), |spec, (index, size)| {
            let mut node = NodeSpec::new(format!("n{index}"));
            node.memory = ByteSize::mib(*size);
            spec.with(node)
        })
    }

    #[test]
    fn equal_nodes_are_divided_evenly_and_in_order() {
        let plan = Plan::new(&spec(&[256; 6]), true, Some(3), Capacity::default()).unwrap();
        assert_eq!(plan.parts(), [["n0", "n1"], ["n2", "n3"], ["n4", "n5"]]);
        assert_eq!((plan.cpus(), plan.memory()), (3, ByteSize::mib(1024)));
        let text = plan.describe();
        assert!(text.contains("host 1: n2, n3 (3 CPUs, 1GiB)"), "{text}");
        assert!(
            text.contains("asks for 3 hosts with 3 CPUs and 1GiB each"),
            "{text}"
        );
    }

    #[test]
    fn as_few_hosts_are_asked_for_as_carry_the_nodes() {
        let has = |cpus, mib| Capacity {
            cpus: Some(cpus),
            memory: Some(ByteSize::mib(mib)),
        };
        let hosts = |capacity| {
            let plan = Plan::new(&spec(&[256; 6]), true, None, capacity);
            plan.map(|plan| plan.parts().len())
                .map_err(|error| error.to_string())
        };
        assert_eq!(hosts(has(16, 8000)), Ok(1));
        assert_eq!(hosts(has(4, 8000)), Ok(2));
        assert_eq!(hosts(has(16, 1100)), Ok(3));
        let refused = hosts(has(16, 500)).unwrap_err();
        assert!(
            refused.contains("node \"n5\" takes 2 processors and 640MiB"),
            "{refused}"
        );
    }

    proptest! {
        /// Every node is on one host, in order; no host is empty, and none has much more than its share.
        #[test]
        fn every_node_is_placed_once(sizes in prop::collection::vec(1_u64..5000, 1..40), hosts in 1_usize..40) {
            let spec = spec(&sizes);
            let plan = Plan::new(&spec, true, Some(hosts), Capacity::default());
            prop_assert_eq!(plan.is_ok(), hosts <= sizes.len());
            if let Ok(plan) = plan {
                let parts = plan.parts();
                prop_assert_eq!(parts.len(), hosts);
                prop_assert!(parts.iter().all(|part| !part.is_empty()));
                let names: Vec<_> = spec.nodes.iter().map(|node| node.name.clone()).collect();
                prop_assert_eq!(parts.concat(), names);
            }
        }
    }
}
