//! A device with its NICs, and nodes on them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use qnic::provider::host::Node;
use qnic::{
    Access, Buffer, Endpoint, Error, Nic, NodeId, NotificationId, Port, RemoteSegment, Segment,
    SegmentName, Signal, Source, Status,
};
use qnic_device::{
    ByteSize, Config, CountSettings, Device, Engines, MetricsSettings, NetworkSettings,
    NicSettings, TransportSettings,
};
use qnic_links::units::{Probability, Span};
use qnic_links::Impairments;
use tempfile::TempDir;

/// Memory of each node.
pub(crate) const MEMORY: usize = 32 << 20;

/// Name of the socket on which a device on links answers.
const CONTROL: &str = "control.sock";

/// Long enough for anything that will happen at all.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) const BOTH: Access = Access::READ.union(Access::WRITE);

pub(crate) const ONE: NotificationId = id(1);

/// The counted notification of a number.
pub(crate) const fn id(number: u32) -> NotificationId {
    NotificationId::new(number).unwrap()
}

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

    /// The same, without links, and with a window of so many fragments between two NICs.
    pub(crate) fn with_window(nodes: u16, window: u32) -> Self {
        let network = NetworkSettings {
            lossless: true,
            transport: TransportSettings {
                window: Some(window),
                ..TransportSettings::default()
            },
            ..NetworkSettings::default()
        };
        Self::with_network(nodes, Some(network))
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

    /// The same, on links of a network that can be changed ([`Cluster::net`]). A silent node is not
    /// given up while a test runs.
    pub(crate) fn on_links(nodes: u16) -> Self {
        Self::with_peer_timeout(nodes, Duration::from_secs(3600))
    }

    /// The same, and a node is given up after so much silence.
    pub(crate) fn with_peer_timeout(nodes: u16, timeout: Duration) -> Self {
        let network = NetworkSettings {
            peer_timeout: Some(Span::nanoseconds(timeout.as_nanos() as u64)),
            ..NetworkSettings::default()
        };
        Self::with_network(nodes, Some(network))
    }

    /// Changes the links between two nodes, as `cargo qnic net set` does.
    pub(crate) fn net(&self, between: [u16; 2], change: &str) {
        let mut control = UnixStream::connect(self.directory.path().join(CONTROL)).unwrap();
        let links = format!(r#"{{"between":{between:?}}}"#);
        writeln!(
            control,
            r#"{{"cmd":"net_set","links":{links},"change":{change}}}"#
        )
        .unwrap();
        let mut answer = String::new();
        BufReader::new(control).read_line(&mut answer).unwrap();
        assert!(answer.contains("changed"), "{answer}");
    }

    /// The same, with NICs that have so much for each process (Q1).
    pub(crate) fn with_counts(nodes: u16, counts: CountSettings) -> Self {
        Self::with(nodes, counts, None)
    }

    fn with_network(nodes: u16, network: Option<NetworkSettings>) -> Self {
        Self::with(nodes, CountSettings::default(), network)
    }

    fn with(nodes: u16, counts: CountSettings, network: Option<NetworkSettings>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let nics = (0..nodes).map(|node| {
            let socket = directory.path().join(format!("{node}.sock"));
            NicSettings {
                counts,
                ..NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(64))
            }
        });
        let mut config = Config::new(nics.collect());
        let control = directory.path().join(CONTROL);
        config.metrics = network.is_some().then(|| MetricsSettings::new(control));
        config.network = network;
        config.engine.engines = Engines::Count(crate::ENGINES);
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

    /// Times that the device has given its processor to others.
    pub(crate) fn yields(&self) -> u64 {
        let stats = self.device.as_ref().and_then(Device::stats);
        stats.unwrap().report.engine.yields
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

    /// Writes, and waits for the end of the write.
    pub(crate) fn write<'a>(
        &self,
        to: &'a RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) {
        self.endpoint.write(to, offset, source).fenced().unwrap();
    }

    /// Writes and signals [`ONE`].
    pub(crate) fn write_notify<'a>(
        &self,
        to: &'a RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) {
        let ticket = self.endpoint.write(to, offset, source).notify(ONE).post();
        drop(ticket.unwrap());
    }

    /// Writes, signals [`ONE`], and waits for the end of the write.
    pub(crate) fn write_fenced_notify<'a>(
        &self,
        to: &'a RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) {
        let ended = self.endpoint.write(to, offset, source).notify(ONE).fenced();
        ended.unwrap();
    }

    pub(crate) fn signal(&self, to: &RemoteSegment, signal: impl Into<Signal>) {
        drop(
            self.endpoint
                .write(to, 0, b"")
                .notify(signal)
                .post()
                .unwrap(),
        );
    }

    /// Waits for a signal of a notification and acknowledges it.
    pub(crate) fn take(&self, id: NotificationId) {
        self.endpoint.notification(id).take(Some(SOON)).unwrap();
    }

    /// Reads into the own buffer, at `to`.
    pub(crate) fn read(&self, from: &RemoteSegment, offset: u64, to: usize, length: usize) {
        let part = self.segment.part(to, length);
        self.endpoint.read(from, offset, part).fenced().unwrap();
    }

    /// Stores bytes in the own buffer.
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.buffer.write(offset, bytes).unwrap();
    }

    /// Bytes of the own buffer.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        self.buffer.read_vec(offset, length).unwrap()
    }

    /// A word of the own buffer.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        self.buffer.load_u64(offset).unwrap()
    }

    /// Writes all of the own buffer until that fails, and returns the error.
    pub(crate) fn write_until_error(&self, to: &RemoteSegment) -> Error {
        let source = self.segment.part(0, self.buffer.len());
        loop {
            if let Err(error) = self.endpoint.write(to, 0, source).fenced() {
                return error;
            }
        }
    }
}

/// A process on each of two nodes.
pub(crate) struct Pair {
    pub(crate) a: Peer,
    pub(crate) b: Peer,
    /// The buffer of `b`, imported by `a`.
    pub(crate) remote: RemoteSegment,
    pub(crate) cluster: Cluster,
}

/// Two processes with buffers of so many bytes.
pub(crate) fn pair(length: usize) -> Pair {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Peer::new(&cluster.nic(node), 1, length));
    Pair {
        remote: a.import(&b),
        a,
        b,
        cluster,
    }
}

/// A process on each of so many ports of so many nodes.
pub(crate) fn peers(nics: &[Nic], ports: u16, length: usize) -> Vec<Peer> {
    let on = |nic| (1..=ports).map(move |port| Peer::new(nic, port, length));
    nics.iter().flat_map(on).collect()
}

/// Runs a thread for each of these, and returns their results.
pub(crate) fn in_threads<T: Sync, R: Send>(all: &[T], run: impl Fn(u64, &T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |(number, one)| scope.spawn(move || run(number, one));
        let threads: Vec<_> = (0..).zip(all).map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, R>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

/// The status with which a call failed.
pub(crate) fn status<T>(result: qnic::Result<T>) -> Status {
    let error = result.map(drop).unwrap_err();
    error.status().unwrap_or_else(|| panic!("{error}"))
}

/// Bytes that differ from index to index and from seed to seed.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index.wrapping_mul(131) ^ (index >> 8) ^ seed.wrapping_mul(29)) as u8)
        .collect()
}
