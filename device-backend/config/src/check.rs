//! Rules that apply in more than one section.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::path::Path;

use crate::ConfigError;

/// Longest path that fits into a Unix socket address, in bytes.
pub const MAX_SOCKET_PATH: usize = 107;

/// Values that may stand at one key only, with the key that has each.
pub type Unique<V> = HashMap<V, String>;

/// Notes that `value`, which messages call `what`, stands at `key`.
///
/// # Errors
/// Returns an error that names the key that has the value already.
pub fn add<V: Hash + Eq>(
    seen: &mut Unique<V>,
    value: V,
    key: &str,
    what: impl Display,
) -> Result<(), ConfigError> {
    match seen.insert(value, key.to_owned()) {
        None => Ok(()),
        Some(first) => {
            let message = format!("{what} is used already by {first}");
            Err(ConfigError::new(key, message))
        }
    }
}

/// Returns an error for `key` unless the rule `holds`.
pub fn require(
    holds: bool,
    key: impl Into<String>,
    message: impl Into<String>,
) -> Result<(), ConfigError> {
    match holds {
        true => Ok(()),
        false => Err(ConfigError::new(key, message)),
    }
}

/// Returns an error for `key` unless `path` fits into a socket address.
pub(crate) fn check_socket(path: &Path, key: &str) -> Result<(), ConfigError> {
    let length = path.as_os_str().len();
    let message = format!(
        "expected a path of 1 to {MAX_SOCKET_PATH} bytes (a limit of Unix sockets), \
         found {length}; use a shorter directory"
    );
    require((1..=MAX_SOCKET_PATH).contains(&length), key, message)
}

/// What must be unique in a device process.
#[derive(Default)]
pub(crate) struct Seen<'a> {
    nodes: Unique<u16>,
    pub(crate) names: Unique<&'a str>,
    sockets: Unique<&'a Path>,
}

impl<'a> Seen<'a> {
    pub(crate) fn node(&mut self, node: u16, key: &str) -> Result<(), ConfigError> {
        add(&mut self.nodes, node, key, format_args!("node {node}"))
    }

    /// Checks a path of a socket, which no two keys may have.
    pub(crate) fn socket(&mut self, path: &'a Path, key: &str) -> Result<(), ConfigError> {
        check_socket(path, key)?;
        let what = format_args!("socket {}", path.display());
        add(&mut self.sockets, path, key, what)
    }
}
