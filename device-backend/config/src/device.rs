//! What a device process runs: its NICs, their sockets, its polling policy.
//!
//! ```toml
//! [[nic]]
//! name = "a"                    # for people: logs, metrics
//! node = 0                      # number in the network, unique
//! socket = "/run/qnic/a.sock"   # vhost-user, at most 107 bytes
//! ram = "256MiB"                # RAM of the guest that the page table must cover
//! ram_max = "1GiB"              # with what may be added while the guest runs; none unless set
//! doorbells = 14                # optional
//! windows = 128                 # optional: processes at the same time
//! counts = { contexts = 8 }     # optional: what each has, see [`CountSettings`]
//!
//! [engine]                      # optional
//! poll_window_us = 5            # keep polling so long after the last work
//! engines = "auto"              # threads that NICs are dealt to in turn: a number, or "auto"
//!
//! [metrics]                     # optional
//! socket = "/run/qnic/device.ctl"        # requests and responses in JSON
//! http_socket = "/run/qnic/device.http"  # optional: for Prometheus, on a Unix socket
//! http = "127.0.0.1:9750"                # optional: for Prometheus, on an address
//! http_anywhere = false                  # true: that address need not be a loopback one
//! ```
//!
//! How NICs are joined, with each other and with those of other processes, is in
//! `[network]`: see [`NetworkSettings`]. Ethernet ports are in `[[ethernet]]`: see
//! [`EthernetSettings`].
//!
//! Unknown keys are refused; every error has file, line, column and key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use qnic_limits::{
    Counts, NodeId, DEFAULT_DOORBELLS, DEFAULT_WINDOWS, MAX_DOORBELLS, MAX_WINDOWS, PAGE_SIZE,
};
use serde::{Deserialize, Serialize};

use crate::check::{add, require, Seen};
use crate::ethernet;
use crate::node_number::NodeNumber;
use crate::plan::NetworkPlan;
use crate::{ByteSize, ConfigError, Engines, EthernetSettings, NetworkSettings};

/// Most NICs in one device process.
const MAX_NICS: usize = 64;

/// Longest time to poll after the last work, in microseconds.
const MAX_POLL_WINDOW_US: u64 = 1_000_000;

/// Most RAM of a guest.
const MAX_RAM: ByteSize = ByteSize(1 << 40);

const DEFAULT_POLL_WINDOW_US: u64 = 5;

/// What a device process runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The NICs, at least one.
    #[serde(rename = "nic", default)]
    pub nics: Vec<NicSettings>,
    /// How many engines there are, and how they wait.
    #[serde(default)]
    pub engine: EngineSettings,
    /// Where metrics can be asked for, if at all.
    pub metrics: Option<MetricsSettings>,
    /// How the NICs are joined; `None`: each reaches each, and links do nothing.
    pub network: Option<NetworkSettings>,
    /// The Ethernet ports of the network, also those of other processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ethernet: Vec<EthernetSettings>,
    /// The socket on which programs of the host join the Ethernet of this process, if they can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet_host: Option<PathBuf>,
}

/// One NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSettings {
    /// Name for people.
    pub name: String,
    /// Number of its node in the network.
    #[serde(with = "NodeNumber")]
    pub node: NodeId,
    /// Path of its vhost-user socket.
    pub socket: PathBuf,
    /// RAM of the guest.
    pub ram: ByteSize,
    /// Its RAM with all that may be added while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram_max: Option<ByteSize>,
    /// Number of doorbells.
    #[serde(default = "default_doorbells")]
    pub doorbells: u32,
    /// Number of windows.
    #[serde(default = "default_windows")]
    pub windows: u32,
    /// What each process has.
    #[serde(default)]
    pub counts: CountSettings,
}

/// What a process has of its window and its host area, if less than there is room for
/// ([`Counts`]). Driver and library go by what the NIC says (Q1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CountSettings {
    /// Entries of a command queue.
    pub command_entries: u32,
    /// Contexts of each direction.
    pub contexts: u32,
    /// Page descriptors in the region of a context.
    pub context_pages: u32,
    /// Pages of the buffer pool.
    pub pool_pages: u32,
}

impl Default for CountSettings {
    fn default() -> Self {
        let most = Counts::MOST;
        CountSettings {
            command_entries: most.command_entries,
            contexts: most.contexts,
            context_pages: most.context_pages,
            pool_pages: most.pool_pages,
        }
    }
}

impl From<CountSettings> for Counts {
    fn from(settings: CountSettings) -> Self {
        Counts {
            command_entries: settings.command_entries,
            contexts: settings.contexts,
            context_pages: settings.context_pages,
            pool_pages: settings.pool_pages,
        }
    }
}

/// How many engines there are, and how they wait (performance.md, "Waiting policy").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSettings {
    /// How long to go on polling after the last work, in microseconds; where there are no more processors than
    /// guests, one at most.
    pub poll_window_us: u64,
    /// How many there are; NIC *n* of the list belongs to engine *n* modulo that number.
    pub engines: Engines,
}

/// Where metrics can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSettings {
    /// Path of a Unix socket.
    pub socket: PathBuf,
    /// Path of a Unix socket on which Prometheus finds them, by HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_socket: Option<PathBuf>,
    /// Address on which Prometheus finds them, by HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<SocketAddr>,
    /// Allows an address that is not a loopback one: every program that reaches it reads all counters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub http_anywhere: bool,
}

impl MetricsSettings {
    /// The JSON socket alone.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        MetricsSettings {
            socket: socket.into(),
            http_socket: None,
            http: None,
            http_anywhere: false,
        }
    }
}

/// Checks an address on which metrics are given by HTTP. Errors name `key`; `anywhere` is the
/// key that allows addresses that are not loopback ones.
///
/// # Errors
/// Returns an error if it has no port, or may be reached from elsewhere and must not.
pub fn check_metrics_address(
    address: SocketAddr,
    is_allowed: bool,
    key: &str,
    anywhere: &str,
) -> Result<(), ConfigError> {
    require(address.port() != 0, key, "expected a port other than 0")?;
    let message = format!(
        "{} is not a loopback address: every program that reaches it reads all counters; \
         {anywhere} = true allows it",
        address.ip()
    );
    require(is_allowed || address.ip().is_loopback(), key, message)
}

fn default_doorbells() -> u32 {
    DEFAULT_DOORBELLS
}

fn default_windows() -> u32 {
    DEFAULT_WINDOWS
}

impl Default for EngineSettings {
    fn default() -> Self {
        EngineSettings {
            poll_window_us: DEFAULT_POLL_WINDOW_US,
            engines: Engines::Auto,
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
        ram: ByteSize,
    ) -> Self {
        NicSettings {
            name: name.into(),
            node,
            socket: socket.into(),
            ram,
            ram_max: None,
            doorbells: default_doorbells(),
            windows: default_windows(),
            counts: CountSettings::default(),
        }
    }

    fn check(&self, key: &str) -> Result<(), ConfigError> {
        let nameless = "is empty; give the NIC a name for logs and metrics";
        require(!self.name.is_empty(), format!("{key}.name"), nameless)?;
        let ranges = [
            ("doorbells", self.doorbells, MAX_DOORBELLS),
            ("windows", self.windows, MAX_WINDOWS),
        ];
        for (field, value, most) in ranges {
            let message = format!("expected 1 to {most}, found {value}");
            require(
                (1..=most).contains(&value),
                format!("{key}.{field}"),
                message,
            )?;
        }
        if let Err(count) = Counts::from(self.counts).check() {
            let Counts {
                command_entries,
                contexts,
                context_pages,
                pool_pages,
            } = Counts::MOST;
            let message = format!(
                "is out of range: contexts 1 to {contexts}, command_entries a power of two up to \
                 {command_entries}, 16 at least and twice the contexts, context_pages 1 to \
                 {context_pages}, pool_pages 1 to {pool_pages}"
            );
            require(false, format!("{key}.counts.{count}"), message)?;
        }
        let ram = self.ram;
        let fits = ram.0 != 0 && ram.0 % PAGE_SIZE as u64 == 0 && ram <= MAX_RAM;
        let expected = format!("expected a multiple of {PAGE_SIZE} bytes up to {MAX_RAM}");
        require(
            fits,
            format!("{key}.ram"),
            format!("{expected}, found {ram}"),
        )?;
        let Some(most) = self.ram_max else {
            return Ok(());
        };
        let fits = most >= ram && most.0 % PAGE_SIZE as u64 == 0 && most <= MAX_RAM;
        let message = format!("{expected}, and no less than ram, found {most}");
        require(fits, format!("{key}.ram_max"), message)
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
            ethernet: Vec::new(),
            ethernet_host: None,
        }
    }

    /// Reads the configuration file `file`.
    ///
    /// # Errors
    /// Returns the first error, with its location.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            ConfigError::new("", format!("cannot read {}: {error}", file.display()))
        })?;
        Self::parse(&text, file)
    }

    /// Parses `text`, the content of the configuration file `file`.
    ///
    /// # Errors
    /// Returns the first error, with its location.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        crate::parse(text, file, |config: Self| {
            config.check()?;
            Ok(config)
        })
    }

    /// Checks the rules.
    ///
    /// # Errors
    /// Returns an error for the first value that breaks one.
    pub fn check(&self) -> Result<(), ConfigError> {
        let count = self.nics.len();
        require(count > 0, "nic", "expected at least one [[nic]]")?;
        let message = format!("{count} NICs, at most {MAX_NICS}");
        require(count <= MAX_NICS, "nic", message)?;
        let message = format!("expected at most {MAX_POLL_WINDOW_US}");
        let fits = self.engine.poll_window_us <= MAX_POLL_WINDOW_US;
        require(fits, "engine.poll_window_us", message)?;
        let carries = self
            .network
            .as_ref()
            .is_some_and(|it| !it.processes.is_empty());
        require(
            !(carries && self.engine.engines.is_several()),
            "engine.engines",
            "expected 1 or \"auto\" beside [[network.process]]: frames to and from other processes \
             take one engine",
        )?;
        let mut seen = Seen::default();
        for (index, nic) in self.nics.iter().enumerate() {
            let key = format!("nic[{index}]");
            nic.check(&key)?;
            seen.node(nic.node.0, &format!("{key}.node"))?;
            let what = format_args!("name \"{}\"", nic.name);
            add(&mut seen.names, &nic.name, &format!("{key}.name"), what)?;
            seen.socket(&nic.socket, &format!("{key}.socket"))?;
        }
        if let Some(metrics) = &self.metrics {
            seen.socket(&metrics.socket, "metrics.socket")?;
            if let Some(socket) = &metrics.http_socket {
                seen.socket(socket, "metrics.http_socket")?;
            }
            if let Some(address) = metrics.http {
                let anywhere = metrics.http_anywhere;
                check_metrics_address(address, anywhere, "metrics.http", "http_anywhere")?;
            }
        }
        let own = self.own_nodes().collect();
        let remote = self.network.iter().flat_map(NetworkSettings::remote_nodes);
        ethernet::check(&self.ethernet, &own, &remote.collect(), &mut seen)?;
        if let Some(socket) = &self.ethernet_host {
            seen.socket(socket, "ethernet_host")?;
        }
        match &self.network {
            Some(network) => network.check(self.own_nodes(), seen),
            None => Ok(()),
        }
    }

    /// The network that this process takes part in.
    ///
    /// # Errors
    /// Returns an error for the first value that breaks a rule.
    pub fn network_plan(&self) -> Result<NetworkPlan, ConfigError> {
        let network = self.network.clone().unwrap_or_default();
        network.plan(self.own_nodes())
    }

    fn own_nodes(&self) -> impl Iterator<Item = u16> + '_ {
        self.nics.iter().map(|nic| nic.node.0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const GOOD: &str = "[[nic]]\nname = \"a\"\nnode = 0\nsocket = \"/tmp/a\"\nram = \"256MiB\"\n";

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("q.toml"))
    }

    /// Expects an error on a line that contains a text.
    fn assert_error(text: &str, line: usize, part: &str) {
        let error = parse(text).expect_err(text).to_string();
        let location = format!("q.toml:{line}:");
        assert!(error.starts_with(&location), "{error}\n{text}");
        assert!(error.contains(part), "{error}\n{text}");
    }

    /// Each row, `from => to | line | error` with `\n` for a line end, replaces a part of a
    /// good file, and expects an error.
    pub(crate) fn assert_errors(good: &str, table: &str) {
        for row in table.trim().lines() {
            let cells: Vec<_> = row.split('|').collect();
            let (from, to) = cells[0].split_once("=>").unwrap();
            let [from, to] = [from, to].map(|text| text.trim().replace("\\n", "\n"));
            assert!(good.contains(&from), "{row}");
            let line = cells[1].trim().parse().unwrap();
            assert_error(&good.replacen(&from, &to, 1), line, cells[2].trim());
        }
    }

    #[test]
    fn a_short_file_gets_the_defaults_and_round_trips() {
        let config = parse(GOOD).unwrap();
        assert_eq!(config.nics[0].doorbells, DEFAULT_DOORBELLS);
        assert_eq!(config.nics[0].windows, DEFAULT_WINDOWS);
        assert_eq!(config.engine.poll_window_us, 5);
        assert!(config.engine.engines.is_auto());
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(parse(&printed).unwrap(), config);
    }

    #[test]
    fn metrics_leave_the_machine_only_if_that_is_said() {
        let text = format!("{GOOD}[metrics]\nsocket = \"/tmp/m\"\n");
        for good in [
            "http = \"127.0.0.1:9750\"",
            "http = \"[::1]:9750\"\nhttp_socket = \"/tmp/h\"",
            "http = \"0.0.0.0:9750\"\nhttp_anywhere = true",
        ] {
            let config = parse(&format!("{text}{good}\n")).unwrap();
            let printed = toml::to_string(&config).unwrap();
            assert_eq!(parse(&printed).unwrap(), config);
        }
    }

    #[test]
    fn an_error_shows_its_line() {
        let error = parse(&GOOD.replace("256MiB", "lots")).unwrap_err();
        let expected = "q.toml:5:7: nic[0].ram: expected a size such as \"256MiB\" or \"1GiB\", \
                        found \"lots\"\n  | ram = \"lots\"";
        assert_eq!(error.to_string(), expected);
        let error = Config::load(Path::new("/nowhere/q.toml")).unwrap_err();
        let expected = "cannot read /nowhere/q.toml: No such file";
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    /// Each error is found on its line and named by its key.
    #[test]
    fn errors_have_a_location_and_a_key() {
        let table = r#"
            [[nic]] => [[nic] | 1 | ]
            node = 0 => node = 70000 | 3 | 70000
            node = 0 => node = "x" | 3 | invalid type
            node = 0\n => | 1 | nic[0]: missing field `node`
            "a" => "" | 2 | nic[0].name
            256MiB => 256 | 5 | nic[0].ram
            256MiB => 3KiB | 5 | nic[0].ram
            256MiB => 64TiB | 5 | nic[0].ram
            END => ram_max = "128MiB" | 6 | nic[0].ram_max
            END => ram_max = "2TiB" | 6 | nic[0].ram_max
            /tmp/a => | 4 | nic[0].socket
            END => colour = 1 | 6 | colour
            END => doorbells = 0 | 6 | nic[0].doorbells
            END => doorbells = 63 | 6 | 1 to 62
            END => windows = 5000 | 6 | nic[0].windows
            END => counts = { contexts = 33 } | 6 | nic[0].counts.contexts
            END => counts = { command_entries = 48 } | 6 | nic[0].counts.command_entries
            END => counts = { pool_pages = 0 } | 6 | pool_pages 1 to 16
            END => counts = { colours = 1 } | 6 | colours
            END => [[nic]]\nname = "b"\nnode = 0\nsocket = "/tmp/b"\nram = "1GiB" | 8 | used already by nic[0].node
            END => [[nic]]\nname = "a"\nnode = 1\nsocket = "/tmp/b"\nram = "1GiB" | 7 | used already by nic[0].name
            END => [[nic]]\nname = "b"\nnode = 1\nsocket = "/tmp/a"\nram = "1GiB" | 9 | used already by nic[0].socket
            END => [metrics]\nsocket = "/tmp/a" | 7 | metrics.socket
            END => [metrics]\nsocket = "/tmp/m"\nhttp_socket = "/tmp/m" | 8 | used already by metrics.socket
            END => [metrics]\nsocket = "/tmp/m"\nhttp = "0.0.0.0:9750" | 8 | metrics.http: 0.0.0.0 is not a loopback address
            END => [metrics]\nsocket = "/tmp/m"\nhttp = "127.0.0.1:0" | 8 | metrics.http: expected a port
            END => [metrics]\nsocket = "/tmp/m"\nhttp = "9750" | 8 | metrics.http
            END => [engine]\npoll_window_us = 9000000 | 7 | engine.poll_window_us
            END => [engine]\nspin = 1 | 7 | spin
            END => [engine]\nengines = 0 | 7 | engine.engines: invalid value: integer `0`, expected "auto", or a number
            END => [engine]\nengines = 17 | 7 | from 1 to 16
            END => [engine]\nengines = "many" | 7 | engine.engines
        "#;
        assert_errors(&format!("{GOOD}#END"), &table.replace("END", "#END"));
        let long = GOOD.replace("tmp/a", &"x".repeat(107));
        for (text, line, part) in [
            ("", 1, "at least one"),
            ("nic = 3", 1, "invalid type"),
            (&long, 4, "1 to 107 bytes"),
        ] {
            assert_error(text, line, part);
        }
    }
}
