//! Transfers between two guests beside those of others: Soft-RoCE and sockets over a virtio network
//! device between the same guests, and memory and interrupts that two more guests share.
//!
//! ```text
//!   guest ◄── NIC ── device process ── NIC ──► guest       qnic
//!   guest ◄── virtio-net ── QEMU ── virtio-net ──► guest   perftest over Soft-RoCE, qperf, iperf3
//!   guest ◄── memory of ivshmem ──► guest                  qnic-app shared-memory-bench
//!   guest ◄── doorbells of ivshmem ──► guest               qnic-app doorbell-bench
//! ```
//! The guests with ivshmem have no NIC: its page table would have to reach up to their memory,
//! which is below 4 GiB. They wait while the others measure.
//!
//! The programs come from the distribution's packages. The kernel is the one with all drivers, as
//! the other has no Soft-RoCE.

use std::sync::Arc;

use anyhow::{anyhow, Context, Result};
use qnic_cluster::{ByteSize, FileSpec, NodeSpec};
use qnic_images::{Cache, Provisioner, Silent};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;

use super::figures::bytes;
use super::guest_network::{address, GuestNetwork};
use super::guest_said::{self as said, Parse};
use super::point_to_point::transfers_between;
use super::sharing::Sharing;
use super::tables::{not_measured, Tables, HALF, STREAM};
use super::wakeups;

const LATENCY: &str = "guest-latency";
const STREAMS: &str = "guest-streams";

const LATENCY_SIZE: usize = 8;
const STREAM_SIZE: usize = 65_536;

/// The kernel of all guests.
pub(super) const KERNEL: &str = "generic";

/// Memory of a guest, in MiB: programs and kernel are larger than those of other suites.
pub(super) const MEMORY_MIB: u64 = 768;

/// Makes a device of Soft-RoCE.
pub(super) const SOFT_ROCE: &str =
    "modprobe crc32_generic && modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0";

/// Does a client's work again until its server listens, within a minute.
const UNTIL_IT_LISTENS: &str = "tries=100; until said=$(CLIENT 2>&1); do tries=$((tries - 1)); \
     case \"$said\" in *onnect*|*listen*) ;; *) tries=0 ;; esac; \
     [ $tries -gt 0 ] || { echo \"$said\" >&2; exit 1; }; usleep 100000; done; echo \"$said\"";

/// A peer whose programs say one figure: of a stream, or of half a round trip.
pub(super) struct Peer {
    pub(super) name: &'static str,
    streams: bool,
    /// What the second guest runs, and what the first one does; an address is PEER, or comes last.
    server: &'static str,
    client: &'static str,
    parse: Parse,
}

impl Peer {
    pub(super) const fn new(
        name: &'static str,
        server: &'static str,
        client: &'static str,
        parse: Parse,
    ) -> Self {
        Peer {
            name,
            streams: false,
            server,
            client,
            parse,
        }
    }

    const fn stream(self) -> Self {
        Peer {
            streams: true,
            ..self
        }
    }

    fn table(&self) -> (&'static str, usize, &'static str) {
        match self.streams {
            false => (LATENCY, LATENCY_SIZE, HALF),
            true => (STREAMS, STREAM_SIZE, STREAM),
        }
    }
}

const WRITE_LATENCY: &str = "ib_write_lat -d rxe0 -F -s 8 -n 1000";
const SEND_LATENCY: &str = "ib_send_lat -d rxe0 -F -s 8 -n 1000";
const WRITE_STREAM: &str = "ib_write_bw -d rxe0 -F -s 65536 -n 200";

const PEERS: [Peer; 7] = [
    Peer::new(
        "Soft-RoCE, ib_write_lat",
        WRITE_LATENCY,
        WRITE_LATENCY,
        said::latency,
    ),
    Peer::new(
        "Soft-RoCE, ib_send_lat",
        SEND_LATENCY,
        SEND_LATENCY,
        said::latency,
    ),
    Peer::new(
        "TCP, qperf",
        "qperf",
        "qperf -m 8 -t 2 PEER tcp_lat",
        said::qperf,
    ),
    Peer::new(
        "UDP, qperf",
        "qperf",
        "qperf -m 8 -t 2 PEER udp_lat",
        said::qperf,
    ),
    Peer::new(
        "Soft-RoCE, ib_write_bw",
        WRITE_STREAM,
        WRITE_STREAM,
        said::bandwidth,
    )
    .stream(),
    Peer::new(
        "TCP, qperf",
        "qperf",
        "qperf -m 65536 -t 2 PEER tcp_bw",
        said::qperf,
    )
    .stream(),
    Peer::new(
        "TCP, iperf3",
        "iperf3 -s -1",
        "iperf3 -J -t 2 -l 65536 -c",
        said::iperf3,
    )
    .stream(),
];

/// What needs Soft-RoCE.
const VERBS: &str = "Soft-RoCE";

/// This project's rows, and those of memory that guests share.
const OWN: &str = "qnic, write";
const SHARED: &str = "ivshmem";

/// Measures. Whatever keeps the guests from running is said below the tables.
pub(super) fn measure(rounds: usize, tables: &mut Tables) {
    for (table, size) in [(LATENCY, LATENCY_SIZE), (STREAMS, STREAM_SIZE)] {
        for name in [OWN, SHARED] {
            tables.row(table, name, bytes(size));
        }
    }
    for peer in &PEERS {
        let (table, size, _) = peer.table();
        tables.row(table, peer.name, bytes(size));
    }
    wakeups::declare(tables);
    if let Err(error) = between_guests(rounds, tables) {
        for table in [LATENCY, STREAMS, wakeups::TABLE] {
            tables.note(table, not_measured("the rest", &format!("{error:#}")));
        }
    }
}

fn between_guests(rounds: usize, tables: &mut Tables) -> Result<()> {
    let network = GuestNetwork::new()?;
    let nodes = boot("peers", KERNEL, |number, node| {
        node.memory = ByteSize(MEMORY_MIB << 20);
        node.qemu_args.extend(network.arguments(number));
    })?;
    network.set_up(&nodes, "eth0")?;
    let sharing = Sharing::boot(KERNEL, ByteSize(MEMORY_MIB << 20));
    let sharing = sharing.map_err(|error| format!("{error:#}"));
    let sharing = || sharing.as_ref().map_err(|why| anyhow!(why.clone()));
    wakeups::prepare(tables, || sharing()?.bind());
    let made = [0, 1].map(|node| shell(&nodes, node, SOFT_ROCE).map(drop));
    let made = made.into_iter().collect::<Result<()>>();
    for peer in PEERS.iter().filter(|peer| peer.name.starts_with(VERBS)) {
        let made = made.as_ref().copied();
        tables.attempt(peer.name, || made.map_err(|error| anyhow!("{error:#}")));
    }
    let sizes = format!("{LATENCY_SIZE},{STREAM_SIZE}");
    tables.rounds(rounds, ", guests", false, |round| {
        let own = transfers_between(&nodes, &format!("--rounds 1 --sizes {sizes}"))?;
        for row in own.iter().filter(|row| row.operation != "read") {
            let half = row.latency.iter().map(|it| it.median_us);
            match row.size {
                LATENCY_SIZE => round.row(LATENCY, OWN, bytes(LATENCY_SIZE)).add(HALF, half),
                _ => round
                    .row(STREAMS, OWN, bytes(row.size))
                    .add(STREAM, row.mb_s.clone()),
            };
        }
        wakeups::round(round, &nodes, || sharing()?.by_doorbell());
        if let Some(row) = round.attempt(SHARED, || sharing()?.by_memory(STREAM_SIZE)) {
            // There is one row for both, with the size of its copies.
            let half = row.latency.iter().map(|it| it.median_us);
            round
                .row(LATENCY, SHARED, bytes(LATENCY_SIZE))
                .add(HALF, half);
            round
                .row(STREAMS, SHARED, bytes(STREAM_SIZE))
                .add(STREAM, row.mb_s.clone());
        }
        for peer in &PEERS {
            let (table, size, figure) = peer.table();
            let said = round.attempt(peer.name, || self::figure(&nodes, peer, &address(1)));
            round.row(table, peer.name, bytes(size)).add(figure, said);
        }
        Ok(())
    })
}

/// Two guests with the programs. `more` is said of each.
pub(super) fn boot(
    name: &str,
    kernel: &str,
    more: impl Fn(usize, &mut NodeSpec),
) -> Result<VmNodes> {
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    let programs = provisioner.network_programs();
    let programs = programs.context("fetch the programs to compare with")?;
    let mut spec = VmNodes::spec(name, &[kernel; 2])?;
    for (number, node) in spec.nodes.iter_mut().enumerate() {
        more(number, node);
        node.files.extend(programs.iter().map(|file| FileSpec {
            from: file.host_path.clone(),
            to: file.guest_path.clone(),
            mode: file.mode,
        }));
    }
    VmNodes::boot_spec(&spec)
}

/// Runs both programs of a peer; what they say. The second guest has that address.
pub(super) fn figure(nodes: &VmNodes, peer: &Peer, address: &str) -> Result<f64> {
    let mut server = background(nodes, 1, &format!("exec {}", peer.server))?;
    let client = match peer.client.contains("PEER") {
        true => peer.client.replace("PEER", address),
        false => format!("{} {address}", peer.client),
    };
    let said = shell(nodes, 0, &UNTIL_IT_LISTENS.replace("CLIENT", &client));
    server.kill()?;
    (peer.parse)(&said?)
}
