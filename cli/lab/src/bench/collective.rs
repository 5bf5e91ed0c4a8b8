//! Barriers and reductions of the NICs beside a tree of the library's own writes, between
//! host-mode nodes.

use anyhow::Result;
use qnic_apps::report::BenchRow;
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::Nodes;

use super::figures::at;
use super::limits::LIMIT;
use super::point_to_point::{list, said};
use super::tables::{Tables, LEAST, TAIL};

const NODES: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Tables, by what is in the NICs.
const OPERATIONS: [&str; 2] = ["barrier", "allreduce"];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    for count in NODES {
        eprintln!("{count} nodes");
        let rows = on(count, rounds)?;
        for table in OPERATIONS {
            let by_writes = format!("{table}_by_writes");
            for (operation, name) in [(table, "in the NICs"), (&by_writes, "by writes")] {
                for row in rows.iter().filter(|row| row.operation == operation) {
                    let to = tables.row(table, name, at("nodes", count as f64));
                    to.add("median [µs]", row.latency.iter().map(|it| it.median_us));
                    to.add(TAIL, row.latency.iter().map(|it| it.p99_us));
                    to.add(LEAST, row.latency.iter().map(|it| it.min_us));
                }
            }
        }
    }
    Ok(())
}

fn on(count: usize, rounds: usize) -> Result<Vec<BenchRow>> {
    let nodes = HostNodes::start(count)?;
    let all: Vec<_> = (0..count).collect();
    let words = format!("collective-bench --nodes {} --rounds {rounds}", list(&all));
    let start = |node| nodes.start(node, &words);
    let running: Vec<_> = (0..count).map(start).collect::<Result<_>>()?;
    let mut running = running.into_iter();
    let rows = running.next().map(|first| said(first, "process 0"));
    for mut program in running {
        program.succeed("a member", LIMIT)?;
    }
    rows.unwrap_or_else(|| Ok(Vec::new()))
}
