//! `qnic bench wire`: what loss costs, on each kind of link, UDP beside iperf3, and what a
//! packet costs on the reliable path.
//!
//! All nodes are processes of this machine. Each figure stands beside the loss-free
//! one of the same kind of link in the same run.

mod packets;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{ChildStdout, Stdio};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use qnic_images::{Cache, Program, Provisioner, Silent};
use qnic_tests::host::{DevicePlan, HostNodes};
use qnic_tests::nodes::{counter, Nodes};
use serde::Serialize;

use crate::bench::{measure, say, spread};

/// Percent of the frames that are lost.
const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 5.0];

/// One way, on links that delay.
const DELAY: &str = "20us";

/// Bytes moved in one round of one size.
const ROUND_BYTES: &str = "16777216";

/// Sizes: one for latency, one for throughput (the goal's).
const SMALL: usize = 8;
const LARGE: usize = 65_536;

/// A kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// In one process, by calls: neither copies nor timers.
    Perfect,
    /// In one process, by calls, with the reliable transport.
    Reliable,
    /// In one process, through stages that delay each frame: the loss-free row passes
    /// the same ones as the others.
    Delayed,
    /// Between two device processes, through shared memory.
    SharedMemory,
    /// Between two device processes, UDP over loopback.
    Udp,
    /// The same two through stages that delay each frame, as [`Kind::Delayed`]: what a
    /// stage costs is no part of what loss costs.
    DelayedSharedMemory,
    DelayedUdp,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Perfect => "perfect",
            Kind::Reliable => "reliable",
            Kind::Delayed => "20 µs delay",
            Kind::SharedMemory => "shared memory",
            Kind::Udp => "UDP",
            Kind::DelayedSharedMemory => "shm + 20 µs",
            Kind::DelayedUdp => "UDP + 20 µs",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct WireRow {
    kind: Kind,
    loss_percent: f64,
    /// Half a round trip of 8-byte writes, median.
    latency_us: f64,
    latency_p99_us: f64,
    /// 64 KiB writes.
    write_mb_s: f64,
    /// Of the loss-free write of this kind.
    write_ratio: f64,
    /// 64 KiB reads.
    read_mb_s: f64,
    /// Frames that both NICs have sent again, and those of them that a timer asked for.
    frames_resent: u64,
    resend_timeouts: u64,
}

/// Measures and prints; the JSON of all rows.
pub(crate) fn run(rounds: usize) -> Result<serde_json::Value> {
    let mut rows: Vec<WireRow> = Vec::new();
    let kinds = [
        (Kind::Perfect, &LOSSES[..1]),
        (Kind::Reliable, &LOSSES[..1]),
        (Kind::Delayed, &LOSSES[..]),
        (Kind::SharedMemory, &LOSSES[..1]),
        (Kind::DelayedSharedMemory, &LOSSES[..]),
        (Kind::Udp, &LOSSES[..1]),
        (Kind::DelayedUdp, &LOSSES[..]),
    ];
    let count: usize = kinds.iter().map(|(_, losses)| losses.len()).sum();
    for (kind, losses) in kinds {
        let mut free = None;
        for loss in losses {
            let number = rows.len() + 1;
            say(format_args!(
                "{} at {loss} % loss, {number} of {count}",
                kind.name()
            ));
            let mut row =
                one(kind, *loss, rounds).with_context(|| format!("{kind:?} at {loss} % loss"))?;
            row.write_ratio = row.write_mb_s / *free.get_or_insert(row.write_mb_s);
            rows.push(row);
        }
    }
    print!("{}", table(&rows));
    let iperf = iperf_mb_s()?;
    if let Some(udp) = rows.iter().find(|row| row.kind == Kind::Udp) {
        println!(
            "iperf3, UDP of the same datagrams on loopback: {iperf:.0} MB/s; the UDP link is {:.2} of it",
            udp.write_mb_s / iperf
        );
    }
    let packets = packets::measure()?;
    print!("{}", packets::table(&packets));
    Ok(serde_json::json!({ "rows": rows, "iperf3_udp_mb_s": iperf, "packets": packets }))
}

fn one(kind: Kind, loss: f64, rounds: usize) -> Result<WireRow> {
    let files = tempfile::tempdir().context("make a directory for key and sockets")?;
    let nodes = HostNodes::start_several(&plans(kind, loss, files.path())?)?;
    let measure = |size: usize, rounds: usize| {
        let options = format!("--sizes {size} --rounds {rounds} --round-bytes {ROUND_BYTES}");
        measure(&nodes, &options, |_| ())
    };
    let small = measure(SMALL, 0)?;
    let latency = small.first().and_then(|row| row.latency.first().copied());
    let large = measure(LARGE, rounds)?;
    let middle = |operation: &str| {
        let row = large.iter().find(|row| row.operation == operation);
        let median = row
            .and_then(|row| spread(&row.mb_s))
            .map(|(median, ..)| median);
        median.with_context(|| format!("no {operation} of {LARGE} bytes was measured"))
    };
    let stats = nodes.device_stats()?;
    let both =
        |name: &str| -> Result<u64> { Ok(counter(&stats, 0, name)? + counter(&stats, 1, name)?) };
    Ok(WireRow {
        kind,
        loss_percent: loss,
        latency_us: latency.map_or(0.0, |latency| latency.median_us),
        latency_p99_us: latency.map_or(0.0, |latency| latency.p99_us),
        write_mb_s: middle("write")?,
        write_ratio: 1.0,
        read_mb_s: middle("read")?,
        frames_resent: both("frames_resent")?,
        resend_timeouts: both("resend_timeouts")?,
    })
}

/// The device processes for a kind of link.
fn plans(kind: Kind, loss: f64, files: &std::path::Path) -> Result<Vec<DevicePlan>> {
    let links = match kind {
        Kind::Delayed | Kind::DelayedSharedMemory | Kind::DelayedUdp => {
            format!("[network]\ndefault = {{ delay = \"{DELAY}\", loss = \"{loss}%\" }}\n")
        }
        _ => "[network]\n".to_owned(),
    };
    let one = |more: String| {
        vec![DevicePlan {
            nodes: vec![0, 1],
            more,
            prefix: Vec::new(),
        }]
    };
    match kind {
        Kind::Perfect => return Ok(one(String::new())),
        Kind::Reliable | Kind::Delayed => return Ok(one(links)),
        Kind::SharedMemory | Kind::Udp | Kind::DelayedSharedMemory | Kind::DelayedUdp => {}
    }
    let key = files.join("key");
    std::fs::write(&key, [1; 32]).context("write a key")?;
    let ports = free_ports().context("find free UDP ports")?;
    let address = |process: usize| format!("127.0.0.1:{}", ports[process]);
    let socket = |process: usize| files.join(format!("p{process}"));
    let plan = |here: usize| {
        let there = 1 - here;
        let (own, other) = match kind {
            Kind::Udp | Kind::DelayedUdp => (
                format!("udp]\nlisten = {:?}\nkey_file = {key:?}", address(here)),
                format!("address = {:?}", address(there)),
            ),
            _ => (
                format!("shm]\nsocket = {:?}", socket(here)),
                format!("socket = {:?}", socket(there)),
            ),
        };
        let more = format!(
            "{links}[network.{own}\nname = \"p{here}\"\n\
             [[network.process]]\nname = \"p{there}\"\n{other}\nnodes = [{there}]\n"
        );
        DevicePlan {
            nodes: vec![here],
            more,
            prefix: Vec::new(),
        }
    };
    Ok(vec![plan(0), plan(1)])
}

fn free_ports() -> std::io::Result<[u16; 2]> {
    let bind = || std::net::UdpSocket::bind("127.0.0.1:0");
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
    let output = client.args(["-l", "4296", "-t", "5", "-J"]).output()?;
    serde_json::from_slice(&output.stdout).context("read what iperf3 reports")
}

fn table(rows: &[WireRow]) -> String {
    let mut text = format!(
        "{:<14} {:>8} {:>14} {:>12} {:>14} {:>13} {:>13}\n",
        "link", "loss", "8 B half RTT", "99 % µs", "64 KiB write", "of loss-free", "64 KiB read"
    );
    for row in rows {
        let kind = row.kind.name();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{kind:<14} {:>7}% {:>11.1} µs {:>12.1} {:>9.0} MB/s {:>13.2} {:>8.0} MB/s",
            row.loss_percent,
            row.latency_us,
            row.latency_p99_us,
            row.write_mb_s,
            row.write_ratio,
            row.read_mb_s
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_processes() {
        let keys = tempfile::tempdir().unwrap();
        let plan = |kind, loss| plans(kind, loss, keys.path()).unwrap();
        assert_eq!(plan(Kind::Perfect, 0.0)[0].more, "");
        assert_eq!(plan(Kind::Reliable, 0.0)[0].more, "[network]\n");
        for (loss, wanted) in [(0.0, "loss = \"0%\""), (0.1, "loss = \"0.1%\"")] {
            for kind in [Kind::Delayed, Kind::DelayedSharedMemory, Kind::DelayedUdp] {
                let more = &plan(kind, loss)[0].more;
                assert!(more.contains(wanted) && more.contains(DELAY), "{more}");
            }
        }
        for kind in [Kind::SharedMemory, Kind::DelayedUdp] {
            let two = plan(kind, 5.0);
            assert_eq!(two.len(), 2);
            assert!(two[1].more.contains("nodes = [0]") && two[1].nodes == [1]);
        }
    }
}
