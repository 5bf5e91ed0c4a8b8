//! What has been sent and what has come of one write or read, and the order of the writes of one
//! process to each node.
//!
//! ```text
//!   unsent ── sent ──► in flight (write) or requested (read) ──► delivered
//! ```
//! Every byte of a transfer is in exactly one of these places. A frame that waits at the other end
//! for a page is in flight.
//!
//! A transfer is cut into *fragments* at the page borders of both sides. One frame carries, or asks
//! for, a page span of them; on most routes that is a single one.

use qnic_abi::rdma::Opcode;
use qnic_abi::{Key, NodeId, Status, PAGE_SIZE};

use super::command::Command;
use crate::core::{to_border, Fragment, Operation, PageKey, INLINE_WORDS, OPERATION_SLOTS};

/// Where the notification of a write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Notice {
    /// The write has none, or it is delivered or on its way for good.
    #[default]
    None,
    /// It has to be sent.
    Pending,
}

/// What an operation can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Send a frame.
    Send,
    /// Wait for an answer, a page, room in the window or an earlier write.
    Wait,
    /// End.
    Finish(Status),
}

/// A transfer that runs.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) command: Command,
    /// How the pages of the local memory are found.
    pub(super) page_key: PageKey,
    /// Bytes that were sent, or asked for, at least once.
    pub(super) sent: u64,
    /// Something was never sent.
    pub(super) unsent: bool,
    /// Fragments of a write in flight, by the pages of its destination.
    pub(super) in_flight: u32,
    /// Fragments of a read that were asked for and have not arrived.
    pub(super) requested: Vec<Fragment>,
    /// Most of either.
    limit: u32,
    pub(super) notice: Notice,
    /// It was given up.
    failed: bool,
    /// Number of the first fence that waits until its source is read.
    pub(super) awaited: Option<u64>,
    pub(super) inline: [u64; INLINE_WORDS],
}

impl Transfer {
    pub(super) fn unused() -> Self {
        Transfer {
            command: Command::unused(),
            page_key: PageKey::Table(Key(0)),
            sent: 0,
            unsent: false,
            in_flight: 0,
            requested: Vec::new(),
            limit: 1,
            notice: Notice::None,
            failed: false,
            awaited: None,
            inline: [0; INLINE_WORDS],
        }
    }

    /// Makes this slot a new transfer; keeps its buffers.
    pub(super) fn begin(&mut self, command: Command) {
        self.command = command;
        self.limit = 1;
        self.page_key = PageKey::Table(Key(0));
        self.sent = 0;
        self.unsent = command.has_frame();
        self.failed = false;
        self.in_flight = 0;
        self.requested.clear();
        self.notice = match command.notification {
            Some(_) => Notice::Pending,
            None => Notice::None,
        };
    }

    /// Gives it up: nothing more is sent for it. Returns how many requests are no longer
    /// waited for.
    pub(super) fn fail(&mut self) -> u32 {
        self.unsent = false;
        self.failed = true;
        self.notice = Notice::None;
        let requests = self.requested.len() as u32;
        self.requested.clear();
        requests
    }

    /// Returns how many more fragments may be sent or asked for, where `underway` are and a
    /// frame has at most so many bytes of payload. `fragments` of a page each may be under way,
    /// or as many shorter ones as have their bytes.
    #[inline]
    pub(super) fn room(&mut self, underway: u32, fragments: u32, max_payload: u32) -> u32 {
        self.limit = fragments.max(1);
        if max_payload < PAGE_SIZE as u32 {
            self.limit *= PAGE_SIZE as u32 / max_payload;
        }
        self.limit.saturating_sub(underway)
    }

    /// Notes that fragments of a write were delivered, or were refused. Returns true if that ends it
    /// well.
    #[inline]
    pub(super) fn settled(&mut self, fragments: u32) -> bool {
        self.in_flight = self.in_flight.saturating_sub(fragments);
        let sent = !self.unsent && self.notice == Notice::None;
        self.in_flight == 0 && sent && !self.failed
    }

    /// Returns true if the source of a write is to be read. `kept`: a wire may read it again while a
    /// frame is in flight ([`crate::Sent::Kept`]).
    pub(super) fn needs_source(&self, kept: bool) -> bool {
        let is_write = self.command.opcode == Opcode::Write && self.command.has_local();
        is_write && (self.unsent || kept && self.in_flight > 0)
    }

    /// What it can do next. `first` says that every earlier write of its process to its
    /// node is settled.
    pub(super) fn next(&self, operation: &Operation, first: bool) -> Next {
        match self.command.opcode {
            Opcode::Write => self.next_of_write(operation, first),
            Opcode::Read | Opcode::Fence => self.next_of_read(operation),
        }
    }

    fn next_of_write(&self, operation: &Operation, first: bool) -> Next {
        if let Some(status) = operation.failure {
            return match self.in_flight {
                0 => Next::Finish(status),
                _ => Next::Wait,
            };
        }
        if self.unsent {
            return self.next_fragment(operation, self.in_flight);
        }
        match self.notice {
            Notice::Pending if first && !operation.blocked => Next::Send,
            Notice::None if self.in_flight == 0 => Next::Finish(Status::Ok),
            Notice::Pending | Notice::None => Next::Wait,
        }
    }

    fn next_of_read(&self, operation: &Operation) -> Next {
        if let Some(status) = operation.failure {
            return Next::Finish(status);
        }
        if !self.unsent && self.requested.is_empty() {
            return Next::Finish(Status::Ok);
        }
        let underway = self.requested.len() as u32;
        self.next_fragment(operation, underway)
    }

    fn next_fragment(&self, operation: &Operation, underway: u32) -> Next {
        if self.unsent && operation.may_send() && underway < self.limit {
            Next::Send
        } else {
            Next::Wait
        }
    }

    /// The next fragments to send: on either side they touch at most so many pages, and
    /// they are no longer than a frame on their route may be (`max_payload`, U5).
    pub(super) fn next_span(&self, pages: u32, max_payload: u32) -> Option<Fragment> {
        if !self.unsent {
            return None;
        }
        let command = &self.command;
        let remaining = command.length - self.sent;
        let local = (!command.inline).then_some(command.local.address);
        let ends = (local, command.remote.address);
        let part = (self.sent, remaining);
        Some(Fragment::next(part, ends, pages, max_payload))
    }

    /// Notes that all fragments of a span of a read were asked for. Returns how many.
    pub(super) fn request(&mut self, span: Fragment) -> u32 {
        let before = self.requested.len();
        let end = span.offset + u64::from(span.length);
        let mut offset = span.offset;
        loop {
            let local = to_border(self.command.local.address, offset, 1);
            let remote = to_border(self.command.remote.address, offset, 1);
            let length = (end - offset).min(local).min(remote);
            let length = length as u32;
            self.requested.push(Fragment { offset, length });
            offset += u64::from(length);
            if offset >= end {
                return (self.requested.len() - before) as u32;
            }
        }
    }

    /// Returns true if all of a span was asked for, as whole fragments, and has not come.
    pub(super) fn has_requested(&self, span: Fragment) -> bool {
        let asked = self
            .requested
            .iter()
            .filter(|fragment| span.covers(fragment));
        let (count, bytes) = asked.fold((0, 0), |(count, bytes), fragment| {
            (count + 1, bytes + u64::from(fragment.length))
        });
        count > 0 && bytes == u64::from(span.length)
    }

    /// Notes that a span of a read has come. Returns how many fragments that was.
    pub(super) fn arrived(&mut self, span: Fragment) -> u32 {
        let before = self.requested.len();
        self.requested.retain(|fragment| !span.covers(fragment));
        (before - self.requested.len()) as u32
    }

    /// Notes that the span that [`Transfer::next_span`] returned was sent.
    pub(super) fn advance(&mut self, fragment: Fragment) {
        self.sent = fragment.offset + u64::from(fragment.length);
        self.unsent = self.sent < self.command.length;
    }

    /// Bytes from this offset to the end of the transfer.
    pub(super) fn remaining(&self, offset: u64) -> u64 {
        self.command.length.saturating_sub(offset)
    }

    /// Returns true if a fragment that is about to be sent is the last, so that a
    /// notification can ride on it.
    pub(super) fn is_last(&self, fragment: Fragment) -> bool {
        fragment.offset + u64::from(fragment.length) == self.command.length
    }
}

/// No slot.
const NONE: u16 = u16::MAX;

/// Most streams: as many as there can be writes that are not settled.
const STREAMS: usize = OPERATION_SLOTS;

/// Writes to one node that are not settled: a list of slots, in the order of issue.
#[derive(Debug, Clone, Copy)]
struct Stream {
    first: u16,
    last: u16,
}

/// The place of a write in the list of its stream.
#[derive(Debug, Clone, Copy)]
struct Link {
    stream: u16,
    previous: u16,
    next: u16,
    /// It is settled, or there is no write in the slot.
    settled: bool,
}

const UNLINKED: Link = Link {
    stream: 0,
    previous: NONE,
    next: NONE,
    settled: true,
};

/// Order of the writes of one process, node by node (N18): a write may notify
/// when every earlier one to the same node is settled, which means that all of it,
/// its notification included, was sent.
///
/// There are at most as many streams in use as writes that are not settled; with that many, idle
/// ones are taken again.
///
/// With many nodes a search would touch as many lines of memory as there are streams (P9). So the
/// nodes stand together, and a table says where one of a number like it was found last.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    /// The node of each.
    nodes: Vec<NodeId>,
    /// By slot of the operation.
    links: Vec<Link>,
    /// Index of the stream that was found last, by node modulo the length of this table.
    found: [u16; 64],
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            streams: Vec::new(),
            nodes: Vec::new(),
            links: Vec::new(),
            found: [0; 64],
        }
    }
}

impl Streams {
    /// Adds a write to `node`, run by the operation in `slot`.
    pub(super) fn join(&mut self, node: NodeId, slot: u16) {
        let place = usize::from(node.0) % self.found.len();
        let found = usize::from(self.found[place]);
        let index = match self.nodes.get(found) == Some(&node) {
            true => found,
            false => self.find(node),
        };
        self.found[place] = index as u16;
        if usize::from(slot) >= self.links.len() {
            self.links.resize(usize::from(slot) + 1, UNLINKED);
        }
        let stream = &mut self.streams[index];
        let previous = std::mem::replace(&mut stream.last, slot);
        match previous {
            NONE => stream.first = slot,
            previous => self.links[usize::from(previous)].next = slot,
        }
        self.links[usize::from(slot)] = Link {
            stream: index as u16,
            previous,
            next: NONE,
            settled: false,
        };
    }

    /// The stream of a node, or one that is idle, for that node.
    #[cold]
    fn find(&mut self, node: NodeId) -> usize {
        if let Some(known) = self.nodes.iter().position(|other| *other == node) {
            return known;
        }
        let full = self.streams.len() >= STREAMS;
        let mut idle = self.streams.iter().map(|stream| stream.first == NONE);
        if let Some(idle) = idle.position(|idle| idle).filter(|_| full) {
            self.nodes[idle] = node;
            return idle;
        }
        self.streams.push(Stream {
            first: NONE,
            last: NONE,
        });
        self.nodes.push(node);
        self.streams.len() - 1
    }

    /// Returns true if every earlier write to the same node is settled.
    pub(super) fn is_first(&self, slot: u16) -> bool {
        let link = &self.links[usize::from(slot)];
        self.streams[usize::from(link.stream)].first == slot
    }

    /// Settles the write in a slot (again, without effect). Returns the slot of the write that has
    /// become the first one that is not settled, if it is another one than before.
    pub(super) fn settle(&mut self, slot: u16) -> Option<u16> {
        let link = self.links.get_mut(usize::from(slot))?;
        let Link {
            stream,
            previous,
            next,
            settled,
        } = std::mem::replace(link, UNLINKED);
        if settled {
            return None;
        }
        let stream = &mut self.streams[usize::from(stream)];
        match next {
            NONE => stream.last = previous,
            next => self.links[usize::from(next)].previous = previous,
        }
        if previous != NONE {
            self.links[usize::from(previous)].next = next;
            return None;
        }
        stream.first = next;
        (next != NONE).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_abi::wire::fragments;

    fn transfer(opcode: Opcode, length: u64, local: u64, remote: u64) -> Transfer {
        let mut command = Command::unused();
        command.opcode = opcode;
        command.length = length;
        command.local.address = local;
        command.remote.address = remote;
        let mut transfer = Transfer::unused();
        transfer.begin(command);
        transfer
    }

    proptest! {
        #[test]
        fn spans_cover_the_transfer_and_keep_to_their_pages(
            length in 1u64..90_000, local in 0u64..8192, remote in 0u64..8192, pages in 1u32..9,
            max_payload in prop_oneof![1000u32..4097, Just(32_768)],
        ) {
            let mut op = transfer(Opcode::Write, length, local, remote);
            let mut expected = 0;
            while let Some(span) = op.next_span(pages, max_payload) {
                prop_assert_eq!(span.offset, expected);
                prop_assert!(span.length > 0 && span.length <= max_payload);
                for base in [local, remote] {
                    let count = fragments(base + span.offset, span.length as usize);
                    prop_assert!(count <= u64::from(pages));
                }
                expected += u64::from(span.length);
                prop_assert_eq!(op.is_last(span), expected == length);
                op.advance(span);
            }
            prop_assert_eq!(expected, length);
        }

        /// Whatever spans of whole fragments the answers come in, each fragment counts once.
        #[test]
        fn what_was_asked_for_is_answered_once(
            length in 1u64..60_000, local in 0u64..4096, remote in 0u64..4096,
            cuts in prop::collection::vec(1usize..6, 1..40),
        ) {
            let mut op = transfer(Opcode::Read, length, local, remote);
            let mut asked = 0;
            while let Some(span) = op.next_span(8, 32_768) {
                asked += op.request(span);
                op.advance(span);
            }
            let all = op.requested.clone();
            prop_assert_eq!(all.len(), asked as usize);
            for fragment in &all {
                prop_assert_eq!(fragments(local + fragment.offset, fragment.length as usize), 1);
                prop_assert_eq!(fragments(remote + fragment.offset, fragment.length as usize), 1);
            }
            let mut rest = &all[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                let Some(first) = now.first() else { break };
                let length = now.iter().map(|fragment| fragment.length).sum();
                let span = Fragment { offset: first.offset, length };
                prop_assert!(op.has_requested(span));
                if first.length > 1 {
                    let shifted = Fragment { offset: first.offset + 1, length };
                    prop_assert!(!op.has_requested(shifted), "not whole fragments");
                }
                prop_assert_eq!(op.arrived(span) as usize, now.len());
                prop_assert!(!op.has_requested(span));
                rest = later;
            }
            prop_assert!(op.requested.is_empty());
        }
    }

    #[test]
    fn frames_in_flight_are_limited() {
        let operation = Operation::default();
        let mut op = transfer(Opcode::Write, 3 * 4096, 0, 0);
        assert_eq!(op.room(0, 16, 4096), 16);
        let first = op.next_span(1, 4096).unwrap();
        op.advance(first);
        op.in_flight = 1;
        assert_eq!(op.next_span(1, 4096).unwrap().offset, 4096);
        assert_eq!(op.next(&operation, true), Next::Send);
        op.in_flight = 16;
        assert_eq!(op.next(&operation, true), Next::Wait);
        // As many bytes in shorter fragments; a page span counts by its pages.
        assert_eq!(op.room(16, 16, 1024), 48);
        assert_eq!(op.next(&operation, true), Next::Send);
        assert_eq!(op.room(16, 16, 32_768), 0);
        assert_eq!(op.next(&operation, true), Next::Wait);
    }

    #[test]
    fn a_notification_waits_for_earlier_writes_and_a_failure_for_its_frames() {
        let mut operation = Operation::default();
        let mut op = transfer(Opcode::Write, 0, 0, 0);
        assert_eq!(
            op.next(&operation, true),
            Next::Send,
            "an empty write checks"
        );
        op.command.notification = Some(3);
        let command = op.command;
        op.begin(command);
        assert_eq!(op.next(&operation, false), Next::Wait);
        assert_eq!(op.next(&operation, true), Next::Send);
        op.notice = Notice::None;
        op.in_flight = 1;
        for status in [Status::BadKey, Status::PeerGone] {
            operation.fail(status);
            op.fail();
        }
        assert_eq!(op.next(&operation, true), Next::Wait);
        op.in_flight = 0;
        assert_eq!(op.next(&operation, true), Next::Finish(Status::BadKey));
    }
}

#[cfg(test)]
mod streams_tests {
    use super::*;

    #[test]
    fn streams_of_nodes_are_apart_and_reused() {
        let mut streams = Streams::default();
        streams.join(NodeId(1), 10);
        streams.join(NodeId(2), 11);
        streams.join(NodeId(1), 12);
        streams.join(NodeId(1), 15);
        assert!(streams.is_first(10) && streams.is_first(11) && !streams.is_first(12));
        assert_eq!(streams.settle(11), None);
        assert_eq!(streams.settle(12), None, "in the middle");
        assert_eq!(streams.settle(10), Some(15));
        assert!(streams.is_first(15));
        assert_eq!(streams.settle(10), None, "settling twice changes nothing");
        // As many nodes as there are writes, then one more after another: idle streams are taken.
        for node in 3..2000 {
            streams.join(NodeId(node), 13);
            assert!(streams.is_first(13));
            streams.join(NodeId(node), 14);
            assert!(!streams.is_first(14));
            assert_eq!(streams.settle(13), Some(14));
            assert_eq!(streams.settle(14), None);
        }
        assert_eq!(streams.streams.len(), STREAMS);
        assert!(streams.is_first(15), "one in use was not taken");
        streams.join(NodeId(1), 16);
        assert!(!streams.is_first(16));
    }

    /// One that waits does not bound how many go past it.
    #[test]
    fn any_number_of_writes_passes_one_that_waits() {
        let mut streams = Streams::default();
        streams.join(NodeId(1), 0);
        for _ in 0..3 * OPERATION_SLOTS {
            streams.join(NodeId(1), 1);
            assert!(!streams.is_first(1));
            assert_eq!(streams.settle(1), None);
        }
        assert!(streams.is_first(0));
    }
}
