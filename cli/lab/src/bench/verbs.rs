//! Unmodified perftest between two guests: over the NICs by their device of libibverbs, and over Soft-RoCE in the same
//! guests (X18); beside them the library's own writes. Within a round all take turns.

use anyhow::{Context, Result};
use qnic_cluster::ByteSize;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

use super::figures::bytes;
use super::guest_network::{address, GuestNetwork};
use super::guest_peers::{figure, Peer, KERNEL, MEMORY_MIB, SOFT_ROCE};
use super::guest_said as said;
use super::point_to_point::transfers_between;
use super::tables::{Tables, HALF, STREAM};

const LATENCY: &str = "latency";
const STREAMS: &str = "streams";

const LATENCY_SIZE: usize = 8;
const STREAM_SIZE: usize = 65_536;

/// The library's own row.
const LIBRARY: &str = "library, write";

/// The other device.
const SOFT: &str = "Soft-RoCE";

/// How perftest measures over a device: rows of both tables.
struct Device {
    name: &'static str,
    latency: [Peer; 2],
    stream: Peer,
}

/// A row of perftest, whose client and server have the same words.
const fn row(name: &'static str, words: &'static str, parse: said::Parse) -> Peer {
    Peer::new(name, words, words, parse)
}

const DEVICES: [Device; 2] = [
    Device {
        name: "qnic",
        latency: [
            row(
                "qnic, ib_write_lat",
                "ib_write_lat -d qnic0 -F -s 8 -n 5000",
                said::latency,
            ),
            row(
                "qnic, ib_send_lat",
                "ib_send_lat -d qnic0 -F -s 8 -n 5000",
                said::latency,
            ),
        ],
        stream: row(
            "qnic, ib_write_bw",
            "ib_write_bw -d qnic0 -F -s 65536 -n 5000",
            said::bandwidth,
        ),
    },
    Device {
        name: SOFT,
        latency: [
            row(
                "Soft-RoCE, ib_write_lat",
                "ib_write_lat -d rxe0 -F -s 8 -n 1000",
                said::latency,
            ),
            row(
                "Soft-RoCE, ib_send_lat",
                "ib_send_lat -d rxe0 -F -s 8 -n 1000",
                said::latency,
            ),
        ],
        stream: row(
            "Soft-RoCE, ib_write_bw",
            "ib_write_bw -d rxe0 -F -s 65536 -n 200",
            said::bandwidth,
        ),
    },
];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let network = GuestNetwork::new()?;
    let mut spec = VmNodes::spec("verbs-bench", &[KERNEL; 2])?;
    spec.verbs = true;
    for (number, node) in spec.nodes.iter_mut().enumerate() {
        node.memory = ByteSize::mib(MEMORY_MIB);
        node.qemu_args.extend(network.arguments(number));
    }
    let nodes = VmNodes::boot_spec(&spec)?;
    network.set_up(&nodes, "eth0")?;
    let made = [0, 1].map(|node| shell(&nodes, node, SOFT_ROCE).map(drop));
    let made = made.into_iter().collect::<Result<()>>();
    tables.attempt(SOFT, || made.context("make a device of Soft-RoCE"));
    let sizes = format!("--rounds 1 --sizes {LATENCY_SIZE},{STREAM_SIZE}");
    tables.rounds(rounds, ", verbs", false, |round| {
        let own = transfers_between(&nodes, &sizes)?;
        for row in own.iter().filter(|row| row.operation != "read") {
            match row.size {
                LATENCY_SIZE => {
                    let half = row.latency.iter().map(|it| it.median_us);
                    round
                        .row(LATENCY, LIBRARY, bytes(LATENCY_SIZE))
                        .add(HALF, half)
                }
                _ => round
                    .row(STREAMS, LIBRARY, bytes(row.size))
                    .add(STREAM, row.mb_s.clone()),
            };
        }
        for device in &DEVICES {
            let mut said = |peer: &Peer| {
                // One that has failed is missing from then on, with all of its device.
                let measure = || figure(&nodes, peer, &address(1)).context(peer.name);
                round.attempt(device.name, measure)
            };
            let halves = device.latency.each_ref().map(&mut said);
            let stream = said(&device.stream);
            for (peer, half) in device.latency.iter().zip(halves) {
                round
                    .row(LATENCY, peer.name, bytes(LATENCY_SIZE))
                    .add(HALF, half);
            }
            round
                .row(STREAMS, device.stream.name, bytes(STREAM_SIZE))
                .add(STREAM, stream);
        }
        Ok(())
    })?;
    nodes.end()
}
