//! The rules of a cluster, whether a file or a program describes it.

use qnic_config::{ByteSize, ConfigError, Unique};

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
    /// Returns an error for the first rule that is broken, with the key it is about.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check(self, &|index| index)
    }
}

/// Checks `spec`; `origin` tells which `[[node]]` of the file a node came from.
pub(super) fn check(
    spec: &ClusterSpec,
    origin: &dyn Fn(usize) -> usize,
) -> Result<(), ConfigError> {
    check_name(&spec.name, "name")?;
    if !(1..=MAX_NODES).contains(&spec.nodes.len()) {
        let found = spec.nodes.len();
        let message = format!("expected 1 to {MAX_NODES} nodes, found {found}");
        return Err(ConfigError::new("node", message));
    }
    let (mut names, mut numbers) = (Unique::default(), Unique::default());
    for (index, (node, number)) in spec.numbered().enumerate() {
        let key = format!("node[{}]", origin(index));
        let what = format_args!("NIC number {number}");
        numbers.add(number, &format!("{key}.number"), what)?;
        check_node(node, &key)?;
        let what = format_args!("name \"{}\"", node.name);
        names.add(&node.name, &format!("{key}.name"), what)?;
    }
    super::network::check(spec)
}

fn check_node(node: &NodeSpec, key: &str) -> Result<(), ConfigError> {
    check_name(&node.name, &format!("{key}.name"))?;
    check_size(
        node.memory,
        MIN_MEMORY,
        MAX_MEMORY,
        &format!("{key}.memory"),
    )?;
    if !(1..=MAX_CPUS).contains(&node.cpus) {
        let message = format!("expected 1 to {MAX_CPUS} CPUs, found {}", node.cpus);
        return Err(ConfigError::new(format!("{key}.cpus"), message));
    }
    for (name, size) in [("swap", node.swap), ("disk", node.disk)] {
        if let Some(size) = size {
            check_size(size, ByteSize::mib(1), MAX_DISK, &format!("{key}.{name}"))?;
        }
    }
    for (index, file) in node.files.iter().enumerate() {
        check_file(file, &format!("{key}.files[{index}]"))?;
    }
    Ok(())
}

pub(super) fn check_name(name: &str, key: &str) -> Result<(), ConfigError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| plain(byte) || byte == b'-')
        && name.bytes().next().is_some_and(plain);
    let message = match fits {
        true if !RESERVED.contains(&name) => return Ok(()),
        true => format!("\"{name}\" has a meaning of its own: choose another name"),
        false => format!(
            "expected 1 to {MAX_NAME} of the characters a-z, 0-9 and \"-\", not \"-\" first, found \"{name}\""
        ),
    };
    Err(ConfigError::new(key, message))
}

fn check_size(
    size: ByteSize,
    least: ByteSize,
    most: ByteSize,
    key: &str,
) -> Result<(), ConfigError> {
    let expected = if size < least || size > most {
        format!("{least} to {most}")
    } else if size.0 % ByteSize::mib(1).0 != 0 {
        "a whole number of MiB".to_owned()
    } else {
        return Ok(());
    };
    Err(ConfigError::new(
        key,
        format!("expected {expected}, found {size}"),
    ))
}

fn check_file(file: &FileSpec, key: &str) -> Result<(), ConfigError> {
    let (field, message) = if !file.to.is_absolute() || file.to.file_name().is_none() {
        let found = file.to.display();
        (
            "to",
            format!("expected an absolute path in the guest, found \"{found}\""),
        )
    } else if !file.from.is_file() {
        (
            "from",
            format!("there is no file \"{}\"", file.from.display()),
        )
    } else if file.mode > 0o7777 {
        (
            "mode",
            format!("expected permission bits up to 7777, found {:o}", file.mode),
        )
    } else {
        return Ok(());
    };
    Err(ConfigError::new(format!("{key}.{field}"), message))
}
