//! `qnic bench vfio`: guests whose NIC a process drives through VFIO, beside guests with the module (X11).
//!
//! Pairs of both kinds are in one cluster and take turns within each round; the others sleep meanwhile.

use anyhow::Result;
use qnic_apps::report::BenchRow;
use qnic_cluster::NicDriver;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

use super::figures::bytes;
use super::point_to_point::{list, rows_of};
use super::tables::Tables;

const TRANSFERS: &str = "transfers";
const WAKEUPS: &str = "wakeups";

const SIZES: [usize; 2] = [8, 65_536];

/// Pairs of guests, and what they are called.
const PAIRS: [([usize; 2], &str); 2] = [([0, 1], "module"), ([2, 3], "VFIO")];

/// Measures so many rounds.
pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let mut spec = VmNodes::spec("drivers", &["stable"; 4])?;
    for node in &mut spec.nodes[2..] {
        node.driver = NicDriver::Vfio;
    }
    let nodes = VmNodes::boot_spec(&spec)?;
    let transfers = format!("--rounds 1 --sizes {}", list(&SIZES));
    tables.rounds(rounds, "", false, |round| {
        for (pair, driver) in PAIRS {
            for row in between(&nodes, pair, ["demo-target", "bench"], ["", &transfers])? {
                let name = format!("{}, {driver}", row.operation);
                round.add_bench(TRANSFERS, &name, bytes(row.size), &row);
            }
            let echo = format!("--peer {} --echo", pair[0]);
            for row in between(&nodes, pair, ["wakeup-bench"; 2], [&echo, ""])? {
                let name = format!("{}, {driver}", row.operation);
                round.add_bench(WAKEUPS, &name, None, &row);
            }
        }
        Ok(())
    })?;
    nodes.end()
}

/// What a program on the first node of a pair says of the second one; the programs and options are those
/// of the second and the first.
fn between(
    nodes: &dyn Nodes,
    [from, to]: [usize; 2],
    [target, initiator]: [&str; 2],
    [of_target, of_initiator]: [&str; 2],
) -> Result<Vec<BenchRow>> {
    let target = nodes.start(to, &format!("{target} {of_target}"))?;
    let initiator = nodes.start(from, &format!("{initiator} --peer {to} {of_initiator}"))?;
    rows_of(initiator, target)
}
