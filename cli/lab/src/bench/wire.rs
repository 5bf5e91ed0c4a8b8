//! `qnic bench wire`: what loss costs, on each kind of link, what small writes take beside a
//! stream, UDP beside iperf3, and what a packet costs on the reliable path.
//!
//! All nodes are processes of this machine. Each figure stands beside the loss-free one of
//! the same kind of link in the same run.

mod beside_bulk;
pub(super) mod packets;

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use qnic_apps::report::Latency;
use qnic_images::{Cache, Program, Provisioner, Silent};
use qnic_trials::nodes::host::{DevicePlan, HostNodes};
use qnic_trials::nodes::keys::HostKeys;
use qnic_trials::nodes::Nodes;

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::stages::Recorder;
use super::{merge, transfers_between};

/// Percent of the frames that are lost.
const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 5.0];

/// What 1 % of loss shall leave of the loss-free throughput.
const LOSSY_GOAL: f64 = 0.7;

/// One way, on links that delay.
const DELAY: &str = "20us";

/// Bytes moved in one round of one size.
const ROUND_BYTES: &str = "16777216";

/// Sizes: one for latency, one for throughput (the goal's).
const SMALL: usize = 8;
const LARGE: usize = 65_536;

/// What carries frames from one NIC to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// Calls in one process: neither copies nor timers.
    Calls,
    /// Calls in one process, with the reliable transport.
    ReliableCalls,
    /// Shared memory between two device processes.
    SharedMemory,
    /// UDP over loopback between two device processes, encrypted or not.
    Udp { encrypt: bool },
}

/// A kind of link.
#[derive(Debug, Clone, Copy)]
struct Link {
    name: &'static str,
    carrier: Carrier,
    /// A link emulator delays each frame. Loss is compared on such links alone: their
    /// loss-free row passes the same emulator as the others.
    delayed: bool,
}

use Carrier::{Calls, ReliableCalls, SharedMemory, Udp};

const SECRET: Carrier = Udp { encrypt: true };
const OPEN: Carrier = Udp { encrypt: false };

const LINKS: [Link; 8] = [
    Link::new("lossless", Calls, false),
    Link::new("reliable", ReliableCalls, false),
    Link::new("20 µs delay", ReliableCalls, true),
    Link::new("shared memory", SharedMemory, false),
    Link::new("shm + 20 µs", SharedMemory, true),
    Link::new("UDP", SECRET, false),
    Link::new("UDP, not encrypted", OPEN, false),
    Link::new("UDP + 20 µs", SECRET, true),
];

impl Link {
    const fn new(name: &'static str, carrier: Carrier, delayed: bool) -> Self {
        Link {
            name,
            carrier,
            delayed,
        }
    }

    /// The losses at which it is measured.
    fn losses(&self) -> &'static [f64] {
        &LOSSES[..if self.delayed { LOSSES.len() } else { 1 }]
    }
}

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut udp_mb_s = Vec::new();
    let (mut beside_copies, mut stages) = (None, Vec::new());
    let mut iperf3 = vec![iperf_mb_s()?];
    let count: usize = LINKS.iter().map(|link| link.losses().len()).sum();
    for link in LINKS {
        let mut free = LossFree::default();
        for loss in link.losses() {
            let what = format!("{} at {loss} % loss", link.name);
            eprintln!("{what}, {} of {count}", rows.len() + 1);
            rows.push(row(link, *loss, rounds, &mut free).context(what)?);
        }
        let of_link = format!(" of {LARGE} bytes, {}", link.name);
        match link.carrier {
            Udp { encrypt } if !link.delayed => {
                if encrypt {
                    stages.push(free.stages.table("stages-udp", &of_link));
                }
                udp_mb_s.push((link.name, free.mb_s));
                iperf3.push(iperf_mb_s()?);
            }
            SharedMemory if !link.delayed => {
                stages.push(free.stages.table("stages-shared-memory", &of_link));
                beside_copies = Some(of_copies(link.name, &free));
            }
            _ => {}
        }
    }
    let beside_bulk = beside_bulk::measure(rounds)?;
    let write = |mb_s: Vec<f64>| Figure::with_spread("write", "MB/s", mb_s);
    let mut beside = vec![Row::new("iperf3", [write(iperf3.clone())]).of_peer(true)];
    beside.extend(udp_mb_s.into_iter().map(|(name, mb_s)| {
        let goal = Goal::at_least(1.0).code("P14");
        let write = write(mb_s).ratio_to("of iperf3", &iperf3);
        Row::new(name, [write.ratio_goal(goal)])
    }));
    let mut tables = vec![
        Table::new("links", "Links, against loss", rows),
        Table::new(
            "beside-iperf3",
            "UDP beside iperf3 with the same datagrams on loopback",
            beside,
        ),
        Table::new(
            "beside-copies",
            "64 KiB writes through shared memory between two processes, beside two copies",
            beside_copies.into_iter().collect(),
        ),
        beside_bulk,
    ];
    tables.extend(stages);
    Ok(tables)
}

/// A stream beside two copies, one after the other: half of what one copies.
fn of_copies(name: &str, free: &LossFree) -> Row {
    let copies: Vec<f64> = free.memcpy_mb_s.iter().map(|mb_s| mb_s / 2.0).collect();
    let goal = Goal::at_least(0.8).code("P14");
    let write = Figure::with_spread("write", "MB/s", free.mb_s.clone());
    let write = write.ratio_to("of two copies", &copies).ratio_goal(goal);
    Row::new(
        name,
        [write, Figure::new("two copies", "MB/s", copies).of_peer()],
    )
}

/// Throughput of large writes on a link without loss, and of memcpy by the process that writes; and
/// the stages of the writes.
#[derive(Default)]
struct LossFree {
    mb_s: Vec<f64>,
    memcpy_mb_s: Vec<f64>,
    stages: Recorder,
}

/// Measures one kind of link; `free` has what was measured without loss, once it was.
fn row(link: Link, loss: f64, rounds: usize, free: &mut LossFree) -> Result<Row> {
    let files = tempfile::tempdir().context("make a directory for key and sockets")?;
    let network = network(link, loss);
    let nodes = HostNodes::start_several(&plans(link.carrier, &network, files.path())?)?;
    let options = |rounds| format!("--floor --rounds {rounds} --round-bytes {ROUND_BYTES}");
    let measure = |size: usize, rounds: usize| {
        transfers_between(&nodes, &format!("--sizes {size} {}", options(rounds)))
    };
    let mut small = Vec::new();
    for _ in 0..rounds {
        for row in measure(SMALL, 0)? {
            merge(&mut small, row);
        }
    }
    let latency = |what, pick: fn(&Latency) -> f64| {
        let times = small.iter().take(1).flat_map(|row| &row.latency);
        Figure::new(what, "µs", times.map(pick).collect())
    };
    let large = match loss {
        0.0 => free.stages.of_fresh_nics(&nodes, LARGE, &options(rounds))?,
        _ => measure(LARGE, rounds)?,
    };
    let stream = |operation: &str| {
        let row = large.iter().find(|row| row.operation == operation);
        let row = row.filter(|row| !row.mb_s.is_empty());
        let row = row.with_context(|| format!("no {operation} of {LARGE} bytes was measured"))?;
        anyhow::Ok(row)
    };
    let (writes, reads) = (stream("write")?, stream("read")?);
    let stats = nodes.device_stats()?;
    let links = stats["network"]["links"].as_array().into_iter().flatten();
    let lost = links.filter_map(|link| link["counters"]["lost"].as_u64());
    let lost = lost.sum::<u64>() as f64;
    if loss == 0.0 {
        free.mb_s.clone_from(&writes.mb_s);
        free.memcpy_mb_s.clone_from(&writes.memcpy_mb_s);
    }
    let goal = (loss == 1.0).then(|| Goal::at_least(LOSSY_GOAL).code("P11"));
    let figures = [
        latency("8 B half RTT", |latency| latency.median_us),
        latency("99 %", |latency| latency.p99_us),
        Figure::with_spread("64 KiB write", "MB/s", writes.mb_s.clone())
            .ratio_to("of loss-free", &free.mb_s)
            .ratio_goal(goal),
        Figure::with_spread("64 KiB read", "MB/s", reads.mb_s.clone()),
        // What NICs have counted goes with the last process of their node.
        Figure::new("lost", "frames", vec![lost]),
    ];
    Ok(Row::new(link.name, figures).at("% loss", loss))
}

/// What `[network]` says of a kind of link.
fn network(link: Link, loss: f64) -> String {
    match link.delayed {
        true => format!("default = {{ delay = \"{DELAY}\", loss = \"{loss}%\" }}\n"),
        false => String::new(),
    }
}

/// The device processes for a kind of link, with more of `[network]`.
fn plans(carrier: Carrier, network: &str, files: &Path) -> Result<Vec<DevicePlan>> {
    let end: Box<dyn Fn(usize) -> [String; 2]> = match carrier {
        Calls => return Ok(vec![DevicePlan::alone(2, "")]),
        ReliableCalls => {
            let network = format!("[network]\n{network}");
            return Ok(vec![DevicePlan::alone(2, &network)]);
        }
        SharedMemory => Box::new(|process| {
            let socket = format!("socket = {:?}", files.join(format!("p{process}")));
            [format!("[network.shm]\n{socket}"), socket]
        }),
        Udp { encrypt } => {
            let keys = HostKeys::new(files)?;
            let ports = free_ports().context("find free UDP ports")?;
            Box::new(move |process| {
                let address = format!("\"127.0.0.1:{}\"", ports[process]);
                let (private, public) = (&keys.files[process], &keys.public[process]);
                [
                    format!(
                        "[network.udp]\nlisten = {address}\nprivate_key = {private:?}\n\
                         encrypt = {encrypt}"
                    ),
                    format!("address = {address}\npublic_key = \"{public}\""),
                ]
            })
        }
    };
    let plan = |here: usize| {
        let ([carrier, _], [_, other]) = (end(here), end(1 - here));
        let carrier = format!("{carrier}\nname = \"p{here}\"");
        let other = format!("name = \"p{}\"\n{other}", 1 - here);
        DevicePlan::one_of_two(here, 1, network, &carrier, &other)
    };
    Ok(vec![plan(0), plan(1)])
}

fn free_ports() -> std::io::Result<[u16; 2]> {
    let bind = || UdpSocket::bind("127.0.0.1:0");
    let sockets = [bind()?, bind()?];
    Ok([
        sockets[0].local_addr()?.port(),
        sockets[1].local_addr()?.port(),
    ])
}

/// What iperf3 moves over UDP on loopback in datagrams of a frame, in MB/s.
fn iperf_mb_s() -> Result<f64> {
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    let iperf3 = provisioner.iperf3().context("find iperf3")?;
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    let port = listener.local_addr()?.port().to_string();
    drop(listener);
    let mut server = iperf3
        .command()
        .args(["-s", "-1", "-p", &port, "--forceflush"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start iperf3")?;
    let report = server
        .stdout
        .take()
        .context("iperf3 says nothing")
        .and_then(|output| iperf_report(&iperf3, &port, output));
    // It may have ended by itself.
    let _ = server.kill();
    let _ = server.wait();
    let report = report?;
    let sum = &report["end"]["sum"];
    let figure = |name: &str| {
        sum[name]
            .as_f64()
            .with_context(|| format!("no {name}: {sum}"))
    };
    Ok(figure("bits_per_second")? / 8e6 * (1.0 - figure("lost_percent")? / 100.0))
}

/// What a client of iperf3 reports, once the server says that it listens.
fn iperf_report(iperf3: &Program, port: &str, server: ChildStdout) -> Result<serde_json::Value> {
    let mut lines = BufReader::new(server).lines();
    let listens = |line: std::io::Result<String>| line.is_ok_and(|line| line.contains("listening"));
    ensure!(lines.any(listens), "iperf3 does not listen");
    let mut client = iperf3.command();
    client.args(["-c", "127.0.0.1", "-p", port, "-u", "-b", "0"]);
    let output = client.args(["-l", "4296", "-t", "3", "-J"]).output()?;
    serde_json::from_slice(&output.stdout).context("read what iperf3 reports")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_processes() {
        let plan = |name: &str, loss| {
            let files = tempfile::tempdir().unwrap();
            let link = LINKS.into_iter().find(|link| link.name == name).unwrap();
            plans(link.carrier, &network(link, loss), files.path()).unwrap()
        };
        assert_eq!(plan("lossless", 0.0)[0].more, "");
        assert_eq!(plan("reliable", 0.0)[0].more, "[network]\n");
        for (loss, wanted) in [(0.0, "loss = \"0%\""), (0.1, "loss = \"0.1%\"")] {
            for link in LINKS.iter().filter(|link| link.delayed) {
                let more = &plan(link.name, loss)[0].more;
                assert!(more.contains(wanted) && more.contains(DELAY), "{more}");
            }
        }
        for name in ["shared memory", "UDP + 20 µs"] {
            let two = plan(name, 5.0);
            assert_eq!(two.len(), 2);
            assert!(two[1].more.contains("nodes = [0]") && two[1].nodes == [1]);
        }
    }
}
