//! What the kernel's own path costs, between two guests: streams and datagram sockets over shared
//! pools (S1 to S6), beside TCP and UDP over a virtio network device of the same guests. Within a
//! round all take turns.

use anyhow::{Context, Result};
use qnic_apps::report::{BenchRow, Latency, MessagesRow, PoolLine};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::guest_network::{address, GuestNetwork};
use super::{merge, LIMIT};

/// Half a round trip, of that by TCP or UDP.
const LATENCY_GOAL: f64 = 0.25;

/// Bandwidth of 64 KiB writes, at least, of TCP's.
const BANDWIDTH_GOAL: f64 = 10.0;

/// System calls for each message of a burst.
const CALLS_GOAL: f64 = 0.05;

/// What each is compared with.
const PEERS: [(&str, &str); 2] = [("stream", "TCP"), ("datagram socket", "UDP")];

/// Bytes of a page.
const PAGE: f64 = 4096.0;

/// What all rounds have measured.
#[derive(Default)]
struct Measured {
    transfers: Vec<BenchRow>,
    bursts: Vec<MessagesRow>,
    /// Bytes that drivers have copied, and that were moved.
    copied: u64,
    moved: u64,
}

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let network = GuestNetwork::new()?;
    let arguments = [0, 1].map(|node| network.arguments(node));
    let nodes = VmNodes::boot_with("bench", &["stable"; 2], &arguments)?;
    network.set_up(&nodes)?;
    let mut server = nodes.start_until(1, "pool-server --internet", "serving")?;
    let mut measured = Measured::default();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        one_round(&nodes, &mut measured)?;
    }
    server.kill()?;
    Ok(tables(&measured))
}

fn one_round(nodes: &VmNodes, measured: &mut Measured) -> Result<()> {
    let arguments = format!("pool-bench --peer 1 --address {}", address(1));
    let mut client = nodes.start(0, &arguments)?;
    while let Some(line) = client.line(LIMIT).context("the client")? {
        let line = serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?;
        match line {
            PoolLine::Transfer(row) => merge(&mut measured.transfers, row),
            PoolLine::Messages(row) => measured.bursts.push(row),
            PoolLine::Copied { copied, moved } => {
                measured.copied += copied;
                measured.moved += moved;
            }
        }
    }
    client.succeed("the client", LIMIT).map(drop)
}

fn tables(measured: &Measured) -> Vec<Table> {
    vec![
        latencies(&measured.transfers),
        bandwidths(&measured.transfers),
        calls(&measured.bursts),
        copies(measured),
    ]
}

/// What an operation is compared with; itself if that is what others are compared with.
fn peer_of(operation: &str) -> &str {
    let found = PEERS.iter().find(|(ours, _)| *ours == operation);
    found.map_or(operation, |(_, peer)| *peer)
}

fn latencies(rows: &[BenchRow]) -> Table {
    let times = |row: &BenchRow, pick: fn(&Latency) -> f64| -> Vec<f64> {
        row.latency.iter().map(pick).collect()
    };
    let measured = rows.iter().filter(|row| !row.latency.is_empty());
    let lines = measured.map(|row| {
        let peer = peer_of(&row.operation);
        let found = rows
            .iter()
            .find(|other| other.operation == peer && other.size == row.size);
        let floor = found.map(|peer| times(peer, |it| it.median_us));
        let goal = (peer != row.operation).then(|| Goal::at_most(LATENCY_GOAL));
        let figures = [
            Figure::with_spread("half round trip", "µs", times(row, |it| it.median_us))
                .ratio_to("of TCP, UDP", &floor.unwrap_or_default())
                .ratio_goal(goal),
            Figure::new("99 %", "µs", times(row, |it| it.p99_us)),
            Figure::new("least", "µs", times(row, |it| it.min_us)),
        ];
        let row_of = Row::new(&*row.operation, figures).size(row.size);
        row_of.of_peer(peer == row.operation)
    });
    let title = "Shared pools between guests: latency, beside TCP and UDP";
    Table::new("latency", title, lines.collect())
}

fn bandwidths(rows: &[BenchRow]) -> Table {
    let floor = rows
        .iter()
        .find(|row| row.operation == "TCP" && !row.mb_s.is_empty());
    let floor = floor.map(|row| row.mb_s.clone()).unwrap_or_default();
    let measured = rows.iter().filter(|row| !row.mb_s.is_empty());
    let lines = measured.map(|row| {
        let is_goal = row.operation == "stream";
        let goal = is_goal.then(|| Goal::at_least(BANDWIDTH_GOAL));
        let stream = Figure::with_spread("writes", "MB/s", row.mb_s.clone())
            .ratio_to("of TCP", &floor)
            .ratio_goal(goal);
        let row_of = Row::new(&*row.operation, [stream]).size(row.size);
        row_of.of_peer(peer_of(&row.operation) == row.operation)
    });
    let title = "Shared pools between guests: bandwidth, beside TCP";
    Table::new("bandwidth", title, lines.collect())
}

fn calls(bursts: &[MessagesRow]) -> Table {
    let mut names: Vec<&str> = bursts.iter().map(|row| &*row.operation).collect();
    names.sort_unstable();
    names.dedup();
    let lines = names.into_iter().map(|name| {
        let of_name = || bursts.iter().filter(|row| row.operation == name);
        let each = |calls: u64, row: &MessagesRow| calls as f64 / row.messages as f64;
        let sender = of_name().map(|row| each(row.sender_calls, row)).collect();
        let kicks = of_name().filter_map(|row| Some(each(row.sender_kicks?, row)));
        let receiver = of_name().filter_map(|row| Some(each(row.receiver_calls?, row)));
        let is_own = peer_of(name) != name;
        let goal = is_own.then(|| Goal::at_most(CALLS_GOAL));
        let figures = [
            Figure::with_spread("sender's calls", "each", sender).goal(goal),
            Figure::new("of these kicks", "each", kicks.collect()),
            Figure::new("receiver's", "each", receiver.collect()),
            Figure::new("time", "µs", of_name().map(|row| row.message_us).collect()),
        ];
        Row::new(name, figures).size(8).of_peer(!is_own)
    });
    let title = "Shared pools between guests: system calls for each message of a burst";
    Table::new("calls", title, lines.collect())
}

/// Data that is not copied goes from the writer's frame to the reader's; process and NIC copy it
/// into the first, from one to the other, and out of it.
fn copies(measured: &Measured) -> Table {
    let pages = measured.moved as f64 / PAGE;
    let driver = Figure::new("driver", "bytes", vec![measured.copied as f64 / pages]);
    let title = "Shared pools between guests: bytes that the sender's driver copies for a page";
    Table::new("copies", title, vec![Row::new("stream", [driver])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    fn transfer(operation: &str, median_us: f64, mb_s: f64) -> [BenchRow; 2] {
        let mut rows = [8, 65_536].map(|size| BenchRow::new(operation, size));
        rows[0].latency.push(Latency {
            median_us,
            p99_us: 2.0 * median_us,
            min_us: 1.0,
            mean_us: median_us,
            rounds: 5,
        });
        rows[1].mb_s.push(mb_s);
        rows
    }

    #[test]
    fn streams_stand_beside_tcp_and_sockets_beside_udp() {
        let mut measured = Measured {
            moved: 8192,
            copied: 4096,
            ..Measured::default()
        };
        for rows in [
            transfer("stream", 10.0, 500.0),
            transfer("TCP", 100.0, 20.0),
            transfer("UDP", 80.0, 1.0),
            transfer("datagram socket", 20.0, 1.0),
        ] {
            measured.transfers.extend(rows);
        }
        measured.bursts.push(MessagesRow {
            operation: "stream".into(),
            messages: 1000,
            sender_calls: 20,
            sender_kicks: Some(10),
            receiver_calls: Some(30),
            message_us: 0.5,
        });
        let [latency, bandwidth, calls, copies] = &tables(&measured)[..] else {
            panic!("four tables");
        };
        let words = words_of_row(latency, "stream").join(" ");
        assert_eq!(
            words,
            "stream 8 10.00 (10.00 … 10.00) 0.10 ≤ 0.25 20.00 1.00"
        );
        let words = words_of_row(latency, "datagram").join(" ");
        assert!(words.contains("0.25 ≤ 0.25 40.00"), "{words}");
        let words = words_of_row(latency, "TCP").join(" ");
        assert_eq!(words, "TCP 8 100.0 (100.0 … 100.0) 1.00 - 200.0 1.00");
        let words = words_of_row(bandwidth, "stream").join(" ");
        assert_eq!(words, "stream 65536 500.0 (500.0 … 500.0) 25.00 ≥ 10");
        let words = words_of_row(calls, "stream").join(" ");
        assert_eq!(words, "stream 8 0.02 (0.02 … 0.02) ≤ 0.05 0.01 0.03 0.50");
        assert_eq!(words_of_row(copies, "stream").join(" "), "stream 2048");
    }
}
