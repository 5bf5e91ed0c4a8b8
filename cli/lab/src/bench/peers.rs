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
use qnic_trials::nodes::host::HostNodes;

use super::figures::bytes;
use super::guest_peers;
use super::host_peers::Peer;
use super::point_to_point::{list, transfers_between};
use super::tables::{Tables, HALF, STREAM};

const LATENCY: &str = "host-latency";
const STREAMS: &str = "host-streams";

const SIZES: [usize; 3] = [8, 4096, 65_536];

/// Bytes that a stream moves in a round, and most transfers.
const STREAM_BYTES: usize = 64 << 20;
const STREAM_MOST: usize = 100_000;

/// Round trips of a round.
const BALLS: u64 = 1000;

/// This project's rows, and those of its floor.
const OWN: &str = "qnic, write";
const FLOOR: &str = "memcpy";

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    between_processes(rounds, tables)?;
    guest_peers::measure(rounds, tables);
    Ok(())
}

fn between_processes(rounds: usize, tables: &mut Tables) -> Result<()> {
    let nodes = HostNodes::start(2)?;
    let options = format!("--floor --rounds 1 --sizes {}", list(&SIZES));
    // Each, and whether it measures streams.
    let peers = [
        ("libfabric, shm", Peer::libfabric("shm"), false),
        ("libfabric, tcp", Peer::libfabric("tcp"), false),
        ("UCX, shared memory", Peer::ucx("posix,self"), true),
        ("UCX, TCP", Peer::ucx("tcp,self"), true),
    ];
    for size in SIZES {
        let names = || peers.iter().map(|(name, _, streams)| (*name, *streams));
        for (name, _) in [(OWN, true)].into_iter().chain(names()) {
            tables.row(LATENCY, name, bytes(size));
        }
        let streams = names().filter(|(_, streams)| *streams);
        for (name, _) in [(OWN, true)]
            .into_iter()
            .chain(streams)
            .chain([(FLOOR, true)])
        {
            tables.row(STREAMS, name, bytes(size));
        }
    }
    tables.rounds(rounds, "", false, |round| {
        let own = transfers_between(&nodes, &options)?;
        for row in own.iter().filter(|row| row.operation == "write") {
            let at = bytes(row.size);
            let half = row.latency.iter().map(|it| it.median_us);
            round.row(LATENCY, OWN, at.clone()).add(HALF, half);
            round
                .row(STREAMS, OWN, at.clone())
                .add(STREAM, row.mb_s.clone());
            round
                .row(STREAMS, FLOOR, at)
                .add(STREAM, row.memcpy_mb_s.clone());
        }
        for size in SIZES {
            let count = (STREAM_BYTES / size).min(STREAM_MOST) as u64;
            for (name, peer, streams) in &peers {
                let half = round.attempt(name, || peer.half_round_trip(size, BALLS));
                round.row(LATENCY, name, bytes(size)).add(HALF, half);
                if *streams {
                    let stream = round.attempt(name, || peer.stream(size, count));
                    round.row(STREAMS, name, bytes(size)).add(STREAM, stream);
                }
            }
        }
        Ok(())
    })
}
