//! What `qnic top` shows of nodes.

use std::time::Instant;

use anyhow::{Context, Result};
use qnic_watch::top::{rows, NodeSnapshot, Row, Snapshot};

use qnic_trials::nodes::{until, Nodes, LIMIT};

/// All nodes send to each other without end; in the end each has a row that says so.
pub(crate) fn top_shows_what_nodes_do(nodes: &dyn Nodes) -> Result<()> {
    let all: Vec<_> = (0..nodes.count()).map(|node| node.to_string()).collect();
    let words = format!("exchange --nodes {} --rounds 1000000000", all.join(","));
    let running = (0..nodes.count()).map(|node| nodes.start(node, &words));
    let mut running: Vec<_> = running.collect::<Result<_>>()?;
    let take = || anyhow::Ok(Snapshot::parse(&nodes.device_stats()?, Instant::now()));
    until(LIMIT, || {
        let begun = |node: &NodeSnapshot| node.counter("commands") > 0;
        let all = take()?.nodes.values().filter(|node| begun(node)).count();
        Ok((all < nodes.count()).then(|| format!("only {all} nodes have begun")))
    })?;
    let before = take()?;
    until(LIMIT, || {
        let rows = rows(Some(&before), &take()?);
        for row in &rows {
            serde_json::to_value(row).context("a row as JSON")?;
        }
        Ok(match rows.iter().filter(|row| works(row)).count() {
            count if count == nodes.count() => None,
            count => Some(format!("{count} nodes work, as these rows say: {rows:?}")),
        })
    })?;
    for program in &mut running {
        program.kill()?;
        program.wait(LIMIT)?;
    }
    Ok(())
}

/// A row of a node that sends and receives, of which a stage was timed, a process does it, and a
/// session is open.
fn works(row: &Row) -> bool {
    let rates = [
        row.operations_per_second,
        row.sent_per_second,
        row.received_per_second,
    ];
    let moves = rates.iter().all(|rate| *rate > Some(0));
    let process = row.by_process.iter().any(|process| {
        process.operations_per_second > Some(0) && process.sent_per_second > Some(0)
    });
    let peer = row
        .by_peer
        .iter()
        .any(|peer| peer.session == "open" && peer.credits.1 > 0);
    moves && process && peer && row.stages.iter().any(|stage| stage.half.is_some())
}
