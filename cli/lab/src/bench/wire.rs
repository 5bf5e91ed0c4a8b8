//! `qnic bench wire`: what loss costs, on each kind of link, what small writes take beside a
//! stream, what a stream keeps beside a slow link, UDP beside iperf3, and what a packet costs on the
//! reliable path.
//!
//! All nodes are processes of this machine. Each figure stands beside the loss-free one of
//! the same kind of link in the same run.

mod beside_bulk;
mod beside_slow;
mod links;
pub(super) mod packets;

use std::sync::Arc;

use anyhow::{Context, Result};
use qnic_apps::report::BenchRow;
use qnic_images::{Cache, Provisioner, Silent};
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::Nodes;

use super::figures::at;
use super::point_to_point::transfers_between;
use super::stages;
use super::tables::{Tables, TAIL};
use super::two_programs::TwoPrograms;
use links::Carrier::{self, Calls, ReliableCalls, SharedMemory, Udp};
use links::{plans, OPEN, SECRET};

const TABLE: &str = "links";
const BESIDE_IPERF3: &str = "beside-iperf3";
const WRITE: &str = "write [MB/s]";

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
#[derive(Debug, Clone, Copy)]
struct Link {
    name: &'static str,
    carrier: Carrier,
    /// A link emulator delays each frame. Loss is compared on such links alone: their
    /// loss-free row passes the same emulator as the others.
    delayed: bool,
}

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

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let iperf3 = |tables: &mut Tables| -> Result<()> {
        tables.add(BESIDE_IPERF3, "iperf3", WRITE, iperf_mb_s()?);
        Ok(())
    };
    iperf3(tables)?;
    let count: usize = LINKS.iter().map(|link| link.losses().len()).sum();
    let mut number = 0;
    for link in LINKS {
        for loss in link.losses() {
            number += 1;
            let what = format!("{} at {loss} % loss", link.name);
            eprintln!("{what}, {number} of {count}");
            let writes = measure_link(link, *loss, rounds, tables).context(what)?;
            match link.carrier {
                Udp { .. } if !link.delayed => {
                    let row = tables.row(BESIDE_IPERF3, link.name, None);
                    row.add(WRITE, writes.mb_s);
                    iperf3(tables)?;
                }
                SharedMemory if !link.delayed => {
                    // One copy after the other: half of what one copies.
                    let copies = writes.memcpy_mb_s.iter().map(|mb_s| mb_s / 2.0);
                    let row = tables.row("beside-copies", link.name, None);
                    row.add("two copies [MB/s]", copies).add(WRITE, writes.mb_s);
                }
                _ => {}
            }
        }
    }
    beside_bulk::measure(rounds, tables)?;
    beside_slow::measure(rounds, tables)
}

/// Measures one kind of link; what large writes had.
fn measure_link(link: Link, loss: f64, rounds: usize, tables: &mut Tables) -> Result<BenchRow> {
    let files = tempfile::tempdir().context("make a directory for key and sockets")?;
    let network = network(link, loss);
    let nodes = HostNodes::start_several(&plans(link.carrier, &network, files.path())?)?;
    let options = |rounds| format!("--floor --rounds {rounds} --round-bytes {ROUND_BYTES}");
    let measure = |size: usize, rounds: usize| {
        transfers_between(&nodes, &format!("--sizes {size} {}", options(rounds)))
    };
    for _ in 0..rounds {
        let small = measure(SMALL, 0)?;
        let row = tables.row(TABLE, link.name, at("% loss", loss));
        for latency in small.iter().take(1).flat_map(|row| &row.latency) {
            row.add("8 B half RTT [µs]", [latency.median_us])
                .add(TAIL, [latency.p99_us]);
        }
    }
    let stages = match link.carrier {
        SharedMemory => "stages-shared-memory",
        Udp { encrypt: true } => "stages-udp",
        _ => "",
    };
    let large = match stages.is_empty() || link.delayed {
        true => measure(LARGE, rounds)?,
        false => stages::of_fresh_nics(&nodes, LARGE, &options(rounds), (stages, tables))?,
    };
    let stream = |operation: &str| {
        let mut rows = large.iter().filter(|row| !row.mb_s.is_empty());
        let row = rows.find(|row| row.operation == operation);
        row.with_context(|| format!("no {operation} of {LARGE} bytes was measured"))
    };
    let (writes, reads) = (stream("write")?, stream("read")?);
    let stats = nodes.device_stats()?;
    let links = stats["network"]["links"].as_array().into_iter().flatten();
    let lost = links.filter_map(|link| link["counters"]["lost"].as_u64());
    let row = tables.row(TABLE, link.name, at("% loss", loss));
    row.add("64 KiB write [MB/s]", writes.mb_s.clone());
    row.add("64 KiB read [MB/s]", reads.mb_s.clone());
    // What NICs have counted goes with the last process of their node.
    row.add("lost [frames]", [lost.sum::<u64>() as f64]);
    Ok(writes.clone())
}

/// What `[network]` says of a kind of link.
fn network(link: Link, loss: f64) -> String {
    match link.delayed {
        true => format!("default = {{ delay = \"{DELAY}\", loss = \"{loss}%\" }}\n"),
        false => String::new(),
    }
}

/// What iperf3 moves over UDP on loopback in datagrams of a frame, in MB/s.
fn iperf_mb_s() -> Result<f64> {
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    let words = |words: &str, port: &str| {
        let words = words.split(' ').chain(["-p", port]);
        words.map(str::to_owned).collect()
    };
    let programs = TwoPrograms {
        name: "iperf3",
        program: &provisioner.iperf3().context("find iperf3")?,
        environment: &[],
        server: &|port| words("-s -1", port),
        client: &|port| words("-c 127.0.0.1 -u -b 0 -l 4296 -t 3 -J", port),
        refused: |_, said| said.contains("refused"),
    };
    let report: serde_json::Value = serde_json::from_str(&programs.run()?)?;
    let sum = &report["end"]["sum"];
    let figure = |name: &str| {
        sum[name]
            .as_f64()
            .with_context(|| format!("no {name}: {sum}"))
    };
    Ok(figure("bits_per_second")? / 8e6 * (1.0 - figure("lost_percent")? / 100.0))
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
