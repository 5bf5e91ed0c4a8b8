//! A running device process: starts and ends its threads.

use std::net::TcpListener;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{anyhow, Context, Result};
use qnic_abi::attach::{CONFIG_SIZE, FIRST_DOORBELL};
use qnic_abi::NodeId;
use qnic_config::{
    Config, ConfigError, MetricsSettings, NetworkSettings, NicSettings, ProcessSettings,
    UdpSettings,
};
use qnic_links::ethernet::{Hosts, Inbox, Lease, Switch};
use qnic_links::{
    siblings, Carrier, Fabric, NetworkPlan, PrivateKey, ShmCarrier, ShmPeer, UdpCarrier,
    UdpIdentity, UdpPeer,
};
use qnic_nic::{Limits, Nic, NicConfig};
use zerocopy::IntoBytes;

use crate::attach::{self, Attachment, Socket};
use crate::capture::{Captures, Names};
use crate::engine::{self, Commands, Engine, EngineGone, EngineHandle, Engines, Node};
use crate::ethernet::{self, EthernetPort};
use crate::exposition::{self, Bounds, Listener, Source};
use crate::memory::GuestMemory;
use crate::metrics::{self, Stats, Streams};
use crate::ram;
use crate::sram::Sram;
use crate::stop::Stop;
use crate::throttle::Throttle;

const BAD_CONFIG: &str = "bad configuration";
/// Threads, eventfds.
const REFUSED: &str = "the system refused a thread or a descriptor";

/// A running device. Dropping it ends it.
#[derive(Debug)]
pub struct Device {
    engines: Engines,
    engine_threads: Vec<JoinHandle<()>>,
    /// The threads that serve sockets.
    servers: Vec<(Arc<Stop>, JoinHandle<()>)>,
    /// The socket to which other processes of this host connect.
    _listening: Option<Socket>,
}

/// Ends a device from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Engines);

impl Stopper {
    /// Makes [`Device::wait`] return.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Device {
    /// Starts a device; when it returns, all its sockets listen.
    ///
    /// # Errors
    /// Says why it cannot start, with a [`ConfigError`] if that is the configuration;
    /// nothing is left behind then.
    pub fn start(config: &Config) -> Result<Self> {
        config.check().context(BAD_CONFIG)?;
        let plan = config.network_plan().context(BAD_CONFIG)?;
        let Ready {
            mut fabrics,
            engines,
            commands,
            attachments,
        } = Ready::new(config, &plan)?;
        let mut listening = None;
        // Without links the fabrics stay as they are: lossless.
        if let Some(network) = config.network.as_ref().filter(|it| !it.lossless) {
            for fabric in &mut fabrics {
                let joined = fabric.join(&plan);
                joined
                    .map_err(|message| ConfigError::new("network", message))
                    .context(BAD_CONFIG)?;
            }
            // The configuration has no other processes beside several engines.
            listening = connect(&mut fabrics[0], network)?;
        }
        let sockets = config.nics.iter().map(|nic| Socket::bind(&nic.socket));
        let sockets = sockets.collect::<Result<Vec<_>>>()?;
        let (ports, hosts) = add_ports(config, &mut fabrics, &engines)?;
        let metrics = config.metrics.as_ref();
        let metrics = metrics.map(MetricsSockets::bind).transpose()?;

        let mut device = Device {
            engines,
            engine_threads: Vec::new(),
            servers: Vec::new(),
            _listening: listening,
        };
        device.run_engines(config, fabrics, commands)?;
        for (attachment, socket) in attachments.into_iter().zip(sockets) {
            let attachment = Arc::new(attachment);
            let name = attachment.name.clone();
            device.serve(&name, socket, move |socket, stop| {
                attach::serve(&attachment, socket.listener(), stop);
            })?;
        }
        for (port, socket) in ports {
            let (port, name) = (Arc::new(port), "ethernet");
            device.serve(name, socket, move |socket, stop| {
                ethernet::serve(&port, socket.listener(), stop);
            })?;
        }
        if let Some((socket, hosts)) = hosts {
            let engines = device.engines.clone();
            device.serve("ethernet-host", socket, move |socket, stop| {
                ethernet::host::serve(&hosts, &engines, socket.listener(), stop);
            })?;
        }
        if let Some(sockets) = metrics {
            device.serve_metrics(config, sockets)?;
        }
        Ok(device)
    }

    /// Starts a thread for each engine. When one of them ends, all do.
    fn run_engines(
        &mut self,
        config: &Config,
        fabrics: Vec<Fabric<Node>>,
        commands: Vec<Commands>,
    ) -> Result<()> {
        let (count, started) = (fabrics.len(), Instant::now());
        for (number, (fabric, commands)) in fabrics.into_iter().zip(commands).enumerate() {
            let nics = config.nics.iter().skip(number).step_by(count);
            let names = nics.map(|nic| nic.name.clone()).collect();
            let window = config.engine.poll_window();
            let engine = Engine::new(fabric, names, commands, window, started).context(REFUSED)?;
            let end = EndAll(self.stopper());
            let name = match number {
                0 => "engine".to_owned(),
                _ => format!("engine-{number}"),
            };
            let thread = spawn(&name, move || {
                let _end = end;
                engine.run();
            });
            self.engine_threads.push(thread?);
        }
        Ok(())
    }

    fn serve_metrics(&mut self, config: &Config, sockets: MetricsSockets) -> Result<()> {
        let engines = self.engines.clone();
        let nics = config.nics.iter();
        let names: Names = nics.map(|nic| (nic.node, nic.name.clone())).collect();
        self.serve("metrics", sockets.control, move |socket, stop| {
            let streams = Streams::new(Captures::new(names));
            metrics::serve(socket.listener(), &engines, streams, stop);
        })?;
        if sockets.listeners.is_empty() {
            return Ok(());
        }
        let mut source = Source::new(self.engines.clone(), process_name(config));
        let listeners = sockets.listeners;
        self.serve("http", sockets.http, move |_socket, stop| {
            let bounds = Bounds::default();
            exposition::serve(&listeners, &bounds, &mut || source.text(), stop);
        })
    }

    /// Runs `work` on a thread of its own, which owns `socket`.
    fn serve<S: Send + 'static>(
        &mut self,
        name: &str,
        socket: S,
        work: impl FnOnce(&S, &Stop) + Send + 'static,
    ) -> Result<()> {
        let stop = Arc::new(Stop::new().context(REFUSED)?);
        let raised = stop.clone();
        let thread = spawn(name, move || work(&socket, &raised))?;
        self.servers.push((stop, thread));
        Ok(())
    }

    /// Ends the device from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.engines.clone())
    }

    /// All counters, or `None` once an engine has ended.
    pub fn stats(&self) -> Option<Stats> {
        metrics::collect(&self.engines)
            .map_err(|EngineGone| ())
            .ok()
    }

    /// Announces a pause of the machine of a node: its NIC is not suspended when its queues
    /// stop, and continues to serve its peers. A paused machine must continue before it is
    /// reset, or its NIC writes into memory that has another use by then. Returns false if
    /// no driver has started that node's NIC.
    pub fn expect_pause(&self, node: u16) -> bool {
        self.engines.expect_pause(node).unwrap_or(false)
    }

    /// Waits until the device is stopped by its [`Stopper`], ends its threads and
    /// removes its sockets.
    ///
    /// # Errors
    /// Returns an error if it ended by itself: an engine thread panicked.
    pub fn wait(mut self) -> Result<()> {
        let threads = std::mem::take(&mut self.engine_threads);
        let ended = threads
            .into_iter()
            .map(JoinHandle::join)
            .collect::<Vec<_>>();
        drop(self);
        let ended = ended.into_iter().collect::<Result<(), _>>();
        ended.map_err(|_| anyhow!("the engine failed; its message is above"))
    }

    /// Ends the device and waits for its threads.
    ///
    /// # Errors
    /// As [`Device::wait`].
    pub fn stop(self) -> Result<()> {
        self.stopper().stop();
        self.wait()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stopper().stop();
        let engines = std::mem::take(&mut self.engine_threads);
        for (stop, _) in &self.servers {
            stop.raise();
        }
        let servers = self.servers.drain(..).map(|(_, thread)| thread);
        for thread in engines.into_iter().chain(servers) {
            if let Err(panic) = thread.join() {
                if !std::thread::panicking() {
                    resume_unwind(panic);
                }
            }
        }
    }
}

/// Ends all engines when it is dropped, also by a panic.
struct EndAll(Stopper);

impl Drop for EndAll {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What is made before any thread runs.
struct Ready {
    /// One for each engine.
    fabrics: Vec<Fabric<Node>>,
    engines: Engines,
    /// The ends that engines take.
    commands: Vec<Commands>,
    /// In the order of the NICs.
    attachments: Vec<Attachment>,
}

impl Ready {
    /// Deals the NICs to engines, and joins these.
    fn new(config: &Config, plan: &NetworkPlan) -> Result<Self> {
        let count = engine_count(config);
        let channels = (0..count).map(|_| engine::channel());
        let channels = channels.collect::<std::io::Result<Vec<_>>>();
        let (handles, commands) = channels.context(REFUSED)?.into_iter().unzip();
        let engines = Engines::new(handles);
        let limits = limits(config);
        let mut fabrics: Vec<_> = (0..count).map(|_| Fabric::default()).collect();
        let mut nodes = vec![Vec::new(); count];
        let mut attachments = Vec::with_capacity(config.nics.len());
        for (index, settings) in config.nics.iter().enumerate() {
            let (fabric, engine) = (&mut fabrics[index % count], engines.of_nic(index));
            attachments.push(add_nic(fabric, settings, (&limits, plan), engine)?);
            nodes[index % count].push(settings.node);
        }
        if count > 1 {
            let siblings = siblings::mesh(count).context(REFUSED)?;
            for (fabric, siblings) in fabrics.iter_mut().zip(siblings) {
                fabric
                    .join_engines(siblings, &nodes)
                    .map_err(|duplicate| ConfigError::new("nic.node", duplicate.to_string()))
                    .context(BAD_CONFIG)?;
            }
        }
        Ok(Ready {
            fabrics,
            engines,
            commands,
            attachments,
        })
    }
}

/// Engines of this process.
fn engine_count(config: &Config) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let network = config.network.as_ref();
    let alone = network.is_none_or(|network| network.processes.is_empty());
    config
        .engine
        .engines
        .count(config.nics.len(), processors, alone)
}

/// Where programs of the host join.
type HostSocket = Option<(Socket, Arc<Hosts>)>;

/// The Ethernet ports of the network: their addresses, and those of this process with their sockets; and
/// the socket for the host.
fn add_ports(
    config: &Config,
    fabrics: &mut [Fabric<Node>],
    engines: &Engines,
) -> Result<(Vec<(EthernetPort, Socket)>, HostSocket)> {
    let addresses = config.ethernet.iter().map(|port| (port.mac, port.node));
    let switch = Switch::new(addresses);
    for fabric in &mut *fabrics {
        fabric.set_switch(switch.clone());
    }
    let mut ports = Vec::new();
    for settings in &config.ethernet {
        let mut nics = config.nics.iter();
        let index = nics.position(|nic| nic.node == settings.node);
        let (Some(index), Some(socket)) = (index, &settings.socket) else {
            continue;
        };
        let inbox = Arc::new(Inbox::new().context(REFUSED)?);
        let (engine, slot) = (index % fabrics.len(), index / fabrics.len());
        let name = &config.nics[index].name;
        let lease = settings.ip.map(|ip| Lease {
            ip,
            mtu: settings.mtu,
            name: name.clone(),
        });
        fabrics[engine].add_port(slot, inbox.clone(), lease);
        let port = EthernetPort {
            slot,
            name: name.clone(),
            mac: settings.mac,
            mtu: settings.mtu,
            pairs: settings.queues.into(),
            checksums: settings.checksum_offload,
            segments: settings.checksum_offload && settings.segmentation_offload,
            inbox,
            throttle: Throttle::default(),
            engine: engines.of_nic(index).clone(),
        };
        ports.push((port, Socket::bind(socket)?));
    }
    let host = config.ethernet_host.as_deref();
    let host = host.map(Socket::bind_messages).transpose()?;
    Ok((ports, host.map(|socket| (socket, switch.hosts().clone()))))
}

/// Bounds of the NICs.
fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    if let Some(network) = &config.network {
        if let Some(time) = network.peer_timeout {
            limits.peer_timeout = time.get();
        }
        if let Some(time) = network.fault_timeout {
            limits.fault_timeout = time.get();
        }
        network.transport.apply(&mut limits);
    }
    limits
}

/// Where metrics can be asked for.
struct MetricsSockets {
    control: Socket,
    /// Removes the name of the Unix socket among `listeners`.
    http: Option<Socket>,
    listeners: Vec<Listener>,
}

impl MetricsSockets {
    fn bind(settings: &MetricsSettings) -> Result<Self> {
        let control = Socket::bind(&settings.socket)?;
        let path = settings.http_socket.as_deref();
        let http = path.map(Socket::bind).transpose()?;
        let mut listeners = Vec::new();
        if let Some(socket) = &http {
            let listener = socket.listener().try_clone().context(REFUSED)?;
            listeners.push(Listener::Unix(listener));
        }
        if let Some(address) = settings.http {
            let listener = TcpListener::bind(address);
            let listener =
                listener.with_context(|| format!("metrics.http: listen on {address}"))?;
            listeners.push(Listener::Tcp(listener));
        }
        Ok(MetricsSockets {
            control,
            http,
            listeners,
        })
    }
}

/// The name by which other processes know this one, if there are any.
fn process_name(config: &Config) -> Option<String> {
    let network = config.network.as_ref()?;
    let shm = network.shm.as_ref().map(|shm| &shm.name);
    shm.or(network.udp.as_ref().map(|udp| &udp.name)).cloned()
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(work).context(REFUSED)
}

fn add_nic(
    fabric: &mut Fabric<Node>,
    settings: &NicSettings,
    (limits, plan): (&Limits, &NetworkPlan),
    engine: &EngineHandle,
) -> Result<Attachment> {
    let name = &settings.name;
    let mut nodes = plan.nodes.clone();
    nodes.sort_unstable();
    let nic = Nic::new(NicConfig {
        node: settings.node,
        frames: ram::frames(settings.ram, settings.ram_max),
        windows: settings.windows,
        doorbells: settings.doorbells,
        limits: Limits {
            counts: settings.counts.into(),
            ..limits.clone()
        },
        routes: plan.routes(settings.node),
        nodes,
    })
    .map_err(|error| anyhow!("NIC \"{name}\": no SRAM can be laid out: {error}"))?;
    let sram_bytes = nic.geometry().sram_bytes;
    let sram = Sram::new(name, sram_bytes).with_context(|| format!("NIC \"{name}\""))?;
    let sram_file = sram.file().try_clone().context(REFUSED)?;
    let sram_identity = sram.identity().context(REFUSED)?;
    let mut config_space = [0; CONFIG_SIZE];
    config_space.copy_from_slice(nic.config_space().as_bytes());
    let memory = GuestMemory::default();
    let slot = fabric
        .add(nic, Node { sram, memory })
        .map_err(|duplicate| ConfigError::new("nic.node", duplicate.to_string()))
        .context(BAD_CONFIG)?;
    Ok(Attachment {
        slot,
        name: name.clone(),
        queues: FIRST_DOORBELL + settings.doorbells as usize,
        config_space,
        sram: sram_file,
        sram_bytes,
        sram_identity,
        throttle: Throttle::default(),
        engine: engine.clone(),
    })
}

/// Adds the carriers to other processes. Returns the socket to which other processes of
/// this host connect: its name is removed with it.
fn connect(fabric: &mut Fabric<Node>, network: &NetworkSettings) -> Result<Option<Socket>> {
    let mut add = |carrier: Box<dyn Carrier>, nodes: &[Vec<NodeId>]| {
        fabric
            .connect(carrier, nodes)
            .map_err(|duplicate| ConfigError::new("network.process", duplicate.to_string()))
            .context(BAD_CONFIG)
    };
    if let Some(udp) = &network.udp {
        let (peers, nodes) = peers(network, |process| {
            Some(UdpPeer {
                name: process.name.clone(),
                address: process.address?,
                public_key: process.public_key?,
            })
        });
        let carrier = udp_carrier(udp, &peers)
            .with_context(|| format!("process \"{}\", UDP at {}", udp.name, udp.listen))?;
        add(Box::new(carrier), &nodes)?;
    }
    let Some(shm) = &network.shm else {
        return Ok(None);
    };
    let listening = Socket::bind(&shm.socket)?;
    let (peers, nodes) = peers(network, |process| {
        let (name, socket) = (process.name.clone(), process.socket.clone()?);
        Some(ShmPeer { name, socket })
    });
    let listener = listening.listener().try_clone().context(REFUSED)?;
    let carrier = ShmCarrier::new(&shm.name, listener, &peers).context(REFUSED)?;
    add(Box::new(carrier), &nodes)?;
    Ok(Some(listening))
}

/// The processes for which `peer` returns a peer, and the nodes of each.
fn peers<P>(
    network: &NetworkSettings,
    peer: impl Fn(&ProcessSettings) -> Option<P>,
) -> (Vec<P>, Vec<Vec<NodeId>>) {
    let processes = network.processes.iter();
    let with_nodes = processes.filter_map(|process| {
        let nodes = process.nodes.iter().copied().map(NodeId);
        Some((peer(process)?, nodes.collect()))
    });
    with_nodes.unzip()
}

fn udp_carrier(udp: &UdpSettings, peers: &[UdpPeer]) -> Result<UdpCarrier> {
    let private_key = PrivateKey::read(&udp.private_key).map_err(|error| {
        let message = format!("{}: {error}", udp.private_key.display());
        ConfigError::new("network.udp.private_key", message)
    })?;
    let identity = UdpIdentity {
        name: udp.name.clone(),
        private_key,
        encrypt: udp.encrypt,
    };
    UdpCarrier::new(&identity, udp.listen, peers).context("cannot listen")
}
