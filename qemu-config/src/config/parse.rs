//! From the text of a cluster file to a checked [`ClusterSpec`].

use std::path::{Path, PathBuf};

use qnic_images::KernelSeries;
use serde::Deserialize;
use toml::de::DeTable;

use super::error::{ConfigError, Mistake};
use super::key::{path_at, span_of, KeyPath};
use super::network::{resolve as resolve_network, NetworkSpec};
use super::size::ByteSize;
use super::spec::{AccelChoice, ClusterSpec, FileSpec, NodeSpec};
use super::validate::{check, MAX_NODES};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    name: String,
    #[serde(default)]
    accel: AccelChoice,
    network: Option<NetworkSpec>,
    #[serde(default)]
    node: Vec<RawNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: String,
    count: Option<u32>,
    memory: Option<String>,
    cpus: Option<u32>,
    kernel: Option<String>,
    nic: Option<bool>,
    number: Option<u16>,
    swap: Option<String>,
    disk: Option<String>,
    #[serde(default)]
    qemu_args: Vec<String>,
    #[serde(default)]
    files: Vec<RawFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    from: PathBuf,
    to: PathBuf,
    mode: Option<String>,
}

impl ClusterSpec {
    /// Reads the cluster file `file`.
    ///
    /// Relative host paths in it are relative to the directory it is in.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if it cannot be read, [`crate::Error::Config`] for a mistake in it.
    pub fn load(file: &Path) -> crate::Result<Self> {
        let text = std::fs::read_to_string(file).map_err(crate::Error::io("read", file))?;
        Ok(Self::parse(&text, file)?)
    }

    /// Parses `text`, the content of the cluster file `file`.
    ///
    /// # Errors
    /// The first mistake, with its place.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let (tree, syntax) = DeTable::parse_recoverable(text);
        if let Some(error) = syntax
            .iter()
            .min_by_key(|error| error.span().map(|span| span.start))
        {
            let span = error.span().unwrap_or(0..0);
            return Err(ConfigError::at(
                file,
                text,
                &span,
                &KeyPath::top(),
                error.message(),
            ));
        }
        let tree = tree.get_ref();
        let raw: RawCluster = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            ConfigError::at(file, text, &span, &path_at(tree, &span), error.message())
        })?;
        let base = file.parent().unwrap_or(Path::new(""));
        resolve(raw, base).map_err(|mistake| {
            ConfigError::at(
                file,
                text,
                &span_of(tree, &mistake.key),
                &mistake.key,
                &mistake.message,
            )
        })
    }
}

fn resolve(raw: RawCluster, base: &Path) -> Result<ClusterSpec, Mistake> {
    let mut spec = ClusterSpec {
        name: raw.name,
        accel: raw.accel,
        network: raw.network.map(|network| resolve_network(network, base)),
        nodes: Vec::new(),
    };
    let mut origins = Vec::new();
    let nodes = KeyPath::top().key("node");
    for (index, node) in raw.node.into_iter().enumerate() {
        let expanded = resolve_node(node, base, &nodes.index(index))?;
        origins.extend(expanded.iter().map(|_| index));
        spec.nodes.extend(expanded);
    }
    check(&spec, &|index| origins.get(index).copied().unwrap_or(index))?;
    Ok(spec)
}

/// One `[[node]]`: one node, or `count` of them with a number after the name.
fn resolve_node(raw: RawNode, base: &Path, key: &KeyPath) -> Result<Vec<NodeSpec>, Mistake> {
    let defaults = NodeSpec::new(raw.name);
    let size = |name: &str, text: Option<String>| -> Result<Option<ByteSize>, Mistake> {
        let parsed = text.map(|text| text.parse::<ByteSize>()).transpose();
        parsed.map_err(|error| Mistake::new(key.key(name), error.to_string()))
    };
    let kernel = raw
        .kernel
        .map(|name| name.parse::<KernelSeries>())
        .transpose();
    let files = raw.files.into_iter().enumerate();
    let files_key = key.key("files");
    let node = NodeSpec {
        memory: size("memory", raw.memory)?.unwrap_or(defaults.memory),
        cpus: raw.cpus.unwrap_or(defaults.cpus),
        kernel: kernel
            .map_err(|error| Mistake::new(key.key("kernel"), error.to_string()))?
            .unwrap_or(defaults.kernel),
        nic: raw.nic.unwrap_or(defaults.nic),
        number: raw.number,
        swap: size("swap", raw.swap)?,
        disk: size("disk", raw.disk)?,
        qemu_args: raw.qemu_args,
        files: files
            .map(|(index, file)| resolve_file(file, base, &files_key.index(index)))
            .collect::<Result<_, _>>()?,
        ..defaults
    };
    let Some(count) = raw.count else {
        return Ok(vec![node]);
    };
    if !(1..=MAX_NODES as u32).contains(&count) {
        let message = format!("expected 1 to {MAX_NODES}, found {count}");
        return Err(Mistake::new(key.key("count"), message));
    }
    if node.number.is_some() {
        let message = "a node with a count cannot have a number";
        return Err(Mistake::new(key.key("number"), message));
    }
    let numbered = |index| NodeSpec {
        name: format!("{}{index}", node.name),
        ..node.clone()
    };
    Ok((0..count).map(numbered).collect())
}

fn resolve_file(raw: RawFile, base: &Path, key: &KeyPath) -> Result<FileSpec, Mistake> {
    let mode = raw.mode.as_deref().unwrap_or("644");
    let mode = u32::from_str_radix(mode, 8).map_err(|_| {
        let message = format!("expected octal permission bits such as \"755\", found \"{mode}\"");
        Mistake::new(key.key("mode"), message)
    })?;
    Ok(FileSpec {
        from: base.join(raw.from),
        to: raw.to,
        mode,
    })
}
