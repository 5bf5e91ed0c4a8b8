//! What a device process runs: its NICs, their sockets, its polling policy.
//!
//! ```toml
//! [[nic]]
//! name = "a"                    # for people: logs, metrics
//! node = 0                      # number in the network, unique
//! socket = "/run/qnic/a.sock"   # vhost-user, at most 107 bytes
//! ram = "256MiB"                # RAM of the guest that the page table must cover
//! doorbells = 14                # optional
//! windows = 128                 # optional: processes at the same time
//!
//! [engine]                      # optional
//! poll_window_us = 5            # keep polling so long after the last work
//!
//! [metrics]                     # optional
//! socket = "/run/qnic/device.ctl"
//! ```
//!
//! How NICs are joined, with each other and with those of other processes, is in
//! `[network]`: see [`NetworkSettings`].
//!
//! Unknown keys are refused; every mistake is reported with file, line, column
//! and key.

mod check;
mod network;
mod raw;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use qnic_abi::{attach, header, NodeId};
use serde::{Deserialize, Serialize};

use crate::ram::RamSize;
pub use network::{LinkSettings, NetworkSettings, ProcessSettings, ShmSettings, UdpSettings};
use raw::{mistake_at, RawConfig};

/// Most NICs in one device process.
pub const MAX_NICS: usize = 64;

/// Longest path that fits into a Unix socket address, in bytes.
pub const MAX_SOCKET_PATH: usize = 107;

/// Longest time to poll after the last work, in microseconds.
pub const MAX_POLL_WINDOW_US: u64 = 1_000_000;

const DEFAULT_POLL_WINDOW_US: u64 = 5;

/// What a device process runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// The NICs, at least one.
    #[serde(rename = "nic")]
    pub nics: Vec<NicSettings>,
    /// How the engine waits.
    pub engine: EngineSettings,
    /// Where metrics can be asked for, if at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsSettings>,
    /// How the NICs are joined; `None`: each reaches each, and links do nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSettings>,
}

/// One NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NicSettings {
    /// Name for people.
    pub name: String,
    /// Number of its node in the network.
    #[serde(serialize_with = "node_number")]
    pub node: NodeId,
    /// Path of its vhost-user socket.
    pub socket: PathBuf,
    /// RAM of the guest.
    pub ram: RamSize,
    /// Number of doorbells.
    pub doorbells: u32,
    /// Number of windows.
    pub windows: u32,
}

/// How the engine waits (performance.md, "Waiting policy").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSettings {
    /// How long to go on polling after the last work, in microseconds.
    pub poll_window_us: u64,
}

/// Where metrics can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSettings {
    /// Path of a Unix socket.
    pub socket: PathBuf,
}

/// A value that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Mistake {
    /// The key, such as `nic[1].node`.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file has a mistake.
    #[error("{}:{line}:{column}: {message}\n  | {text}", file.display())]
    Mistake {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The key, what is wrong and what was expected.
        message: String,
        /// The line itself.
        text: String,
    },
}

impl Default for EngineSettings {
    fn default() -> Self {
        EngineSettings {
            poll_window_us: DEFAULT_POLL_WINDOW_US,
        }
    }
}

impl EngineSettings {
    /// How long to go on polling after the last work.
    pub const fn poll_window(&self) -> Duration {
        Duration::from_micros(self.poll_window_us)
    }
}

impl NicSettings {
    /// A NIC with the usual numbers of doorbells and windows.
    pub fn new(
        name: impl Into<String>,
        node: NodeId,
        socket: impl Into<PathBuf>,
        ram: RamSize,
    ) -> Self {
        NicSettings {
            name: name.into(),
            node,
            socket: socket.into(),
            ram,
            doorbells: attach::DEFAULT_DOORBELLS,
            windows: header::DEFAULT_WINDOWS,
        }
    }
}

impl Config {
    /// A process that runs `nics` and has the usual settings beside them.
    pub fn new(nics: Vec<NicSettings>) -> Self {
        Config {
            nics,
            engine: EngineSettings::default(),
            metrics: None,
            network: None,
        }
    }

    /// Reads the configuration file `file`.
    ///
    /// # Errors
    /// [`ConfigError`] with the place of the first mistake.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError::Read {
            file: file.to_owned(),
            error,
        })?;
        Self::parse(&text, file)
    }

    /// Parses `text`, the content of the configuration file `file`.
    ///
    /// # Errors
    /// [`ConfigError::Mistake`], the first one.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let at = |span: Range<usize>, message: String| mistake_at(file, text, &span, message);
        let raw: RawConfig = toml::from_str(text)
            .map_err(|error| at(error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let (config, places) = raw.resolve().map_err(|(span, message)| at(span, message))?;
        config.check().map_err(|mistake| {
            let span = places.get(&mistake.key).cloned().unwrap_or(0..0);
            at(span, mistake.to_string())
        })?;
        Ok(config)
    }
}

fn node_number<S: serde::Serializer>(node: &NodeId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(node.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[nic]]\nname = \"a\"\nnode = 0\nsocket = \"/tmp/a\"\nram = \"256MiB\"\n";

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("q.toml"))
    }

    #[test]
    fn a_short_file_gets_the_defaults_and_round_trips() {
        let config = parse(GOOD).unwrap();
        assert_eq!(config.nics[0].doorbells, attach::DEFAULT_DOORBELLS);
        assert_eq!(config.nics[0].windows, header::DEFAULT_WINDOWS);
        assert_eq!(config.engine.poll_window_us, 5);
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(parse(&printed).unwrap(), config);
    }

    /// Each mistake is found on its line and named by its key.
    #[test]
    fn mistakes_have_a_place_and_a_key() {
        let nic = |name: &str, node: &str, socket: &str, rest: &str| {
            format!("[[nic]]\nname = {name}\nnode = {node}\nsocket = {socket}\n{rest}\n")
        };
        let ram = "ram = \"1GiB\"";
        let long = format!("\"/{}\"", "x".repeat(107));
        let second = |name: &str, node: &str, socket: &str| {
            format!("{GOOD}{}", nic(name, node, socket, ram))
        };
        let cases = [
            (String::new(), 1, "at least one"),
            ("nic = 3".to_owned(), 1, "invalid type"),
            ("[[nic]\n".to_owned(), 1, "]"),
            (format!("{GOOD}colour = 1\n"), 6, "colour"),
            (GOOD.replace("node = 0", "node = 70000"), 3, "70000"),
            (GOOD.replace("node = 0", "node = \"x\""), 3, "invalid type"),
            (GOOD.replace("node = 0\n", ""), 1, "node"),
            (GOOD.replace("\"a\"", "\"\""), 2, "nic[0].name"),
            (GOOD.replace("256MiB", "256"), 5, "nic[0].ram"),
            (GOOD.replace("256MiB", "3KiB"), 5, "nic[0].ram"),
            (GOOD.replace("256MiB", "64TiB"), 5, "nic[0].ram"),
            (GOOD.replace("\"/tmp/a\"", "\"\""), 4, "nic[0].socket"),
            (GOOD.replace("\"/tmp/a\"", &long), 4, "1 to 107 bytes"),
            (format!("{GOOD}doorbells = 0\n"), 6, "nic[0].doorbells"),
            (format!("{GOOD}doorbells = 63\n"), 6, "1 to 62"),
            (format!("{GOOD}windows = 5000\n"), 6, "nic[0].windows"),
            (
                second("\"b\"", "0", "\"/tmp/b\""),
                8,
                "used already by nic[0].node",
            ),
            (
                second("\"a\"", "1", "\"/tmp/b\""),
                7,
                "used already by nic[0].name",
            ),
            (
                second("\"b\"", "1", "\"/tmp/a\""),
                9,
                "used already by nic[0].socket",
            ),
            (
                format!("{GOOD}[metrics]\nsocket = \"/tmp/a\"\n"),
                6,
                "metrics.socket",
            ),
            (
                format!("{GOOD}[engine]\npoll_window_us = 9000000\n"),
                6,
                "engine.poll_window_us",
            ),
            (format!("{GOOD}[engine]\nspin = 1\n"), 7, "spin"),
        ];
        for (text, line, part) in cases {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(
                error.starts_with(&format!("q.toml:{line}:")),
                "{error}\n{text}"
            );
            assert!(error.contains(part), "{error}\n{text}");
        }
    }
}
