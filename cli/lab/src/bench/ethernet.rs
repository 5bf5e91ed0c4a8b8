//! IP between two guests over their Ethernet ports (X17), beside the same over network devices that QEMU
//! joins by a socket (`-netdev stream`). Within a round both take turns.

use anyhow::Result;
use qnic_cluster::{NodeSpec, OnOff};
use qnic_trials::nodes::vm::VmNodes;

use super::figures::bytes;
use super::guest_network::{self, GuestNetwork};
use super::guest_peers::{boot, figure, Peer};
use super::guest_said as said;
use super::tables::{Tables, HALF, STREAM};

const LATENCY: &str = "latency";
const BANDWIDTH: &str = "bandwidth";

/// What is compared, and the address of the second guest there.
fn networks() -> [(&'static str, String); 2] {
    [
        ("Ethernet port", "10.71.0.2".to_owned()),
        ("QEMU's stream", guest_network::address(1)),
    ]
}

const LATENCIES: [Peer; 2] = [
    Peer::new("TCP", "qperf", "qperf -m 8 -t 2 PEER tcp_lat", said::qperf),
    Peer::new("UDP", "qperf", "qperf -m 8 -t 2 PEER udp_lat", said::qperf),
];

/// Bytes of a write to TCP and of a datagram, which fits a frame.
const STREAMS: [(usize, Peer); 2] = [
    (65_536, stream("TCP", "iperf3 -J -t 2 -l 65536 -c")),
    (1_400, stream("UDP", "iperf3 -J -t 2 -u -b 0 -l 1400 -c")),
];

const fn stream(name: &'static str, client: &'static str) -> Peer {
    Peer::new(name, "iperf3 -s -1", client, said::iperf3)
}

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let network = GuestNetwork::new()?;
    let nodes = boot("ethernet", "stable", |number, node: &mut NodeSpec| {
        node.ethernet = Some(OnOff::on());
        node.qemu_args.extend(network.arguments(number));
    })?;
    network.set_up(&nodes, "eth1")?;
    tables.rounds(rounds, ", Ethernet", false, |round| {
        for (network, address) in networks() {
            measured(round, &nodes, (network, &address))?;
        }
        Ok(())
    })
}

fn measured(round: &mut Tables, nodes: &VmNodes, (network, address): (&str, &str)) -> Result<()> {
    for peer in &LATENCIES {
        let half = figure(nodes, peer, address)?;
        let name = format!("{}, {network}", peer.name);
        round.row(LATENCY, &name, bytes(8)).add(HALF, [half]);
    }
    for (size, peer) in &STREAMS {
        let rate = figure(nodes, peer, address)?;
        let name = format!("{}, {network}", peer.name);
        round
            .row(BANDWIDTH, &name, bytes(*size))
            .add(STREAM, [rate]);
    }
    Ok(())
}
