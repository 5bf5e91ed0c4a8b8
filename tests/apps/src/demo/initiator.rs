//! The side of the demo that writes, reads and compares.

use std::iter::repeat_n;
use std::time::Instant;

use crate::demo::pattern;
use crate::report::{DemoEnd, DemoLine, DemoRow, Latency};
use anyhow::{ensure, Result};
use clap::Args;
use qnic::{Endpoint, NodeId, RemoteSegment};
use qnic_abi::PAGE_SIZE;

use crate::demo::node::{import, register, say_line, take, Exported};
use crate::demo::options::{
    ANSWER_LIMIT, BACK, BALL, DATA, INITIATOR_PORT, PONG, REQUEST, REQUESTS, RESULT, RESULTS,
    SOURCE, START_LIMIT, TARGET_PORT,
};
use crate::demo::protocol::{
    ball, Outcome, Request, DATA_BYTES, MAX_SIZE, MESSAGE_BYTES, SPIN_SIZE,
};
use crate::demo::target::spin_for;

/// What the initiator is to transfer.
#[derive(Args)]
pub struct InitiatorOptions {
    /// Node on which the target runs
    #[arg(long)]
    peer: u16,
    /// Sizes of transfers, in bytes
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "1,8,64,96,97,512,4096,65536,1048576,16777216"
    )]
    sizes: Vec<usize>,
    /// Bytes to move for each bandwidth
    #[arg(long, default_value_t = 64 << 20)]
    stream_bytes: usize,
    /// Round trips for each latency, at most
    #[arg(long, default_value_t = LATENCY_ROUNDS)]
    latency_rounds: usize,
}

/// Round trips for each latency unless an option says otherwise.
const LATENCY_ROUNDS: usize = 1000;

/// What a stream is made of.
#[derive(Debug, Clone, Copy)]
pub enum Operation {
    /// Into the memory of the target.
    Write,
    /// Out of it.
    Read,
}

/// The connected initiator; the benchmark uses it too.
pub struct Initiator {
    endpoint: Endpoint,
    source: Exported,
    back: Exported,
    results: Exported,
    pong: Exported,
    data: RemoteSegment,
    requests: RemoteSegment,
    sequence: u64,
    notifications: u64,
    latency_rounds: usize,
}

/// Runs all sizes, aligned and not; fails if a byte was wrong.
pub(crate) fn run(options: &InitiatorOptions) -> Result<()> {
    for size in &options.sizes {
        ensure!(
            (1..=MAX_SIZE).contains(size),
            "--sizes: {size} is not between 1 and {MAX_SIZE}"
        );
    }
    let mut initiator = Initiator::connect(options.peer)?;
    initiator.latency_rounds = options.latency_rounds.max(1);
    let path = initiator.endpoint.path(NodeId(options.peer))?;
    say_line(&DemoLine::Connected {
        node: options.peer,
        port: TARGET_PORT.0,
        max_payload: path.max_payload,
    })?;
    let mut wrong = 0;
    for size in &options.sizes {
        for aligned in [true, false] {
            let row = initiator.row(*size, aligned, options.stream_bytes)?;
            wrong += usize::from(!(row.write_ok && row.read_ok));
            say_line(&DemoLine::Row(row))?;
        }
    }
    initiator.finish()?;
    say_line(&DemoLine::End(DemoEnd {
        notifications: initiator.notifications,
        wrong,
    }))?;
    ensure!(wrong == 0, "{wrong} rows had wrong bytes");
    Ok(())
}

impl Initiator {
    /// Connects to the target on node `peer`, once it is there.
    pub fn connect(peer: u16) -> Result<Self> {
        let (_nic, endpoint) = register(INITIATOR_PORT.0)?;
        let initiator = Initiator {
            source: Exported::new(&endpoint, SOURCE, DATA_BYTES)?,
            back: Exported::new(&endpoint, BACK, DATA_BYTES)?,
            results: Exported::new(&endpoint, RESULTS, PAGE_SIZE)?,
            pong: Exported::new(&endpoint, PONG, DATA_BYTES)?,
            data: import(&endpoint, peer, TARGET_PORT, DATA)?,
            requests: import(&endpoint, peer, TARGET_PORT, REQUESTS)?,
            sequence: 1,
            notifications: 0,
            latency_rounds: LATENCY_ROUNDS,
            endpoint,
        };
        let endpoint = &initiator.endpoint;
        let mut hello = [0; MESSAGE_BYTES];
        hello[..2].copy_from_slice(&endpoint.node().0.to_le_bytes());
        endpoint
            .write(&initiator.requests, 0, &hello)
            .notify(REQUEST)
            .post()?;
        let what = "wait for the target to import";
        take(endpoint, RESULT, START_LIMIT, what)?;
        Ok(initiator)
    }

    fn request(&mut self, request: Request) -> Result<()> {
        self.sequence += 1;
        let message = request.to_bytes(self.sequence);
        self.endpoint
            .write(&self.requests, 0, &message[..])
            .notify(REQUEST)
            .post()?;
        Ok(())
    }

    fn outcome(&mut self) -> Result<Outcome> {
        let what = "wait for the target's result";
        take(&self.endpoint, RESULT, ANSWER_LIMIT, what)?;
        let message = self.results.buffer.read_vec(0, MESSAGE_BYTES)?;
        Ok(Outcome::from_bytes(&message))
    }

    fn row(&mut self, size: usize, aligned: bool, stream_bytes: usize) -> Result<DemoRow> {
        let (from, to) = match aligned {
            true => (PAGE_SIZE, PAGE_SIZE),
            false => (PAGE_SIZE - 3, 2 * PAGE_SIZE - 5),
        };
        let (write_ok, read_ok) = self.verify(size, from, to)?;
        let rounds = (stream_bytes / size).clamp(4, 4000);
        // What lies around it is a guard.
        let one_place = || repeat_n(0, rounds);
        let row = DemoRow {
            size,
            aligned,
            write_ok,
            read_ok,
            latency: self.latency(size, to)?,
            write_mb_s: self.stream(Operation::Write, size, one_place(), [from, to])?,
            read_mb_s: self.stream(Operation::Read, size, one_place(), [from, to])?,
        };
        self.restore(size, to)?;
        Ok(row)
    }

    /// Writes a pattern, has the target look at it, reads it back.
    fn verify(&mut self, size: usize, from: usize, to: usize) -> Result<(bool, bool)> {
        let wanted = pattern::bytes(self.sequence + 1, size);
        self.source.buffer.write(from, &wanted)?;
        let (offset, length) = (to as u64, size as u64);
        let part = self.source.part(from, size);
        self.endpoint.write(&self.data, offset, part).post()?;
        self.request(Request::Verify { offset, length })?;
        let outcome = self.outcome()?;
        ensure!(
            outcome.sequence == self.sequence,
            "result {} came for request {}",
            outcome.sequence,
            self.sequence
        );
        self.notifications = outcome.notifications;
        let write_ok = outcome.checksum == crc32fast::hash(&wanted) && outcome.guards_whole;
        self.back.buffer.write(from, &vec![0; size])?;
        let read = self.back.part(from, size);
        self.endpoint.read(&self.data, to as u64, read).fenced()?;
        let read_ok = self.back.buffer.read_vec(from, size)? == wanted;
        Ok((write_ok, read_ok))
    }

    /// Half round trips of a ball of this size.
    pub fn latency(&mut self, size: usize, to: usize) -> Result<Option<Latency>> {
        let rounds = ((16 << 20) / size).max(8).min(self.latency_rounds) as u64;
        self.request(Request::Bounce {
            offset: to as u64,
            length: size as u64,
            rounds,
        })?;
        self.outcome()?;
        let mut halves = Vec::with_capacity(rounds as usize);
        for round in 0..rounds {
            let ball = ball(round);
            self.source.buffer.write(size - 1, &[ball])?;
            let start = Instant::now();
            let part = self.source.part(0, size);
            if size <= SPIN_SIZE {
                self.endpoint.write(&self.data, to as u64, part).post()?;
                spin_for(&self.pong, to + size - 1, ball)?;
            } else {
                self.endpoint
                    .write(&self.data, to as u64, part)
                    .notify(BALL)
                    .post()?;
                self.endpoint.notification(BALL).take(Some(ANSWER_LIMIT))?;
            }
            halves.push(start.elapsed().as_nanos() as u64 / 2);
        }
        self.endpoint.flush().writes().wait()?;
        Ok(Latency::from_ns(halves))
    }

    /// MB/s of transfers of `size` bytes, one for each of `offsets` behind `from` and `to`.
    pub fn stream(
        &self,
        operation: Operation,
        size: usize,
        offsets: impl Iterator<Item = usize>,
        [from, to]: [usize; 2],
    ) -> Result<f64> {
        let mut count = 0;
        let start = Instant::now();
        for at in offsets {
            count += 1;
            let (from, to) = (from + at, (to + at) as u64);
            match operation {
                Operation::Write => {
                    let part = self.source.part(from, size);
                    self.endpoint.write(&self.data, to, part).post()?;
                }
                Operation::Read => {
                    let part = self.back.part(from, size);
                    self.endpoint.read(&self.data, to, part).post()?;
                }
            }
        }
        self.endpoint.flush().wait()?;
        Ok((size * count) as f64 / start.elapsed().as_secs_f64() / 1e6)
    }

    /// Source and destination of a floor measurement: memory of the same kind.
    pub fn floor_memory(&self) -> (&Exported, &Exported) {
        (&self.source, &self.back)
    }

    /// Tells the target that it is over.
    pub fn finish(&mut self) -> Result<()> {
        self.request(Request::Finish)?;
        Ok(self.endpoint.flush().wait()?)
    }

    /// Makes the range at the target what it was before.
    fn restore(&self, size: usize, to: usize) -> Result<()> {
        let guard = vec![crate::demo::protocol::GUARD_BYTE; size];
        self.source.buffer.write(0, &guard)?;
        let part = self.source.part(0, size);
        self.endpoint.write(&self.data, to as u64, part).fenced()?;
        Ok(())
    }
}
