//! `qnic bench sync`: what notifications, channels, atomic operations, locks, queues and
//! semaphores cost (N16 to N24), as ratios to this system's own writes and reads, beside
//! those of NetVM, in host mode. What is measured is in [`qnic_apps::paper`].

mod overheads;

use anyhow::Result;
use qnic_apps::paper::{operations, rates, signals};

use super::paper::HostEnds;
use super::tables::Tables;

/// Measures everything. The first round warms up and is not counted.
pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let nodes = HostEnds::start()?;
    let bench = operations::Bench::new(&nodes.ends)?;
    tables.rounds(rounds, "", true, |round| bench.round(round))?;
    overheads::measure(rounds, tables)?;
    let nodes = HostEnds::start()?;
    let mut bench = signals::Bench::new(&nodes.ends)?;
    tables.rounds(rounds, ", signals", true, |round| bench.round(round))?;
    let nodes = HostEnds::start()?;
    let bench = rates::Bench::new(&nodes.ends)?;
    tables.rounds(rounds, ", rates", true, |round| bench.round(round))
}
