//! Programs of libibverbs on links that lose, reorder, duplicate and damage 5 % of the frames, those of TCP too (X18).

use anyhow::Result;
use qnic_cluster::Links;

use super::{both_run, connections, ucx, with_all, ROUNDS};
use crate::harness::is_long;
use qnic_trials::nodes::vm::VmNodes;

/// Those that always run.
const PROGRAMS: [&str; 2] = ["ibv_rc_pingpong -c -e -s 65536", "ib_write_bw -s 65536"];

/// Those that run with `--all`. Of a write of an unreliable connection its program waits for the completion alone.
const MORE_PROGRAMS: [&str; 4] = [
    "ib_read_lat",
    "ib_atomic_lat",
    "ib_write_bw -c UC -s 65536",
    "ib_send_bw -q 2",
];

pub(super) fn pass(nodes: &VmNodes) -> Result<()> {
    nodes.make_links_bad(5)?;
    for (index, program) in with_all(&PROGRAMS, &MORE_PROGRAMS).enumerate() {
        both_run(nodes, index % 2, &format!("{program} -d qnic0 -n {ROUNDS}"))?;
    }
    if is_long() {
        connections::by_second_port(nodes)?;
        // Over datagrams, too: UCX sends those again that are lost.
        ucx::measures(nodes)?;
    }
    nodes.lost_frames(0)?;
    nodes.cluster().set_links(&Links::All, None)?;
    Ok(())
}
