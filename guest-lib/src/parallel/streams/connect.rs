//! How the ranks find each other: each opens a stream to those below it, and tries again until
//! they are there.

use std::time::{Duration, Instant};

use crate::error::{Error, ParallelError, Result};
use crate::machine::Machine;
use crate::nic::Nic;
use crate::pool::PoolOptions;
use crate::stream::{Listener, Locked, Options, Stream, Streams};

/// Begins a hello.
const MAGIC: [u8; 8] = *b"qnicrank";

/// Bytes of a hello: magic, key, rank, size, little-endian.
const HELLO: usize = 24;

/// After so long, what has failed is tried again.
const AGAIN: Duration = Duration::from_millis(50);

type Hello = [u8; HELLO];

fn hello(key: u64, rank: u32, size: u32) -> Hello {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..16].copy_from_slice(&key.to_le_bytes());
    hello[16..20].copy_from_slice(&rank.to_le_bytes());
    hello[20..].copy_from_slice(&size.to_le_bytes());
    hello
}

/// A stream whose hello has not come.
struct Candidate {
    stream: Stream,
    /// Rank to which it was opened; none if a peer has opened it.
    to: Option<u32>,
    has_spoken: bool,
    received: Hello,
    filled: usize,
}

/// What has become of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Waits,
    /// It is the stream of a rank.
    Rank(u32),
    /// It has failed, or is no rank of this machine.
    Useless,
}

impl Candidate {
    fn new(stream: Stream, to: Option<u32>) -> Self {
        Candidate {
            stream,
            to,
            has_spoken: false,
            received: [0; HELLO],
            filled: 0,
        }
    }

    fn step(&mut self, locked: &mut Locked<'_>, machine: &Machine) -> Result<Outcome> {
        if self.to.is_some() {
            if !locked.is_open(&self.stream)? {
                return Ok(Outcome::Waits);
            }
            if !self.speak(locked, machine)? {
                return Ok(Outcome::Waits);
            }
        }
        while self.filled < HELLO {
            match locked.read(&self.stream, &mut self.received[self.filled..])? {
                None => return Ok(Outcome::Waits),
                Some(0) => return Ok(Outcome::Useless),
                Some(count) => self.filled += count,
            }
        }
        let is_right = |rank: &u32| self.received == hello(machine.key(), *rank, machine.size());
        let rank = match self.to {
            Some(rank) => Some(rank).filter(is_right),
            None => (machine.rank() + 1..machine.size()).find(is_right),
        };
        match rank {
            None => Ok(Outcome::Useless),
            // A process that does not know the key does not learn it from an answer.
            Some(_) if !self.speak(locked, machine)? => Ok(Outcome::Waits),
            Some(rank) => Ok(Outcome::Rank(rank)),
        }
    }

    /// Says hello once. A new stream has room for all of it or nothing.
    fn speak(&mut self, locked: &mut Locked<'_>, machine: &Machine) -> Result<bool> {
        if !self.has_spoken {
            let hello = hello(machine.key(), machine.rank(), machine.size());
            self.has_spoken = match locked.write(&self.stream, &hello)? {
                None => false,
                Some(HELLO) => true,
                Some(_) => return Err(Error::StreamEnded),
            };
        }
        Ok(self.has_spoken)
    }
}

/// All that is under way.
struct Connecting<'a> {
    machine: &'a Machine,
    streams: &'a Streams,
    listener: Listener,
    candidates: Vec<Candidate>,
    /// By rank.
    found: Vec<Option<Stream>>,
    /// To be dropped without the lock.
    useless: Vec<Stream>,
}

impl Connecting<'_> {
    fn missing(&self) -> Vec<u32> {
        let others = (0..).zip(&self.found);
        let others = others.filter(|(rank, _)| *rank != self.machine.rank());
        let missing = others.filter(|(_, stream)| stream.is_none());
        missing.map(|(rank, _)| rank).collect()
    }

    /// Opens a stream to each rank below this one that has none.
    fn begin(&mut self) -> Result<()> {
        for rank in self.missing() {
            let is_under_way = self.candidates.iter().any(|it| it.to == Some(rank));
            if rank > self.machine.rank() || is_under_way {
                continue;
            }
            let node = self.machine.node_of(rank);
            let stream = self.streams.begin(node, self.machine.port_of(rank))?;
            self.candidates.push(Candidate::new(stream, Some(rank)));
        }
        Ok(())
    }

    /// Does what can be done at once. Returns true once all ranks are there.
    fn step(&mut self, locked: &mut Locked<'_>) -> bool {
        while self.candidates.len() < 2 * self.found.len() {
            let Some(stream) = locked.accept(&self.listener) else {
                break;
            };
            self.candidates.push(Candidate::new(stream, None));
        }
        let mut index = 0;
        while let Some(candidate) = self.candidates.get_mut(index) {
            let outcome = candidate.step(locked, self.machine);
            match outcome.unwrap_or(Outcome::Useless) {
                Outcome::Waits => index += 1,
                Outcome::Rank(rank) => {
                    let stream = self.candidates.swap_remove(index).stream;
                    // A second one: the rank has tried again, as the first has failed for it.
                    self.useless
                        .extend(self.found[rank as usize].replace(stream));
                }
                Outcome::Useless => {
                    let stream = self.candidates.swap_remove(index).stream;
                    self.useless.push(stream);
                }
            }
        }
        self.missing().is_empty()
    }
}

/// Opens the port of this rank; returns the streams to the others, by rank.
pub(super) fn connect(
    nic: &Nic,
    machine: &Machine,
    limit: Duration,
) -> Result<(Streams, Vec<Option<Stream>>)> {
    let start = Instant::now();
    let ranks = machine.size() as usize;
    // Streams that are refused end beside those that are used.
    let connections = 3 * ranks + 8;
    let frames = (8 * connections).clamp(256, 1024);
    let options = Options {
        pool: PoolOptions {
            inputs: frames,
            outputs: frames,
            ..PoolOptions::default()
        },
        connections: connections.min(frames / 2),
        backlog: 2 * ranks,
        ..Options::default()
    };
    let streams = Streams::open(nic, machine.port_of(machine.rank()), options)?;
    if streams.node() != machine.node_of(machine.rank()) {
        let message = "this node is not the one that the machine has for this rank";
        return Err(ParallelError::Unfit(message).into());
    }
    let mut connecting = Connecting {
        machine,
        streams: &streams,
        listener: streams.listen()?,
        candidates: Vec::new(),
        found: (0..ranks).map(|_| None).collect(),
        useless: Vec::new(),
    };
    loop {
        connecting.begin()?;
        let left = limit.saturating_sub(start.elapsed());
        let step = |locked: &mut Locked<'_>| Ok(connecting.step(locked).then_some(()));
        match streams.wait_for(left.min(AGAIN), step) {
            Ok(()) => break,
            Err(Error::TimedOut) if left > AGAIN => connecting.useless.clear(),
            Err(Error::TimedOut) => {
                let missing = connecting.missing();
                return Err(ParallelError::Missing { missing, limit }.into());
            }
            Err(error) => return Err(error),
        }
    }
    let found = std::mem::take(&mut connecting.found);
    drop(connecting);
    Ok((streams, found))
}
