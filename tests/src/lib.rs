//! Tests that need several processes or several virtual machines.
//!
//! ```text
//!   run ── jobs: cargo's checks, builds and programs of tests, and the cases, side by side as
//!    │     schedule says, each in a process of its own
//!   suite ── lists of Case { name, processors, run }, run and counted by harness
//!    │ on
//!   Nodes of qnic-trials: processes beside a device process, or QEMU guests with stock kernels
//! ```
//! A *scenario* is written once against [`qnic_trials::nodes::Nodes`] and runs on both kinds; what
//! needs a kernel (module reload, reboot, `/proc`) is in `vm`.
//!
//! `harness` stands in for `libtest-mimic`, which shows an error only after the last case
//! (these take half an hour), gives a case no time, and tears a case's line apart from its
//! result when the case prints.
#![forbid(unsafe_code)]

mod capture;
mod harness;
mod interrupt;
mod net;
mod netns;
pub mod run;
mod scenario;
mod schedule;
mod shm;
mod slurm;
mod suite;
mod trace;
mod trial;
mod vm;
