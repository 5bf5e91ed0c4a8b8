//! What a queue pair sends: its send queue, and the messages that are not complete.
//!
//! ```text
//!   ring:   own index            cursor                 producer
//!           │ complete? no       │ sent next            │
//!           ▼                    ▼                      ▼
//!         [ m0 ][ m1 ][ m2 ] … [ m7 ][ not read yet ] …
//!         └ pending: sent once, or begun ┘
//!   number: psn  psn + 1 …
//! ```
//! A message that is sent again is read from the ring again, and has to be of the same kind and length.

use std::collections::VecDeque;

use qnic_abi::verbs::rings::SendFlags;
use qnic_abi::verbs::{Outcome, Request, NUMBERS};
use qnic_abi::NodeId;

use super::entry::{is_asking, Bounds, Bytes, Extents, WorkRequest};
use super::ring::RingMemory;
use crate::env::{HostMemory, Time};

/// Messages that are not complete, at most.
pub(super) const MESSAGES: usize = 64;

/// A message that is not complete.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u64,
    pub(super) request: Request,
    pub(super) length: u64,
    /// It has a completion also if it succeeds.
    pub(super) signaled: bool,
    done: bool,
    /// Where the answer of a read or an atomic operation goes.
    pub(super) into: Extents,
    /// Bytes of the answer that have come.
    answered: u64,
    /// It was asked for.
    asked: bool,
    /// Of a read, the number of the frame that has asked.
    sequence: u64,
}

impl Message {
    /// Returns true if it waits for an answer.
    fn is_asked(&self) -> bool {
        self.asked && !self.done
    }
}

/// Why nothing is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Halt {
    /// The peer asked to wait, or did not answer: until then.
    Until(Time),
    /// The peer at that node waits for a page, and will tell.
    Page(NodeId),
    /// The node that the message goes to is no peer yet.
    Seek,
}

/// A work request that is being sent.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) work: WorkRequest,
    /// Bytes of it that were sent.
    pub(super) offset: u64,
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(super) struct Requester {
    ring: RingMemory,
    bounds: Bounds,
    /// Number of the oldest message that is not complete.
    psn: u32,
    pending: VecDeque<Message>,
    /// Which of them is sent next; their number: the next entry of the ring.
    cursor: usize,
    /// Where it begins when it is read again.
    resume: u64,
    pub(super) current: Option<Box<Current>>,
    pub(super) halt: Option<Halt>,
    /// No further message is begun.
    pub(super) drains: bool,
    /// The message at the cursor cannot be sent: it fails when all before it are complete.
    wrong: Option<Outcome>,
    /// How often in a row the peer had no receive.
    pub(super) not_ready: u8,
    /// How often in a row it had no queue pair.
    pub(super) retries: u8,
    /// The peer has said something since this was looked at.
    pub(super) spoke: bool,
    /// How often in a row it was asked and has said nothing.
    pub(super) probes: u8,
}

impl Requester {
    pub(super) fn new(ring: RingMemory, bounds: Bounds) -> Self {
        Requester {
            ring,
            bounds,
            psn: 0,
            pending: VecDeque::new(),
            cursor: 0,
            resume: 0,
            current: None,
            halt: None,
            drains: false,
            wrong: None,
            not_ready: 0,
            retries: 0,
            spoke: false,
            probes: 0,
        }
    }

    /// Forgets all messages; the next one has that number.
    pub(super) fn restart(&mut self, psn: u32) {
        self.psn = psn;
        self.pending.clear();
        self.cursor = 0;
        self.resume = 0;
        self.current = None;
        self.halt = None;
        self.drains = false;
        self.wrong = None;
        self.not_ready = 0;
        self.retries = 0;
        self.spoke = false;
        self.probes = 0;
    }

    /// Number of the oldest message that is not complete.
    pub(super) fn first_psn(&self) -> u32 {
        self.psn
    }

    /// Returns true if the peer owes an answer.
    pub(super) fn is_under_way(&self) -> bool {
        let begun = self.current.as_ref().is_some_and(|it| it.offset > 0);
        self.cursor > 0 || begun || matches!(self.halt, Some(Halt::Page(_)))
    }

    /// Messages that are not complete.
    pub(super) fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Work requests that its ring has room for.
    pub(super) fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// Number of the message at the cursor.
    pub(super) fn cursor_psn(&self) -> u32 {
        (self.psn + self.cursor as u32) % NUMBERS
    }

    /// Number of the next message that was never sent.
    pub(super) fn next_psn(&self) -> u32 {
        (self.psn + self.pending.len() as u32) % NUMBERS
    }

    /// Returns true if there is a message to send, or to go on with.
    pub(super) fn has_work<M: HostMemory>(&self, memory: &M) -> bool {
        let waits = self.halt.is_some() || self.wrong.is_some();
        !waits
            && (self.current.is_some() || self.cursor < self.pending.len() || self.has_new(memory))
    }

    /// Returns true if the ring has an entry that was not read, and it may be begun.
    fn has_new<M: HostMemory>(&self, memory: &M) -> bool {
        let begun = self.pending.len();
        !self.drains
            && begun < MESSAGES
            && self.ring.filled(memory, self.ring.own()) as usize > begun
    }

    /// Returns true if all that was begun is complete.
    pub(super) fn is_drained(&self) -> bool {
        self.pending.is_empty() && self.wrong.is_none()
    }

    /// Returns true if all that was posted is complete.
    pub(super) fn is_idle<M: HostMemory>(&self, memory: &M) -> bool {
        let posted = self.ring.filled(memory, self.ring.own());
        self.is_drained() && posted == 0
    }

    /// Reads the entry at the cursor, unless that has been done. Returns false if it cannot be sent.
    pub(super) fn load<M: HostMemory>(&mut self, memory: &M, signal_all: bool) -> bool {
        if self.current.is_some() {
            return true;
        }
        let index = self.ring.behind(self.ring.own(), self.cursor as u32);
        let work = match WorkRequest::read(&self.ring, memory, index, &self.bounds) {
            Ok(work) => work,
            Err(wrong) => {
                self.wrong = Some(wrong);
                return false;
            }
        };
        let (request, length) = (work.request, work.length);
        let offset = std::mem::take(&mut self.resume);
        match self.pending.get(self.cursor) {
            None => self.pending.push_back(Message {
                id: work.id,
                request,
                length,
                signaled: signal_all || work.flags.contains(SendFlags::SIGNALED),
                done: false,
                into: match &work.bytes {
                    Bytes::Extents(extents) if work.is_asking() => extents.clone(),
                    _ => Extents::default(),
                },
                answered: 0,
                asked: false,
                sequence: 0,
            }),
            Some(begun) if begun.request == request && begun.length == length => {}
            Some(_) => {
                self.wrong = Some(Outcome::LocalOperation);
                return false;
            }
        }
        if offset > length {
            self.wrong = Some(Outcome::RemoteOperation);
            return false;
        }
        self.current = Some(Box::new(Current { work, offset }));
        true
    }

    /// So many further bytes of the current message were sent; the last of them, if it has ended.
    pub(super) fn sent(&mut self, bytes: u64) {
        if let Some(current) = &mut self.current {
            current.offset += bytes;
            if current.offset >= current.work.length {
                self.current = None;
                self.cursor += 1;
            }
        }
    }

    /// The message at the cursor is not sent, or not completely. Returns false if there is none.
    pub(super) fn skip(&mut self) -> bool {
        let begun = self.cursor < self.pending.len();
        self.current = None;
        self.cursor += usize::from(begun);
        begun
    }

    /// All that was sent is done.
    pub(super) fn end_sent(&mut self) {
        for message in self.pending.iter_mut().take(self.cursor) {
            message.done = true;
        }
    }

    /// The message at the cursor cannot be sent.
    pub(super) fn set_wrong(&mut self, outcome: Outcome) {
        self.current = None;
        self.wrong = Some(outcome);
    }

    /// What fails now, as all before it are complete.
    pub(super) fn due_failure(&self) -> Option<Outcome> {
        self.wrong.filter(|_| self.cursor == 0)
    }

    /// Place among the pending messages of that number.
    pub(super) fn place(&self, psn: u32) -> Option<usize> {
        let place = (psn.wrapping_sub(self.psn) % NUMBERS) as usize;
        (place < self.pending.len()).then_some(place)
    }

    /// All Sends and writes up to that place are done at the peer.
    pub(super) fn done(&mut self, place: usize) {
        let all = self.pending.iter_mut().take(place + 1);
        for message in all.filter(|message| !is_asking(message.request)) {
            message.done = true;
        }
        self.not_ready = 0;
        self.retries = 0;
    }

    /// Reads and atomic operations that were asked for and are not answered.
    pub(super) fn asked(&self) -> u32 {
        let asked = self.pending.iter().filter(|message| message.is_asked());
        asked.count() as u32
    }

    /// The frame that has asked for the read before the cursor has that number.
    pub(super) fn set_sequence(&mut self, sequence: u64) {
        let before = self.cursor.checked_sub(1);
        if let Some(message) = before.and_then(|place| self.pending.get_mut(place)) {
            message.sequence = sequence;
        }
    }

    /// Place of the read that a frame of that number has asked for.
    pub(super) fn asked_by(&self, sequence: u64) -> Option<usize> {
        let mut asked = self.pending.iter();
        asked.position(|message| message.is_asked() && message.sequence == sequence)
    }

    /// The current message is being asked for. Nothing more of it is sent.
    pub(super) fn ask(&mut self) {
        if let Some(message) = self.pending.get_mut(self.cursor) {
            message.asked = true;
            message.answered = 0;
        }
        self.current = None;
        self.cursor += 1;
    }

    /// The read or atomic operation at that place, if it waits for an answer.
    pub(super) fn asking(&self, place: usize) -> Option<&Message> {
        self.pending.get(place).filter(|message| message.is_asked())
    }

    /// So many bytes of its answer have come. Returns true if these were all.
    pub(super) fn answer(&mut self, place: usize, bytes: u64) -> bool {
        let Some(message) = self.pending.get_mut(place) else {
            return false;
        };
        message.answered += bytes;
        message.done |= message.answered >= message.length;
        if message.done {
            self.not_ready = 0;
            self.retries = 0;
        }
        message.done
    }

    /// Takes the oldest message out, if it is complete.
    pub(super) fn pop_done<M: HostMemory>(&mut self, memory: &M) -> Option<Message> {
        if !self.pending.front()?.done {
            return None;
        }
        let message = self.pending.pop_front()?;
        match self.cursor.checked_sub(1) {
            Some(before) => self.cursor = before,
            // The peer says that it has what was not sent to it completely.
            None => {
                self.current = None;
                self.resume = 0;
            }
        }
        self.psn = (self.psn + 1) % NUMBERS;
        self.ring
            .publish(memory, self.ring.behind(self.ring.own(), 1));
        Some(message)
    }

    /// Goes back to a position: the message at that place is sent next, from an offset on.
    pub(super) fn go_back(&mut self, place: usize, offset: u64) {
        self.wrong = None;
        self.current = None;
        self.cursor = place;
        self.resume = offset;
        for message in self.pending.iter_mut().skip(place) {
            message.asked = false;
        }
    }

    /// Takes the oldest work request out: its identifier. `None`: there is none.
    pub(super) fn pop_failed<M: HostMemory>(&mut self, memory: &M) -> Option<u64> {
        let own = self.ring.own();
        let id = match self.pending.pop_front() {
            Some(message) => message.id,
            None if self.ring.filled(memory, own) == 0 => return None,
            None => self.ring.identifier(memory, own),
        };
        self.ring.publish(memory, self.ring.behind(own, 1));
        Some(id)
    }

    /// Forgets what was posted, without completions.
    pub(super) fn discard<M: HostMemory>(&mut self, memory: &M) {
        let producer = self.ring.other(memory);
        self.ring.publish(memory, producer);
        self.restart(0);
    }
}
