//! A device of a test's own, in this process, and nodes on its NICs.

use qnic_abi::NodeId;
use qnic_device::{ByteSize, Config, Device, NetworkSettings, NicSettings};
use qnic_host::HostNode;
use qnic_links::units::{Probability, Span};
use qnic_links::Impairments;
use tempfile::TempDir;

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<HostNode>,
    /// To be dropped before the nodes, if a test wants that.
    pub(crate) device: Option<Device>,
    _directory: TempDir,
}

impl Cluster {
    pub(crate) fn new(nodes: u16, network: Option<NetworkSettings>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = |node: u16| directory.path().join(format!("{node}.sock"));
        let nics = (0..nodes).map(|node| {
            let memory = ByteSize::mib(64);
            NicSettings::new(node.to_string(), NodeId(node), socket(node), memory)
        });
        let mut config = Config::new(nics.collect());
        config.network = network;
        let device = Device::start(&config).unwrap();
        let nodes = (0..nodes).map(|node| HostNode::connect(socket(node), 32 << 20).unwrap());
        Cluster {
            nodes: nodes.collect(),
            device: Some(device),
            _directory: directory,
        }
    }
}

/// Links that lose, double and reorder this share of frames each, with a delay.
pub(crate) fn bad_links(percent: f64, delay_ns: u64) -> Option<NetworkSettings> {
    let faults = Probability::percent(percent);
    let default = Impairments {
        loss: faults,
        duplicate: faults,
        reorder: faults,
        delay: Span::nanoseconds(delay_ns),
        ..Impairments::default()
    };
    Some(NetworkSettings {
        default,
        ..NetworkSettings::default()
    })
}
