//! `qnic bench peers`: transfers beside those of others, between processes of this machine and
//! between [guests](super::guest_peers); the command starts them itself. All take turns in each
//! round.
//!
//! ```text
//!   one process ◄── shared memory or TCP on loopback ──► another one     libfabric, UCX
//!   one process ◄── device process ──► another one                       qnic
//! ```
//! With qnic a third process moves the data, and both sides need not trust each other. The others
//! spin on memory that both can write to.

use anyhow::Result;
use qnic_apps::report::{BenchRow, Latency};
use qnic_trials::nodes::host::HostNodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::guest_peers;
use super::libfabric::Peer;
use super::point_to_point::{merge, transfers_between};
use super::ucx::Ucx;

const SIZES: [usize; 3] = [8, 4096, 65_536];

/// Bytes that a stream moves in a round, and most transfers.
const STREAM_BYTES: usize = 64 << 20;
const STREAM_MOST: usize = 100_000;

/// Round trips of a round.
const BALLS: u64 = 1000;

const TCP: &str = "libfabric, tcp";
const FABRICS: [(&str, &str); 2] = [("libfabric, shm", "shm"), (TCP, "tcp")];
const UCX: [(&str, &str); 2] = [
    ("UCX, shared memory", "posix,self"),
    ("UCX, TCP", "tcp,self"),
];

/// What a peer has measured: of each size, its rounds.
type Samples = [Vec<f64>; SIZES.len()];

/// One peer.
#[derive(Default)]
struct Measured {
    name: &'static str,
    half_round_trip: Samples,
    /// None if it measures no stream.
    stream: Option<Samples>,
    /// Why it has measured nothing.
    missing: Option<String>,
}

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    Ok([between_processes(rounds)?, guest_peers::measure(rounds)].concat())
}

fn between_processes(rounds: usize) -> Result<Vec<Table>> {
    let nodes = HostNodes::start(2)?;
    let sizes = SIZES.map(|size| size.to_string()).join(",");
    let options = format!("--floor --rounds 1 --sizes {sizes}");
    let mut fabrics = FABRICS.map(|(name, provider)| (name, Peer::find(provider)));
    let mut ucx = UCX.map(|(name, transport)| (name, Ucx::find(transport)));
    let mut peers: Vec<Measured> = Vec::new();
    peers.extend(FABRICS.map(|(name, _)| Measured::new(name, false)));
    peers.extend(UCX.map(|(name, _)| Measured::new(name, true)));
    let mut own: Vec<BenchRow> = Vec::new();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for row in transfers_between(&nodes, &options)? {
            merge(&mut own, row);
        }
        let (of_fabrics, of_ucx) = peers.split_at_mut(fabrics.len());
        for (index, size) in SIZES.into_iter().enumerate() {
            for ((_, peer), measured) in fabrics.iter_mut().zip(&mut *of_fabrics) {
                measured.half_round_trip[index].extend(peer.half_round_trip(size, BALLS));
            }
            for ((_, peer), measured) in ucx.iter_mut().zip(&mut *of_ucx) {
                measured.half_round_trip[index].extend(peer.half_round_trip(size, BALLS));
                let count = (STREAM_BYTES / size).min(STREAM_MOST) as u64;
                let stream = measured.stream.iter_mut();
                stream.for_each(|stream| stream[index].extend(peer.stream(size, count)));
            }
        }
    }
    let missing = fabrics.iter().map(|(_, peer)| peer.missing());
    let missing = missing.chain(ucx.iter().map(|(_, peer)| peer.missing()));
    for (measured, why) in peers.iter_mut().zip(missing) {
        measured.missing = why.map(str::to_owned);
    }
    Ok(tables(&own, &peers))
}

impl Measured {
    fn new(name: &'static str, streams: bool) -> Self {
        Measured {
            name,
            stream: streams.then(Samples::default),
            ..Measured::default()
        }
    }
}

fn tables(own: &[BenchRow], peers: &[Measured]) -> Vec<Table> {
    let (mut latencies, mut streams) = (Vec::new(), Vec::new());
    for (index, size) in SIZES.into_iter().enumerate() {
        let is_write = |row: &&BenchRow| row.size == size && row.operation == "write";
        let write = own.iter().find(is_write);
        let half: Vec<f64> = write
            .into_iter()
            .flat_map(|row| &row.latency)
            .map(|latency: &Latency| latency.median_us)
            .collect();
        let rate = write.map(|row| row.mb_s.clone()).unwrap_or_default();
        let floor = write.map(|row| row.memcpy_mb_s.clone()).unwrap_or_default();
        let row = |name: &str, what: &str, unit: &str, samples: &[f64], own: &[f64]| {
            let figure = Figure::with_spread(what, unit, samples.to_vec());
            Row::new(name, [figure.ratio_to("of qnic", own)]).size(size)
        };
        let latency =
            |name: &str, samples: &[f64]| row(name, "half round trip", "µs", samples, &half);
        let stream = |name: &str, samples: &[f64]| row(name, "stream", "MB/s", samples, &rate);
        latencies.push(latency("qnic, write", &half));
        streams.push(stream("qnic, write", &rate));
        for peer in peers {
            let mut row = latency(peer.name, &peer.half_round_trip[index]);
            if peer.name == TCP {
                let goal = Goal::at_least(1.0).code("P7");
                row.figures = row
                    .figures
                    .into_iter()
                    .map(|it| it.ratio_goal(goal.clone()))
                    .collect();
            }
            latencies.push(row.of_peer(true));
            let measured = peer.stream.as_ref();
            streams.extend(measured.map(|it| stream(peer.name, &it[index]).of_peer(true)));
        }
        streams.push(stream("memcpy", &floor).of_peer(true));
    }
    let mut tables = vec![
        Table::new(
            "host-latency",
            "Half a round trip between two processes, of qnic and of others",
            latencies,
        ),
        Table::new(
            "host-streams",
            "Streams between two processes, of qnic and of others",
            streams,
        ),
    ];
    for (table, streams) in tables.iter_mut().zip([false, true]) {
        let there = peers
            .iter()
            .filter(|peer| !streams || peer.stream.is_some());
        let missing = there.filter_map(|peer| Some((peer.name, peer.missing.as_ref()?)));
        let notes = missing.map(|(name, why)| format!("{name}: not measured: {why}"));
        table.notes.extend(notes);
    }
    let means = "libfabric's are means of 1000 balls, the others medians";
    tables[0].notes.push(means.to_owned());
    tables
}

#[cfg(test)]
mod tests {
    use super::super::figures::Role;
    use super::*;
    use crate::bench::text::tests::words_of_row;

    #[test]
    fn each_peer_stands_beside_the_own_write_of_its_size() {
        let own: Vec<_> = SIZES
            .map(|size| {
                let mut row = BenchRow::new("write", size);
                row.latency.push(Latency {
                    median_us: 2.0,
                    p99_us: 3.0,
                    min_us: 1.0,
                    mean_us: 2.0,
                    rounds: 5,
                });
                row.mb_s.push(100.0);
                row.memcpy_mb_s.push(400.0);
                row
            })
            .into();
        let mut fabric = Measured::new("libfabric", false);
        fabric.half_round_trip[0].push(5.0);
        let mut ucx = Measured::new("UCX", true);
        ucx.missing = Some("no such package".into());
        let tables = tables(&own, &[fabric, ucx]);
        let words = words_of_row(&tables[0], "libfabric").join(" ");
        assert_eq!(words, "libfabric 8 5.00 (5.00 … 5.00) 2.50");
        let words = words_of_row(&tables[0], "UCX").join(" ");
        assert_eq!(words, "UCX 8 - - -");
        let words = words_of_row(&tables[1], "memcpy").join(" ");
        assert_eq!(words, "memcpy 8 400.0 (400.0 … 400.0) 4.00");
        for table in &tables {
            assert!(table.notes[0].contains("UCX: not measured: no such package"));
        }
        let roles: Vec<_> = tables[1].figures().map(|figure| figure.role).collect();
        assert_eq!(roles[..3], [Role::Own, Role::Peer, Role::Peer]);
    }
}
