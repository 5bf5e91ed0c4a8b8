//! The rules that a cluster must keep, whoever described it.

use std::collections::HashSet;

use super::error::{Mistake, SpecError};
use super::key::KeyPath;
use super::size::ByteSize;
use super::spec::{ClusterSpec, FileSpec, NodeSpec};

/// Most nodes in one cluster.
pub const MAX_NODES: usize = 64;
/// Most virtual CPUs of one node.
pub const MAX_CPUS: u32 = 64;
/// Least RAM a stock kernel and the guest image run in.
pub const MIN_MEMORY: ByteSize = ByteSize::mib(128);
/// Most RAM of one node.
pub const MAX_MEMORY: ByteSize = ByteSize::mib(64 << 10);
/// Most bytes of one disk.
pub const MAX_DISK: ByteSize = ByteSize::mib(1 << 20);
/// Longest name of a cluster or node, which keeps socket paths short.
pub const MAX_NAME: usize = 24;

/// Names that mean something else on the command line.
const RESERVED: [&str; 1] = ["all"];

impl ClusterSpec {
    /// Checks every rule that does not depend on the machine.
    ///
    /// # Errors
    /// The first rule that is broken, with the key it is about.
    pub fn validate(&self) -> Result<(), SpecError> {
        check(self, &|index| index).map_err(|mistake| SpecError {
            key: mistake.key.to_string(),
            message: mistake.message,
        })
    }
}

/// Checks `spec`; `origin` tells which `[[node]]` of the file a node came from.
pub(super) fn check(spec: &ClusterSpec, origin: &dyn Fn(usize) -> usize) -> Result<(), Mistake> {
    let top = KeyPath::top();
    check_name(&spec.name, &top.key("name"))?;
    let nodes = top.key("node");
    if spec.nodes.is_empty() || spec.nodes.len() > MAX_NODES {
        let message = format!(
            "expected 1 to {MAX_NODES} nodes, found {}",
            spec.nodes.len()
        );
        return Err(Mistake::new(nodes, message));
    }
    let mut names = HashSet::new();
    let mut numbers = HashSet::new();
    for (index, (node, number)) in spec.numbered().enumerate() {
        let key = nodes.index(origin(index));
        if !numbers.insert(number) {
            let message = format!("NIC number {number} is used already: numbers must differ");
            return Err(Mistake::new(key.key("number"), message));
        }
        check_node(node, &key)?;
        if !names.insert(node.name.as_str()) {
            let message = format!(
                "there is already a node \"{}\": names must differ",
                node.name
            );
            return Err(Mistake::new(key.key("name"), message));
        }
    }
    super::network::check(spec)
}

fn check_node(node: &NodeSpec, key: &KeyPath) -> Result<(), Mistake> {
    check_name(&node.name, &key.key("name"))?;
    check_size(node.memory, MIN_MEMORY, MAX_MEMORY, &key.key("memory"))?;
    if !(1..=MAX_CPUS).contains(&node.cpus) {
        let message = format!("expected 1 to {MAX_CPUS} CPUs, found {}", node.cpus);
        return Err(Mistake::new(key.key("cpus"), message));
    }
    for (name, size) in [("swap", node.swap), ("disk", node.disk)] {
        if let Some(size) = size {
            check_size(size, ByteSize::mib(1), MAX_DISK, &key.key(name))?;
        }
    }
    let files = key.key("files");
    for (index, file) in node.files.iter().enumerate() {
        check_file(file, &files.index(index))?;
    }
    Ok(())
}

pub(super) fn check_name(name: &str, key: &KeyPath) -> Result<(), Mistake> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| plain(byte) || byte == b'-')
        && name.bytes().next().is_some_and(plain);
    if !fits {
        let message = format!(
            "expected 1 to {MAX_NAME} of the characters a-z, 0-9 and \"-\", not \"-\" first, found \"{name}\""
        );
        return Err(Mistake::new(key.clone(), message));
    }
    if RESERVED.contains(&name) {
        let message = format!("\"{name}\" has a meaning of its own: choose another name");
        return Err(Mistake::new(key.clone(), message));
    }
    Ok(())
}

fn check_size(
    size: ByteSize,
    least: ByteSize,
    most: ByteSize,
    key: &KeyPath,
) -> Result<(), Mistake> {
    if size < least || size > most {
        let message = format!("expected {least} to {most}, found {size}");
        return Err(Mistake::new(key.clone(), message));
    }
    if size.0 % ByteSize::mib(1).0 != 0 {
        let message = format!("expected a whole number of MiB, found {size}");
        return Err(Mistake::new(key.clone(), message));
    }
    Ok(())
}

fn check_file(file: &FileSpec, key: &KeyPath) -> Result<(), Mistake> {
    if !file.to.is_absolute() || file.to.file_name().is_none() {
        let message = format!(
            "expected an absolute path in the guest, found \"{}\"",
            file.to.display()
        );
        return Err(Mistake::new(key.key("to"), message));
    }
    if !file.from.is_file() {
        let message = format!("there is no file \"{}\"", file.from.display());
        return Err(Mistake::new(key.key("from"), message));
    }
    if file.mode > 0o7777 {
        let message = format!("expected permission bits up to 7777, found {:o}", file.mode);
        return Err(Mistake::new(key.key("mode"), message));
    }
    Ok(())
}
