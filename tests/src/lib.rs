//! Tests that need several processes or several virtual machines.
//!
//! ```text
//!   suite ── lists of Case { name, processors, run }, run and counted by harness, side by side
//!     │      as schedule says, each in a process of its own
//!     │ run on
//!     ├── host::HostNodes   nodes are processes beside a device process (no VM)
//!     └── vm::VmNodes       nodes are QEMU guests with stock kernels
//!            both are Nodes: start a program on a node, read its lines, wait, kill
//! ```
//! A *scenario* is written once against [`nodes::Nodes`] and runs on both; what
//! needs a kernel (module reload, reboot, `/proc`) is in [`vm`].
//!
//! [`harness`] stands in for `libtest-mimic`, which shows an error only after the last case
//! (these take half an hour), gives a case no time, and tears a case's line apart from its
//! result when the case prints.
#![forbid(unsafe_code)]

mod capture;
pub mod floor;
pub mod harness;
pub mod host;
pub mod interrupt;
pub mod keys;
mod net;
pub mod netns;
pub mod nodes;
pub mod scenario;
pub mod schedule;
mod shm;
pub mod suite;
mod trace;
pub mod vm;
