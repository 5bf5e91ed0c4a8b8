//! The rules that hold for every configuration, read or made.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use qnic_abi::{attach, header};

use super::{Config, Mistake, NicSettings, MAX_NICS, MAX_POLL_WINDOW_US, MAX_SOCKET_PATH};

impl Config {
    /// Checks the rules.
    ///
    /// # Errors
    /// The first value that breaks one.
    pub fn check(&self) -> Result<(), Mistake> {
        let mistake = |key: &str, message: String| {
            Err(Mistake {
                key: key.to_owned(),
                message,
            })
        };
        if self.nics.is_empty() {
            return mistake("nic", "expected at least one [[nic]]".to_owned());
        }
        if self.nics.len() > MAX_NICS {
            let message = format!("{} NICs, at most {MAX_NICS}", self.nics.len());
            return mistake("nic", message);
        }
        if self.engine.poll_window_us > MAX_POLL_WINDOW_US {
            let message = format!("expected at most {MAX_POLL_WINDOW_US}");
            return mistake("engine.poll_window_us", message);
        }
        let mut seen = Seen::default();
        for (index, nic) in self.nics.iter().enumerate() {
            let key = |field: &str| format!("nic[{index}].{field}");
            nic.check(&key)?;
            seen.node(nic.node.0, key("node"))?;
            seen.name(&nic.name, key("name"))?;
            seen.socket(&nic.socket, key("socket"))?;
        }
        if let Some(metrics) = &self.metrics {
            check_socket(&metrics.socket, "metrics.socket".to_owned())?;
            seen.socket(&metrics.socket, "metrics.socket".to_owned())?;
        }
        self.check_network()
    }
}

impl NicSettings {
    fn check(&self, key: &dyn Fn(&str) -> String) -> Result<(), Mistake> {
        let range = |field: &str, value: u32, most: u32| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(Mistake {
                key: key(field),
                message: format!("expected 1 to {most}, found {value}"),
            })
        };
        if self.name.is_empty() {
            return Err(Mistake {
                key: key("name"),
                message: "is empty; give the NIC a name for logs and metrics".to_owned(),
            });
        }
        range("doorbells", self.doorbells, attach::MAX_DOORBELLS)?;
        range("windows", self.windows, header::MAX_WINDOWS)?;
        self.ram.check().map_err(|message| Mistake {
            key: key("ram"),
            message,
        })?;
        check_socket(&self.socket, key("socket"))
    }
}

pub(super) fn check_socket(path: &Path, key: String) -> Result<(), Mistake> {
    let length = path.as_os_str().len();
    if (1..=MAX_SOCKET_PATH).contains(&length) {
        return Ok(());
    }
    Err(Mistake {
        key,
        message: format!(
            "expected a path of 1 to {MAX_SOCKET_PATH} bytes (a limit of Unix sockets), \
             found {length}; use a shorter directory"
        ),
    })
}

/// What must be unique, with the key that had it first.
#[derive(Default)]
struct Seen {
    nodes: HashMap<u16, String>,
    names: HashMap<String, String>,
    sockets: HashMap<PathBuf, String>,
}

impl Seen {
    fn node(&mut self, node: u16, key: String) -> Result<(), Mistake> {
        unique(&mut self.nodes, node, key, &format!("node {node}"))
    }

    fn name(&mut self, name: &str, key: String) -> Result<(), Mistake> {
        let what = format!("name \"{name}\"");
        unique(&mut self.names, name.to_owned(), key, &what)
    }

    fn socket(&mut self, path: &Path, key: String) -> Result<(), Mistake> {
        let what = format!("socket {}", path.display());
        unique(&mut self.sockets, path.to_owned(), key, &what)
    }
}

fn unique<K: std::hash::Hash + Eq>(
    map: &mut HashMap<K, String>,
    value: K,
    key: String,
    what: &str,
) -> Result<(), Mistake> {
    match map.insert(value, key.clone()) {
        None => Ok(()),
        Some(first) => Err(Mistake {
            key,
            message: format!("{what} is used already by {first}; each needs its own"),
        }),
    }
}
