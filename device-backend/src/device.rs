//! A running device process: starts and ends its threads.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;

use qnic_abi::attach::CONFIG_SIZE;
use qnic_abi::header::GeometryError;
use qnic_abi::NodeId;
use qnic_config::{
    Config, ConfigError, NetworkSettings, NicSettings, ProcessSettings, UdpSettings,
};
use qnic_links::{Carrier, ClusterKey, Fabric, ShmCarrier, ShmPeer, UdpCarrier, UdpPeer};
use qnic_nic::{Limits, Nic, NicConfig};
use zerocopy::IntoBytes;

use crate::attach::{self, Attachment, Socket, SocketError};
use crate::capture::{Captures, Names};
use crate::engine::{self, Engine, EngineGone, EngineHandle, Node};
use crate::metrics::{self, Stats};
use crate::ram;
use crate::sram::{Sram, SramError};
use crate::stop::Stop;
use crate::throttle::Throttle;

/// Why a device does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration breaks a rule.
    #[error("bad configuration: {0}")]
    Config(#[from] ConfigError),
    /// A NIC cannot be made.
    #[error("NIC \"{name}\": no SRAM can be laid out: {error:?}")]
    Geometry {
        /// Its name.
        name: String,
        /// Why not.
        error: GeometryError,
    },
    /// A NIC has no SRAM.
    #[error("NIC \"{name}\": {error}")]
    Sram {
        /// Its name.
        name: String,
        /// Why not.
        error: SramError,
    },
    /// Other processes cannot be talked to.
    #[error("process \"{name}\", UDP at {address}: {problem}")]
    Udp {
        /// Name of this process.
        name: String,
        /// Where it should listen.
        address: SocketAddr,
        /// Why not.
        problem: String,
    },
    /// A socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Threads, eventfds.
    #[error("the system refused a thread or a descriptor: {0}")]
    System(#[from] std::io::Error),
}

/// Why a device ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The engine thread panicked: an error in this program.
    #[error("the engine failed; its message is above")]
    EngineFailed,
}

/// A running device. Dropping it ends it.
#[derive(Debug)]
pub struct Device {
    engine: EngineHandle,
    engine_thread: Option<JoinHandle<()>>,
    servers: Vec<Server>,
    /// Where other processes of this host call: named while the device runs.
    _callers: Option<Socket>,
}

/// A thread that serves a socket.
#[derive(Debug)]
struct Server {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

/// Ends a device from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(EngineHandle);

impl Stopper {
    /// Makes [`Device::wait`] return.
    pub fn stop(&self) {
        let _ = self.0.send(Engine::stop);
    }
}

impl Device {
    /// Starts a device; when it returns, all its sockets listen.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let (handle, commands) = engine::channel()?;
        let mut fabric = Fabric::new();
        let mut limits = Limits::default();
        let network = config.network.as_ref();
        if let Some(time) = network.and_then(|network| network.peer_timeout) {
            limits.peer_timeout = time.get();
        }
        let mut attachments = Vec::with_capacity(config.nics.len());
        for settings in &config.nics {
            attachments.push(add_nic(&mut fabric, settings, &limits, &handle)?);
        }
        let mut callers = None;
        if let Some(network) = &config.network {
            let joined = fabric.join(&config.network_plan()?);
            joined.map_err(|message| ConfigError::new("network", message))?;
            callers = connect(&mut fabric, network)?;
        }
        let sockets = config.nics.iter().map(|nic| Socket::bind(&nic.socket));
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        let metrics = config.metrics.as_ref();
        let metrics = metrics.map(|metrics| Socket::bind(&metrics.socket));
        let metrics = metrics.transpose()?;

        let names = config.nics.iter().map(|nic| nic.name.clone()).collect();
        let window = config.engine.poll_window();
        let engine = Engine::new(fabric, names, commands, window)?;
        let mut device = Device {
            engine: handle,
            engine_thread: Some(spawn("engine", move || engine.run())?),
            servers: Vec::new(),
            _callers: callers,
        };
        for (attachment, socket) in attachments.into_iter().zip(sockets) {
            let attachment = Arc::new(attachment);
            let name = attachment.name.clone();
            device.serve(&name, socket, move |socket, stop| {
                attach::serve(&attachment, socket.listener(), stop);
            })?;
        }
        if let Some(socket) = metrics {
            let engine = device.engine.clone();
            let nics = config.nics.iter();
            let names: Names = nics.map(|nic| (nic.node, nic.name.clone())).collect();
            device.serve("metrics", socket, move |socket, stop| {
                metrics::serve(socket.listener(), &engine, Captures::new(names), stop);
            })?;
        }
        Ok(device)
    }

    fn serve(
        &mut self,
        name: &str,
        socket: Socket,
        work: impl FnOnce(&Socket, &Stop) + Send + 'static,
    ) -> std::io::Result<()> {
        let stop = Arc::new(Stop::new()?);
        let raised = stop.clone();
        let thread = spawn(name, move || work(&socket, &raised))?;
        self.servers.push(Server { stop, thread });
        Ok(())
    }

    /// The way to end the device from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.engine.clone())
    }

    /// What the NICs are doing, or `None` once the engine has ended.
    pub fn stats(&self) -> Option<Stats> {
        metrics::collect(&self.engine).map_err(|EngineGone| ()).ok()
    }

    /// Announces a pause of the machine of a node: its NIC is not reset when its queues
    /// stop, and continues to serve its peers. A paused machine must continue before it is
    /// reset, or its NIC writes into memory that has another use by then. Returns false if
    /// no driver has started that node's NIC.
    pub fn expect_pause(&self, node: u16) -> bool {
        let running = self.engine.ask(move |engine| engine.expect_pause(node));
        running.unwrap_or(false)
    }

    /// Waits until the device is stopped by its [`Stopper`], ends its threads and
    /// removes its sockets.
    ///
    /// # Errors
    /// [`DeviceError`] if it ended by itself.
    pub fn wait(mut self) -> Result<(), DeviceError> {
        let ended = self.engine_thread.take().map_or(Ok(()), JoinHandle::join);
        drop(self);
        ended.map_err(|_| DeviceError::EngineFailed)
    }

    /// Ends the device and waits for its threads.
    ///
    /// # Errors
    /// [`DeviceError`] if it had ended by itself.
    pub fn stop(self) -> Result<(), DeviceError> {
        self.stopper().stop();
        self.wait()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stopper().stop();
        let engine = self.engine_thread.take();
        for server in &self.servers {
            server.stop.raise();
        }
        let servers = self.servers.drain(..).map(|server| server.thread);
        for thread in engine.into_iter().chain(servers) {
            if let Err(panic) = thread.join() {
                if !std::thread::panicking() {
                    resume_unwind(panic);
                }
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}

fn add_nic(
    fabric: &mut Fabric<Node>,
    settings: &NicSettings,
    limits: &Limits,
    engine: &EngineHandle,
) -> Result<Attachment, StartError> {
    let name = || settings.name.clone();
    let sram_error = |error| StartError::Sram {
        name: name(),
        error,
    };
    let nic = Nic::new(NicConfig {
        node: settings.node,
        frames: ram::frames(settings.ram),
        windows: settings.windows,
        doorbells: settings.doorbells,
        limits: limits.clone(),
    })
    .map_err(|error| StartError::Geometry {
        name: name(),
        error,
    })?;
    let sram_bytes = nic.geometry().sram_bytes;
    let sram = Sram::new(&settings.name, sram_bytes).map_err(sram_error)?;
    let mut config_space = [0; CONFIG_SIZE];
    config_space.copy_from_slice(nic.config_space().as_bytes());
    let attachment = Attachment {
        slot: fabric.len(),
        name: name(),
        doorbells: settings.doorbells as usize,
        config_space,
        sram: sram.file().try_clone()?,
        sram_bytes,
        sram_identity: sram.identity()?,
        throttle: Throttle::new(),
        engine: engine.clone(),
    };
    fabric
        .add(nic, Node::new(sram))
        .map_err(|duplicate| ConfigError::new("nic.node", duplicate.to_string()))?;
    Ok(attachment)
}

/// Adds the ways to other processes. The socket where those of this host call is given
/// back: its name goes away with it.
fn connect(
    fabric: &mut Fabric<Node>,
    network: &NetworkSettings,
) -> Result<Option<Socket>, StartError> {
    if let Some(udp) = &network.udp {
        let carrier = udp_carrier(udp, network)?;
        add_carrier(fabric, Box::new(carrier), network, |process| {
            process.address.is_some()
        })?;
    }
    let Some(shm) = &network.shm else {
        return Ok(None);
    };
    let socket = Socket::bind(&shm.socket)?;
    let peers = network.processes.iter().filter_map(|process| {
        Some(ShmPeer {
            name: process.name.clone(),
            socket: process.socket.clone()?,
        })
    });
    let listener = socket.listener().try_clone()?;
    let carrier = ShmCarrier::new(&shm.name, listener, &peers.collect::<Vec<_>>())?;
    add_carrier(fabric, Box::new(carrier), network, |process| {
        process.socket.is_some()
    })?;
    Ok(Some(socket))
}

/// Adds a carrier to the processes that `takes` names, which are its processes in the
/// order of the configuration.
fn add_carrier(
    fabric: &mut Fabric<Node>,
    carrier: Box<dyn Carrier>,
    network: &NetworkSettings,
    takes: impl Fn(&&ProcessSettings) -> bool,
) -> Result<(), StartError> {
    let nodes = |process: &ProcessSettings| process.nodes.iter().copied().map(NodeId).collect();
    let processes = network.processes.iter().filter(takes);
    let nodes: Vec<Vec<_>> = processes.map(nodes).collect();
    let connected = fabric.connect(carrier, &nodes);
    connected.map_err(|duplicate| {
        StartError::Config(ConfigError::new("network.process", duplicate.to_string()))
    })
}

fn udp_carrier(udp: &UdpSettings, network: &NetworkSettings) -> Result<UdpCarrier, StartError> {
    let failed = |problem: String| StartError::Udp {
        name: udp.name.clone(),
        address: udp.listen,
        problem,
    };
    let file = udp.key_file.display();
    let secret = std::fs::read(&udp.key_file)
        .map_err(|error| failed(format!("cannot read the key file {file}: {error}")))?;
    let key =
        ClusterKey::new(&secret).map_err(|error| failed(format!("key file {file}: {error}")))?;
    let peers = network.processes.iter().filter_map(|process| {
        Some(UdpPeer {
            name: process.name.clone(),
            address: process.address?,
        })
    });
    let peers: Vec<_> = peers.collect();
    UdpCarrier::new(&udp.name, udp.listen, key, &peers)
        .map_err(|error| failed(format!("cannot listen: {error}")))
}
