//! Tagged messages beside writes, and beside libfabric's provider for shared memory, between two
//! host-mode nodes. All take turns in each round.

use anyhow::Result;
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::Nodes;

use super::figures::bytes;
use super::host_peers::Peer;
use super::point_to_point::rows_of;
use super::tables::Tables;

const SIZES: [usize; 7] = [8, 64, 1024, 4096, 16_384, 65_536, 1 << 20];

/// What messages are compared with, beside writes.
const PEER: &str = "fi_pingpong";

/// Half round trips beside libfabric's, which knows no more than the mean of a round.
const BESIDE: &str = "beside-libfabric";
const MEAN: &str = "half round trip, mean [µs]";
const EACH: &str = "one after the other [1000/s]";

/// Round trips of a size in a round.
fn balls(size: usize) -> u64 {
    ((256 << 20) / size as u64).clamp(8, 1000)
}

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let nodes = HostNodes::start(2)?;
    let peer = Peer::libfabric("shm");
    tables.rounds(rounds, "", false, |round| {
        for size in SIZES {
            let balls = balls(size);
            // With a round that warms up.
            let side = |peer| {
                format!("message-bench --peer {peer} --rounds 1 --sizes {size} --balls {balls}")
            };
            let target = nodes.start(1, &side(0))?;
            let initiator = nodes.start(0, &format!("{} --initiator", side(1)))?;
            for row in rows_of(initiator, target)? {
                round.add_split("latency", "streams", &row);
                if row.operation == "message" {
                    let means = row.latency.iter().map(|it| it.mean_us);
                    add_means(round, &row.operation, size, means.collect());
                }
            }
            let mean = round.attempt(PEER, || peer.half_round_trip(size, balls));
            add_means(round, PEER, size, mean.into_iter().collect());
        }
        Ok(())
    })
}

fn add_means(tables: &mut Tables, name: &str, size: usize, us: Vec<f64>) {
    let row = tables.row(BESIDE, name, bytes(size));
    row.add(EACH, us.iter().map(|us| 1e3 / us)).add(MEAN, us);
}
