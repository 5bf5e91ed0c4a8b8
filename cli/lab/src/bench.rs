//! `qnic bench`: latency, bandwidth and cost, beside the floor that the same machine gives in the
//! same run.
//!
//! ```text
//!   suite ──► tables of figures ──► Run ──► text, JSON, page
//!                                    │
//!                another day's Run ──┴──► compare, tables of a document
//! ```
//! A suite returns [`figures::Table`]s; [`run()`] has it measured on a machine whose load it looks
//! at, and [`record`] is what remains of it.

mod boot;
mod bottleneck;
mod collective;
mod compare;
mod curves;
mod document;
mod engine;
mod engines;
mod figures;
mod floor;
mod goal;
mod growth;
mod guest_network;
mod guest_peers;
mod guest_said;

mod ivshmem_server;
mod kernel;
mod libfabric;
mod load;
mod machine;
mod memory;
mod message;
mod modules;
mod netvm;
mod page;
mod peers;
mod plan;
mod point_to_point;
mod promises;
mod rank;
mod record;
mod remote_memory;
mod run;
mod scaling;
mod series;
mod sharing;
mod stages;
mod suites;
mod sync;
mod table_ops;
mod text;
mod transfers;
mod two_programs;
mod ucx;
mod wakeups;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use qnic_cli::lab::bench::{Action, Options};

use point_to_point::{merge, transfers_between};

/// Memory of a node in this process.
const MEMORY: usize = 16 << 20;

/// Longest time for one size.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match &options.action {
        None => run::suites(&options.suites, &options.output),
        Some(Action::Compare(options)) => compare::run(options),
        Some(Action::Tables(options)) => document::run(options).map(|()| ExitCode::SUCCESS),
    }
}
