//! Locks, semaphores and monitors of many processes on four guests (N20 to N24).

use std::time::Instant;

use anyhow::{Context, Result};
use qnic_cluster::Links;

use super::nodes::on_network;
use crate::harness::{cases, is_long, Case};
use crate::scenario::{self, Contenders, Death, Placement};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::wait_until_all_empty;

/// Processes on each guest.
const PROCESSES: usize = 8;

pub(crate) const CASES: &[Case] = cases! { "vm":
    processes_of_four_guests_contend_pause_and_die: 0 => {
        on_network("sync", 4, contend_pause_and_die)
    },
};

/// Eight processes on each of four guests contend on a wire that loses, doubles, reorders
/// and damages 5 % of the frames; then those of three, while the guest whose memory has
/// lock, semaphore and monitor is stopped; then, on a good wire, some are killed in a queue.
fn contend_pause_and_die(nodes: &VmNodes) -> Result<()> {
    let cluster = nodes.cluster();

    nodes.make_links_bad(5)?;
    let each = Contenders {
        programs: PROCESSES,
        workers: 1,
        rounds: if is_long() { 8 } else { 4 },
    };
    timed("contention", || scenario::contention(nodes, each))?;
    nodes.lost_frames(0)?;
    timed("contention around a stopped guest", || {
        let stop = || Ok(cluster.pause("n0")?);
        let resume = || Ok(cluster.resume("n0")?);
        scenario::contention_while_the_owner_is_stopped(nodes, each, stop, resume)
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
            scenario::a_death_in_the_queue_is_survived(nodes, placement, death)
        })?;
    }
    wait_until_all_empty(nodes)
}

/// Does a part of a case, and says how long it took.
fn timed(what: &str, part: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    part().with_context(|| what.to_owned())?;
    println!("    {what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
