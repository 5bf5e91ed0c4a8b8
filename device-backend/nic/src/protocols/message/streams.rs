//! The order of what a process sends (Q4): a *stream* for each process that it sends to.
//!
//! ```text
//!   join ──► unsent: a ─ b ─ c     only the first may send its first frame
//!                    └─ sent: last = its number ──► leave: b is the first
//! ```
//! # Invariants
//! - A stream stays while a message of it is unsent, or its last frame may not have arrived: the
//!   next message names that frame.
//! - Streams that are not needed are dropped in one go, once they may be half of all.
//! - A receiver without room to stage a short message makes its source send the bytes twice. So a
//!   stream whose message was refused asks for permission with the next one, and with twice as many
//!   after each further refusal; a message that is staged or received at once ends that.

use std::collections::{BTreeMap, VecDeque};

use super::command::Name;
use crate::core::SEND_SLOTS;
use crate::ids::{OperationId, PeerIndex};

/// Streams of a process that are remembered at most: those with messages that run, and others
/// whose last frame may not have arrived.
const MOST: usize = 2 * SEND_SLOTS;

/// Streams from which on those are looked for that are not needed.
const MANY: usize = 64;

/// Short messages of a stream that ask for permission in a row, at most.
const MOST_ASK: u8 = 64;

/// What a process sends to another.
#[derive(Debug, Default)]
pub(super) struct Stream {
    peer: PeerIndex,
    /// What has not sent its first frame, in the order of the commands, so of the names.
    unsent: VecDeque<OperationId>,
    /// Number of the last frame that has told of a message; zero: none.
    pub(super) last: u64,
    /// So many of the next short messages ask for permission.
    ask: u8,
    /// So many did after the last refusal.
    asked: u8,
}

impl Stream {
    fn new(peer: PeerIndex) -> Self {
        Stream {
            peer,
            ..Stream::default()
        }
    }

    /// Returns true if the next short message asks for permission.
    pub(super) fn asks(&self) -> bool {
        self.ask > 0
    }

    /// A message has asked for permission, whatever its length.
    pub(super) fn has_asked(&mut self) {
        self.ask = self.ask.saturating_sub(1);
    }

    /// There was no room to stage a message that has not asked.
    pub(super) fn refused(&mut self) {
        self.asked = self.asked.saturating_mul(2).clamp(1, MOST_ASK);
        self.ask = self.asked;
    }

    /// A message that has not asked was received or staged.
    pub(super) fn taken(&mut self) {
        self.asked = 0;
    }

    /// The message that may send its first frame.
    pub(super) fn first(&self) -> Option<OperationId> {
        self.unsent.front().copied()
    }
}

/// What a process sends, by receiver.
#[derive(Debug, Default)]
pub(super) struct Streams {
    by_receiver: BTreeMap<Name, Stream>,
    /// So many were needed when all were looked through.
    needed: usize,
    /// Messages have ended since.
    ended: bool,
}

impl Streams {
    pub(super) fn get(&mut self, receiver: Name) -> Option<&mut Stream> {
        self.by_receiver.get_mut(&receiver)
    }

    /// Puts a message behind those of its stream. Returns false if there are too many streams.
    pub(super) fn join(
        &mut self,
        receiver: Name,
        peer: PeerIndex,
        id: OperationId,
        has_arrived: impl Fn(PeerIndex, u64) -> bool,
    ) -> bool {
        if !self.by_receiver.contains_key(&receiver) && !self.make_room(has_arrived) {
            return false;
        }
        let stream = self.by_receiver.entry(receiver);
        let stream = stream.or_insert_with(|| Stream::new(peer));
        if stream.peer != peer {
            stream.peer = peer;
            stream.last = 0;
        }
        stream.unsent.push_back(id);
        true
    }

    /// Takes a message out of its stream. Returns the one that may be sent now instead.
    pub(super) fn leave(&mut self, receiver: Name, id: OperationId) -> Option<OperationId> {
        let unsent = &mut self.get(receiver)?.unsent;
        let index = unsent.binary_search_by_key(&id.0, |other| other.0).ok()?;
        unsent.remove(index);
        unsent.front().copied().filter(|_| index == 0)
    }

    /// The messages to processes of a node that may send their first frames.
    pub(super) fn firsts(&self, node: u16) -> Vec<OperationId> {
        let [first, last] = [0, u16::MAX].map(|port| Name { node, port });
        let streams = self.by_receiver.range(first..=last);
        streams.filter_map(|(_, stream)| stream.first()).collect()
    }

    /// A message has ended: its stream may not be needed.
    pub(super) fn ended(&mut self) {
        self.ended = true;
    }

    /// Numbers of a session that has ended mean nothing any more.
    pub(super) fn session_ended(&mut self, peer: PeerIndex) {
        let streams = self.by_receiver.values_mut();
        for stream in streams.filter(|stream| stream.peer == peer) {
            stream.last = 0;
        }
        self.ended = true;
    }

    /// Forgets those that are not needed, if they may be many. Returns false if too many are
    /// left.
    fn make_room(&mut self, has_arrived: impl Fn(PeerIndex, u64) -> bool) -> bool {
        let count = self.by_receiver.len();
        let due = match count < MOST {
            true => count >= MANY.max(2 * self.needed),
            false => self.ended,
        };
        if due {
            let is_needed = |stream: &Stream| {
                !stream.unsent.is_empty() || !has_arrived(stream.peer, stream.last)
            };
            self.by_receiver.retain(|_, stream| is_needed(stream));
            self.needed = self.by_receiver.len();
            self.ended = false;
        }
        self.by_receiver.len() < MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerIndex = PeerIndex(1);

    fn name(port: usize) -> Name {
        Name {
            node: 1,
            port: port as u16,
        }
    }

    #[test]
    fn messages_go_in_the_order_of_their_commands() {
        let mut streams = Streams::default();
        let [a, b, c] = [1, 2, 3].map(OperationId);
        for id in [a, b, c] {
            assert!(streams.join(name(0), PEER, id, |_, _| true));
        }
        assert_eq!(streams.leave(name(0), b), None, "it was not the first");
        assert_eq!(streams.leave(name(0), a), Some(c));
        assert_eq!(streams.leave(name(0), a), None, "it has left");
        assert_eq!(streams.get(name(0)).unwrap().first(), Some(c));
        assert_eq!(streams.leave(name(0), c), None);
        assert_eq!(streams.leave(name(1), c), None, "no such stream");
    }

    #[test]
    fn a_stream_asks_twice_as_often_after_each_refusal_in_a_row() {
        let mut stream = Stream::new(PEER);
        let asks = |stream: &mut Stream| {
            let mut count = 0;
            while stream.asks() {
                stream.has_asked();
                count += 1;
            }
            count
        };
        assert_eq!(asks(&mut stream), 0);
        for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
            stream.refused();
            assert_eq!(asks(&mut stream), expected);
        }
        stream.taken();
        stream.refused();
        assert_eq!(asks(&mut stream), 1);
    }

    /// What is not needed goes before it is more than what is, and never what is needed.
    #[test]
    fn streams_are_bounded() {
        let mut streams = Streams::default();
        let mut id = 0;
        let mut join = |streams: &mut Streams, port, arrived: bool| {
            id += 1;
            let joined = streams.join(name(port), PEER, OperationId(id), |_, _| arrived);
            (joined, OperationId(id))
        };
        for port in 0..10_000 {
            let (joined, id) = join(&mut streams, port, true);
            assert!(joined);
            streams.leave(name(port), id);
            streams.ended();
            assert!(streams.by_receiver.len() <= MANY);
        }
        let mut streams = Streams::default();
        for port in 0..MOST {
            assert!(join(&mut streams, port, true).0, "{port}");
        }
        assert!(!join(&mut streams, MOST, true).0, "all have messages");
        let first = streams.get(name(5)).unwrap().first().unwrap();
        streams.leave(name(5), first);
        streams.ended();
        assert!(
            !join(&mut streams, MOST, false).0,
            "its last frame is on its way"
        );
        streams.ended();
        assert!(join(&mut streams, MOST, true).0);
        assert!(!join(&mut streams, 5, true).0);
    }
}
