//! Locks, semaphores and monitors of many processes on four guests (N20 to N24).

use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{Links, NetworkSpec};
use serde_json::json;

use super::VmNodes;
use crate::harness::{cases, Case};
use crate::nodes::{wait_until_empty, Nodes};
use crate::scenario::{self, Contenders, Death, Placement};

/// Processes on each guest.
const PROCESSES: usize = 8;

/// All of them.
pub(crate) const CASES: &[Case] = cases! { "vm":
    processes_of_four_guests_contend_pause_and_die => contend_pause_and_die(),
};

/// Eight processes on each of four guests contend on a wire that loses, doubles, reorders
/// and damages 5 % of the frames; then those of three, while the guest whose memory has
/// lock, semaphore and monitor is stopped; then, on a good wire, some are killed in a queue.
fn contend_pause_and_die() -> Result<()> {
    let mut spec = VmNodes::spec("sync", &["stable"; 4])?;
    spec.network = Some(NetworkSpec::default());
    let nodes = VmNodes::boot_spec(&spec)?.watched();
    let cluster = nodes.cluster();

    let five = json!({
        "loss": "5%", "reorder": "5%", "duplicate": "5%", "corrupt": "5%", "delay": "50us"
    });
    let links = serde_json::from_value(five)?;
    cluster.set_links(&Links::All, Some(&links))?;
    let each = Contenders {
        programs: PROCESSES,
        workers: 1,
        rounds: 8,
    };
    timed("contention", || scenario::contention(&nodes, each))?;
    let lost = nodes.device_stats()?["network"]["links"][0]["counters"]["lost"].as_u64();
    ensure!(lost > Some(0), "nothing was lost: {lost:?}");
    timed("contention around a stopped guest", || {
        let stop = || Ok(cluster.pause("n0")?);
        let resume = || Ok(cluster.resume("n0")?);
        scenario::contention_while_the_owner_is_stopped(&nodes, each, stop, resume)
    })?;

    cluster.set_links(&Links::All, None)?;
    let placement = Placement {
        owner: 0,
        recoverer: 1,
        first: 2,
        victim: 3,
        last: 1,
    };
    for death in Death::ALL {
        timed(&format!("{death:?}"), || {
            scenario::a_death_in_the_queue_is_survived(&nodes, placement, death)
        })?;
    }
    for node in 0..nodes.count() {
        wait_until_empty(&nodes, node)?;
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
