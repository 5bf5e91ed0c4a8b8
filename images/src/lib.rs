//! Provisions everything a cluster of guests is booted from: QEMU, stock
//! kernels, the guest kernel module and the guest image (X1).
//!
//! ```text
//!  distribution mirror ──apt-get──▶ packages ──dpkg──▶ tool root ──▶ Qemu
//!                                      │
//!                                      ├────────────────▶ kernel ──▶ vmlinuz, modules
//!                                      ├────────────────▶ build root ──▶ qnic.ko
//!                                      ├────────────────▶ guest files ──▶ initramfs
//!                                      └────────────────▶ disk image, for the suite
//! ```
//!
//! Nothing has to be installed by hand or run as root. Every artefact
//! lives in a content-keyed [`Cache`]: made once, under a lock, in a temporary
//! directory that is renamed when it is complete. What a mirror
//! offered at that time is remembered, so that later runs need no network.
#![forbid(unsafe_code)]

mod apt;
mod apt_text;
mod build_root;
mod cache;
mod command;
mod context;
mod disk_image;
mod distribution;
mod dkms;
mod doctor;
mod error;
mod guest;
mod installed;
mod kernel;
mod kernel_series;
mod key;
mod library;
mod mirror;
mod module;
mod mpi;
mod prebuilt;
mod program;
mod progress;
mod provisioner;
mod root;
mod sandbox;
mod slurm;
mod sources;
mod system_root;
mod tools;
mod verbs_tests;

pub use cache::Cache;
pub use command::{cancelled_by, registry_is_unreachable};
pub use doctor::{Finding, Report, State};
pub use error::{Error, Result};
pub use guest::{GuestFile, GuestImage};
pub use installed::Installed;
pub use kernel_series::KernelSeries;
pub use library::Library;
pub use mpi::HostMpi;
pub use program::Program;
pub use progress::{Progress, Silent};
pub use provisioner::Provisioner;
pub use slurm::Slurm;
