//! Cases about the wire between nodes of host mode: bad links, several device
//! processes, partitions (U10, X4, X7).

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use crate::harness::Verdict;
use crate::host::{DevicePlan, HostNodes};
use crate::netns::{TwoHosts, ADDRESSES};
use crate::nodes::Nodes;
use crate::scenario::{self, Crowd};

const SIZES: &str = "1,97,4096,65537,1048576";
/// Bytes of each of the demo's streams on bad links: hardly more than one transfer, as
/// each small one waits for its retransmissions.
pub(crate) const FEW: usize = 256;
const LIMIT: Duration = Duration::from_secs(120);
/// UDP port of all device processes.
pub(crate) const PORT: u16 = 7000;

/// The demo's transfers are all right on links of which each fault (loss, reordering,
/// duplication, damage) meets so many percent of the frames.
pub(crate) fn demo_on_bad_links(percent: u32, sizes: &str) -> Result<Verdict> {
    let nodes = HostNodes::start_with(2, &bad_links(percent))?;
    scenario::demo_pair(&nodes, sizes, FEW)?;
    everything_happened(&nodes)?;
    Ok(Verdict::Passed)
}

/// Three nodes exchange so many verified messages with each other on links of which
/// each fault meets so many percent of the frames.
pub(crate) fn exchange_on_bad_links(percent: u32, rounds: u32) -> Result<Verdict> {
    let nodes = HostNodes::start_with(3, &bad_links(percent))?;
    scenario::all_pairs_exchange(&nodes, rounds)?;
    everything_happened(&nodes)?;
    Ok(Verdict::Passed)
}

/// Processes of four nodes contend for lock, semaphore and monitor while each fault
/// meets so many percent of the frames.
pub(crate) fn contention_on_bad_links(percent: u32) -> Result<Verdict> {
    let nodes = HostNodes::start_with(4, &bad_links(percent))?;
    // A host-mode node is one program.
    let crowd = Crowd {
        programs: 1,
        workers: 4,
        rounds: 8,
    };
    scenario::contention(&nodes, crowd)?;
    everything_happened(&nodes)?;
    Ok(Verdict::Passed)
}

fn bad_links(percent: u32) -> String {
    format!(
        "[network]\nseed = {percent}\n[network.default]\nloss = \"{percent}%\"\n\
         reorder = \"{percent}%\"\nduplicate = \"{percent}%\"\ncorrupt = \"{percent}%\"\n\
         delay = \"20us\"\njitter = \"10us\"\n"
    )
}

/// Fails unless each fault has happened.
fn everything_happened(nodes: &HostNodes) -> Result<()> {
    let network = &nodes.device_stats()?["network"];
    for counter in ["lost", "reordered", "duplicated", "corrupted"] {
        let count = link_sum(network, counter);
        ensure!(count > 0, "nothing was {counter}: {network}");
    }
    let damaged = network["damaged"].as_u64();
    ensure!(damaged > Some(0), "no damage was caught");
    Ok(())
}

pub(crate) fn link_sum(network: &Value, counter: &str) -> u64 {
    let links = network["links"].as_array().into_iter().flatten();
    links
        .filter_map(|link| link["counters"][counter].as_u64())
        .sum()
}

/// Two device processes, each on a host of its own, with two nodes each.
struct Apart {
    nodes: HostNodes,
    hosts: TwoHosts,
    _keys: tempfile::TempDir,
}

impl Apart {
    /// Starts them with these keys; the inner error says why that cannot be done here.
    fn start(keys: [u8; 2]) -> Result<Result<Self, String>> {
        let hosts = match TwoHosts::new() {
            Ok(hosts) => hosts,
            Err(error) => return Ok(Err(format!("no network namespaces here: {error:#}"))),
        };
        let directory = tempfile::tempdir().context("make a directory for the keys")?;
        let mut plans = Vec::new();
        for here in [0, 1] {
            let key = directory.path().join(format!("key{here}"));
            std::fs::write(&key, [keys[here]; 32]).context("write a key")?;
            plans.push(udp_plan(here, PORT, &key, &hosts));
        }
        Ok(Ok(Apart {
            nodes: HostNodes::start_several(&plans)?,
            hosts,
            _keys: directory,
        }))
    }
}

/// A device process on one of two hosts, with nodes 0 and 1 or 2 and 3, that listens on a
/// port and looks for the other on [`PORT`].
pub(crate) fn udp_plan(here: usize, port: u16, key: &Path, hosts: &TwoHosts) -> DevicePlan {
    let there = 1 - here;
    let mut more = String::from("[network]\npeer_timeout = \"3s\"\n");
    // Writing to a string cannot fail.
    let _ = write!(
        more,
        "[network.udp]\nname = \"host{here}\"\nlisten = \"{}:{port}\"\nkey_file = {key:?}\n\
         [[network.process]]\nname = \"host{there}\"\naddress = \"{}:{PORT}\"\nnodes = [{}, {}]\n",
        ADDRESSES[here],
        ADDRESSES[there],
        2 * there,
        2 * there + 1
    );
    DevicePlan {
        nodes: vec![2 * here, 2 * here + 1],
        more,
        prefix: hosts.prefix(here),
    }
}

macro_rules! apart {
    ($keys:expr) => {
        match Apart::start($keys)? {
            Ok(apart) => apart,
            Err(why) => return Ok(Verdict::Skipped(why)),
        }
    };
}

/// The demo runs between nodes of two device processes; all pairs of the four nodes
/// exchange data.
pub(crate) fn demo_over_udp() -> Result<Verdict> {
    let apart = apart!([7, 7]);
    scenario::demo_across(&apart.nodes, "udp", SIZES, 4 << 20)?;
    Ok(Verdict::Passed)
}

/// Datagrams with another key are counted, and nothing of them is taken.
pub(crate) fn another_key() -> Result<Verdict> {
    let apart = apart!([7, 8]);
    for device in [0, 1] {
        let strangers = |carrier: &Value| carrier["rejected"].as_u64() > Some(5);
        let carrier = scenario::until_carrier(&apart.nodes, device, "counted", strangers)?;
        let process = &carrier["processes"][0];
        ensure!(process["connected"] == false, "{carrier}");
        ensure!(process["frames_received"] == 0, "{carrier}");
    }
    let start = Instant::now();
    while !apart.nodes.device_log(0).contains("gets no answer") {
        ensure!(
            start.elapsed() < LIMIT,
            "no error: {}",
            apart.nodes.device_log(0)
        );
    }
    let log = apart.nodes.device_log(0);
    for end in ["host0", "host1", ADDRESSES[1]] {
        ensure!(log.contains(end), "the error does not name {end}: {log}");
    }
    Ok(Verdict::Passed)
}

/// The link between the hosts is cut while transfers run.
pub(crate) fn partition() -> Result<Verdict> {
    let apart = apart!([7, 7]);
    scenario::partition_heals_in_time_and_fails_beyond(&apart.nodes, &apart.hosts, 300)?;
    Ok(Verdict::Passed)
}
