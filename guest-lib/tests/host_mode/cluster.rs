//! A device with its NICs, and nodes on them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use qnic::provider::host::Node;
use qnic::{
    Access, Buffer, Endpoint, Nic, NodeId, NotificationId, Port, RemoteSegment, Segment,
    SegmentName,
};
use qnic_device::{ByteSize, Config, Device, NetworkSettings, NicSettings};
use qnic_links::units::{Probability, Span};
use qnic_links::Impairments;
use tempfile::TempDir;

/// Memory of each node.
pub(crate) const MEMORY: usize = 32 << 20;

/// Long enough for anything that will happen at all.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) const BOTH: Access = Access::READ.union(Access::WRITE);

pub(crate) const ONE: NotificationId = NotificationId::new(1).unwrap();

/// A device; its sockets live in a directory that goes away with it.
pub(crate) struct Cluster {
    device: Option<Device>,
    directory: TempDir,
}

impl Cluster {
    /// A device with NICs for the nodes 0 to `nodes`, exclusive.
    pub(crate) fn new(nodes: u16) -> Self {
        Self::with_network(nodes, None)
    }

    /// The same, on links that lose, double and reorder so many percent of the
    /// frames.
    pub(crate) fn on_bad_links(nodes: u16, percent: f64) -> Self {
        let faults = Probability::percent(percent);
        let default = Impairments {
            loss: faults,
            duplicate: faults,
            reorder: faults,
            delay: Span::nanoseconds(20_000),
            ..Impairments::default()
        };
        let network = NetworkSettings {
            default,
            ..NetworkSettings::default()
        };
        Self::with_network(nodes, Some(network))
    }

    fn with_network(nodes: u16, network: Option<NetworkSettings>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let nics = (0..nodes).map(|node| {
            let socket = directory.path().join(format!("{node}.sock"));
            NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(64))
        });
        let mut config = Config::new(nics.collect());
        config.network = network;
        let device = Device::start(&config).unwrap();
        Cluster {
            device: Some(device),
            directory,
        }
    }

    pub(crate) fn socket(&self, node: u16) -> PathBuf {
        self.directory.path().join(format!("{node}.sock"))
    }

    /// Becomes a node.
    pub(crate) fn nic(&self, node: u16) -> Nic {
        Nic::open_host_with(self.socket(node), MEMORY).unwrap()
    }

    /// Becomes a node that can also do what only host mode can.
    pub(crate) fn host_node(&self, node: u16) -> (Nic, Arc<Node>) {
        let provider = Arc::new(Node::connect(self.socket(node), MEMORY).unwrap());
        (
            Nic::with_provider(provider.clone(), self.socket(node)),
            provider,
        )
    }

    /// Ends the device, as if it were killed.
    pub(crate) fn kill_device(&mut self) {
        drop(self.device.take());
    }
}

/// A process with one exported buffer.
pub(crate) struct Peer {
    pub(crate) segment: Segment,
    pub(crate) buffer: Buffer,
    pub(crate) endpoint: Endpoint,
}

/// Name of the buffer of a [`Peer`].
pub(crate) const NAME: SegmentName = SegmentName(0xb0f);

impl Peer {
    pub(crate) fn new(nic: &Nic, port: u16, length: usize) -> Self {
        Self::with_access(nic, port, length, BOTH)
    }

    pub(crate) fn with_access(nic: &Nic, port: u16, length: usize, access: Access) -> Self {
        let endpoint = nic.register(Port(port)).unwrap();
        let buffer = endpoint.allocate(length).unwrap();
        Peer {
            segment: endpoint.export(NAME, &buffer, access).unwrap(),
            buffer,
            endpoint,
        }
    }

    /// Imports the buffer of another one.
    pub(crate) fn import(&self, other: &Peer) -> RemoteSegment {
        let (node, port) = (other.endpoint.node(), other.endpoint.port());
        self.endpoint.import(node, port, NAME, SOON).unwrap()
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| (place.wrapping_mul(131) ^ (place >> 8) ^ seed.wrapping_mul(29)) as u8)
        .collect()
}
