//! The configuration model: its types, its rules, and errors that say where.
//!
//! ```text
//!   cluster file ─► qnic-cluster: ClusterSpec ─► Config ─TOML─► qnic-device: Config
//!     (names)             │                        │                   │
//!                         └────────── this crate: parse, check ────────┘
//! ```
//!
//! [`Config`] is what one device process runs. The process reads it from a file; the
//! cluster tool makes it from a cluster file and writes it to that file. Both files go
//! through [`parse`], and what both say of a network is checked by the same functions:
//! an error names file, line, column, key and what was expected.
#![forbid(unsafe_code)]

mod as_text;
mod check;
mod device;
mod engines;
mod error;
mod ethernet;
mod file;
mod interface;
mod mac;
mod network;
mod node_number;
pub mod plan;
mod size;
mod transport;

pub use check::{add, require, Unique, MAX_SOCKET_PATH};
pub use device::{
    check_metrics_address, Config, CountSettings, EngineSettings, MetricsSettings, NicSettings,
};
pub use engines::Engines;
pub use error::ConfigError;
pub use ethernet::{
    check_mac, check_mtu, EthernetSettings, DEFAULT_MTU, MAX_ETHERNET_QUEUES, MAX_MTU, MIN_MTU,
};
pub use file::parse;
pub use interface::{InterfaceAddress, NotAnInterfaceAddress};
pub use mac::{MacAddress, NotAMacAddress, MAX_HOST_PORTS};
pub use network::{
    arrange, check_link, check_timeouts, index_of, topology, LinkSettings, NetworkSettings,
    ProcessSettings, ShmSettings, UdpSettings,
};
pub use size::ByteSize;
pub use transport::TransportSettings;
