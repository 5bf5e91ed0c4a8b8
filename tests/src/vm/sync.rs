//! Locks, semaphores and monitors of many processes on four guests (N20 to N24).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ClusterSpec, Links, NetworkSpec, NodeSpec};
use serde_json::json;

use super::VmNodes;
use crate::harness::{Case, Verdict};
use crate::nodes::{wait_until_empty, Nodes};
use crate::scenario::{self, Crowd, Death, Places};

const LIMIT: Duration = Duration::from_secs(120);

/// Processes on each guest.
const PROCESSES: usize = 8;

/// All of them.
pub(crate) const CASES: &[Case] = &[Case {
    name: "vm::processes_of_four_guests_contend_pause_and_die",
    run: contend_pause_and_die,
}];

/// Eight processes on each of four guests contend on a wire that loses, doubles, reorders
/// and damages 5 % of the frames; then those of three, while the guest whose memory has
/// lock, semaphore and monitor is stopped; then, on a good wire, some are killed in line.
fn contend_pause_and_die() -> Result<Verdict> {
    let mut spec = ClusterSpec::new(format!("sync-{}", std::process::id()));
    for node in 0..4 {
        spec = spec.with(NodeSpec::new(format!("n{node}")));
    }
    spec.network = Some(NetworkSpec::default());
    let nodes = VmNodes::boot_spec(&spec)?.watched();
    let cluster = nodes.cluster();

    let five = json!({
        "loss": "5%", "reorder": "5%", "duplicate": "5%", "corrupt": "5%", "delay": "50us"
    });
    let links = serde_json::from_value(five)?;
    cluster.set_links(&Links::All, Some(&links))?;
    let crowd = |rounds| Crowd {
        programs: PROCESSES,
        workers: 1,
        rounds,
    };
    timed("contention", || scenario::contention(&nodes, crowd(8)))?;
    let lost = nodes.device_stats()?["network"]["links"][0]["counters"]["lost"].as_u64();
    ensure!(lost > Some(0), "nothing was lost: {lost:?}");
    timed("contention around a stopped guest", || {
        let stop = || Ok(cluster.pause("n0")?);
        let resume = || Ok(cluster.resume("n0")?);
        scenario::contention_while_the_home_is_stopped(&nodes, crowd(8), stop, resume)
    })?;

    cluster.set_links(&Links::All, None)?;
    let places = Places {
        home: 0,
        mender: 1,
        first: 2,
        victim: 3,
        last: 1,
    };
    for death in Death::ALL {
        timed(&format!("{death:?}"), || {
            scenario::a_death_in_line_is_survived(&nodes, places, death)
        })?;
    }
    for node in 0..nodes.count() {
        wait_until_empty(&nodes, node, LIMIT)?;
    }
    nodes.passed()
}

/// Does a part of a case, and says how long it took.
fn timed(what: &str, part: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    part().with_context(|| what.to_owned())?;
    println!("    {what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
