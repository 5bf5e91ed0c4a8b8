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

use anyhow::{Context, Result};
use qnic_apps::report::{BenchRow, Latency};
use qnic_cluster::{ByteSize, FileSpec};
use qnic_images::{Cache, Provisioner, Silent};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::guest_network::{address, GuestNetwork};
use super::guest_said::{self as said, Parse};
use super::sharing::Sharing;
use super::wakeups::Wakeups;
use super::{merge, transfers_between};

const LATENCY_SIZE: usize = 8;
const STREAM_SIZE: usize = 65_536;

/// The kernel of all guests.
const KERNEL: &str = "generic";

/// Memory of a guest, in MiB: programs and kernel are larger than those of other suites.
const MEMORY_MIB: u64 = 768;

/// Makes a device of Soft-RoCE.
const SOFT_ROCE: &str =
    "modprobe crc32_generic && modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0";

/// Does a client's work again until its server listens, within a minute.
const UNTIL_IT_LISTENS: &str = "tries=100; until said=$(CLIENT 2>&1); do tries=$((tries - 1)); \
     case \"$said\" in *onnect*|*listen*) ;; *) tries=0 ;; esac; \
     [ $tries -gt 0 ] || { echo \"$said\" >&2; exit 1; }; usleep 100000; done; echo \"$said\"";

/// A peer whose programs say one figure.
struct Peer {
    name: &'static str,
    /// It streams; else it measures half a round trip.
    streams: bool,
    /// Bytes of a transfer.
    size: usize,
    /// It needs Soft-RoCE.
    verbs: bool,
    /// What the second guest runs, and what the first one does, before the other's address.
    server: &'static str,
    client: &'static str,
    parse: Parse,
    /// How many times qnic's latency its own shall be at least (P3).
    goal: Option<f64>,
}

impl Peer {
    /// A peer without Soft-RoCE and without a goal.
    const fn new(name: &'static str, streams: bool, size: usize, parse: Parse) -> Self {
        Peer {
            name,
            streams,
            size,
            verbs: false,
            server: "qperf",
            client: "",
            parse,
            goal: None,
        }
    }
}

const PEERS: [Peer; 7] = [
    Peer {
        verbs: true,
        server: "ib_write_lat -d rxe0 -F -s 8 -n 1000",
        client: "ib_write_lat -d rxe0 -F -s 8 -n 1000",
        goal: Some(100.0),
        ..Peer::new(
            "Soft-RoCE, ib_write_lat",
            false,
            LATENCY_SIZE,
            said::latency,
        )
    },
    Peer {
        verbs: true,
        server: "ib_send_lat -d rxe0 -F -s 8 -n 1000",
        client: "ib_send_lat -d rxe0 -F -s 8 -n 1000",
        ..Peer::new("Soft-RoCE, ib_send_lat", false, LATENCY_SIZE, said::latency)
    },
    Peer {
        client: "qperf -m 8 -t 2 PEER tcp_lat",
        goal: Some(60.0),
        ..Peer::new("TCP, qperf", false, LATENCY_SIZE, said::qperf)
    },
    Peer {
        client: "qperf -m 8 -t 2 PEER udp_lat",
        ..Peer::new("UDP, qperf", false, LATENCY_SIZE, said::qperf)
    },
    Peer {
        verbs: true,
        server: "ib_write_bw -d rxe0 -F -s 65536 -n 200",
        client: "ib_write_bw -d rxe0 -F -s 65536 -n 200",
        ..Peer::new("Soft-RoCE, ib_write_bw", true, STREAM_SIZE, said::bandwidth)
    },
    Peer {
        client: "qperf -m 65536 -t 2 PEER tcp_bw",
        ..Peer::new("TCP, qperf", true, STREAM_SIZE, said::qperf)
    },
    Peer {
        server: "iperf3 -s -1",
        client: "iperf3 -J -t 2 -l 65536 -c",
        ..Peer::new("TCP, iperf3", true, STREAM_SIZE, said::iperf3)
    },
];

/// What a peer has measured, and why no more.
#[derive(Default)]
struct Measured {
    samples: Vec<f64>,
    missing: Option<String>,
}

/// What all rounds have measured.
#[derive(Default)]
struct All {
    own: Vec<BenchRow>,
    shared: Vec<BenchRow>,
    shared_missing: Option<String>,
    peers: [Measured; PEERS.len()],
    wakeups: Wakeups,
    /// Why it ended before all rounds.
    ended: Option<String>,
}

/// Measures. Whatever keeps the guests from running is said below the tables.
pub(super) fn measure(rounds: usize) -> Vec<Table> {
    let mut all = All::default();
    if let Err(error) = all.measure(rounds) {
        all.ended = Some(format!("{error:#}"));
    }
    tables(&all)
}

impl All {
    fn measure(&mut self, rounds: usize) -> Result<()> {
        let network = GuestNetwork::new()?;
        let nodes = boot(&network)?;
        network.set_up(&nodes)?;
        let sharing = Sharing::boot(KERNEL, ByteSize(MEMORY_MIB << 20));
        let sharing = sharing.map_err(|error| format!("{error:#}"));
        self.shared_missing = sharing.as_ref().err().cloned();
        self.wakeups.prepare(sharing.as_ref());
        let made = [0, 1].map(|node| shell(&nodes, node, SOFT_ROCE));
        if let Some(error) = made.into_iter().find_map(Result::err) {
            let peers = PEERS.iter().zip(&mut self.peers);
            for (_, measured) in peers.filter(|(peer, _)| peer.verbs) {
                measured.missing = Some(format!("{error:#}"));
            }
        }
        let sizes = format!("{LATENCY_SIZE},{STREAM_SIZE}");
        for round in 1..=rounds {
            eprintln!("guests, round {round} of {rounds}");
            for row in transfers_between(&nodes, &format!("--rounds 1 --sizes {sizes}"))? {
                merge(&mut self.own, row);
            }
            self.wakeups.round(&nodes, sharing.as_ref().ok());
            if let (Ok(sharing), None) = (&sharing, &self.shared_missing) {
                match sharing.by_memory(STREAM_SIZE) {
                    Ok(row) => merge(&mut self.shared, row),
                    Err(error) => self.shared_missing = Some(format!("{error:#}")),
                }
            }
            for (peer, measured) in PEERS.iter().zip(&mut self.peers) {
                if measured.missing.is_none() {
                    match figure(&nodes, peer) {
                        Ok(figure) => measured.samples.push(figure),
                        Err(error) => measured.missing = Some(format!("{error:#}")),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Two guests with the programs and a network.
fn boot(network: &GuestNetwork) -> Result<VmNodes> {
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    let programs = provisioner.network_programs();
    let programs = programs.context("fetch the programs to compare with")?;
    let mut spec = VmNodes::spec("peers", &[KERNEL; 2])?;
    for (number, node) in spec.nodes.iter_mut().enumerate() {
        node.memory = ByteSize(MEMORY_MIB << 20);
        node.qemu_args.extend(network.arguments(number));

        node.files.extend(programs.iter().map(|file| FileSpec {
            from: file.host_path.clone(),
            to: file.guest_path.clone(),
            mode: file.mode,
        }));
    }
    VmNodes::boot_spec(&spec)
}

/// Runs both programs of a peer; what they say.
fn figure(nodes: &VmNodes, peer: &Peer) -> Result<f64> {
    let mut server = background(nodes, 1, &format!("exec {}", peer.server))?;
    let client = match peer.client.contains("PEER") {
        true => peer.client.replace("PEER", &address(1)),
        false => format!("{} {}", peer.client, address(1)),
    };
    let said = shell(nodes, 0, &UNTIL_IT_LISTENS.replace("CLIENT", &client));
    server.kill()?;
    (peer.parse)(&said?)
}

fn tables(all: &All) -> Vec<Table> {
    let medians = |rows: &[BenchRow], size: usize| -> Vec<f64> {
        let row = rows
            .iter()
            .find(|it| it.size == size && it.operation != "read");
        let times = row.into_iter().flat_map(|row| &row.latency);
        times.map(|latency: &Latency| latency.median_us).collect()
    };
    let rates = |rows: &[BenchRow], size: usize| -> Vec<f64> {
        let row = rows
            .iter()
            .find(|it| it.size == size && it.operation != "read");
        row.map(|row| row.mb_s.clone()).unwrap_or_default()
    };
    let heads = [
        (false, LATENCY_SIZE, "half round trip", "µs"),
        (true, STREAM_SIZE, "stream", "MB/s"),
    ];
    let of = |(streams, size, what, unit): (bool, usize, &str, &str)| -> (Vec<Row>, Vec<String>) {
        let own = match streams {
            false => medians(&all.own, size),
            true => rates(&all.own, size),
        };
        // Of shared memory there is one row for both, with the size of its copies.
        let shared = match streams {
            false => medians(&all.shared, STREAM_SIZE),
            true => rates(&all.shared, STREAM_SIZE),
        };
        let row = |name: &str, samples: &[f64], goal: Option<f64>| {
            let figure = Figure::with_spread(what, unit, samples.to_vec());
            let goal = goal.map(|least| Goal::at_least(least).code("P3"));
            let figure = figure.ratio_to("of qnic", &own).ratio_goal(goal);
            Row::new(name, [figure]).size(size)
        };
        let mut rows = vec![row("qnic, write", &own, None)];
        rows.push(row("ivshmem", &shared, None).of_peer(true));
        let mut notes = Vec::new();
        notes.extend(missing("the rest", all.ended.as_ref()));
        notes.extend(missing("ivshmem", all.shared_missing.as_ref()));
        for (peer, measured) in PEERS.iter().zip(&all.peers) {
            if peer.streams == streams && peer.size == size {
                rows.push(row(peer.name, &measured.samples, peer.goal).of_peer(true));
                notes.extend(missing(peer.name, measured.missing.as_ref()));
            }
        }
        (rows, notes)
    };
    let titles = [
        (
            "guest-latency",
            "Half a round trip between two guests, of qnic and of others",
        ),
        (
            "guest-streams",
            "Streams between two guests, of qnic and of others",
        ),
    ];
    let tables = heads.into_iter().zip(titles).map(|(head, (id, title))| {
        let (rows, notes) = of(head);
        let mut table = Table::new(id, title, rows);
        table.notes = notes;
        table
    });
    let mut wakeups = all.wakeups.table();
    wakeups
        .notes
        .extend(missing("the rest", all.ended.as_ref()));
    tables.chain([wakeups]).collect()
}

/// A line that says why a peer has no figures.
fn missing(name: &str, why: Option<&String>) -> Option<String> {
    why.map(|why| format!("{name}: not measured: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    fn row(operation: &str, size: usize, median_us: f64, mb_s: f64) -> BenchRow {
        let mut row = BenchRow::new(operation, size);
        row.latency.push(Latency {
            median_us,
            p99_us: 9.0,
            min_us: 1.0,
            mean_us: 2.0,
            rounds: 5,
        });
        row.mb_s.push(mb_s);
        row
    }

    #[test]
    fn each_peer_has_its_row_and_those_that_cannot_run_a_reason() {
        let mut all = All::default();
        all.own.push(row("write", LATENCY_SIZE, 10.0, 1.0));
        all.own.push(row("write", STREAM_SIZE, 20.0, 8000.0));
        all.own.push(row("read", STREAM_SIZE, 20.0, 1.0));
        all.shared.push(row("ivshmem", STREAM_SIZE, 0.1, 2000.0));
        all.peers[0].samples.push(1100.0);
        all.peers[2].samples.push(400.0);
        all.peers[4].missing = Some("no such module".into());
        let [latency, streams, _] = &tables(&all)[..] else {
            panic!("three tables");
        };
        let words = |table: &Table, name: &str| words_of_row(table, name).join(" ");
        let ivshmem = words(latency, "ivshmem");
        assert_eq!(ivshmem, "ivshmem 8 0.10 (0.10 … 0.10) 0.010 -");
        let verbs = words(latency, "Soft-RoCE, ib_write_lat");
        assert!(verbs.ends_with("110.00 ≥ 100"), "{verbs}");
        let tcp = words(latency, "TCP, qperf");
        assert!(tcp.ends_with("40.00 ≥ 60, missed"), "{tcp}");
        let stream = words(streams, "ivshmem");
        assert_eq!(stream, "ivshmem 65536 2000 (2000 … 2000) 0.25");
        assert_eq!(latency.notes, [""; 0]);
        assert_eq!(
            streams.notes,
            ["Soft-RoCE, ib_write_bw: not measured: no such module"]
        );
    }
}
