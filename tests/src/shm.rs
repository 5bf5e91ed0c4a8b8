//! Cases about several device processes on one host, joined by shared memory.

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use crate::net::{every_fault_happened, SIZES};
use crate::scenario::{self, Load, SIGSTOP};
use qnic_trials::nodes::host::{DevicePlan, HostNodes};
use qnic_trials::nodes::{until, LIMIT};

/// Names of the two device processes.
const NAMES: [&str; 2] = ["left", "right"];

/// Two device processes with two nodes each.
pub(crate) struct Joined {
    pub(crate) nodes: HostNodes,
    _sockets: tempfile::TempDir,
}

impl Joined {
    /// Starts them, with more of the section `[network]`, and waits until they are joined.
    pub(crate) fn start(network: &str) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory for the sockets")?;
        let end = |process: usize| {
            let (name, socket) = (NAMES[process], directory.path().join(NAMES[process]));
            format!("name = \"{name}\"\nsocket = {socket:?}")
        };
        let network = format!("peer_timeout = \"3s\"\n{network}");
        let plan = |here: usize| {
            let carrier = format!("[network.shm]\n{}", end(here));
            DevicePlan::one_of_two(here, 2, &network, &carrier, &end(1 - here))
        };
        let joined = Joined {
            nodes: HostNodes::start_several(&[plan(0), plan(1)])?,
            _sockets: directory,
        };
        joined.until_connected(true)?;
        Ok(joined)
    }

    fn network(&self, device: usize) -> Result<Value> {
        let mut stats = self.nodes.ask_device(device, &json!({ "cmd": "stats" }))?;
        Ok(stats["network"].take())
    }

    /// Waits until the first process says that the other is there, or not.
    fn until_connected(&self, connected: bool) -> Result<()> {
        until(LIMIT, || {
            let network = self.network(0)?;
            let carrier = &network["carriers"][0];
            ensure!(carrier["kind"] == "shm", "{carrier}");
            let is = carrier["processes"][0]["connected"] == connected;
            Ok((!is).then(|| carrier.to_string()))
        })
    }
}

/// The demo runs between nodes of two device processes, and all pairs of the four nodes
/// exchange data; nothing is lost or misunderstood on the way.
pub(crate) fn demo() -> Result<()> {
    let joined = Joined::start("")?;
    scenario::demo_across(&joined.nodes, "shm", SIZES, 4 << 20)?;
    for device in [0, 1] {
        let network = joined.network(device)?;
        ensure!(network["misdirected"] == 0, "{network}");
    }
    Ok(())
}

/// Links between the processes can be made as bad as others.
pub(crate) fn bad_links() -> Result<()> {
    let default = "default = { loss = \"2%\", reorder = \"2%\", duplicate = \"2%\", \
                   corrupt = \"2%\", delay = \"20us\" }\n";
    let joined = Joined::start(default)?;
    scenario::all_pairs_exchange(&joined.nodes, 10)?;
    for device in [0, 1] {
        let network = joined.network(device)?;
        every_fault_happened(&network)?;
    }
    Ok(())
}

/// A device process is killed while another writes to a node of it: the writer gets an
/// error within the configured time, the log names both ends, nodes of the other process go
/// on, and when the process returns, everything works again.
pub(crate) fn killed_process() -> Result<()> {
    let mut joined = Joined::start("")?;
    let mut load = Load::start(&joined.nodes, [0, 2])?;
    joined.nodes.kill_device(1)?;
    load.loses_its_peer()?;
    joined.until_connected(false)?;
    let log = joined.nodes.device_log(0);
    let lost = log.lines().find(|line| line.contains("has lost process"));
    let lost = lost.with_context(|| format!("no error: {log}"))?;
    for end in NAMES {
        ensure!(lost.contains(end), "the error does not name {end}: {lost}");
    }
    scenario::demo_between(&joined.nodes, [0, 1], "1,97,65537", 1 << 20)?;
    // A host-mode node is one process: make room for others.
    drop(load);
    joined.nodes.restart_device(1)?;
    joined.until_connected(true)?;
    scenario::demo_between(&joined.nodes, [0, 2], SIZES, 1 << 20)?;
    scenario::all_pairs_exchange(&joined.nodes, 3)
}

/// What waits for a process on a node of another device process ends when that is killed, and when
/// it stands still.
pub(crate) fn silent_process() -> Result<()> {
    for stops in [false, true] {
        let mut joined = Joined::start("")?;
        scenario::what_waits_for_a_silent_node_ends(
            &mut joined.nodes,
            [2, 0],
            |nodes| match stops {
                false => nodes.kill_device(1),
                true => nodes.signal_device(1, SIGSTOP),
            },
        )?;
    }
    Ok(())
}
