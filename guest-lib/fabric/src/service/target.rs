//! Requests of peers on the memory of this process.
//!
//! ```text
//!   NIC ─► RECEIVES posted receives ─► order of each peer's stream ─► Region ─► reply
//!                                        └ early: held until those before it are here
//! ```
//! # Invariants
//! - Requests of a stream are served once each, in their order: so a read sees the writes before it, and atomic
//!   operations keep theirs.
//! - A peer holds at most [`WINDOW`] requests here, and twice as many replies; what it sends beyond that is dropped.
//!   So one that never takes its replies takes no room from others.

use std::collections::{BTreeMap, HashMap};

use qnic::message::{Destination, Pattern, Request, Source, Tag};

use super::execute::{execute, Served};
use super::outgoing::{Leaving, Peer, Sent};
use super::wire;
use super::{Process, WINDOW};
use crate::arena::Bounce;
use crate::errno::{Errno, Result, AGAIN};

/// Requests that may be arriving at the same time.
const RECEIVES: usize = 32;

/// What is known of a peer that has asked for something.
#[derive(Default)]
struct Stream {
    id: u64,
    /// The one before it, of which messages may come late.
    former: Option<u64>,
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
    /// Why a piece of the operation was refused whose pieces come now.
    refused: Option<Errno>,
}

/// A reply for which there was no room.
struct Reply {
    to: Peer,
    tag: u64,
    end: Result<()>,
    bytes: Vec<u8>,
}

/// The target's side of a service.
#[derive(Default)]
pub(super) struct Target<'a> {
    receives: Vec<(Request<'a>, Bounce)>,
    streams: HashMap<Peer, Stream>,
    /// Peers of which requests are here.
    held: Vec<Peer>,
    replies: Vec<Reply>,
}

impl<'a> Target<'a> {
    /// Serves what has come, once: peers that go on asking do not keep the caller. Returns true if something had come;
    /// then there may be more.
    pub(super) fn tend(
        &mut self,
        own: &'a Process,
        leaving: &mut Leaving<'a>,
        served: &Served<'_>,
    ) -> bool {
        leaving.tend(own);
        self.flush(own, leaving);
        let has_come = self.take(own);
        for peer in std::mem::take(&mut self.held) {
            self.serve(own, leaving, served, peer);
        }
        has_come
    }

    /// Whether the receive that was posted first has ended: requests take them in this order.
    pub(super) fn has_come(&mut self) -> bool {
        let first = self.receives.first_mut();
        first.is_some_and(|(request, _)| !matches!(request.test(), Ok(None)))
    }

    /// Posts receives for further requests.
    fn post(&mut self, own: &'a Process) {
        while self.receives.len() < RECEIVES {
            let Ok(room) = own.arena.take(&own.endpoint, wire::MESSAGE_MAX) else {
                return;
            };
            let pattern = Pattern::untagged(Source::Any);
            let posted = own.arena.part(&room, wire::MESSAGE_MAX);
            match posted.map(|part| own.endpoint.receive(&pattern, part).post()) {
                Ok(Ok(request)) => self.receives.push((request, room)),
                // There is no NIC any more.
                _ => return own.arena.give_back(room),
            }
        }
    }

    /// Takes the requests that have arrived; returns false if there is none.
    fn take(&mut self, own: &'a Process) -> bool {
        let (mut index, mut has_come) = (0, false);
        while let Some((request, _)) = self.receives.get_mut(index) {
            let end = match request.test() {
                Ok(None) => {
                    index += 1;
                    continue;
                }
                end => end.ok().flatten(),
            };
            let (request, room) = self.receives.remove(index);
            drop(request);
            // One that has failed brings nothing: its peer is gone, or the NIC is.
            if let Some(end) = end.filter(|end| !end.truncated) {
                let mut message = vec![0; usize::try_from(end.length).unwrap_or(0)];
                if own.arena.read(&room, 0, &mut message).is_ok() {
                    self.arrived((end.node, end.port), message);
                }
                has_come = true;
            }
            own.arena.give_back(room);
        }
        // Before they are served: those that wait at the NIC arrive meanwhile.
        self.post(own);
        has_come
    }

    /// Keeps a request until its turn.
    fn arrived(&mut self, peer: Peer, message: Vec<u8>) {
        if let Some((request, _)) = wire::Request::parse(&message) {
            let stream = self.streams.entry(peer).or_default();
            if stream.accepts(&request) {
                stream.early.insert(request.sequence, message);
                self.held.push(peer);
            }
        }
    }

    /// Serves the requests of a peer whose turn it is, while it takes replies.
    fn serve(
        &mut self,
        own: &'a Process,
        leaving: &mut Leaving<'a>,
        served: &Served<'_>,
        peer: Peer,
    ) {
        let Some(stream) = self.streams.get_mut(&peer) else {
            return;
        };
        while let Some(message) = stream.early.remove(&stream.next) {
            let waiting = self.replies.iter().filter(|it| it.to == peer).count();
            if waiting + leaving.count(peer) >= 2 * WINDOW {
                stream.early.insert(stream.next, message);
                self.held.push(peer);
                break;
            }
            stream.next += 1;
            if let Some((request, brought)) = wire::Request::parse(&message) {
                let (end, bytes) =
                    stream.perform(&request, || execute(served, peer, &request, brought));
                self.replies.push(Reply {
                    to: peer,
                    tag: request.reply,
                    end,
                    bytes,
                });
            }
        }
        self.flush(own, leaving);
    }

    /// Sends the replies that there is room for.
    fn flush(&mut self, own: &'a Process, leaving: &mut Leaving<'a>) {
        self.replies.retain(|reply| {
            let to = Destination::tagged(reply.to.0, reply.to.1, Tag(reply.tag));
            match Sent::post(own, &to, &wire::reply_head(reply.end), &reply.bytes) {
                Ok(sent) => leaving.send(reply.to, sent),
                Err(AGAIN) => return true,
                // Its peer is gone, or the NIC.
                Err(_) => {}
            }
            false
        });
    }
}

impl Stream {
    /// Does what a request asks for, unless a piece before it of the same operation was refused: so its last one is
    /// not told then.
    fn perform(
        &mut self,
        request: &wire::Request,
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

    /// Whether a request is one that is expected, now or soon. The first of another stream begins it.
    fn accepts(&mut self, request: &wire::Request) -> bool {
        if self.id != request.stream {
            if self.former == Some(request.stream) {
                return false;
            }
            *self = Stream {
                id: request.stream,
                former: Some(self.id),
                ..Stream::default()
            };
        }
        let ahead = request.sequence.checked_sub(self.next);
        ahead.is_some_and(|ahead| ahead < WINDOW as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::wire::Action;
    use qnic::Port;

    fn request(stream: u64, sequence: u64) -> wire::Request {
        wire::Request {
            stream,
            sequence,
            reply: 0,
            key: 0,
            offset: 0,
            length: 0,
            data: None,
            incarnation: 0,
            total: 0,
            from: Port(1),
            to: Port(1),
            is_first: true,
            is_last: true,
            action: Action::Read,
        }
    }

    #[test]
    fn requests_of_the_stream_are_taken_within_its_window() {
        let mut stream = Stream::default();
        let window = WINDOW as u64;
        assert!(stream.accepts(&request(7, 1)));
        assert!(stream.accepts(&request(7, window - 1)));
        assert!(!stream.accepts(&request(7, window)));
        assert!(!stream.accepts(&request(7, u64::MAX)));
        stream.next = 3;
        assert!(!stream.accepts(&request(7, 2)));
        // A new one, and late messages of the old one.
        assert!(stream.accepts(&request(8, 0)));
        assert_eq!(stream.next, 0);
        assert!(!stream.accepts(&request(7, 3)));
        assert!(stream.accepts(&request(8, 1)));
    }
}
