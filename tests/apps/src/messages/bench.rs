//! What messages cost beside writes, between two processes that do the same steps in turn: the
//! initiator measures, the target answers.
//!
//! | operation | half a round trip | stream |
//! |---|---|---|
//! | `write` | seen by a process that spins | writes, one flush |
//! | `write_notify` | the notification is taken | notifying writes, one flush |
//! | `message` | each receive is posted before its message | all receives are posted before |
//! | `context` | the same by contexts and the buffer pool, up to 16 KiB | |
//! | `unexpected` | | receives are posted when the messages are on their way, 32 at a time |

use std::time::Instant;

use anyhow::{ensure, Result};
use clap::Args;
use qnic::message::{
    wait_all, Destination, Pattern, PooledReceive, PooledSend, Request, Source, Tag,
};
use qnic::{Endpoint, NodeId, NotificationId, Port, RemoteSegment};
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::{BenchRow, Latency};

use qnic_apps::demo::node::{import, register, say_line, take, Exported};
use qnic_apps::demo::options::{notification, ANSWER_LIMIT, DATA, SOURCE};

const PORT: Port = Port(14);
/// A notifying write of a ping-pong.
const BALL: NotificationId = notification(1);
/// The other side has come to the same point.
const STEP: NotificationId = notification(2);
const TAG: Tag = Tag(1);
/// The first tag that is never sent.
const UNUSED: u64 = 1 << 32;
/// Messages that are on their way before their receives are posted.
const UNEXPECTED: usize = 32;

#[derive(Args)]
pub(crate) struct BenchOptions {
    /// Node of the other side
    #[arg(long)]
    peer: u16,
    /// This side measures
    #[arg(long)]
    initiator: bool,
    /// Sizes of transfers and messages, in bytes
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "8,4096,65536,1048576"
    )]
    sizes: Vec<usize>,
    /// Rounds for each size; the first warms up beside them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Round trips of each size and round
    #[arg(long, default_value_t = 100)]
    balls: u64,
    /// Bytes of a stream
    #[arg(long, default_value_t = 64 << 20)]
    stream_bytes: usize,
    /// Receives that are posted all the time, for messages that are never sent
    #[arg(long, default_value_t = 0)]
    posted: u32,
}

/// Runs all sizes; the initiator prints one [`BenchRow`] for each operation and size.
pub(crate) fn bench(options: &BenchOptions) -> Result<()> {
    let longest = options.sizes.iter().copied().max().unwrap_or(0);
    ensure!(
        options
            .sizes
            .iter()
            .all(|size| (1..=64 << 20).contains(size)),
        "--sizes: 1 byte to 64 MiB"
    );
    let (_nic, endpoint) = register(PORT.0)?;
    let inbox = Exported::new(&endpoint, DATA, longest.max(8))?;
    let side = Side {
        remote: import(&endpoint, options.peer, PORT, DATA)?,
        outbox: Exported::new(&endpoint, SOURCE, longest.max(8))?,
        peer: NodeId(options.peer),
        initiator: options.initiator,
        endpoint,
        inbox,
    };
    let waits = |number| Pattern::tagged(Source::Process(side.peer, PORT), Tag(UNUSED + number));
    let post = |number| {
        side.endpoint
            .receive(&waits(number), side.inbox.part(0, 1))
            .post()
    };
    // They are taken back when this function ends.
    let _posted: Vec<_> = (0..u64::from(options.posted))
        .map(post)
        .collect::<qnic::Result<_>>()?;
    for size in &options.sizes {
        let rows = side.size(*size, options)?;
        for row in rows.iter().filter(|_| options.initiator) {
            say_line(row)?;
        }
    }
    side.in_step()
}

struct Side {
    endpoint: Endpoint,
    inbox: Exported,
    outbox: Exported,
    remote: RemoteSegment,
    peer: NodeId,
    initiator: bool,
}

impl Side {
    fn size(&self, size: usize, options: &BenchOptions) -> Result<[BenchRow; 5]> {
        let names = ["write", "write_notify", "message", "context", "unexpected"];
        let mut rows = names.map(|name| BenchRow::new(name, size));
        let balls = options.balls;
        let count = (options.stream_bytes / size).clamp(UNEXPECTED, 10_000);
        for round in 0..=options.rounds {
            let latencies = [
                self.latency(size, balls, |round| self.write_ball(size, round))?,
                self.latency(size, balls, |_| self.notifying_ball(size))?,
                self.message_balls(size, balls)?,
                self.context_balls(size, balls)?,
            ];
            let streams = [
                Some(self.stream(size, count, || self.writes(size, count, None))?),
                Some(self.stream(size, count, || self.writes(size, count, Some(BALL)))?),
                Some(self.expected(size, count)?),
                None,
                Some(self.unexpected(size, count)?),
            ];
            if round > 0 {
                for (row, latency) in rows.iter_mut().zip(latencies) {
                    row.latency.extend(latency);
                }
                for (row, mb_s) in rows.iter_mut().zip(streams) {
                    row.mb_s.extend(mb_s);
                }
            }
        }
        Ok(rows)
    }

    /// Waits until the other side is here, too.
    fn in_step(&self) -> Result<()> {
        self.endpoint
            .write(&self.remote, 0, b"")
            .notify(STEP)
            .post()?;
        take(
            &self.endpoint,
            STEP,
            ANSWER_LIMIT,
            "wait for the other side",
        )?;
        Ok(self.endpoint.flush().wait()?)
    }

    /// Half round trips of what throws a ball and waits for one.
    fn latency(
        &self,
        size: usize,
        balls: u64,
        ball: impl Fn(u64) -> Result<()>,
    ) -> Result<Option<Latency>> {
        self.inbox.buffer.write(size - 1, &[0])?;
        self.in_step()?;
        let mut halves = Vec::new();
        for round in 0..balls {
            let start = Instant::now();
            ball(round)?;
            halves.push(start.elapsed().as_nanos() as u64 / 2);
        }
        self.endpoint.flush().wait()?;
        Ok(Latency::from_ns(halves))
    }

    fn write_ball(&self, size: usize, round: u64) -> Result<()> {
        let mark = (round % 250) as u8 + 1;
        let throw = || -> Result<()> {
            self.outbox.buffer.write(size - 1, &[mark])?;
            let part = self.outbox.part(0, size);
            self.endpoint.write(&self.remote, 0, part).post()?;
            Ok(())
        };
        let catch = || -> Result<()> {
            let start = Instant::now();
            let mut byte = [0];
            while byte[0] != mark {
                ensure!(start.elapsed() < ANSWER_LIMIT, "no ball came");
                for _ in 0..256 {
                    self.inbox.buffer.read(size - 1, &mut byte)?;
                    if byte[0] == mark {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                std::thread::yield_now();
            }
            Ok(())
        };
        self.in_turn(throw, catch)
    }

    fn notifying_ball(&self, size: usize) -> Result<()> {
        let throw = || -> Result<()> {
            let part = self.outbox.part(0, size);
            self.endpoint
                .write(&self.remote, 0, part)
                .notify(BALL)
                .post()?;
            Ok(())
        };
        self.in_turn(throw, || take(&self.endpoint, BALL, ANSWER_LIMIT, "a ball"))
    }

    fn in_turn(
        &self,
        throw: impl Fn() -> Result<()>,
        catch: impl Fn() -> Result<()>,
    ) -> Result<()> {
        match self.initiator {
            true => throw().and_then(|()| catch()),
            false => catch().and_then(|()| throw()),
        }
    }

    fn to(&self) -> Destination {
        Destination::tagged(self.peer, PORT, TAG)
    }

    fn pattern(&self) -> Pattern {
        Pattern::tagged(Source::Process(self.peer, PORT), TAG)
    }

    fn post(&self, size: usize) -> qnic::Result<Request<'_>> {
        let part = self.inbox.part(0, size);
        self.endpoint.receive(&self.pattern(), part).post()
    }

    fn message_balls(&self, size: usize, rounds: u64) -> Result<Option<Latency>> {
        let limit = Some(ANSWER_LIMIT);
        let post = || Ok(self.post(size)?);
        let send = || {
            let part = self.outbox.part(0, size);
            Ok(self.endpoint.send(&self.to(), part).post()?)
        };
        let end = |mut request: Request<'_>| {
            request.wait(limit)?;
            Ok(())
        };
        self.balls(rounds, (post, end), (send, end))
    }

    /// The same by contexts: memory of the pool, which holds four buffers at once.
    fn context_balls(&self, size: usize, rounds: u64) -> Result<Option<Latency>> {
        let (pool, limit) = (self.endpoint.pool(), Some(ANSWER_LIMIT));
        let pages = size.div_ceil(PAGE_SIZE);
        if pages * 4 > pool.free() {
            return Ok(None);
        }
        let post = || {
            let buffer = pool.take(pages)?;
            Ok(buffer.post_receive(&self.pattern())?)
        };
        let send = || {
            let buffer = pool.take(pages)?;
            Ok(buffer.post_send(&self.to(), size)?)
        };
        let received = |receive: PooledReceive<'_>| {
            receive.wait(limit)?;
            Ok(())
        };
        let sent = |send: PooledSend<'_>| {
            send.wait(limit)?;
            Ok(())
        };
        self.balls(rounds, (post, received), (send, sent))
    }

    /// Half round trips of messages. A receive is posted all the time, and with each Send that
    /// for the message after the next: they share a doorbell.
    fn balls<R, S>(
        &self,
        rounds: u64,
        (post, received): (impl Fn() -> Result<R>, impl Fn(R) -> Result<()>),
        (send, has_sent): (impl Fn() -> Result<S>, impl Fn(S) -> Result<()>),
    ) -> Result<Option<Latency>> {
        let mut next = Some(post()?);
        self.in_step()?;
        let mut halves = Vec::new();
        // Of the round before: it has ended when the ball is back.
        let mut last = None;
        for round in 0..rounds {
            let start = Instant::now();
            let throw = || {
                self.endpoint.batch(|| -> Result<_> {
                    let sent = send()?;
                    let after = (round + 1 < rounds).then(&post).transpose()?;
                    Ok((sent, after))
                })
            };
            let thrown = self.initiator.then(throw).transpose()?;
            next.take().map_or(Ok(()), &received)?;
            halves.push(start.elapsed().as_nanos() as u64 / 2);
            let (sent, after) = thrown.map_or_else(throw, Ok)?;
            last.replace(sent).map_or(Ok(()), &has_sent)?;
            next = after;
        }
        last.map_or(Ok(()), &has_sent)?;
        Ok(Latency::from_ns(halves))
    }

    /// MB/s of what moves `count` times `size` bytes; the target waits meanwhile.
    fn stream(&self, size: usize, count: usize, run: impl Fn() -> Result<()>) -> Result<f64> {
        self.in_step()?;
        let start = Instant::now();
        if self.initiator {
            run()?;
        }
        let mb_s = mb_s(size * count, start);
        self.in_step()?;
        // What signals these were is of no interest.
        while self.endpoint.notification(BALL).acknowledge() {}
        Ok(mb_s)
    }

    fn writes(&self, size: usize, count: usize, signal: Option<NotificationId>) -> Result<()> {
        for _ in 0..count {
            let part = self.outbox.part(0, size);
            match signal {
                Some(id) => drop(
                    self.endpoint
                        .write(&self.remote, 0, part)
                        .notify(id)
                        .post()?,
                ),
                None => drop(self.endpoint.write(&self.remote, 0, part).post()?),
            }
        }
        Ok(self.endpoint.flush().wait()?)
    }

    fn sends(&self, size: usize, count: usize) -> Result<Vec<Request<'_>>> {
        let send = |_| {
            self.endpoint
                .send(&self.to(), self.outbox.part(0, size))
                .post()
        };
        Ok((0..count).map(send).collect::<qnic::Result<_>>()?)
    }

    fn posts(&self, size: usize, count: usize) -> Result<Vec<Request<'_>>> {
        Ok((0..count)
            .map(|_| self.post(size))
            .collect::<qnic::Result<_>>()?)
    }

    /// MB/s of messages whose receives are all posted before.
    fn expected(&self, size: usize, count: usize) -> Result<f64> {
        let mut requests = match self.initiator {
            true => Vec::new(),
            false => self.posts(size, count)?,
        };
        self.in_step()?;
        let start = Instant::now();
        if self.initiator {
            requests = self.sends(size, count)?;
        }
        wait_all(&mut requests, Some(ANSWER_LIMIT))?;
        let mb_s = mb_s(size * count, start);
        self.in_step()?;
        Ok(mb_s)
    }

    /// MB/s of messages whose receives are posted once their Sends have begun.
    fn unexpected(&self, size: usize, count: usize) -> Result<f64> {
        self.in_step()?;
        let start = Instant::now();
        for _ in 0..count / UNEXPECTED {
            let mut requests = match self.initiator {
                true => self.sends(size, UNEXPECTED)?,
                false => Vec::new(),
            };
            self.in_step()?;
            if !self.initiator {
                requests = self.posts(size, UNEXPECTED)?;
            }
            wait_all(&mut requests, Some(ANSWER_LIMIT))?;
        }
        Ok(mb_s(size * (count / UNEXPECTED) * UNEXPECTED, start))
    }
}

fn mb_s(bytes: usize, start: Instant) -> f64 {
    bytes as f64 / start.elapsed().as_secs_f64() / 1e6
}
