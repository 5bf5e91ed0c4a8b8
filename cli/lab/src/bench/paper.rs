//! What [`qnic_apps::paper`] measures: between two nodes in this process, and in a guest with two NICs
//! (`qnic bench paper-guest`).

use std::sync::Arc;

use anyhow::{Context, Result};
use qnic::provider::host::Node;
use qnic::Nic;
use qnic_apps::paper::{End, Ends, Sample, Samples};
use qnic_cluster::NicSpec;
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

use super::figures::at;
use super::limits::MEMORY;
use super::point_to_point::said;
use super::tables::Tables;

impl Samples for Tables {
    fn sample(&mut self, sample: Sample) {
        let at = sample.at.and_then(|(what, value)| at(&what, value));
        let row = self.row(&sample.table, &sample.row, at);
        row.add(&sample.figure, [sample.value]);
    }
}

/// Two nodes in this process, and a device process of their own.
pub(super) struct HostEnds {
    pub(super) ends: Ends,
    _nodes: HostNodes,
}

impl HostEnds {
    pub(super) fn start() -> Result<Self> {
        let nodes = HostNodes::start(2)?;
        Ok(HostEnds {
            ends: ends(&nodes)?,
            _nodes: nodes,
        })
    }
}

/// The first two nodes, in this process.
pub(super) fn ends(nodes: &HostNodes) -> Result<Ends> {
    let end = |number| -> Result<End> {
        let socket = nodes.socket(number);
        let node = Arc::new(Node::connect(&socket, MEMORY).context("become a node")?);
        node.node().allow_physical();
        let nic = Nic::with_provider(node.clone(), socket);
        let evict = move |address, length| node.node().evict(address, length);
        Ok(End {
            nic,
            evict: Some(Arc::new(evict)),
        })
    };
    Ok([end(0)?, end(1)?])
}

/// Measures in a guest with two NICs, in a program of its own for each round.
pub(super) fn in_a_guest(rounds: usize, tables: &mut Tables) -> Result<()> {
    let mut spec = VmNodes::spec("paper", &["stable"])?;
    let nic = |name: &str| NicSpec {
        name: name.to_owned(),
        network: None,
    };
    for node in &mut spec.nodes {
        node.nics = ["near", "far"].map(nic).to_vec();
        // One for the thread that looks, one for that which is woken.
        node.cpus = 2;
    }
    let nodes = VmNodes::boot_spec(&spec)?;
    tables.rounds(rounds, "", false, |round| {
        let program = nodes.start(0, "paper")?;
        for sample in said::<Sample>(program, "what measures")? {
            round.sample(sample);
        }
        Ok(())
    })?;
    nodes.end()
}
