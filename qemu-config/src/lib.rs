//! Describes, boots and tears down clusters of QEMU guests with qnic NICs (X1).
//!
//! ```text
//!   cluster file ─▶ ClusterSpec ─▶ Cluster::boot ─▶ Cluster ── Node ── run, put, get,
//!      (TOML)                          │               │               reset, monitor …
//!                                      │               └── device process
//!                         qnic-images: QEMU, kernel, module, image
//! ```
//!
//! A cluster is *attached* (it ends with the program that booted it, however that ends) or
//! *detached* (it runs until [`down`]). Both consist of the same processes and files, described in
//! [`Runtime`]'s module; any program of the same user can [`Cluster::open`] either.
//!
//! ```no_run
//! use std::time::Duration;
//! use qnic_cluster::{BootOptions, Cluster, ClusterSpec, GuestCommand, Mode, NodeSpec};
//!
//! # fn main() -> qnic_cluster::Result<()> {
//! let spec = ClusterSpec::new("pair").with(NodeSpec::new("a")).with(NodeSpec::new("b"));
//! let cluster = Cluster::boot(&spec, &BootOptions::new(Mode::Attached)?)?;
//! let output = cluster.node("a")?.run(&GuestCommand::shell("uname -r"), Duration::from_secs(10))?;
//! assert!(output.exit.success());
//! cluster.end()
//! # }
//! ```
//!
//! Nothing here waits by sleeping: every wait is for a descriptor, has a time limit, and ends when
//! a [`Cancel`] is pulled.

mod accel;
mod agent;
mod boot;
mod boot_options;
mod capture;
mod cluster;
mod config;
mod copy;
mod debug;
mod descendants;
mod device;
mod device_config;
mod dirs;
mod emulated_clock;
mod ending;
mod error;
mod ethernet_host;
mod follow;
mod fresh;
mod guest_command;
mod guest_process;
mod host_node;
mod kvm_probe;
mod limits;
mod links;
mod lock;
mod logs;
mod machine;
mod machine_error;
mod manifest;
mod monitor;
mod mpi;
mod node;
mod node_state;
mod overview;
mod owned;
mod process;
mod programs;
mod provision;
mod qemu;
pub mod qmp;
mod ready;
mod remote_memory;
mod schedule;
mod seed;
mod share;
mod slot;
mod socket;
mod spawn;
mod ssh_key;
pub mod stages;
mod state;
mod swap;
mod teardown;
#[cfg(test)]
mod testing;
mod wait;
mod watch;

pub use accel::{decide, Accel, AccelDecision};
pub use boot_options::BootOptions;
pub use capture::{CaptureOptions, DISSECTOR};
pub use cluster::{Cluster, QueuePairFaults};
pub use config::{
    AccelChoice, ClusterSpec, DeviceSpec, EthernetPort, EthernetSpec, FileSpec, HostSpec, LinkSpec,
    NetworkSpec, NicDriver, NicSpec, NodeSpec, OnOff, PortSpec, ProcessSpec, RemoteMemorySpec,
    RepeatSpec, ScheduleSpec, ShareSpec, Step, StepChange, MAX_NAME,
};
pub use copy::Count;
pub use debug::Debugger;
pub use descendants::{adopt_orphans, end_descendants, end_tree};
pub use device::{add_stats, ask as ask_device};
pub use error::{Error, Result};
pub use ethernet_host::HostEthernet;
pub use guest_command::{GuestCommand, GuestEvent, GuestExit, GuestOutput};
pub use guest_process::{GuestInput, GuestProcess};
pub use limits::{COMMAND_SLOTS, MAX_MACHINES, MAX_RANKS};
pub use links::Links;
pub use logs::{follow_logs, print_logs, Log};
pub use machine::{Interface, Machine, MachineOverview, MachineRun, Machines, RunEnd, RunReport};
pub use machine_error::MachineError;
pub use manifest::Mode;
pub use monitor::Monitor;
pub use mpi::{Mpi, MpiTransport, PROVIDER};
pub use node::Node;
pub use node_state::NodeState;
pub use overview::{
    of_other_versions, overview, ClusterOverview, DeviceOverview, NodeOverview, ProcessOverview,
    RemoteMemoryOverview,
};
pub use process::ProcessId;
pub use programs::{
    cargo, library, module_sources, program, program_or_build, programs, repository, Program, APP,
    APP_PATH, DEMO, DEVICE, EXEC, LOG_KEEPER, PROGRAMS,
};
pub use provision::{available_memory, prepare};
pub use qnic_config::plan::units::{Probability, Rate, Span};
pub use qnic_config::plan::{ImpairmentChange, Impairments, Shape};
pub use qnic_config::{
    ByteSize, ConfigError, Engines, InterfaceAddress, MacAddress, NotAnInterfaceAddress,
};
pub use qnic_images::{Progress, Silent};
pub use schedule::Taken;
pub use spawn::spawn_bound;
pub use state::Runtime;
pub use teardown::{down, sweep};
pub use wait::Cancel;
pub use watch::Broken;
