//! From the text of a cluster file to a checked [`ClusterSpec`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use qnic_config::{require, ByteSize, ConfigError};
use qnic_images::KernelSeries;
use serde::{de, Deserialize, Deserializer};

use super::driver::NicDriver;
use super::ethernet::{EthernetSpec, PortSpec};
use super::network::NetworkSpec;
use super::on_off::OnOff;
use super::share::ShareSpec;
use super::spec::{
    AccelChoice, ClusterSpec, DeviceSpec, FileSpec, NicSpec, NodeSpec, RemoteMemorySpec,
};
use super::validate::{check, MAX_NODES};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    name: String,
    #[serde(default)]
    accel: AccelChoice,
    #[serde(default)]
    driver: NicDriver,
    #[serde(default = "OnOff::on")]
    ethernet: OnOff<EthernetSpec>,
    #[serde(default)]
    device: DeviceSpec,
    network: Option<NetworkSpec>,
    #[serde(default)]
    networks: BTreeMap<String, NetworkSpec>,
    #[serde(default)]
    node: Vec<RawNode>,
    #[serde(default)]
    remote_memory: Vec<RemoteMemorySpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: String,
    count: Option<u32>,
    memory: Option<ByteSize>,
    memory_max: Option<ByteSize>,
    cpus: Option<u32>,
    image: Option<PathBuf>,
    #[serde(default, deserialize_with = "series")]
    kernel: Option<KernelSeries>,
    nic: Option<bool>,
    driver: Option<NicDriver>,
    #[serde(default)]
    nics: Vec<NicSpec>,
    number: Option<u16>,
    ethernet: Option<OnOff<PortSpec>>,
    #[serde(default)]
    outside: bool,
    swap: Option<ByteSize>,
    disk: Option<ByteSize>,
    #[serde(default)]
    qemu_args: Vec<String>,
    share: Option<ShareSpec>,
    #[serde(default)]
    files: Vec<FileSpec>,
}

fn series<'de, D: Deserializer<'de>>(from: D) -> Result<Option<KernelSeries>, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map(Some).map_err(de::Error::custom)
}

impl ClusterSpec {
    /// Reads the cluster file `file`.
    ///
    /// Relative host paths in it are relative to the directory it is in.
    ///
    /// # Errors
    /// Returns [`crate::Error::Io`] if it cannot be read, [`crate::Error::Config`] for the
    /// first error in it.
    pub fn load(file: &Path) -> crate::Result<Self> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|source| crate::Error::ClusterFile {
            path: file.into(),
            source,
        })?;
        Ok(Self::parse(&text, file)?)
    }

    /// Parses `text`, the content of the cluster file `file`.
    ///
    /// # Errors
    /// Returns the first error, with its location.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let base = file.parent().unwrap_or(Path::new(""));
        qnic_config::parse(text, file, |raw| resolve(raw, base))
    }
}

fn resolve(raw: RawCluster, base: &Path) -> Result<ClusterSpec, ConfigError> {
    let mut spec = ClusterSpec {
        name: raw.name,
        accel: raw.accel,
        ethernet: raw.ethernet,
        device: raw.device,
        network: raw.network,
        networks: raw.networks,
        nodes: Vec::new(),
        remote_memory: raw.remote_memory,
    };
    let networks = spec.network.iter_mut();
    for host in networks.flat_map(|network| &mut network.hosts) {
        host.private_key = base.join(&host.private_key);
    }
    let mut origins = Vec::new();
    for (index, node) in raw.node.into_iter().enumerate() {
        let nodes = resolve_node(node, raw.driver, base, &format!("node[{index}]"))?;
        origins.extend(nodes.iter().map(|_| index));
        spec.nodes.extend(nodes);
    }
    check(&spec, &|index| origins.get(index).copied().unwrap_or(index))?;
    Ok(spec)
}

/// One `[[node]]`: one node, or `count` of them with a number after the name.
fn resolve_node(
    raw: RawNode,
    driver: NicDriver,
    base: &Path,
    key: &str,
) -> Result<Vec<NodeSpec>, ConfigError> {
    let defaults = NodeSpec::new(raw.name);
    let memory = match raw.image {
        Some(_) => NodeSpec::DEFAULT_IMAGE_MEMORY,
        None => defaults.memory,
    };
    let from_here = |path: &Path| {
        let path = base.join(path);
        std::path::absolute(&path).unwrap_or(path)
    };
    let mut node = NodeSpec {
        image: raw.image.as_deref().map(from_here),
        memory: raw.memory.unwrap_or(memory),
        memory_max: raw.memory_max,
        cpus: raw.cpus.unwrap_or(defaults.cpus),
        kernel: raw.kernel.unwrap_or(defaults.kernel),
        nic: raw.nic.unwrap_or(defaults.nic),
        driver: raw.driver.unwrap_or(driver),
        nics: raw.nics,
        number: raw.number,
        ethernet: raw.ethernet,
        outside: raw.outside,
        swap: raw.swap,
        disk: raw.disk,
        share: raw.share,
        qemu_args: raw.qemu_args,
        files: raw.files,
        ..defaults
    };
    if let Some(share) = &mut node.share {
        share.path = from_here(&share.path);
    }
    for file in &mut node.files {
        file.from = base.join(&file.from);
    }
    let Some(count) = raw.count else {
        return Ok(vec![node]);
    };
    let fits = (1..=MAX_NODES as u32).contains(&count);
    let message = format!("expected 1 to {MAX_NODES}, found {count}");
    require(fits, format!("{key}.count"), message)?;
    let message = "a node with a count cannot have a number";
    require(node.number.is_none(), format!("{key}.number"), message)?;
    if let Some(OnOff::On(PortSpec { mac, ip })) = node.ethernet {
        let message = "a node with a count cannot have a MAC address of its own";
        require(mac.is_none(), format!("{key}.ethernet.mac"), message)?;
        let message = "a node with a count cannot have an address of its own";
        require(ip.is_none(), format!("{key}.ethernet.ip"), message)?;
    }
    let numbered = |index| NodeSpec {
        name: format!("{}{index}", node.name),
        ..node.clone()
    };
    Ok((0..count).map(numbered).collect())
}
