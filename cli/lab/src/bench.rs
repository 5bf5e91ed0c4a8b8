//! `qnic bench`: latency, bandwidth and cost, beside the floor that the same machine gives in the
//! same run.
//!
//! ```text
//!   suite ──► Tables ──► figures ──► Run ──► text, JSON, page
//!                 suites.toml        │
//!                 goals.toml         │
//!                another day's Run ──┴──► compare, tables of a document
//! ```
//! A suite adds samples to [`tables::Tables`]. What its tables show, to what figures are divided and what they
//! shall be is declared ([`spec`]). [`run()`] has it measured on a machine whose load it looks at, and [`record`]
//! is what remains of it.

mod boot;
mod collective;
mod compare;
mod comparison;
mod curves;
mod document;
mod drivers;
mod engine;
mod ethernet;
mod figures;
mod floor;
mod goal;
mod goals;
mod growth;
mod guest_network;
mod guest_peers;
mod guest_said;
mod host_peers;
mod ivshmem_server;
mod kernel;
mod limits;
mod load;
mod machine;
mod memory;
mod message;
mod modules;
mod mpi;
mod numbers;
mod page;
mod paper;
mod peers;
mod plan;
mod point_to_point;
mod rank;
mod record;
mod remote_memory;
mod run;
mod scaling;
mod sharing;
mod spec;
mod stages;
mod suites;
mod sync;
mod table_ops;
mod tables;
mod text;
mod two_programs;
mod verbs;
mod wakeups;
mod wire;

use std::process::ExitCode;

use anyhow::Result;
use qnic_cli::lab::bench::{Action, Options};

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match &options.action {
        None => run::suites(&options.suites, &options.output),
        Some(Action::Compare(options)) => compare::run(options),
        Some(Action::Tables(options)) => document::run(options).map(|()| ExitCode::SUCCESS),
    }
}
