//! Cases about traces: the life of operations across nodes (X6).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_nic::trace::{Scope, What};
use qnic_watch::trace::{Collected, Collection, Operation, Operations, Settings};
use serde_json::Value;

use crate::net::on_bad_links;
use crate::shm::Joined;
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::{Nodes, LIMIT};

/// A trace of these nodes of all device processes, until it is ended.
fn begin(nodes: &HostNodes, devices: usize, names: &[&str]) -> Result<Collection> {
    let sockets: Vec<_> = (0..devices).map(|device| nodes.control(device)).collect();
    let settings = Settings {
        time: Duration::ZERO,
        nodes: names.iter().map(|name| (*name).to_owned()).collect(),
        sample: 1,
        limit: 1_000_000,
        output: PathBuf::new(),
        json: false,
    };
    Collection::begin(&sockets, &settings)
}

/// Traces programs of two nodes: so few operations that no buffer is ever full.
fn traced(
    nodes: &HostNodes,
    devices: usize,
    ends: [usize; 2],
    words: impl Fn(&str) -> String,
) -> Result<Collected> {
    let [a, b] = ends.map(|node| format!("n{node}"));
    let collection = begin(nodes, devices, &[&a, &b])?;
    let words = words(&format!("{},{}", ends[0], ends[1]));
    nodes.run_all(&ends.map(|node| (node, words.clone())), LIMIT)?;
    let collected = collection.end()?;
    ensure!(collected.lost.is_empty(), "lost: {:?}", collected.lost);
    ensure!(collected.beyond == 0);
    let traced: Vec<_> = collected.nodes.iter().map(|node| &*node.name).collect();
    ensure!(traced == [&*a, &*b], "{traced:?}");
    Ok(collected)
}

/// Traces an exchange of two nodes.
fn exchange(nodes: &HostNodes, devices: usize, ends: [usize; 2]) -> Result<Collected> {
    traced(nodes, devices, ends, |list| {
        format!("exchange --nodes {list} --rounds 20 --max-size 60000")
    })
}

/// Two nodes of two device processes exchange; each operation has its stages in their order, at both.
pub(crate) fn life_of_operations() -> Result<()> {
    let joined = Joined::start("")?;
    let ends = [0, 2];
    let collected = exchange(&joined.nodes, 2, ends)?;
    let operations = Operations::of(&collected);
    for node in ends {
        let own = operations
            .all
            .iter()
            .filter(|it| usize::from(it.requester) == node && it.name.starts_with("write "));
        let own: Vec<_> = own.collect();
        // Data, header and receipt of each round.
        ensure!(own.len() >= 60, "node {node} has {} writes", own.len());
        for operation in own {
            in_order(operation).with_context(|| format!("{operation:?}"))?;
        }
    }
    let arrows = file(&collected, &operations)?;
    ensure!(arrows >= 120, "{arrows} arrows");
    // The first has ended: another can begin.
    begin(&joined.nodes, 2, &["n0"])?.end()?;
    Ok(())
}

/// Processes of two nodes of two device processes call collectives: each of these is one operation, which
/// has the calls of all its members, and each frame is there where it was sent and where it came.
pub(crate) fn collectives() -> Result<()> {
    let joined = Joined::start("")?;
    let (rounds, processes) = (4, 2);
    let collected = traced(&joined.nodes, 2, [0, 2], |list| {
        format!(
            "collectives --nodes {list} --processes {processes} --rounds {rounds} --bytes 20000"
        )
    })?;
    let operations = Operations::of(&collected);
    let of = |scope| {
        let all = operations.all.iter();
        all.filter(move |it| it.scope == scope)
    };
    ensure!(of(Scope::Join).count() == 2 * processes, "not each joins");
    // Of each kind one in a round.
    let (mut count, kinds) = (0, ["Barrier", "Allreduce", "Broadcast", "Reduce"]);
    for operation in of(Scope::Collective) {
        count += 1;
        is_whole(operation, processes).with_context(|| format!("{operation:?}"))?;
    }
    ensure!(count >= rounds * kinds.len(), "{count} collectives");
    for kind in kinds {
        let named = of(Scope::Collective).filter(|it| it.name.starts_with(kind));
        ensure!(named.count() >= rounds, "too few of {kind}");
    }
    let arrows = file(&collected, &operations)?;
    ensure!(arrows >= 2 * count as u64, "{arrows} arrows");
    Ok(())
}

/// Fails unless a collective has all its calls, which have ended well, and its frames both ends.
fn is_whole(operation: &Operation, processes: usize) -> Result<()> {
    let calls = &operation.calls;
    ensure!(calls.len() == 2 * processes, "{} calls", calls.len());
    for call in calls {
        let ended = call.ended.context("a call has not ended")?;
        ensure!(call.status == 0 && ended >= call.fetched, "{call:?}");
    }
    let (sent, came) = (&operation.sends, &operation.frames);
    ensure!(!sent.is_empty() && sent.len() == came.len());
    for node in [0, 2] {
        ensure!(sent.iter().any(|it| it.at == node), "n{node} sends nothing");
    }
    let bytes_sent: u64 = sent.iter().map(|it| it.bytes).sum();
    let bytes_came: u64 = came.iter().map(|it| it.bytes).sum();
    ensure!(
        bytes_sent == bytes_came,
        "{bytes_sent} bytes were sent, {bytes_came} came"
    );
    Ok(())
}

/// Fails unless a write has passed its stages at its requester, and its frames theirs at the peer
/// in between.
fn in_order(operation: &Operation) -> Result<()> {
    let times = [
        operation.fetched,
        operation.sent,
        operation.last,
        operation.ended,
        operation.published,
    ];
    let times: Vec<_> = times.into_iter().flatten().collect();
    ensure!(times.len() == 5, "a stage is missing");
    ensure!(times.is_sorted(), "stages are not in their order");
    ensure!(operation.status == 0, "it has failed");
    ensure!(!operation.frames.is_empty(), "no frame has arrived");
    let mut bytes = 0;
    for arrival in &operation.frames {
        ensure!(arrival.at != operation.requester);
        let done = arrival.done.context("a frame is not done")?;
        let [_, sent, _, ended, _] = times[..] else {
            continue;
        };
        let order = [sent, arrival.received, done, ended];
        ensure!(order.is_sorted(), "{order:?}");
        bytes += arrival.bytes;
    }
    ensure!(bytes == operation.bytes, "{bytes} bytes have arrived");
    Ok(())
}

/// Nodes exchange on links that lose frames: those that go again are in the trace, and nothing of it
/// breaks by that.
pub(crate) fn bad_links() -> Result<()> {
    on_bad_links(2, 5, |nodes| {
        let collected = exchange(nodes, 1, [0, 1])?;
        let operations = Operations::of(&collected);
        let marks = operations.all.iter().flat_map(|it| &it.marks);
        let again = marks.filter(|mark| mark.what == What::Resent).count();
        ensure!(again > 0, "nothing was sent again");
        let ended = |it: &&Operation| it.fetched.is_some() && it.ended.is_some();
        let ended = operations.all.iter().filter(ended).count();
        ensure!(ended >= 120, "{ended} operations have ended");
        file(&collected, &operations)?;
        Ok(())
    })
}

/// The file can be read, and each arrow in it has a beginning and an end. Returns how many there are.
fn file(collected: &Collected, operations: &Operations) -> Result<u64> {
    let mut text = Vec::new();
    let arrows = qnic_watch::trace::write(&mut text, collected, operations)?;
    let file: Value = serde_json::from_slice(&text).context("the file is no JSON")?;
    let events = file["traceEvents"].as_array().context("no events")?;
    let mut ends: BTreeMap<u64, [u32; 2]> = BTreeMap::new();
    for event in events {
        let place = match event["ph"].as_str() {
            Some("s") => 0,
            Some("f") => 1,
            _ => continue,
        };
        let id = event["id"].as_u64().context("an arrow without a name")?;
        ends.entry(id).or_default()[place] += 1;
    }
    ensure!(ends.values().all(|ends| *ends == [1, 1]), "{ends:?}");
    ensure!(
        ends.len() as u64 == arrows,
        "{} arrows, not {arrows}",
        ends.len()
    );
    Ok(arrows)
}
