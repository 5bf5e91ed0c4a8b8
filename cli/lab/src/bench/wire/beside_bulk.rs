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
use qnic_apps::paper::transfers::Pair;
use qnic_trials::nodes::host::HostNodes;
use tempfile::TempDir;

use super::links::{plans, Carrier, SECRET};
use crate::bench::figures::{median, Row};
use crate::bench::paper;
use crate::bench::tables::{Tables, STREAM, TAIL};

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

/// Bytes of a small write.
const SMALL: usize = 8;

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

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    for (name, carrier, network) in LINKS {
        let mut clusters = [
            ("one channel", Cluster::start(carrier, network, 1)?),
            ("two channels", Cluster::start(carrier, network, 2)?),
        ];
        // The first round finds out what the link takes, and is not counted.
        let what = format!(", 8 bytes beside a stream, {name}");
        tables.rounds(rounds, &what, true, |round| {
            for (channels, cluster) in &mut clusters {
                let row = format!("{name}, {channels}");
                cluster
                    .round(round.row("beside-bulk", &row, None))
                    .context(name)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

impl Cluster {
    fn start(carrier: Carrier, network: &str, channels: u8) -> Result<Self> {
        let files = tempfile::tempdir().context("make a directory for key and sockets")?;
        let network = format!("{network}transport = {{ channels = {channels} }}\n");
        let nodes = HostNodes::start_several(&plans(carrier, &network, files.path())?)?;
        let ends = paper::ends(&nodes)?;
        Ok(Cluster {
            small: Pair::by_virtual_address(&ends, Port(7), SMALL)?,
            bulk: Pair::by_virtual_address(&ends, Port(8), BULK)?,
            mark: 0,
            _nodes: nodes,
            _files: files,
        })
    }

    /// Times small writes, alone and then beside the stream.
    fn round(&mut self, row: &mut Row) -> Result<()> {
        let alone = times(&self.small, &mut self.mark)?;
        row.add("8 B alone [µs]", [median(&alone)]);
        let (stop, ended) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut samples = std::thread::scope(|scope| {
            let bulk = &self.bulk;
            let stream = scope.spawn(|| bulk.write_until(BULK, DEPTH, &stop, &ended));
            let samples = beside(&self.small, &mut self.mark, &ended);
            stop.store(true, Ordering::Relaxed);
            let stream = stream.join().map_err(|_| anyhow!("the stream panicked"))?;
            row.add(STREAM, [stream.context("the stream")?]);
            samples
        })?;
        samples.sort_by(f64::total_cmp);
        row.add("beside a stream [µs]", [median(&samples)]);
        row.add("25 % [µs]", [samples[samples.len() / 4]]);
        row.add(TAIL, [samples[samples.len() * 99 / 100]]);
        Ok(())
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
