//! The ranks over streams through shared pools: the interface `pool`.
//!
//! ```text
//!   rank r ──connects to──► ranks below r       one stream for each pair, both directions
//!   at first:   hello: magic, key, rank, size   either side checks that of the other
//!   then:       header: label, length │ bytes   a header is read as soon as it has come
//! ```
//! A rank that waits looks at the headers of all ranks, not only of those that it waits for: an end
//! that is told, and a rank that has died, are noticed by all at once.

mod connect;

use std::time::Duration;

use super::fabric::{Fabric, Fault, Incoming, Label, Outcome, Outgoing};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::nic::Nic;
use crate::stream::{Locked, Stream, Streams};

/// Bytes of a header: label and length, little-endian.
const HEADER: usize = 16;

/// How long an end may take to be told.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Another rank.
#[derive(Debug)]
struct Peer {
    rank: u32,
    stream: Stream,
    /// What has come of the header of the next exchange.
    header: [u8; HEADER],
    filled: usize,
    /// It has ended in order.
    has_ended: bool,
    /// A frame to it has begun, and is not written as a whole.
    is_within_frame: bool,
}

impl Peer {
    fn new(rank: u32, stream: Stream) -> Self {
        Peer {
            rank,
            stream,
            header: [0; HEADER],
            filled: 0,
            has_ended: false,
            is_within_frame: false,
        }
    }

    fn fault(&self, error: Error) -> Fault {
        match error {
            Error::Stream(_) => Fault::Ended {
                rank: self.rank,
                cause: error.to_string(),
            },
            error => Fault::Local(error),
        }
    }

    /// Reads as much of the next header as has come; returns label and length of a whole one.
    fn look(&mut self, locked: &mut Locked<'_>) -> Outcome<Option<(Label, u64)>> {
        while self.filled < HEADER && !self.has_ended {
            let read = locked.read(&self.stream, &mut self.header[self.filled..]);
            match read.map_err(|error| self.fault(error))? {
                None => return Ok(None),
                Some(0) => self.has_ended = true,
                Some(count) => self.filled += count,
            }
        }
        if self.filled < HEADER {
            return Ok(None);
        }
        let word = |at: usize| self.header[at..at + 8].iter().rev();
        let word = |at| word(at).fold(0, |word, byte| word << 8 | u64::from(*byte));
        let label = Label(word(0));
        match label.reason() {
            Some(reason) => Err(Fault::told(self.rank, reason)),
            None => Ok(Some((label, word(8)))),
        }
    }
}

/// Header of a frame.
fn header(label: Label, length: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&label.0.to_le_bytes());
    header[8..].copy_from_slice(&(length as u64).to_le_bytes());
    header
}

/// The other ranks, each by a stream.
#[derive(Debug)]
pub(super) struct StreamFabric {
    streams: Streams,
    /// By rank; none for this one.
    peers: Vec<Option<Peer>>,
}

/// How far a direction has come: bytes of header and data.
#[derive(Debug, Clone, Copy, Default)]
struct Progress(usize);

impl StreamFabric {
    /// Opens the port, and waits until all ranks are there.
    pub(super) fn connect(nic: &Nic, machine: &Machine, limit: Duration) -> Result<Self> {
        let (streams, peers) = connect::connect(nic, machine, limit)?;
        let peer = |(rank, stream): (u32, Option<Stream>)| Some(Peer::new(rank, stream?));
        let peers = (0..).zip(peers).map(peer).collect();
        Ok(StreamFabric { streams, peers })
    }

    /// Writes what there is room for. Returns true once all is written.
    fn send(
        peer: &mut Peer,
        locked: &mut Locked<'_>,
        label: Label,
        bytes: &[u8],
        progress: &mut Progress,
    ) -> Outcome<bool> {
        let head = header(label, bytes.len());
        while progress.0 < HEADER + bytes.len() {
            let rest = match progress.0 {
                at @ 0..HEADER => &head[at..],
                at => &bytes[at - HEADER..],
            };
            let written = locked.write(&peer.stream, rest);
            let Some(count) = written.map_err(|error| peer.fault(error))? else {
                return Ok(false);
            };
            progress.0 += count;
            peer.is_within_frame = progress.0 < HEADER + bytes.len();
        }
        Ok(true)
    }

    /// Reads what has come. Returns true once all is there.
    fn receive(
        peer: &mut Peer,
        locked: &mut Locked<'_>,
        label: Label,
        bytes: &mut [u8],
        progress: &mut Progress,
    ) -> Outcome<bool> {
        if progress.0 == HEADER + bytes.len() {
            return Ok(true);
        }
        if progress.0 == 0 {
            let Some(found) = peer.look(locked)? else {
                return match peer.has_ended {
                    true => Err(ended(peer.rank)),
                    false => Ok(false),
                };
            };
            Fault::compare(peer.rank, (label, bytes.len() as u64), found)?;
            progress.0 = HEADER;
        }
        while progress.0 < HEADER + bytes.len() {
            let read = locked.read(&peer.stream, &mut bytes[progress.0 - HEADER..]);
            match read.map_err(|error| peer.fault(error))? {
                None => return Ok(false),
                Some(0) => return Err(ended(peer.rank)),
                Some(count) => progress.0 += count,
            }
        }
        peer.filled = 0;
        Ok(true)
    }

    /// Does what can be done at once. Returns true once all is done.
    fn progress(
        peers: &mut [Option<Peer>],
        locked: &mut Locked<'_>,
        label: Label,
        (sends, sent): (&[Outgoing<'_>], &mut [Progress]),
        (receives, received): (&mut [Incoming<'_>], &mut [Progress]),
    ) -> Outcome<bool> {
        let mut is_done = true;
        for (receive, progress) in receives.iter_mut().zip(received.iter_mut()) {
            let peer = peer_of(peers, receive.rank)?;
            is_done &= Self::receive(peer, locked, label, receive.bytes, progress)?;
        }
        for (send, progress) in sends.iter().zip(sent.iter_mut()) {
            let peer = peer_of(peers, send.rank)?;
            is_done &= Self::send(peer, locked, label, send.bytes, progress)?;
        }
        if !is_done {
            let within = |rank| {
                let mut received = receives.iter().zip(received.iter());
                received.any(|(it, progress)| it.rank == rank && progress.0 >= HEADER)
            };
            // Those whose data are under way have no header now.
            for peer in peers.iter_mut().flatten().filter(|peer| !within(peer.rank)) {
                peer.look(locked)?;
            }
        }
        Ok(is_done)
    }
}

fn ended(rank: u32) -> Fault {
    Fault::Ended {
        rank,
        cause: "it has ended its stream".into(),
    }
}

fn peer_of(peers: &mut [Option<Peer>], rank: u32) -> Outcome<&mut Peer> {
    let peer = peers.get_mut(rank as usize).and_then(Option::as_mut);
    peer.ok_or(Fault::Local(Error::StreamEnded))
}

impl Fabric for StreamFabric {
    fn exchange(
        &mut self,
        label: Label,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        limit: Duration,
    ) -> Outcome {
        let mut sent = vec![Progress::default(); sends.len()];
        let mut received = vec![Progress::default(); receives.len()];
        let peers = &mut self.peers;
        let outcome = self.streams.wait_for(limit, |locked| {
            let sends = (sends, &mut sent[..]);
            let receives = (&mut *receives, &mut received[..]);
            Ok(
                match Self::progress(peers, locked, label, sends, receives) {
                    Ok(true) => Some(Ok(())),
                    Ok(false) => None,
                    Err(fault) => Some(Err(fault)),
                },
            )
        });
        match outcome {
            Ok(outcome) => outcome,
            Err(Error::TimedOut) => {
                let late = receives.iter().zip(&received);
                let late =
                    late.map(|(it, progress)| (it.rank, progress.0 < HEADER + it.bytes.len()));
                let full = sends.iter().zip(&sent);
                let full =
                    full.map(|(it, progress)| (it.rank, progress.0 < HEADER + it.bytes.len()));
                let open = late.chain(full).find(|(_, is_open)| *is_open);
                let rank = open.map_or(0, |(rank, _)| rank);
                Err(Fault::Silent { rank })
            }
            Err(error) => Err(Fault::Local(error)),
        }
    }

    fn end(&mut self, reason: u32) {
        let end = header(Label::end(reason), 0);
        for slot in &mut self.peers {
            let Some(peer) = slot.take() else {
                continue;
            };
            if peer.is_within_frame {
                // It would be taken for data: the reset says that this rank has ended.
                peer.stream.abort();
            } else {
                // A rank that cannot be told notices it otherwise.
                let _ = peer.stream.send(&end, Some(Duration::ZERO));
                let _ = peer.stream.finish();
                *slot = Some(peer);
            }
        }
        let _ = self.flush(END_LIMIT);
        self.peers.clear();
    }

    fn flush(&mut self, limit: Duration) -> Outcome {
        let peers = &self.peers;
        let delivered = self.streams.wait_for(limit, |locked| {
            for peer in peers.iter().flatten() {
                // One that has failed has nothing to wait for: it has had what it waited for.
                if !locked.is_delivered(&peer.stream).unwrap_or(true) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        });
        match delivered {
            Err(Error::TimedOut) => Err(Fault::Local(Error::TimedOut)),
            other => other.map_err(Fault::Local),
        }
    }
}
