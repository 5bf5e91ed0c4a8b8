//! Cases about the wire between nodes of host mode: bad links, several device
//! processes, partitions (U10, X4, X7).

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use crate::netns::{TwoHosts, ADDRESSES};
use crate::scenario::{self, SIGSTOP};
use qnic_trials::nodes::host::{DevicePlan, HostNodes};
use qnic_trials::nodes::keys::HostKeys;
use qnic_trials::nodes::{until, Nodes, LIMIT};

/// Sizes of the transfers of a demo between device processes.
pub(crate) const SIZES: &str = "1,97,4096,65537,1048576";
/// Bytes of each of the demo's streams on bad links, and round trips for each latency: hardly
/// more than one transfer, as each small one waits for its retransmissions.
pub(crate) const FEW: usize = 128;
/// Bytes of the largest datagram on the Ethernet between two hosts.
const ETHERNET: u64 = 1472;
/// UDP port of all device processes.
pub(crate) const PORT: u16 = 7000;

/// The demo's transfers are all right on bad links.
pub(crate) fn demo_on_bad_links(percent: u32, sizes: &str) -> Result<()> {
    on_bad_links(2, percent, |nodes| {
        scenario::demo_between(nodes, [0, 1], sizes, FEW)
    })
}

/// Runs a case on so many nodes, joined by links of which each fault (loss, reordering,
/// duplication, damage) meets so many percent of the frames; each fault has happened then.
pub(crate) fn on_bad_links(
    count: usize,
    percent: u32,
    case: impl FnOnce(&HostNodes) -> Result<()>,
) -> Result<()> {
    on_bad_links_with("", count, percent, case)
}

/// The same with more of the device process's configuration.
pub(crate) fn on_bad_links_with(
    more: &str,
    count: usize,
    percent: u32,
    case: impl FnOnce(&HostNodes) -> Result<()>,
) -> Result<()> {
    let network = format!(
        "{more}[network]\nseed = {percent}\n[network.default]\nloss = \"{percent}%\"\n\
         reorder = \"{percent}%\"\nduplicate = \"{percent}%\"\ncorrupt = \"{percent}%\"\n\
         delay = \"20us\"\njitter = \"10us\"\n"
    );
    let nodes = HostNodes::start_with(count, &network)?;
    case(&nodes)?;
    let network = &nodes.device_stats()?["network"];
    every_fault_happened(network)?;
    let damaged = network["damaged"].as_u64();
    ensure!(damaged > Some(0), "no damage was caught");
    Ok(())
}

/// Fails unless links have done each thing to a frame.
pub(crate) fn every_fault_happened(network: &Value) -> Result<()> {
    for counter in ["lost", "reordered", "duplicated", "corrupted"] {
        let count = link_sum(network, counter);
        ensure!(count > 0, "nothing was {counter}: {network}");
    }
    Ok(())
}

/// Sum of a counter of all links.
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

/// Two nodes with two NICs each, on networks of their own (S7).
pub(crate) fn two_networks() -> Result<()> {
    let first = DevicePlan::alone(2, "[network]\npeer_timeout = \"1s\"\n");
    let beside = DevicePlan {
        nic: Some("disks".to_owned()),
        ..first.clone()
    };
    let nodes = HostNodes::start_several(&[first, beside])?;
    let cut = |partition: bool| {
        let change = json!({ "partition": partition });
        let request = json!({ "cmd": "net_set", "links": "all", "change": change });
        nodes.ask_device(0, &request).map(drop)
    };
    scenario::one_network_is_partitioned_and_the_other_goes_on(&nodes, "disks", &cut)
}

/// A directory for keys.
fn key_directory() -> Result<tempfile::TempDir> {
    tempfile::tempdir().context("make a directory for keys")
}

impl Apart {
    /// Starts them, with keys that fit.
    fn start() -> Result<Self> {
        let directory = key_directory()?;
        let keys = HostKeys::new(directory.path())?;
        let hosts = TwoHosts::new()?;
        let plans = [0, 1].map(|here| udp_plan(here, PORT, &keys, &keys.public[1 - here], &hosts));
        Ok(Apart {
            nodes: HostNodes::start_several(&plans)?,
            hosts,
            _keys: directory,
        })
    }
}

/// A device process on one of two hosts, with nodes 0 and 1 or 2 and 3, that listens on a
/// port and looks for the other on [`PORT`]. It has its key of `keys`, and takes the other one
/// to have the public key `other`.
pub(crate) fn udp_plan(
    here: usize,
    port: u16,
    keys: &HostKeys,
    other: &str,
    hosts: &TwoHosts,
) -> DevicePlan {
    let there = 1 - here;
    let (own, address, private) = (ADDRESSES[here], ADDRESSES[there], &keys.files[here]);
    let udp = format!(
        "[network.udp]\nname = \"host{here}\"\nlisten = \"{own}:{port}\"\nprivate_key = {private:?}"
    );
    let other =
        format!("name = \"host{there}\"\naddress = \"{address}:{PORT}\"\npublic_key = \"{other}\"");
    DevicePlan {
        prefix: hosts.prefix(here),
        ..DevicePlan::one_of_two(here, 2, "peer_timeout = \"3s\"\n", &udp, &other)
    }
}

/// The demo runs between nodes of two device processes; all pairs of the four nodes
/// exchange data.
pub(crate) fn demo_over_udp() -> Result<()> {
    let apart = Apart::start()?;
    for device in [0, 1] {
        let found = |carrier: &Value| carrier["processes"][0]["mtu"] == ETHERNET;
        scenario::until_carrier(&apart.nodes, device, "found its size", found)?;
    }
    scenario::demo_across(&apart.nodes, "udp", SIZES, 4 << 20)
}

/// Two hosts of which the first has a wrong public key for the second: what each sends is
/// counted at the other and nothing of it is taken; both errors name both ends and the keys.
pub(crate) fn another_key() -> Result<()> {
    let (directory, elsewhere) = (key_directory()?, key_directory()?);
    let keys = HostKeys::new(directory.path())?;
    let wrong = HostKeys::new(elsewhere.path())?;
    let hosts = TwoHosts::new()?;
    let plan = |here, other: &String| udp_plan(here, PORT, &keys, other, &hosts);
    let plans = [plan(0, &wrong.public[1]), plan(1, &keys.public[0])];
    let nodes = HostNodes::start_several(&plans)?;
    let [first, second] = &keys.public;
    no_connection(&nodes, [[first, &wrong.public[1]], [second, first]])
}

/// One host encrypts, and the other one does not: both errors say which does.
pub(crate) fn encryption_on_one_side() -> Result<()> {
    let directory = key_directory()?;
    let keys = HostKeys::new(directory.path())?;
    let hosts = TwoHosts::new()?;
    let mut plans = [0, 1].map(|here| udp_plan(here, PORT, &keys, &keys.public[1 - here], &hosts));
    let open = "[network.udp]\nencrypt = false\n";
    plans[0].more = plans[0].more.replace("[network.udp]\n", open);
    let nodes = HostNodes::start_several(&plans)?;
    no_connection(&nodes, [["host0 does not encrypt", "host1 encrypts"]; 2])
}

/// Fails unless both device processes reject what they get of each other, and log an error
/// that names both, and these words.
fn no_connection(nodes: &HostNodes, words: [[&str; 2]; 2]) -> Result<()> {
    for (device, words) in words.iter().enumerate() {
        let strangers = |carrier: &Value| carrier["rejected"].as_u64() > Some(5);
        let carrier = scenario::until_carrier(nodes, device, "counted", strangers)?;
        let process = &carrier["processes"][0];
        ensure!(process["connected"] == false, "{carrier}");
        ensure!(process["frames_received"] == 0, "{carrier}");
        until(LIMIT, || {
            let log = nodes.device_log(device);
            Ok((!log.contains("has no connection")).then(|| format!("no error: {log}")))
        })?;
        let log = nodes.device_log(device).replace(['\\', '"'], "");
        for word in ["host0", "host1", ADDRESSES[1 - device], words[0], words[1]] {
            ensure!(log.contains(word), "the error does not name {word}: {log}");
        }
    }
    Ok(())
}

/// The link between the hosts is cut while transfers run.
pub(crate) fn partition() -> Result<()> {
    let apart = Apart::start()?;
    scenario::partition_heals_in_time_and_fails_beyond(&apart.nodes, &apart.hosts, 300)
}

/// What waits for a process on another host ends when the device process there stands still.
pub(crate) fn silent_host() -> Result<()> {
    let mut apart = Apart::start()?;
    scenario::until_connected(&apart.nodes)?;
    scenario::what_waits_for_a_silent_node_ends(&mut apart.nodes, [2, 0], |nodes| {
        nodes.signal_device(1, SIGSTOP)
    })
}

/// What waits for a process on another node ends when the link to that is cut.
pub(crate) fn silent_link() -> Result<()> {
    let mut nodes = HostNodes::start_with(2, "[network]\npeer_timeout = \"2s\"\n")?;
    scenario::what_waits_for_a_silent_node_ends(&mut nodes, [1, 0], |nodes| {
        let change = json!({ "partition": true });
        let cut = json!({ "cmd": "net_set", "links": "all", "change": change });
        nodes.ask_device(0, &cut).map(drop)
    })
}
