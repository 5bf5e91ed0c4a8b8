//! Tests that need several processes or several virtual machines.
//!
//! ```text
//!   suite ── a list of Case { name, needs, run }
//!     │ run on
//!     ├── host::HostNodes   nodes are processes beside a device process (no VM)
//!     └── vm::VmNodes       nodes are QEMU guests with stock kernels
//!            both are Nodes: start a program on a node, read its lines, wait, kill
//! ```
//! A *scenario* is written once against [`nodes::Nodes`] and runs on both; what
//! needs a kernel (module reload, reboot, `/proc`) is in [`vm`].
#![forbid(unsafe_code)]

mod capture;
pub mod floor;
pub mod harness;
pub mod host;
mod net;
pub mod netns;
pub mod nodes;
pub mod scenario;
mod shm;
pub mod suite;
pub mod vm;
