//! Nodes that were given up, and nodes that something waits for without sending to them (U10).
//!
//! ```text
//!            silent for `peer_timeout`              answers, or speaks
//!   peer ──────────────────────────────► gone ───────────────────────────► peer, as any new one
//!                                        │  ▲
//!                                        └──┘ Hello: after half of `peer_timeout`, then after twice
//!                                             as long each time, and when something wants the node
//! ```
//! A peer that is gone keeps its place in the table, but is not found there. So what is sent to its
//! node fails at once, and costs the peer timeout once, not each time. What waits for the node with
//! a time limit of its own (joins, imports, names) goes on when it answers.
//!
//! # What waits without sending
//! A receive, or a process that has joined a group here, owes its node nothing, so no frame would
//! tell that the node is silent. [`Transport::expect`] watches it from then on: a probe and its
//! answer each eighth of `peer_timeout` at most, however many wait, and only while nothing else is
//! heard. A node without a session is greeted first: it may come later, or not at all. One without
//! a route is looked for each half of `peer_timeout`.
//!
//! # Invariants
//! - A peer that is gone has no session, and a timer.
//! - The table has room for a node that has a route, whatever is gone.

use std::collections::BTreeSet;
use std::ops::Bound;

use qnic_abi::NodeId;

use super::reliable::Alarm;
use super::Transport;
use crate::env::Time;
use crate::ids::PeerIndex;

/// Nodes without a route that are looked for at one time.
const BATCH: usize = 64;

/// How a peer that was given up is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone {
    /// It was there before.
    lived: bool,
    /// When it was last asked, and how long after that it is asked again.
    asked_at: Time,
    pause: u64,
}

/// Nodes without a route that something waits for; as many as there may be peers.
#[derive(Debug, Default)]
pub(super) struct Unreached {
    nodes: BTreeSet<NodeId>,
    /// The last one that was looked for.
    last: Option<NodeId>,
    /// Its timer runs.
    armed: bool,
}

impl Unreached {
    /// Takes a node out. Returns false if it is not there.
    pub(super) fn remove(&mut self, node: NodeId) -> bool {
        self.nodes.remove(&node)
    }

    /// The next ones that are to be looked for.
    fn next(&mut self) -> Vec<NodeId> {
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let nodes = self.nodes.range((behind, Bound::Unbounded));
        let nodes: Vec<NodeId> = nodes.take(BATCH).copied().collect();
        self.last = nodes.last().copied().filter(|_| nodes.len() == BATCH);
        nodes
    }
}

impl Transport {
    /// A peer is given up that was silent: its session has ended. `lived`: it had one.
    pub(crate) fn give_up(&mut self, now: Time, index: PeerIndex, lived: bool) {
        let gone = Gone {
            lived,
            asked_at: now,
            pause: self.limits.peer_timeout / 2,
        };
        self.restart(index);
        self.peers.give_up(index, gone);
        self.ask_later(now, index, gone.pause);
        self.share_windows();
        self.grow_windows();
    }

    /// A peer has said something: it is not gone, or not any more.
    pub(super) fn returned(&mut self, now: Time, index: PeerIndex) {
        if self.peers[index].given_up.is_none() {
            return;
        }
        self.peers.take_back(index);
        self.share_windows();
        if let Some(asking) = self.peers[index].watch.take() {
            self.timers.check_out(asking);
        }
        self.watch(now, index);
        // Protocols learn of it.
        self.want(self.peers[index].node);
    }

    /// Returns true if a node was there, was given up, and has not answered since.
    pub(crate) fn is_gone(&self, node: NodeId) -> bool {
        let gone = self.peers.find_gone(node);
        gone.is_some_and(|index| self.peers[index].given_up.is_some_and(|gone| gone.lived))
    }

    /// How long to wait before a node without a peer is tried again. What waits for one that is gone
    /// is told when it answers ([`Transport::want`]).
    pub(crate) fn retry_after(&self, node: NodeId) -> u64 {
        match self.peers.find_gone(node) {
            None => super::RETRY_AFTER,
            Some(_) => self.limits.peer_timeout.max(super::RETRY_AFTER),
        }
    }

    /// Something wants a node that is gone: asks it soon, and often again.
    pub(super) fn hasten(&mut self, now: Time, node: NodeId) {
        let timeout = self.limits.peer_timeout;
        let index = self.peers.find_gone(node);
        let gone = index.and_then(|index| Some((index, self.peers[index].given_up.as_mut()?)));
        if let Some((index, gone)) = gone {
            gone.pause = timeout / 4;
            if gone.asked_at.after(timeout / 8) <= now {
                self.ask(now, index);
            }
        }
    }

    /// Asks a peer that is gone whether it is there again.
    pub(super) fn ask(&mut self, now: Time, index: PeerIndex) {
        let longest = self.limits.peer_timeout.saturating_mul(8);
        let peer = &mut self.peers[index];
        if let Some(gone) = &mut peer.given_up {
            gone.asked_at = now;
            gone.pause = gone.pause.saturating_mul(2).min(longest);
            peer.hello_pending = true;
            let pause = gone.pause;
            self.peers.mark_urgent(index);
            self.ask_later(now, index, pause);
        }
    }

    fn ask_later(&mut self, now: Time, index: PeerIndex, pause: u64) {
        let alarm = Alarm::Silence(index);
        let timer = self.timers.check_in(now.after(pause.max(1)), alarm);
        if let Some(before) = self.peers[index].watch.replace(timer) {
            self.timers.check_out(before);
        }
    }

    /// Something waits for a node without sending to it: its silence is noticed from now on. Returns
    /// false if the node was there, was given up, and has not answered since.
    #[inline]
    pub(crate) fn expect(&mut self, now: Time, node: NodeId) -> bool {
        match self.find(node) {
            Some(index) if !self.peers[index].is_ready() => self.peers.ensure_session(index),
            // The own node is one of these.
            Some(index) if self.peers[index].is_lossless() => {}
            Some(index) => self.watch(now, index),
            None => return self.look_for(now, node),
        }
        true
    }

    #[cold]
    fn look_for(&mut self, now: Time, node: NodeId) -> bool {
        if self.peers.find_gone(node).is_some() {
            self.hasten(now, node);
            return !self.is_gone(node);
        }
        let unreached = &mut self.unreached;
        if unreached.nodes.len() < self.limits.peers as usize {
            unreached.nodes.insert(node);
        }
        self.arm_unreached(now);
        true
    }

    fn arm_unreached(&mut self, now: Time) {
        let unreached = &mut self.unreached;
        if !unreached.armed && !unreached.nodes.is_empty() {
            unreached.armed = true;
            let next = now.after((self.limits.peer_timeout / 2).max(1));
            self.timers.check_in(next, Alarm::Unreached);
        }
    }

    /// Looks for the next nodes without a route of which `awaits` says that something waits for
    /// them, and forgets others.
    #[cold]
    pub(crate) fn look_for_unreached(&mut self, now: Time, awaits: impl Fn(NodeId) -> bool) {
        self.unreached.armed = false;
        for node in self.unreached.next() {
            match awaits(node) {
                true => self.want(node),
                false => drop(self.unreached.remove(node)),
            }
        }
        self.arm_unreached(now);
    }
}
