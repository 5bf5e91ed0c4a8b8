//! The qnic device process: NICs for QEMU guests and host-mode processes.
//!
//! ```text
//!   QEMU / host-mode process                      this process
//!  ┌──────────────────────────┐   ┌────────────────────────────────────────────┐
//!  │ vhost-user front end ◄───┼───┼─► [attach]: one thread per NIC, protocol   │
//!  │                          │   │        │ commands                           │
//!  │ guest RAM (memfd) ◄──────┼───┼─► [engine]: threads for all NICs ([fabric]) │
//!  │ SRAM BAR ◄───────────────┼───┼─► [sram]                                   │
//!  │ doorbells, interrupt ◄───┼───┼─► eventfds                                 │
//!  └──────────────────────────┘   └────────────────────────────────────────────┘
//! ```
//!
//! The process must not end, because QEMU cannot connect to a new one. Nothing that a guest or a
//! front end sends ends it: an error only costs the sender its queue, its start or its connection.
//!
//! `qnic-device` runs it from a configuration file ([`qnic_config`]); tests and host-mode
//! tools run it in their own process with [`Device::start`].
//!
//! # Counters
//! [`Device::stats`] and the metrics socket ([`metrics`]) return them, and the module `exposition` gives them to
//! Prometheus. Names and meanings stand in the tables of [`Report`] and [`qnic_nic::Counters`].
//!
//! # Unsafe code
//! Two functions in the module `sram`; nowhere else.
//!
//! [fabric]: qnic_links::fabric

mod attach;
mod capture;
mod dependencies;
mod device;
mod engine;
mod ethernet;
mod exposition;
mod identity;
mod memory;
pub mod metrics;
mod ram;
mod sram;
mod stop;
mod throttle;
mod trace;

use qnic_links::notifier;

pub use dependencies::show_dependencies;
pub use device::{Device, Stopper};
pub use engine::{EngineReport, NetworkReport, NicCounters, NicReport, NicState, Report};
pub use metrics::Stats;
pub use qnic_config::{
    ByteSize, Config, ConfigError, CountSettings, EngineSettings, Engines, EthernetSettings,
    LinkSettings, MacAddress, MetricsSettings, NetworkSettings, NicSettings, ProcessSettings,
    ShmSettings, TransportSettings, UdpSettings,
};

/// The result of a request whose errors are only reported to a client.
type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
