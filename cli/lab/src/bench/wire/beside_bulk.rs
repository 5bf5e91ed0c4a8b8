//! What a write of 8 bytes takes beside a stream that fills the link, with both channels of the
//! link and with one (U4).
//!
//! ```text
//!   this process: node 0 ── 1 MiB, without end ───► node 1
//!                 node 0 ── 8 bytes, one by one ──► node 1    timed until they are there
//! ```
//! For each kind of link two clusters run, one with two channels, the other with one; their
//! rounds are interleaved. Both nodes are in this process, so that it sees the bytes arrive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use qnic::Port;
use qnic_trials::nodes::host::HostNodes;
use tempfile::TempDir;

use super::{plans, Carrier, SECRET, SMALL};
use crate::bench::figures::{median, Figure, Row, Table};
use crate::bench::transfers::{Host, Pair};

/// Links, and what each has in `[network]`.
const LINKS: [(&str, Carrier, &str); 3] = [
    (
        "emulated, 1 Gbit/s",
        Carrier::ReliableCalls,
        "default = { rate = \"1Gbit\" }\n",
    ),
    ("shared memory", Carrier::SharedMemory, ""),
    ("UDP", SECRET, ""),
];

/// Bytes of each write of the stream, how many are under way, and how many have ended before a
/// round is timed.
const BULK: usize = 1 << 20;
const DEPTH: usize = 32;
const FIRST: u64 = 4;

/// Time in which small writes of a round are timed, one right after the other: a queue that is
/// idle in between has to be noticed by an engine that is busy, which is no matter of the link.
const SPAN: Duration = Duration::from_millis(250);

/// Longest time for one small write.
const LIMIT: Duration = Duration::from_secs(20);

/// Two nodes over a link.
struct Cluster {
    small: Pair,
    bulk: Pair,
    mark: u32,
    _nodes: HostNodes,
    _files: TempDir,
}

/// What was measured over a link, in all rounds.
#[derive(Default)]
struct Measured {
    alone_us: Vec<f64>,
    beside_us: Vec<f64>,
    quarter_us: Vec<f64>,
    slow_us: Vec<f64>,
    mb_s: Vec<f64>,
}

pub(super) fn measure(rounds: usize) -> Result<Table> {
    let mut rows = Vec::new();
    for (name, carrier, network) in LINKS {
        eprintln!("8 bytes beside a stream, {name}");
        let mut clusters = [
            Cluster::start(carrier, network, 1)?,
            Cluster::start(carrier, network, 2)?,
        ];
        let mut measured = [Measured::default(), Measured::default()];
        // The first round finds out what the link takes, and is not counted.
        for round in 0..=rounds {
            for (cluster, measured) in clusters.iter_mut().zip(&mut measured) {
                let mut ignored = Measured::default();
                let target = if round == 0 { &mut ignored } else { measured };
                cluster.round(target).context(name)?;
            }
        }
        let one = measured[0].beside_us.clone();
        let names = ["one channel", "two channels"];
        for (channels, found) in names.into_iter().zip(measured) {
            let figures = [
                Figure::new("8 B alone", "µs", found.alone_us),
                Figure::with_spread("beside a stream", "µs", found.beside_us)
                    .ratio_to("of one channel", &one),
                Figure::new("25 %", "µs", found.quarter_us),
                Figure::new("99 %", "µs", found.slow_us),
                Figure::with_spread("stream", "MB/s", found.mb_s),
            ];
            rows.push(Row::new(format!("{name}, {channels}"), figures));
        }
    }
    Ok(Table::new(
        "beside-bulk",
        "8-byte writes beside a stream of 1 MiB",
        rows,
    ))
}

impl Cluster {
    fn start(carrier: Carrier, network: &str, channels: u8) -> Result<Self> {
        let files = tempfile::tempdir().context("make a directory for key and sockets")?;
        let network = format!("{network}transport = {{ channels = {channels} }}\n");
        let nodes = HostNodes::start_several(&plans(carrier, &network, files.path())?)?;
        let hosts = [Host::new(&nodes, 0)?, Host::new(&nodes, 1)?];
        Ok(Cluster {
            small: Pair::by_virtual_address(&hosts, Port(7), SMALL)?,
            bulk: Pair::by_virtual_address(&hosts, Port(8), BULK)?,
            mark: 0,
            _nodes: nodes,
            _files: files,
        })
    }

    /// Times small writes, alone and then beside the stream.
    fn round(&mut self, measured: &mut Measured) -> Result<()> {
        measured.alone_us.push(median(&self.samples()?));
        let (stop, ended) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut samples = std::thread::scope(|scope| {
            let bulk = &self.bulk;
            let stream = scope.spawn(|| bulk.write_until(BULK, DEPTH, &stop, &ended));
            let samples = beside(&self.small, &mut self.mark, &ended);
            stop.store(true, Ordering::Relaxed);
            let stream = stream.join().map_err(|_| anyhow!("the stream panicked"))?;
            measured.mb_s.push(stream.context("the stream")?);
            samples
        })?;
        samples.sort_by(f64::total_cmp);
        measured.beside_us.push(median(&samples));
        measured.quarter_us.push(samples[samples.len() / 4]);
        measured.slow_us.push(samples[samples.len() * 99 / 100]);
        Ok(())
    }

    fn samples(&mut self) -> Result<Vec<f64>> {
        times(&self.small, &mut self.mark)
    }
}

/// Times of small writes while the stream goes on.
fn beside(small: &Pair, mark: &mut u32, ended: &AtomicU64) -> Result<Vec<f64>> {
    let begun = Instant::now();
    while ended.load(Ordering::Relaxed) < FIRST {
        ensure!(begun.elapsed() < LIMIT, "the stream does not begin");
        std::thread::yield_now();
    }
    times(small, mark)
}

/// Times of small writes, one by one, in microseconds.
fn times(pair: &Pair, mark: &mut u32) -> Result<Vec<f64>> {
    let (begun, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || begun.elapsed() < SPAN {
        *mark += 1;
        times.push(pair.write_and_wait(SMALL, *mark, LIMIT)? / 1e3);
    }
    Ok(times)
}
