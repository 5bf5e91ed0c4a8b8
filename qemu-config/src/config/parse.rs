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
use super::validate::{check, check_sources, MAX_NODES};

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
    mpi: bool,
    #[serde(default)]
    verbs: bool,
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
        Ok(Self::parse(&read(file)?, file)?)
    }

    /// Reads the file of a cluster that has booted. What it names on this machine may have gone since.
    pub(crate) fn load_booted(file: &Path) -> crate::Result<Self> {
        let base = file.parent().unwrap_or(Path::new(""));
        let checked = qnic_config::parse(&read(file)?, file, |raw| Ok(resolve(raw, base)?.0))?;
        Ok(checked)
    }

    /// Parses `text`, the content of the cluster file `file`.
    ///
    /// # Errors
    /// Returns the first error, with its location.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let base = file.parent().unwrap_or(Path::new(""));
        qnic_config::parse(text, file, |raw| {
            let (spec, origins) = resolve(raw, base)?;
            check_sources(&spec, &|index| origin(&origins, index))?;
            Ok(spec)
        })
    }
}

fn read(file: &Path) -> crate::Result<String> {
    std::fs::read_to_string(file).map_err(|source| crate::Error::ClusterFile {
        path: file.into(),
        source,
    })
}

/// Which `[[node]]` of the file a node comes from.
fn origin(origins: &[usize], index: usize) -> usize {
    origins.get(index).copied().unwrap_or(index)
}

/// A path of a file in `base`, which stays what it is wherever a program runs.
fn from_here(base: &Path, path: &Path) -> PathBuf {
    let path = base.join(path);
    std::path::absolute(&path).unwrap_or(path)
}

/// The cluster, and which `[[node]]` of the file each node comes from.
fn resolve(raw: RawCluster, base: &Path) -> Result<(ClusterSpec, Vec<usize>), ConfigError> {
    let mut spec = ClusterSpec {
        name: raw.name,
        accel: raw.accel,
        ethernet: raw.ethernet,
        mpi: raw.mpi,
        verbs: raw.verbs,
        device: raw.device,
        network: raw.network,
        networks: raw.networks,
        nodes: Vec::new(),
        remote_memory: raw.remote_memory,
    };
    let networks = spec.network.iter_mut();
    for host in networks.flat_map(|network| &mut network.hosts) {
        host.private_key = from_here(base, &host.private_key);
    }
    let mut origins = Vec::new();
    for (index, node) in raw.node.into_iter().enumerate() {
        let nodes = resolve_node(node, raw.driver, base, &format!("node[{index}]"))?;
        origins.extend(nodes.iter().map(|_| index));
        spec.nodes.extend(nodes);
    }
    check(&spec, &|index| origin(&origins, index))?;
    Ok((spec, origins))
}

/// One `[[node]]`: one node, or `count` of them with a number after the name.
fn resolve_node(
    raw: RawNode,
    driver: NicDriver,
    base: &Path,
    key: &str,
) -> Result<Vec<NodeSpec>, ConfigError> {
    let defaults = NodeSpec::new(raw.name);
    let memory = match &raw.image {
        Some(_) => NodeSpec::DEFAULT_IMAGE_MEMORY,
        None => defaults.memory,
    };
    let mut node = NodeSpec {
        image: raw.image.map(|path| from_here(base, &path)),
        memory: raw.memory.unwrap_or(memory),
        memory_max: raw.memory_max,
        cpus: raw.cpus.unwrap_or(defaults.cpus),
        kernel: raw.kernel.unwrap_or(defaults.kernel),
        nic: raw.nic.unwrap_or(defaults.nic),
        // That of the cluster is for nodes with a NIC.
        driver: raw.driver.unwrap_or(match raw.nic {
            Some(false) => defaults.driver,
            _ => driver,
        }),
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
        let is_named = !share.path.as_os_str().is_empty();
        let message = "expected a directory, found \"\"";
        require(is_named, format!("{key}.share.path"), message)?;
        share.path = from_here(base, &share.path);
    }
    for file in &mut node.files {
        file.from = from_here(base, &file.from);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Its file stands elsewhere, and what it names may be gone.
    #[test]
    fn a_booted_cluster_is_what_it_was_whatever_became_of_its_files() {
        let text = "name = \"c\"\n[[node]]\nname = \"a\"\nshare = \"config\"\n\
                    files = [{ from = \"lib.rs\", to = \"/x\" }]\n";
        // Relative to the directory of the package, in which tests run.
        let spec = ClusterSpec::parse(text, Path::new("src/cluster.toml")).unwrap();
        let here = std::env::current_dir().unwrap().join("src");
        assert_eq!(spec.nodes[0].files[0].from, here.join("lib.rs"));
        let elsewhere = tempfile::tempdir().unwrap();
        let saved = elsewhere.path().join("cluster.toml");
        std::fs::write(&saved, spec.to_toml().unwrap()).unwrap();
        assert_eq!(ClusterSpec::load(&saved).unwrap(), spec);
        let mut gone = spec;
        gone.nodes[0].files[0].from = elsewhere.path().join("gone");
        gone.nodes[0].share = Some(ShareSpec::new(elsewhere.path().join("gone, too")));
        std::fs::write(&saved, gone.to_toml().unwrap()).unwrap();
        let refused = ClusterSpec::load(&saved).unwrap_err().to_string();
        assert!(refused.contains("there is no file"), "{refused}");
        assert_eq!(ClusterSpec::load_booted(&saved).unwrap(), gone);
    }
}
