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
//! - All replies that are held have [`Bound`] bytes at most, and one reply. Peers fill them that ask for bytes and do
//!   not take them, as many processes, or as one that goes on under new incarnations. From half of that on each peer
//!   has one reply at a time, so those that take theirs go on, piece by piece; at the bound all wait. Replies leave when
//!   they are taken, or when their receiver has ended or its node is silent for the peer timeout.

use qnic::message::{Pattern, Request, Source, Tag};

use super::execute::{execute, Served};
use super::outgoing::{Leaving, Sent};
use super::streams::Streams;
use super::wire;
use super::{Process, WINDOW};
use crate::address::Peer;
use crate::arena::Bounce;
use crate::errno::{Result, AGAIN, NO_MEMORY};

/// Requests that may be arriving at the same time.
const RECEIVES: usize = 32;

/// Bytes of replies that are not taken, of all peers, beyond which none is made.
#[derive(Clone, Copy)]
pub(super) struct Bound(pub(super) usize);

impl Default for Bound {
    fn default() -> Self {
        Bound(128 << 20)
    }
}

impl Bound {
    /// How many replies a peer may hold while all hold so many bytes.
    fn most_replies(self, held: usize) -> usize {
        match held {
            _ if held >= self.0 => 0,
            _ if held >= self.0 / 2 => 1,
            _ => 2 * WINDOW,
        }
    }
}

/// A reply for which there was no room.
struct Reply {
    to: Peer,
    tag: u64,
    end: Result<()>,
    bytes: Vec<u8>,
}

/// What a test sees of a service.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// Bytes of replies that peers have not taken.
    pub(crate) bytes: usize,
    /// Requests of a process that were done.
    pub(crate) served: u64,
    /// Whether a request of it waits until replies are taken.
    pub(crate) waits: bool,
}

/// The target's side of a service.
#[derive(Default)]
pub(super) struct Target<'a> {
    receives: Vec<(Request<'a>, Bounce)>,
    streams: Streams,
    /// Peers of which requests may be here whose turn it is.
    held: Vec<Peer>,
    replies: Vec<Reply>,
    pub(super) bound: Bound,
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
        let has_come = self.take(own, leaving);
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
    fn take(&mut self, own: &'a Process, leaving: &Leaving<'a>) -> bool {
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
                    self.arrived(leaving, Peer::from(&end), message);
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
    fn arrived(&mut self, leaving: &Leaving<'a>, peer: Peer, message: Vec<u8>) {
        let Some((request, _)) = wire::Request::parse(&message) else {
            return;
        };
        for (to, tag) in self.streams.arrived(peer, &request, message) {
            // It has no bytes.
            if self.held_by(leaving, to) < 2 * WINDOW {
                let (end, bytes) = (Err(NO_MEMORY), Vec::new());
                self.replies.push(Reply {
                    to,
                    tag,
                    end,
                    bytes,
                });
            }
        }
        if self.streams.has_next(peer) && !self.held.contains(&peer) {
            self.held.push(peer);
        }
    }

    /// How many replies a peer has not taken.
    fn held_by(&self, leaving: &Leaving<'a>, peer: Peer) -> usize {
        let waiting = self.replies.iter().filter(|it| it.to == peer).count();
        waiting + leaving.count(peer)
    }

    /// Whether there is room for a reply to a peer.
    fn takes_replies(&self, leaving: &Leaving<'a>, peer: Peer) -> bool {
        self.held_by(leaving, peer) < self.bound.most_replies(self.held_bytes(leaving))
    }

    /// Bytes of the replies that are not taken.
    pub(super) fn held_bytes(&self, leaving: &Leaving<'a>) -> usize {
        let waiting: usize = self.replies.iter().map(|it| it.bytes.len()).sum();
        waiting + leaving.bytes()
    }

    #[cfg(test)]
    pub(super) fn seen(
        &self,
        leaving: &Leaving<'a>,
        (node, port): (qnic::NodeId, qnic::Port),
    ) -> Seen {
        let is_of = |it: &Peer| (it.node, it.port) == (node, port);
        Seen {
            bytes: self.held_bytes(leaving),
            served: self.streams.served(is_of),
            waits: self.held.iter().any(is_of),
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
        while self.streams.has_next(peer) {
            if !self.takes_replies(leaving, peer) {
                self.held.push(peer);
                break;
            }
            let Some((message, stream)) = self.streams.take(peer) else {
                break;
            };
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
            let to = reply.to.tagged(Tag(reply.tag));
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
