//! What a cluster is: the checked form of a cluster file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use qnic_config::plan::units::Span;
use qnic_config::{check_metrics_address, require, ByteSize, ConfigError, Engines};
use qnic_images::KernelSeries;
use serde::{Deserialize, Serialize, Serializer};

use super::driver::NicDriver;
use super::ethernet::{EthernetSpec, PortSpec};
use super::network::NetworkSpec;
use super::on_off::OnOff;
use super::share::ShareSpec;

/// Which accelerator runs the guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccelChoice {
    /// KVM if it really executes guest code here, otherwise TCG.
    #[default]
    Auto,
    /// KVM, or an error.
    Kvm,
    /// QEMU's own emulation.
    Tcg,
}

/// A cluster of guests on this machine.
///
/// Serializes to the cluster file that describes it, with every default spelt out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterSpec {
    /// Name, unique among the clusters that run at the same time.
    pub name: String,
    /// Accelerator asked for.
    pub accel: AccelChoice,
    /// Whether nodes have an Ethernet port.
    pub ethernet: OnOff<EthernetSpec>,
    /// Guests with a guest image and a NIC have Open MPI, and can start its processes on each other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mpi: bool,
    /// Guests with a guest image and a NIC have the device of libibverbs, and programs for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub verbs: bool,
    /// How device processes serve NICs, and what they do besides.
    #[serde(skip_serializing_if = "DeviceSpec::is_default")]
    pub device: DeviceSpec,
    /// How the NICs are joined; `None`: each with each, by links that can be changed.
    pub network: Option<NetworkSpec>,
    /// Networks beside it, by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub networks: BTreeMap<String, NetworkSpec>,
    /// The guests, in order; their NICs are numbered in that order from 0, unless they
    /// have a number.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeSpec>,
    /// Block devices of nodes in the memory of others, made when all have booted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remote_memory: Vec<RemoteMemorySpec>,
}

/// How device processes serve NICs, and what they do besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Address at which the first device process of a host serves its metrics by HTTP; each further
    /// one takes the next port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Allows an address that is not a loopback one: any machine that reaches it reads all counters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metrics_anywhere: bool,
    /// Engine threads of each device process, to which NICs are dealt in turn. Several are possible
    /// only where one process serves all nodes.
    #[serde(default, skip_serializing_if = "Engines::is_auto")]
    pub engines: Engines,
}

impl DeviceSpec {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks what each of `processes` device processes of a host gets. `alone`: one device process
    /// serves all nodes.
    pub(super) fn check(&self, processes: usize, alone: bool) -> Result<(), ConfigError> {
        require(
            alone || !self.engines.is_several(),
            "device.engines",
            "expected 1 or \"auto\" beside [[network.process]] or [[network.host]]: frames to and \
             from other device processes take one engine",
        )?;
        let Some(address) = self.metrics else {
            return Ok(());
        };
        const KEY: &str = "device.metrics";
        check_metrics_address(address, self.metrics_anywhere, KEY, "metrics_anywhere")?;
        let fits = self.metrics_of(processes.saturating_sub(1)).is_some();
        let message = format!("no ports are left for {processes} device processes");
        require(fits, KEY, message)
    }

    /// The address of the device process with this index; `None` if there is none, or no port.
    pub(crate) fn metrics_of(&self, index: usize) -> Option<SocketAddr> {
        let mut address = self.metrics?;
        let port = u16::try_from(index).ok()?.checked_add(address.port())?;
        address.set_port(port);
        Some(address)
    }
}

/// One guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeSpec {
    /// Name, unique in the cluster; also the guest's host name.
    pub name: String,
    /// Guest RAM.
    pub memory: ByteSize,
    /// Guest RAM with all that may be added while the guest runs; `None`: none may.
    pub memory_max: Option<ByteSize>,
    /// Number of virtual CPUs.
    pub cpus: u32,
    /// The disk image that it boots, with a kernel of its own; `None`: a stock kernel and the guest image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// Which stock kernel it boots.
    #[serde(serialize_with = "series")]
    pub kernel: KernelSeries,
    /// True if it has a qnic NIC.
    pub nic: bool,
    /// What drives it.
    #[serde(skip_serializing_if = "NicDriver::is_default")]
    pub driver: NicDriver,
    /// Its NICs, if they have names; empty: one without a name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicSpec>,
    /// Number of its NIC in the network; `None`: its index among the nodes.
    pub number: Option<u16>,
    /// Whether it has an Ethernet port; `None`: as the cluster says.
    pub ethernet: Option<OnOff<PortSpec>>,
    /// Whether the guest reaches this machine's networks, by QEMU's user-mode stack.
    pub outside: bool,
    /// Size of a disk on which the guest swaps as soon as the cluster is ready, or none.
    pub swap: Option<ByteSize>,
    /// Size of a blank disk, or none.
    pub disk: Option<ByteSize>,
    /// A directory of the host that the guest mounts, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareSpec>,
    /// Arguments appended to QEMU's command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub qemu_args: Vec<String>,
    /// Files of the host that are in the guest from the start, at every boot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileSpec>,
}

/// A NIC of a node that says which NICs it has: there may be several, also on networks of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Its name, unique on its node.
    pub name: String,
    /// Which of `[networks]` it is on; `None`: `[network]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

/// A file of the host to have in a guest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Where it is on the host.
    pub from: PathBuf,
    /// Absolute path in the guest.
    pub to: PathBuf,
    /// Permission bits.
    #[serde(with = "octal", default = "readable")]
    pub mode: u32,
}

/// A block device of a node in the memory of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteMemorySpec {
    /// Name of the node that has the device.
    pub on: String,
    /// Size of the device.
    pub size: ByteSize,
    /// On how many servers each block is kept.
    #[serde(default = "two")]
    pub replicas: u16,
    /// Names of the nodes whose memory it is in.
    pub servers: Vec<String>,
    /// What each of them gives for it; `None`: as much as the size.
    pub serve: Option<ByteSize>,
    /// A silence of the node for so long costs it what it has there; `None`: five minutes.
    pub lease: Option<Span>,
    /// It is made though its servers may have less room than it needs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thin: bool,
    /// Secret that its servers ask for, in hexadecimal digits.
    pub key: Option<String>,
}

fn two() -> u16 {
    2
}

impl ClusterSpec {
    /// A cluster without nodes.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            accel: AccelChoice::Auto,
            ethernet: OnOff::on(),
            mpi: false,
            verbs: false,
            device: DeviceSpec::default(),
            network: None,
            networks: BTreeMap::new(),
            nodes: Vec::new(),
            remote_memory: Vec::new(),
        }
    }

    /// Adds a node.
    pub fn with(mut self, node: NodeSpec) -> Self {
        self.nodes.push(node);
        self
    }

    /// The cluster file that describes this cluster, defaults included.
    ///
    /// # Errors
    /// [`crate::Error::Describe`] if a host path is not Unicode.
    pub fn to_toml(&self) -> crate::Result<String> {
        toml::to_string(self).map_err(crate::Error::Describe)
    }

    /// Sum of the guests' RAM.
    pub fn total_memory(&self) -> ByteSize {
        let sizes = self.nodes.iter().map(|node| node.memory.0);
        ByteSize(sizes.fold(0, u64::saturating_add))
    }

    /// The nodes and the numbers of their NICs.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (&NodeSpec, u16)> {
        let nodes = self.nodes.iter().zip(0_u16..);
        nodes.map(|(node, index)| (node, node.number.unwrap_or(index)))
    }

    /// Returns true if any node has a NIC.
    pub fn has_nics(&self) -> bool {
        self.nodes.iter().any(|node| node.nic)
    }

    /// Returns true if a device process is needed: any node has a NIC or an Ethernet port.
    pub(crate) fn needs_device(&self) -> bool {
        !self.nics().is_empty()
    }
}

impl NodeSpec {
    /// RAM of a node that names no other size.
    pub const DEFAULT_MEMORY: ByteSize = ByteSize::mib(256);

    /// A node with one CPU, 256 MiB, the stable kernel and a NIC.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            memory: Self::DEFAULT_MEMORY,
            memory_max: None,
            cpus: 1,
            image: None,
            kernel: KernelSeries::Stable,
            nic: true,
            driver: NicDriver::default(),
            nics: Vec::new(),
            number: None,
            ethernet: None,
            outside: false,
            swap: None,
            disk: None,
            share: None,
            qemu_args: Vec::new(),
            files: Vec::new(),
        }
    }
}

impl RemoteMemorySpec {
    /// What each server gives for it.
    pub(crate) fn served(&self) -> ByteSize {
        self.serve.unwrap_or(self.size)
    }

    /// What it is, in words.
    pub fn describe(&self, device: &str) -> String {
        let Self { size, replicas, .. } = self;
        let servers = self.servers.join(", ");
        format!("{device}: {size} in the memory of {servers}, each block on {replicas}")
    }

    /// The key as a number; no key is zero.
    pub(super) fn secret(&self) -> u128 {
        let key = self.key.as_deref();
        key.map_or(0, |key| u128::from_str_radix(key, 16).unwrap_or(0))
    }
}

fn series<S: Serializer>(series: &KernelSeries, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(series.as_str())
}

fn readable() -> u32 {
    0o644
}

mod octal {
    use serde::{de, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(mode: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{mode:o}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let mode = String::deserialize(from)?;
        u32::from_str_radix(&mode, 8).map_err(|_| {
            let expected = "expected octal permission bits such as \"755\"";
            de::Error::custom(format_args!("{expected}, found \"{mode}\""))
        })
    }
}
