//! The order of peers' requests.
//!
//! ```text
//!   requests of many peers ─► Stream of each: early, until those before it are here ─► the one whose turn it is
//! ```
//! # Invariants
//! - A stream gives each of its requests once, in their order.
//! - At most [`STREAMS_MAX`] peers are known, and at most [`EARLY_MAX`] bytes of requests are kept. For want of place
//!   goes what is of the peer that has been silent for the longest; its requests are refused, not forgotten.
//! - A message of a former stream changes nothing. Names of the streams of one process ascend, and begin at a random
//!   number in each.

use std::collections::{BTreeMap, HashMap};

use super::wire::Request;
use super::WINDOW;
use crate::address::Peer;
use crate::errno::{Errno, Result};

/// Most peers that are known.
const STREAMS_MAX: usize = 4096;

/// Most bytes of requests that are kept until their turn.
const EARLY_MAX: usize = 64 << 20;

/// Streams of one process are nearer to each other than this, by their names.
const NEAR: u64 = 1 << 32;

/// A request that is refused: its peer, and the tag of its reply.
pub(super) type Refused = (Peer, u64);

/// What is known of all peers that have asked for something.
#[derive(Default)]
pub(super) struct Streams {
    table: HashMap<Peer, Stream>,
    /// Bytes of requests that are kept.
    bytes: usize,
    /// Of requests that have come.
    count: u64,
}

/// What is known of a peer.
pub(super) struct Stream {
    id: u64,
    /// A stream of the process that had the port before, of which messages may come late.
    former: Option<u64>,
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
    /// Why a piece of the operation was refused whose pieces come now.
    refused: Option<Errno>,
    /// Some of its requests are gone: all others are refused.
    is_broken: bool,
    /// The count of its last request.
    seen: u64,
}

impl Streams {
    /// Keeps a request until its turn, if it is one that is expected now or soon. Returns those that are refused.
    pub(super) fn arrived(
        &mut self,
        peer: Peer,
        request: &Request,
        message: Vec<u8>,
    ) -> Vec<Refused> {
        let mut refused = Vec::new();
        if self.table.len() >= STREAMS_MAX && !self.table.contains_key(&peer) {
            if let Some(oldest) = self.oldest(|_| true) {
                refused.extend(self.give_up(oldest));
                self.table.remove(&oldest);
            }
        }
        self.count += 1;
        let begin = || Stream::begin(request, None);
        let stream = self.table.entry(peer).or_insert_with(begin);
        stream.seen = self.count;
        let before = stream.bytes();
        let is_broken = stream.keep(request, message);
        self.bytes = self.bytes - before + stream.bytes();
        if is_broken {
            refused.push((peer, request.reply));
        }
        while self.bytes > EARLY_MAX {
            let Some(oldest) = self.oldest(|stream| !stream.early.is_empty()) else {
                break;
            };
            refused.extend(self.give_up(oldest));
        }
        refused
    }

    /// Whether a request of a peer is here whose turn it is.
    pub(super) fn has_next(&self, peer: Peer) -> bool {
        let stream = self.table.get(&peer);
        stream.is_some_and(|stream| stream.early.contains_key(&stream.next))
    }

    /// Takes the request of a peer whose turn it is.
    pub(super) fn take(&mut self, peer: Peer) -> Option<(Vec<u8>, &mut Stream)> {
        let stream = self.table.get_mut(&peer)?;
        let message = stream.early.remove(&stream.next)?;
        stream.next += 1;
        self.bytes -= message.len();
        Some((message, stream))
    }

    /// How many requests of a peer were taken.
    #[cfg(test)]
    pub(super) fn served(&self, of: impl Fn(&Peer) -> bool) -> u64 {
        let mut streams = self.table.iter().filter(|(peer, _)| of(peer));
        streams.next().map_or(0, |(_, stream)| stream.next)
    }

    /// The one of some peers that has been silent for the longest.
    fn oldest(&self, of: impl Fn(&Stream) -> bool) -> Option<Peer> {
        let some = self.table.iter().filter(|(_, stream)| of(stream));
        let oldest = some.min_by_key(|(_, stream)| stream.seen);
        oldest.map(|(peer, _)| *peer)
    }

    /// Refuses what is kept of a peer, and from now on the rest of its stream.
    fn give_up(&mut self, peer: Peer) -> Vec<Refused> {
        let Some(stream) = self.table.get_mut(&peer) else {
            return Vec::new();
        };
        self.bytes -= stream.bytes();
        stream.is_broken = true;
        let early = std::mem::take(&mut stream.early).into_values();
        let reply = |message: Vec<u8>| Some((peer, Request::parse(&message)?.0.reply));
        early.filter_map(reply).collect()
    }
}

impl Stream {
    /// The stream of the request that has come first of it. If that is none of the first window, others before it were
    /// served, and are forgotten.
    fn begin(request: &Request, former: Option<u64>) -> Self {
        Stream {
            id: request.stream,
            former,
            next: 0,
            early: BTreeMap::new(),
            refused: None,
            is_broken: request.sequence >= WINDOW as u64,
            seen: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.early.values().map(Vec::len).sum()
    }

    /// Keeps a request that is expected, now or soon. The first of another stream begins it. Returns true if the
    /// request is to be refused.
    fn keep(&mut self, request: &Request, message: Vec<u8>) -> bool {
        if self.id != request.stream {
            let is_late = self.id.wrapping_sub(request.stream) < NEAR;
            let is_of = |former: u64| {
                let ahead = request.stream.wrapping_sub(former);
                ahead.min(ahead.wrapping_neg()) < NEAR
            };
            if is_late || self.former.is_some_and(is_of) {
                return false;
            }
            let former = match is_of(self.id) {
                true => self.former,
                false => Some(self.id),
            };
            let seen = self.seen;
            *self = Stream {
                seen,
                ..Stream::begin(request, former)
            };
        }
        let ahead = request.sequence.checked_sub(self.next);
        if !self.is_broken && ahead.is_some_and(|ahead| ahead < WINDOW as u64) {
            self.early.insert(request.sequence, message);
        }
        self.is_broken
    }

    /// Does what a request asks for, unless a piece before it of the same operation was refused: so its last one is
    /// not told then.
    pub(super) fn perform(
        &mut self,
        request: &Request,
        execute: impl FnOnce() -> (Result<()>, Vec<u8>),
    ) -> (Result<()>, Vec<u8>) {
        let before = self.refused.take().filter(|_| !request.is_first);
        let (end, bytes) = match before {
            Some(error) => (Err(error), Vec::new()),
            None => execute(),
        };
        self.refused = end.err();
        (end, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::wire::{Action, PIECE_MAX};
    use qnic::{NodeId, Port};

    const PEER: Peer = peer(1);

    const fn peer(port: u16) -> Peer {
        Peer {
            node: NodeId(1),
            port: Port(port),
            incarnation: 1,
        }
    }

    fn request(stream: u64, sequence: u64) -> Request {
        Request {
            stream,
            sequence,
            reply: sequence.wrapping_add(100),
            key: 0,
            offset: 0,
            length: PIECE_MAX,
            data: None,
            incarnation: 0,
            source: 0,
            total: 0,
            from: Port(1),
            to: Port(1),
            is_first: true,
            is_last: true,
            action: Action::Write,
        }
    }

    /// Has a request come, and tells whether it is kept.
    fn is_kept(streams: &mut Streams, stream: u64, sequence: u64) -> bool {
        let request = request(stream, sequence);
        let before = streams.bytes;
        assert!(streams.arrived(PEER, &request, vec![0; 8]).is_empty());
        let stream = &streams.table[&PEER];
        let is_kept = stream.id == request.stream && stream.early.contains_key(&sequence);
        assert!(is_kept || streams.bytes == before);
        is_kept
    }

    #[test]
    fn requests_of_the_stream_are_kept_within_its_window() {
        let streams = &mut Streams::default();
        let window = WINDOW as u64;
        assert!(is_kept(streams, 7, 1) && is_kept(streams, 7, window - 1));
        assert!(!is_kept(streams, 7, window) && !is_kept(streams, 7, u64::MAX));
        assert!(!streams.has_next(PEER) && streams.take(PEER).is_none());
        assert!(is_kept(streams, 7, 0) && streams.has_next(PEER));
        for left in [2, 1] {
            assert!(streams.take(PEER).is_some());
            assert_eq!(streams.bytes, left * 8);
        }
        assert!(streams.take(PEER).is_none());
        assert!(is_kept(streams, 7, window) && !is_kept(streams, 7, 1));
        // A new one begins with nothing.
        assert!(is_kept(streams, 8, 1));
        assert_eq!(streams.bytes, 8);
    }

    #[test]
    fn messages_of_former_streams_are_late() {
        let streams = &mut Streams::default();
        let other = 1 << 40;
        for stream in [7, 8, 9] {
            assert!(is_kept(streams, stream, 0));
        }
        assert!(!is_kept(streams, 7, 0) && !is_kept(streams, 8, 1));
        // Another process has the port.
        assert!(is_kept(streams, other, 0) && is_kept(streams, other + 1, 0));
        for late in [7, 9, other] {
            assert!(!is_kept(streams, late, 1));
        }
        assert!(is_kept(streams, other + 1, 1));
        assert!(is_kept(streams, u64::MAX - (1 << 40), 0));
    }

    #[test]
    fn peers_that_come_and_go_leave_a_bounded_rest() {
        let mut streams = Streams::default();
        let mut come = |port: usize, sequence| {
            let request = request(7, sequence);
            let mut message = request.to_bytes().to_vec();
            message.resize(message.len() + PIECE_MAX, 0);
            let asking = peer(port as u16);
            let refused = streams.arrived(asking, &request, message);
            assert!(streams.bytes <= EARLY_MAX && streams.table.len() <= STREAMS_MAX);
            (refused, streams.has_next(asking))
        };
        let most = EARLY_MAX / (64 << 10);
        let all = STREAMS_MAX + 10;
        for port in 0..all {
            let refused = match port.checked_sub(most) {
                // It has been silent for the longest.
                Some(first) => vec![(peer(first as u16), 101)],
                None => vec![],
            };
            assert_eq!(come(port, 1), (refused, false));
        }
        // The rest of a stream that was refused is, too.
        let port = all - most - 1;
        let silent = peer(port as u16);
        assert_eq!(come(port, 0), (vec![(silent, 100)], false));
        // One that is forgotten was served before.
        assert_eq!(come(0, 50), (vec![(peer(0), 150)], false));
        // One that is not goes on.
        let (refused, has_next) = come(all - 1, 0);
        assert!(has_next && refused.len() == 1);
    }
}
