//! What streams and datagrams over shared pools cost beside TCP and UDP between the same two
//! machines. Within a round all take turns.

use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::datagram::Socket;
use qnic::stream::{Options, Streams};
use qnic::{CounterSource, Nic, NodeId};
use qnic_apps::report::{BenchRow, Latency, MessagesRow, PoolLine};

use super::connection::{Answer, Connection, Pooled, Purpose, Tcp, CHUNK};
use super::{SOCKET_PORT, STREAM_PORT};
use qnic_apps::demo::node::say_line;
use qnic_apps::demo::options::{ANSWER_LIMIT, START_LIMIT};

/// Bytes of a ball, and of a message of a burst.
const SMALL: usize = 8;

/// Messages of sockets that are on their way at once.
const BATCH: u64 = 64;

#[derive(Args)]
pub(crate) struct BenchOptions {
    /// Node of the server
    #[arg(long)]
    peer: u16,
    /// IP address of the server, which serves TCP and UDP there; without it these are left out
    #[arg(long)]
    address: Option<IpAddr>,
    /// Rounds
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Round trips of a round
    #[arg(long, default_value_t = 500)]
    balls: usize,
    /// Bytes of a stream over pools
    #[arg(long, default_value_t = 64 << 20)]
    stream_bytes: u64,
    /// Bytes of a stream over TCP
    #[arg(long, default_value_t = 8 << 20)]
    tcp_bytes: u64,
    /// Messages of a burst
    #[arg(long, default_value_t = 10_000)]
    messages: u64,
}

/// Measures, and says a [`PoolLine`] for each figure of each round.
pub(crate) fn bench(options: &BenchOptions) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let streams = Streams::open(&nic, 0, Options::default());
    let ends = Ends {
        streams: streams.context("open pools for streams")?,
        socket: Socket::bind(&nic, 0).context("bind a socket")?,
        nic,
        options,
    };
    for _ in 0..options.rounds {
        ends.round()?;
    }
    Ok(())
}

struct Ends<'a> {
    nic: Nic,
    streams: Streams,
    socket: Socket,
    options: &'a BenchOptions,
}

impl Ends<'_> {
    fn round(&self) -> Result<()> {
        let balls = self.options.balls;
        let mut stream = self.pooled(Purpose::Echo)?;
        latency("stream", balls, || ball(&mut stream)).context("balls of a stream")?;
        if let Some(address) = self.options.address {
            let mut tcp = tcp(address, Purpose::Echo)?;
            latency("TCP", balls, || ball(&mut tcp)).context("balls of TCP")?;
        }
        latency("datagram socket", balls, || self.socket_ball())?;
        if let Some(address) = self.options.address {
            let udp = udp(address)?;
            latency("UDP", balls, || udp_ball(&udp)).context("balls of UDP")?;
        }
        drop(stream);

        let before = self.bytes_copied()?;
        let moved = self.options.stream_bytes;
        bandwidth("stream", self.pooled(Purpose::Drop)?, moved)?;
        let copied = self.bytes_copied()? - before;
        say_line(&PoolLine::Copied { copied, moved })?;
        if let Some(address) = self.options.address {
            bandwidth("TCP", tcp(address, Purpose::Drop)?, self.options.tcp_bytes)?;
        }
        self.bursts()
    }

    fn bursts(&self) -> Result<()> {
        let messages = self.options.messages;
        burst("stream", self.pooled(Purpose::Drop)?, messages)?;
        self.socket_burst()?;
        if let Some(address) = self.options.address {
            burst("TCP", tcp(address, Purpose::Drop)?, messages)?;
            self.udp_burst(&udp(address)?)?;
        }
        Ok(())
    }

    fn pooled(&self, purpose: Purpose) -> Result<Pooled> {
        let peer = NodeId(self.options.peer);
        let stream = self.streams.connect(peer, STREAM_PORT, Some(START_LIMIT));
        let mut connection = Pooled {
            stream: stream.context("connect a stream")?,
            streams: self.streams.clone(),
        };
        purpose.write(&mut connection)?;
        Ok(connection)
    }

    /// Bytes that the driver here has copied so far; those of the peer it counts itself.
    fn bytes_copied(&self) -> Result<u64> {
        Ok(self.nic.counters(CounterSource::Datagrams)?["bytes_copied"])
    }

    fn socket_ball(&self) -> Result<()> {
        let peer = NodeId(self.options.peer);
        let limit = Some(ANSWER_LIMIT);
        self.socket.send_to(&[1; SMALL], peer, SOCKET_PORT, limit)?;
        let back = self.socket.receive(limit).context("a ball of a socket")?;
        ensure!(back.bytes.len() == SMALL, "another ball came back");
        Ok(())
    }

    /// Sends messages to the server's socket, in batches that come back.
    fn socket_burst(&self) -> Result<()> {
        let (peer, limit) = (NodeId(self.options.peer), Some(ANSWER_LIMIT));
        let before = self.socket.statistics().pool;
        let start = Instant::now();
        let messages = self.options.messages / BATCH * BATCH;
        for _ in 0..messages / BATCH {
            for _ in 0..BATCH {
                self.socket.send_to(&[1; SMALL], peer, SOCKET_PORT, limit)?;
            }
            for _ in 0..BATCH {
                self.socket.receive(limit).context("an answer")?;
            }
        }
        let after = self.socket.statistics().pool;
        // Each message was sent once and received once here.
        say_line(&PoolLine::Messages(MessagesRow {
            sender_kicks: Some(after.kicks - before.kicks),
            ..row(
                "datagram socket",
                2 * messages,
                start,
                after.calls() - before.calls(),
            )
        }))
    }

    /// The same by UDP.
    fn udp_burst(&self, socket: &UdpSocket) -> Result<()> {
        let (mut calls, mut back) = (0, [0; SMALL]);
        let start = Instant::now();
        let messages = self.options.messages / BATCH * BATCH;
        for _ in 0..messages / BATCH {
            for _ in 0..BATCH {
                socket.send(&[1; SMALL])?;
                calls += 1;
            }
            for _ in 0..BATCH {
                socket.recv(&mut back).context("an answer by UDP")?;
                calls += 1;
            }
        }
        let row = row("UDP", 2 * messages, start, calls);
        say_line(&PoolLine::Messages(row))
    }
}

fn tcp(address: IpAddr, purpose: Purpose) -> Result<Tcp> {
    let stream = TcpStream::connect((address, STREAM_PORT));
    let mut connection = Tcp::new(stream.context("connect by TCP")?)?;
    purpose.write(&mut connection)?;
    Ok(connection)
}

fn udp(address: IpAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("UDP")?;
    socket.connect((address, SOCKET_PORT))?;
    socket.set_read_timeout(Some(ANSWER_LIMIT))?;
    Ok(socket)
}

/// Half round trips of what throws a ball and catches it.
fn latency(operation: &str, balls: usize, mut ball: impl FnMut() -> Result<()>) -> Result<()> {
    // The first ones warm up.
    for _ in 0..balls / 10 {
        ball()?;
    }
    let mut halves = Vec::with_capacity(balls);
    for _ in 0..balls {
        let start = Instant::now();
        ball()?;
        halves.push(start.elapsed().as_nanos() as u64 / 2);
    }
    let mut row = BenchRow::new(operation, SMALL);
    row.latency.extend(Latency::from_ns(halves));
    say_line(&PoolLine::Transfer(row))
}

fn ball(connection: &mut impl Connection) -> Result<()> {
    connection.write_all(&[1; SMALL])?;
    Ok(connection.read_exact(&mut [0; SMALL])?)
}

fn udp_ball(socket: &UdpSocket) -> Result<()> {
    socket.send(&[1; SMALL])?;
    socket.recv(&mut [0; SMALL])?;
    Ok(())
}

/// MB/s of 64 KiB writes until the server has all of them.
fn bandwidth(operation: &str, mut connection: impl Connection, bytes: u64) -> Result<()> {
    let chunk = [1; CHUNK];
    let writes = bytes / CHUNK as u64;
    let start = Instant::now();
    for _ in 0..writes {
        connection.write_all(&chunk)?;
    }
    connection.finish()?;
    let answer = Answer::read(&mut connection).context(operation.to_owned())?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(answer.bytes == writes * CHUNK as u64, "{answer:?} came");
    let mut row = BenchRow::new(operation, CHUNK);
    row.mb_s.push(answer.bytes as f64 / seconds / 1e6);
    say_line(&PoolLine::Transfer(row))
}

/// Small writes, as fast as they are taken.
fn burst(operation: &str, mut connection: impl Connection, messages: u64) -> Result<()> {
    let before = (connection.calls(), connection.kicks());
    let start = Instant::now();
    for _ in 0..messages {
        connection.write_all(&[1; SMALL])?;
    }
    connection.flush()?;
    let calls = connection.calls() - before.0;
    let kicks = connection.kicks().zip(before.1);
    connection.finish()?;
    let answer = Answer::read(&mut connection).context(operation.to_owned())?;
    ensure!(answer.bytes == messages * SMALL as u64, "{answer:?} came");
    say_line(&PoolLine::Messages(MessagesRow {
        sender_kicks: kicks.map(|(after, before)| after - before),
        receiver_calls: Some(answer.calls),
        ..row(operation, messages, start, calls)
    }))
}

/// What is known of every burst.
fn row(operation: &str, messages: u64, start: Instant, sender_calls: u64) -> MessagesRow {
    MessagesRow {
        operation: operation.into(),
        messages,
        sender_calls,
        sender_kicks: None,
        receiver_calls: None,
        message_us: start.elapsed().as_secs_f64() * 1e6 / messages as f64,
    }
}
