//! Rules that apply in more than one section.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::path::Path;

use crate::ConfigError;

/// Longest path that fits into a Unix socket address, in bytes.
pub const MAX_SOCKET_PATH: usize = 107;

/// Values that may stand at one key only, with the key that had each first.
#[derive(Debug)]
pub struct Unique<V>(HashMap<V, String>);

impl<V> Default for Unique<V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<V: Hash + Eq> Unique<V> {
    /// Adds `value`, which messages call `what`.
    ///
    /// # Errors
    /// Returns an error that names the key that has the value already.
    pub fn add(&mut self, value: V, key: &str, what: impl Display) -> Result<(), ConfigError> {
        match self.0.get(&value) {
            Some(first) => {
                let message = format!("{what} is used already by {first}");
                Err(ConfigError::new(key, message))
            }
            None => {
                self.0.insert(value, key.to_owned());
                Ok(())
            }
        }
    }

    /// Returns true if `value` was added.
    pub fn contains(&self, value: &V) -> bool {
        self.0.contains_key(value)
    }
}

/// Checks that `path` fits into a socket address.
///
/// # Errors
/// Returns an error for `key` if it does not.
pub fn check_socket(path: &Path, key: &str) -> Result<(), ConfigError> {
    let length = path.as_os_str().len();
    if (1..=MAX_SOCKET_PATH).contains(&length) {
        return Ok(());
    }
    let message = format!(
        "expected a path of 1 to {MAX_SOCKET_PATH} bytes (a limit of Unix sockets), \
         found {length}; use a shorter directory"
    );
    Err(ConfigError::new(key, message))
}
