//! The side that asks, and compares.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic::datagram::Socket;
use qnic::stream::{Options, Streams};
use qnic::{Error, Nic, NodeId};
use qnic_apps::demo::pattern;
use serde_json::json;

use super::connection::{Answer, Connection, Pooled, Purpose, CHUNK};
use super::{SOCKET_PORT, STREAM_PORT};
use qnic_apps::demo::node::say;
use qnic_apps::demo::options::START_LIMIT;

/// Exit status when a stream without end has failed.
const STREAM_FAILED: i32 = 3;

/// Bytes after which a stream is called running.
const RUNNING: u64 = 1 << 20;

/// Bytes after which a stream that is checked says again how far it is.
const STAGE: u64 = 32 << 20;

/// How often a message is sent, at most, until it comes back.
const ATTEMPTS: u32 = 200;

#[derive(Args)]
pub(crate) struct ClientOptions {
    /// Node of the server
    #[arg(long)]
    peer: u16,
    /// Own datagram port for streams; 0 is any
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Sends until the stream fails
    #[arg(long)]
    forever: bool,
    /// Bytes of the stream
    #[arg(long, default_value_t = 0)]
    bytes: u64,
    /// Messages that are sent to the socket and have to come back
    #[arg(long, default_value_t = 0)]
    messages: u64,
    /// Milliseconds after which a message is sent again
    #[arg(long, default_value_t = 5000)]
    patience: u64,
}

pub(crate) fn client(options: &ClientOptions) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    if options.forever || options.bytes > 0 {
        let streams = Streams::open(&nic, options.port, Options::default());
        let streams = streams.context("open pools for streams")?;
        let peer = NodeId(options.peer);
        let stream = streams.connect(peer, STREAM_PORT, Some(START_LIMIT));
        let stream = stream.context("connect")?;
        let connection = Pooled { stream, streams };
        match options.forever {
            true => without_end(connection)?,
            false => checked(connection, options.bytes)?,
        }
    }
    if options.messages > 0 {
        messages(&nic, options)?;
    }
    Ok(())
}

/// Part `number` of what a stream carries.
fn part(number: u64) -> Vec<u8> {
    pattern::bytes(number, CHUNK)
}

/// Sends so many bytes; the server has to have them all, and no others.
fn checked(mut connection: Pooled, bytes: u64) -> Result<()> {
    let start = Instant::now();
    Purpose::Check.write(&mut connection)?;
    let mut checksum = crc32fast::Hasher::new();
    let mut sent = 0;
    for number in 0.. {
        let part = part(number);
        let part = &part[..(bytes - sent).min(CHUNK as u64) as usize];
        if part.is_empty() {
            break;
        }
        checksum.update(part);
        connection.write_all(part).context("write to the stream")?;
        let stage = sent / STAGE;
        sent += part.len() as u64;
        if sent / STAGE > stage {
            say("sent", sent)?;
        }
    }
    connection.finish()?;
    let answer = Answer::read(&mut connection)?;
    let seconds = start.elapsed().as_secs_f64();
    let expected = (bytes, checksum.finalize());
    let there = (answer.bytes, answer.checksum);
    ensure!(there == expected, "{there:?} came of {expected:?}");
    let counters = connection.streams.counters();
    let statistics = connection.streams.pool_statistics();
    say(
        "checked",
        json!({
            "bytes": bytes,
            "seconds": seconds,
            "data_frames": counters.data_frames_sent,
            "resent": counters.data_frames_resent,
            "timeouts": counters.resend_timeouts,
            "frames": statistics.frames_sent + statistics.frames_received,
            "calls": statistics.calls(),
        }),
    )
}

/// Sends until the stream fails, says why, and ends with [`STREAM_FAILED`].
fn without_end(mut connection: Pooled) -> Result<()> {
    Purpose::Check.write(&mut connection)?;
    let (mut sent, chunk) = (0, part(0));
    let error = loop {
        if let Err(error) = connection.write_all(&chunk) {
            break error;
        }
        sent += chunk.len() as u64;
        if sent == RUNNING {
            say("streaming", sent)?;
        }
    };
    say("failed", error.to_string())?;
    std::process::exit(STREAM_FAILED)
}

/// Has messages of all lengths sent back. What is lost on the way is sent again, and counted.
fn messages(nic: &Nic, options: &ClientOptions) -> Result<()> {
    let socket = Socket::bind(nic, 0).context("bind a socket")?;
    let patience = Duration::from_millis(options.patience);
    let mut attempts = 0;
    for number in 0..options.messages {
        attempts += u64::from(echoed(&socket, options.peer, number, patience)?);
    }
    let count = options.messages;
    say("echoed", json!({"messages": count, "attempts": attempts}))
}

/// Message `number`, which begins with it.
fn message(number: u64) -> Vec<u8> {
    let length = 8 + (number * 7919 % (CHUNK as u64 - 7)) as usize;
    let mut message = pattern::bytes(number, length);
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

/// Sends a message until it has come back as it was; returns how often that was.
fn echoed(socket: &Socket, peer: u16, number: u64, patience: Duration) -> Result<u32> {
    let own = message(number);
    for attempt in 1..=ATTEMPTS {
        socket.send_to(&own, NodeId(peer), SOCKET_PORT, Some(START_LIMIT))?;
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let back = match socket.receive(Some(left)) {
                Ok(back) => back.bytes,
                Err(Error::TimedOut) => break,
                Err(error) => return Err(error.into()),
            };
            if back == own {
                return Ok(attempt);
            }
            // One of before may come back twice or late, but never changed.
            let earlier = pattern::words(&back).next().filter(|back| *back < number);
            let is_right = earlier.is_some_and(|earlier| back == message(earlier));
            ensure!(is_right, "a message has come back changed");
        }
    }
    bail!("a message has not come back in {ATTEMPTS} attempts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_all_lengths_and_their_number() {
        assert_eq!(message(0).len(), 8);
        let lengths: Vec<_> = (0..200).map(|number| message(number).len()).collect();
        assert!(lengths.iter().any(|length| *length > 60_000));
        assert!(lengths.iter().all(|length| *length <= CHUNK));
        assert_eq!(pattern::words(&message(77)).next(), Some(77));
    }
}
