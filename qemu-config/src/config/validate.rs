//! The rules of a cluster, whether a file or a program describes it.

use std::path::Path;

use qnic_config::{add, require, ByteSize, ConfigError, Unique};

use super::network::NetworkSpec;
use super::rules::{check_name, check_size};
use super::spec::{ClusterSpec, FileSpec, NodeSpec};
use crate::limits::MEMORY_STEP;

/// Most nodes in one cluster.
pub(super) const MAX_NODES: usize = 64;
/// Most virtual CPUs of one node.
const MAX_CPUS: u32 = 64;
/// Least RAM a stock kernel and the guest image run in.
const MIN_MEMORY: ByteSize = ByteSize::mib(128);
/// Most RAM of one node.
const MAX_MEMORY: ByteSize = ByteSize::mib(64 << 10);
/// Most bytes of one disk.
const MAX_DISK: ByteSize = ByteSize::mib(1 << 20);

impl ClusterSpec {
    /// Checks every rule that does not depend on the machine.
    ///
    /// # Errors
    /// Returns an error for the first rule that is broken, with the key it is about.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check(self, &|index| index)?;
        check_sources(self, &|index| index)
    }
}

/// Checks that the files and directories of this machine are there that nodes have.
pub(super) fn check_sources(
    spec: &ClusterSpec,
    origin: &dyn Fn(usize) -> usize,
) -> Result<(), ConfigError> {
    for (index, node) in spec.nodes.iter().enumerate() {
        let key = format!("node[{}]", origin(index));
        let is_there = |path: &Path, key: String| {
            let message = format!("there is no file \"{}\"", path.display());
            require(path.is_file(), key, message)
        };
        if let Some(image) = &node.image {
            is_there(image, format!("{key}.image"))?;
        }
        for (index, file) in node.files.iter().enumerate() {
            is_there(&file.from, format!("{key}.files[{index}].from"))?;
        }
        if let Some(share) = &node.share {
            let message = format!("there is no directory \"{}\"", share.path.display());
            require(share.path.is_dir(), format!("{key}.share.path"), message)?;
        }
    }
    Ok(())
}

/// Checks `spec`; `origin` tells which `[[node]]` of the file a node came from.
pub(super) fn check(
    spec: &ClusterSpec,
    origin: &dyn Fn(usize) -> usize,
) -> Result<(), ConfigError> {
    check_name(&spec.name, "name")?;
    let count = spec.nodes.len();
    let message = format!("expected 1 to {MAX_NODES} nodes, found {count}");
    require((1..=MAX_NODES).contains(&count), "node", message)?;
    let (mut names, mut numbers) = (Unique::default(), Unique::default());
    for (index, (node, number)) in spec.numbered().enumerate() {
        let key = format!("node[{}]", origin(index));
        let what = format_args!("NIC number {number}");
        add(&mut numbers, number, &format!("{key}.number"), what)?;
        check_node(node, &key)?;
        super::nics::check_node(spec, node, &key)?;
        super::image::check(node, &key)?;
        let what = format_args!("name \"{}\"", node.name);
        add(&mut names, &node.name, &format!("{key}.name"), what)?;
    }
    let alone = spec
        .network
        .as_ref()
        .is_none_or(NetworkSpec::is_one_process);
    spec.device.check(spec.device_processes().len(), alone)?;
    if let Some(network) = &spec.network {
        let ends = spec.network_nodes(None);
        super::network::check(network, ends.values().map(String::as_str).collect())?;
    }
    super::nics::check_networks(spec)?;
    super::drivers::check(spec, origin)?;
    super::ports::check(spec, origin)?;
    super::mpi::check(spec, origin)?;
    super::verbs::check(spec)?;
    super::remote_memory::check(spec)
}

fn check_node(node: &NodeSpec, key: &str) -> Result<(), ConfigError> {
    check_name(&node.name, &format!("{key}.name"))?;
    check_size(Some(node.memory), MIN_MEMORY..=MAX_MEMORY, key, "memory")?;
    if let Some(most) = node.memory_max {
        let added = most.0.checked_sub(node.memory.0);
        let fits = added.is_some_and(|added| added.is_multiple_of(MEMORY_STEP.0));
        let message = format!(
            "expected memory ({}) and a multiple of {MEMORY_STEP} up to {MAX_MEMORY}, found {most}",
            node.memory
        );
        require(
            fits && most <= MAX_MEMORY,
            format!("{key}.memory_max"),
            message,
        )?;
    }
    let message = format!("expected 1 to {MAX_CPUS} CPUs, found {}", node.cpus);
    let fits = (1..=MAX_CPUS).contains(&node.cpus);
    require(fits, format!("{key}.cpus"), message)?;
    check_size(node.swap, ByteSize::mib(1)..=MAX_DISK, key, "swap")?;
    check_size(node.disk, ByteSize::mib(1)..=MAX_DISK, key, "disk")?;
    if let Some(share) = &node.share {
        share.check(&format!("{key}.share"))?;
    }
    for (index, file) in node.files.iter().enumerate() {
        check_file(file, &format!("{key}.files[{index}]"))?;
    }
    Ok(())
}

fn check_file(file: &FileSpec, key: &str) -> Result<(), ConfigError> {
    let FileSpec { from: _, to, mode } = file;
    let whole = to.is_absolute() && to.file_name().is_some();
    let found = to.display();
    let message = format!("expected an absolute path in the guest, found \"{found}\"");
    require(whole, format!("{key}.to"), message)?;
    let message = format!("expected permission bits up to 7777, found {mode:o}");
    require(*mode <= 0o7777, format!("{key}.mode"), message)
}
