//! How far each other node has been told of the names of this one.
//!
//! ```text
//!              something new            a peer, with room
//!   told all ───────────────► queued ───────────────────► Names, queued again or told all
//!                              │  ▲                   │
//!        no peer, no room:      ▼  │ room, a peer,      │ the session ends: told nothing
//!                             waiting  or the next try ◄┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use qnic_abi::process_names::{NameEntry, Names, NAMES_FIRST};
use qnic_abi::{NodeId, PAGE_SIZE};
use zerocopy::IntoBytes;

use super::own::{OwnNames, Position};
use crate::env::Time;
use crate::protocols::protocol::{Outgoing, Turn};
use crate::transport::{Transport, Window};

/// A node that cannot be reached is tried again after so long, in nanoseconds.
pub(super) const RETRY: u64 = 100_000_000;

/// What is known of one node.
#[derive(Debug, Default)]
struct Told {
    /// How far it was told all changes in this session.
    position: Option<Position>,
    /// It stands in the queue.
    queued: bool,
    /// It waits for room, or to become a peer.
    waiting: bool,
    /// When it is tried again.
    retry: Option<Time>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Spread {
    nodes: BTreeMap<NodeId, Told>,
    queue: VecDeque<NodeId>,
    retries: BTreeSet<(Time, NodeId)>,
}

impl Spread {
    /// There is something new for these nodes.
    pub(super) fn wake(&mut self, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            let told = self.nodes.entry(node).or_default();
            if !told.waiting && !told.queued && told.retry.is_none() {
                told.queued = true;
                self.queue.push_back(node);
            }
        }
    }

    /// Returns true if a turn may send something.
    pub(super) fn has_turn(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true if a node was told something in this session.
    pub(super) fn has_told(&self, node: NodeId) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|told| told.position.is_some())
    }

    fn set_retry(&mut self, node: NodeId, time: Option<Time>) {
        let told = self.nodes.entry(node).or_default();
        if let Some(before) = std::mem::replace(&mut told.retry, time) {
            self.retries.remove(&(before, node));
        }
        if let Some(time) = time {
            self.retries.insert((time, node));
        }
    }

    /// Lets a node go on that has waited.
    pub(super) fn resume(&mut self, node: NodeId) {
        self.set_retry(node, None);
        if let Some(told) = self.nodes.get_mut(&node) {
            told.waiting = false;
            if !told.queued {
                told.queued = true;
                self.queue.push_back(node);
            }
        }
    }

    /// Nodes that were waited for may be peers now.
    pub(super) fn peers_added(&mut self, transport: &Transport) {
        let waiting = self.nodes.iter().filter(|(_, told)| told.waiting);
        let found = waiting.filter(|(node, _)| transport.find(**node).is_some());
        let found: Vec<NodeId> = found.map(|(node, _)| *node).collect();
        for node in found {
            self.resume(node);
        }
    }

    /// The session with a node has ended. It is tried again at that time if there is anything to
    /// tell, or earlier if that was to be: a peer without a session may leave again and again.
    /// `newest` is the number of the last change.
    pub(super) fn session_ended(&mut self, node: NodeId, again: Time, newest: u64) {
        let Some(told) = self.nodes.get_mut(&node) else {
            return;
        };
        told.position = None;
        told.waiting = false;
        if std::mem::take(&mut told.queued) {
            self.queue.retain(|other| *other != node);
        }
        let again = told.retry.map_or(again, |before| before.min(again));
        self.set_retry(node, (newest > 0).then_some(again));
    }

    /// Tries nodes again whose time has come. Returns true if there were any.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some((time, node)) = self.retries.first().copied() {
            if time > now {
                break;
            }
            busy = true;
            self.resume(node);
        }
        busy
    }

    /// When [`Spread::expire`] has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.retries.first().map(|(time, _)| *time)
    }

    /// Fills in the next frame.
    pub(super) fn turn(
        &mut self,
        now: Time,
        transport: &mut Transport,
        own: &OwnNames,
        outgoing: &mut Outgoing,
    ) -> Turn {
        while let Some(node) = self.queue.pop_front() {
            let Some(told) = self.nodes.get_mut(&node) else {
                continue;
            };
            told.queued = false;
            let done = match told.position {
                Some(position) => position.upto == own.newest(),
                None => own.is_empty(),
            };
            if done {
                continue;
            }
            let Some(peer) = transport.find(node) else {
                told.waiting = true;
                transport.want(node);
                let again = RETRY.max(transport.retry_after(node));
                self.set_retry(node, Some(now.after(again)));
                continue;
            };
            if transport.room(peer, size_of::<NameEntry>() as u64).0 == 0 {
                told.waiting = true;
                return Turn::Blocked(peer, Window::Fragments);
            }
            let bytes = (transport.max_payload(peer) as usize).min(PAGE_SIZE);
            let most = (bytes / size_of::<NameEntry>()).max(1);
            let (entries, position, first) = own.news(told.position, most);
            told.position = Some(position);
            told.queued = true;
            self.queue.push_back(node);
            let flags = if first { NAMES_FIRST } else { 0 };
            let body = Names {
                flags: flags.into(),
                ..Names::default()
            };
            outgoing.begin(peer, &body);
            if !entries.is_empty() {
                outgoing.set_bytes(entries.as_bytes().into());
            }
            return Turn::Send;
        }
        Turn::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer without a session leaves with each sweep, which may be sooner than the next try.
    #[test]
    fn a_session_that_ends_again_does_not_put_off_the_next_try() {
        let (node, mut spread) = (NodeId(1), Spread::default());
        spread.wake([node].into_iter());
        for time in [100, 160, 220] {
            spread.session_ended(node, Time(time), 1);
            assert_eq!(spread.deadline(), Some(Time(100)));
        }
        assert!(!spread.expire(Time(99)) && !spread.has_turn());
        assert!(spread.expire(Time(100)) && spread.has_turn());
        spread.session_ended(node, Time(300), 1);
        assert_eq!(spread.deadline(), Some(Time(300)));
    }
}
