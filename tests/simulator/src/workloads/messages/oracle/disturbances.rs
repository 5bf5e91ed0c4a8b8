//! What excuses that a message or a receive fails.

use std::collections::BTreeMap;

use qnic_abi::Status;

use super::items::{Message, Receive};
use super::MessageOracle;
use crate::routes::pair;

/// How long the news that a process has ended may take, in nanoseconds.
const NEWS: u64 = 500_000_000;

impl MessageOracle {
    fn disturb_messages(&mut self, chosen: impl Fn(&Message) -> bool) {
        let messages = self.messages.values_mut();
        for message in messages.filter(|message| chosen(message)) {
            message.disturbed |= message.sent.is_none() || message.received.is_none();
        }
    }

    fn disturb_receives(&mut self, slot: usize) {
        for receive in &mut self.processes[slot].receives {
            receive.disturbed |= receive.end.is_none();
        }
    }

    /// The process in a slot begins to die.
    pub(super) fn process_ends(&mut self, slot: usize, now: u64) {
        self.disturb_messages(|message| message.to == slot || message.from == slot);
        let process = &self.processes[slot];
        if process.watched.is_alive() {
            self.check_order(process, false);
        }
        let process = &mut self.processes[slot];
        process.watched.end();
        process.sends.clear();
        process.ended = Some(now);
    }

    /// The segment that a process sends from is being revoked.
    pub(crate) fn revoke_outgoing(&mut self, slot: usize) {
        self.disturb_messages(|message| message.from == slot);
    }

    /// The segment that a process receives into begins to be revoked, or is.
    pub(crate) fn revoke_incoming(&mut self, slot: usize, revoking: bool) {
        self.disturb_messages(|message| message.to == slot);
        self.disturb_receives(slot);
        self.processes[slot].revoking = revoking;
    }

    /// The route between two nodes is disturbed.
    pub(super) fn route_disturbed(&mut self, a: usize, b: usize) {
        let nodes: BTreeMap<usize, usize> = self
            .processes
            .iter()
            .map(|(slot, process)| (slot, process.watched.node))
            .collect();
        let is_route = |one: usize, other: usize| pair(one, other) == pair(a, b);
        self.disturb_messages(|message| is_route(nodes[&message.from], nodes[&message.to]));
        for process in self.processes.values_mut() {
            let node = process.watched.node;
            for receive in &mut process.receives {
                let source = receive.pattern.source;
                receive.disturbed |= source.is_some_and(|it| is_route(node, it.0.into()));
            }
        }
    }

    /// A page of a process is unavailable to its NIC.
    pub(super) fn page_lost(&mut self, slot: usize) {
        self.disturb_messages(|message| message.to == slot || message.from == slot);
        self.disturb_receives(slot);
    }

    /// Returns true if a Send may fail like that.
    pub(super) fn may_fail(&self, message: &Message, status: Status) -> bool {
        let full = || {
            let node = self.name(message.from).0;
            // They were there at some time while this one ran.
            let there = |it: &&Message| it.received.is_none() || it.gone >= message.issued;
            let open = self.messages.values().filter(there);
            let of_node = open.filter(|other| self.name(other.from).0 == node).count();
            of_node > self.limits.envelopes_per_peer as usize
        };
        // The news of one that had its port before may come when it is under way.
        let ended = self.processes[message.to].ended;
        let news = ended.is_some_and(|at| at + NEWS >= message.issued);
        message.disturbed
            || message.wrong == Some(status)
            || status == Status::PeerGone && news
            || status == Status::Exhausted && full()
    }

    /// Returns true if a receive may end like that without a message.
    pub(super) fn may_end(&self, slot: usize, receive: &Receive, status: Status, now: u64) -> bool {
        if let Some(id) = receive.how.claimed() {
            let lost = status == Status::NoMessage && self.messages[&id].disturbed;
            return lost || receive.wrong == Some(status) || receive.disturbed;
        }
        match status {
            Status::NoMessage => receive.how.probes() && !receive.how.waits(),
            status if receive.wrong == Some(status) => true,
            Status::Cancelled => receive.cancelled && !self.must_have_ended(receive, now),
            Status::Exhausted => self.is_full(slot, receive),
            Status::PeerGone => {
                let source = receive.pattern.source;
                let mut slots = self.processes.iter();
                let source =
                    source.and_then(|source| slots.find(|(slot, _)| self.name(*slot) == source));
                let ended = source.and_then(|(_, process)| process.ended);
                receive.pattern.source.is_some()
                    && (receive.disturbed
                        || self.names_ended(receive)
                        || ended.is_some_and(|at| at + NEWS >= receive.issued))
            }
            _ => receive.disturbed,
        }
    }

    /// The process of the name that a receive has.
    fn source_of(&self, receive: &Receive) -> Option<&super::Process> {
        let source = receive.pattern.source?;
        let mut slots = self.processes.iter();
        let found = slots.find(|(slot, _)| self.name(*slot) == source);
        found.map(|(_, process)| process)
    }

    /// A receive names a process by its incarnation that lives no more.
    fn names_ended(&self, receive: &Receive) -> bool {
        let named = receive.pattern.incarnation;
        let lives = |process: &super::Process| {
            process.watched.is_alive() && process.watched.incarnation == named
        };
        named != 0 && !self.source_of(receive).is_some_and(lives)
    }

    /// A receive names one that had ended long ago. One whose doorbell may be left out has perhaps not been read.
    fn must_have_ended(&self, receive: &Receive, now: u64) -> bool {
        let ended = self.source_of(receive).and_then(|process| process.ended);
        let since = ended.unwrap_or(0).max(receive.issued);
        let is_read = receive.context.is_none() && receive.handle % 2 == 1;
        is_read && self.names_ended(receive) && !receive.disturbed && since + 2 * NEWS < now
    }

    /// Returns true if no further receive may fit when one is posted.
    fn is_full(&self, slot: usize, receive: &Receive) -> bool {
        let process = &self.processes[slot];
        let posted = process.receives.iter();
        let posted = posted.take_while(|other| other.handle != receive.handle);
        let kind = receive.how.probes();
        let posted = posted.filter(|it| it.how.probes() == kind && it.how.claimed().is_none());
        let posted: Vec<_> = posted
            .filter(|other| other.was_posted_with(receive))
            .collect();
        if kind {
            return posted.len() >= self.limits.probes as usize;
        }
        posted.len() >= self.limits.receives as usize
    }
}
