//! `qnic bench curves`: what transfers, notifications and channels cost as they become longer, the
//! curves beside the tables of `qnic bench memory` and `qnic bench sync` (N27), in host mode. What is
//! measured is in [`qnic_apps::paper`].

use anyhow::Result;
use qnic_apps::paper::{curves, signals};

use super::paper::HostEnds;
use super::tables::Tables;

/// Each round of transfers has nodes of its own.
pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    tables.rounds(rounds, "", false, |round| {
        curves::round(&HostEnds::start()?.ends, usize::MAX, round)
    })?;
    let nodes = HostEnds::start()?;
    let mut bench = signals::Bench::new(&nodes.ends)?;
    tables.rounds(rounds, ", signals", true, |round| bench.by_length(round))
}
