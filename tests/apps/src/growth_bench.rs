//! What a small write costs, against how much there is beside it: endpoints of one process that
//! take turns, peers that take turns, and pages that peers export (P9).
//!
//! Every write is of 8 bytes to a `memory-server`. *Fenced*: it is waited for before the next one
//! is posted, by another endpoint or to another peer. *Streamed*: all are posted, then waited for.

use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Endpoint, Nic, Port, RemoteSegment};
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::{BenchRow, Latency};

use qnic_apps::demo::node::{import, say_line};
use qnic_apps::demo::options::{DATA, REQUEST, TARGET_PORT};

/// Bytes of a write.
const SIZE: usize = 8;

/// Pages that are written to: so few that they stay in the processor's caches.
const WRITTEN: usize = 32;

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of the nodes whose memory servers are written to, in turn, such as 1,2
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true)]
    peers: Vec<u16>,
    /// Endpoints of this process that write, in turn
    #[arg(long, default_value_t = 1)]
    endpoints: usize,
    /// Pages of each memory server's segment; few of them are written to, all over the segment
    #[arg(long, default_value_t = 1)]
    pages: usize,
    /// Writes of a round
    #[arg(long, default_value_t = 20_000)]
    writes: usize,
    /// Rounds, after one that warms up
    #[arg(long, default_value_t = 1)]
    rounds: usize,
}

/// Measures, says the rows `fenced` and `streamed`, and lets the servers end. A row of streamed
/// writes has its mean time in all figures but their number.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.endpoints > 0, "--endpoints must not be 0");
    ensure!(options.writes > 0, "--writes must not be 0");
    ensure!(options.pages > 0, "--pages must not be 0");
    let nic = Nic::open().context("open the NIC")?;
    let register = |_| nic.register(Port(0)).context("register");
    let endpoints: Vec<Endpoint> = (0..options.endpoints)
        .map(register)
        .collect::<Result<_>>()?;
    let ends = Ends {
        remotes: endpoints
            .iter()
            .map(|endpoint| {
                let peers = options.peers.iter();
                peers
                    .map(|peer| import(endpoint, *peer, TARGET_PORT, DATA))
                    .collect()
            })
            .collect::<Result<_>>()?,
        endpoints,
        pages: options.pages,
    };
    let mut rows = ["fenced", "streamed"].map(|name| BenchRow::new(name, SIZE));
    for round in 0..=options.rounds {
        let times = [ends.fenced(options.writes)?, ends.streamed(options.writes)?];
        for (row, time) in rows.iter_mut().zip(times).filter(|_| round > 0) {
            row.latency.extend(time);
        }
    }
    rows.iter().try_for_each(say_line)?;
    for remote in &ends.remotes[0] {
        ends.endpoints[0]
            .write(remote, 0, b"")
            .notify(REQUEST)
            .post()?;
    }
    Ok(ends.endpoints[0].flush().wait()?)
}

struct Ends {
    endpoints: Vec<Endpoint>,
    /// What each endpoint has imported, by peer.
    remotes: Vec<Vec<RemoteSegment>>,
    /// Of each of these segments.
    pages: usize,
}

impl Ends {
    /// The ends of a write, and where it goes.
    fn turn(&self, number: usize) -> (&Endpoint, &RemoteSegment, u64) {
        let endpoint = number % self.endpoints.len();
        let remotes = &self.remotes[endpoint];
        let written = self.pages.min(WRITTEN);
        let page = number % written * (self.pages / written);
        let remote = &remotes[number % remotes.len()];
        (&self.endpoints[endpoint], remote, (page * PAGE_SIZE) as u64)
    }

    fn fenced(&self, writes: usize) -> Result<Option<Latency>> {
        let mut times = Vec::with_capacity(writes);
        for number in 0..writes {
            let (endpoint, remote, offset) = self.turn(number);
            let start = Instant::now();
            endpoint
                .write(remote, offset, &(number as u64).to_le_bytes())
                .post()?;
            endpoint.flush().wait()?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        Ok(Latency::from_ns(times))
    }

    fn streamed(&self, writes: usize) -> Result<Option<Latency>> {
        let start = Instant::now();
        for number in 0..writes {
            let (endpoint, remote, offset) = self.turn(number);
            endpoint
                .write(remote, offset, &(number as u64).to_le_bytes())
                .post()?;
        }
        for endpoint in &self.endpoints {
            endpoint.flush().wait()?;
        }
        let mean = start.elapsed().as_nanos() as f64 / writes as f64 / 1000.0;
        Ok(Some(Latency {
            median_us: mean,
            p99_us: mean,
            min_us: mean,
            mean_us: mean,
            rounds: writes,
        }))
    }
}
