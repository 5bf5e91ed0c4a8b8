//! The receiving half of a connection: order, acknowledgements, the window.
//!
//! ```text
//!              next                                   edge
//!   read │ ready │ ? │ early │ ? │ early │ ?  ?  ?  ?  │
//!        └───────┴────────────────────────────────────┘
//!          held: frames of the budget, arrived or promised
//! ```
//! A frame that was promised (with a number below the edge) is always taken, so the edge never goes back
//! and no frame that the window allows is dropped. The edge moves on as frames are read.

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::stream::{StreamHeader, HEADER_BYTES, SELECTIVE_BITS};

use crate::stream_protocol::budget::Budget;
use crate::stream_protocol::buffer::ReceivedFrame;

/// An acknowledgement is held back for this many frames at most.
const FRAMES_PER_ACK: u32 = 4;

/// A frame with unread bytes.
#[derive(Debug)]
struct Unread<R> {
    frame: R,
    /// The first unread byte.
    offset: usize,
}

/// The outcome of a Data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is taken.
    New,
    /// It has come before.
    Repeated,
    /// The window does not allow it.
    Outside,
    /// It contradicts an earlier frame about the end.
    Malformed,
}

#[derive(Debug)]
pub(crate) struct Receiver<R> {
    /// All frames before this number have come.
    next: u64,
    ready: VecDeque<Unread<R>>,
    /// Frames behind a gap; `None` for a frame without bytes.
    early: BTreeMap<u64, Option<Unread<R>>>,
    edge: u64,
    /// The edge that the peer knows if the last header has arrived.
    told_edge: u64,
    held: usize,
    /// Number behind the last frame.
    end: Option<u64>,
    repeated: u32,
    /// Frames that came and are not acknowledged.
    unacked: u32,
    ack_immediately: bool,
}

impl<R: ReceivedFrame> Receiver<R> {
    pub(crate) fn new() -> Self {
        Receiver {
            next: 0,
            ready: VecDeque::new(),
            early: BTreeMap::new(),
            edge: 0,
            told_edge: 0,
            held: 0,
            end: None,
            repeated: 0,
            unacked: 0,
            ack_immediately: false,
        }
    }

    /// Takes a Data frame. A frame that is not new is dropped.
    pub(crate) fn receive(&mut self, number: u64, is_last: bool, frame: R) -> Arrival {
        if number < self.next || self.early.contains_key(&number) {
            self.repeated = self.repeated.wrapping_add(1);
            self.ack_immediately = true;
            return Arrival::Repeated;
        }
        if number >= self.edge {
            return Arrival::Outside;
        }
        if !self.agrees(number, is_last) {
            return Arrival::Malformed;
        }
        if is_last {
            self.end = Some(number + 1);
        }
        let in_gap = !self.early.is_empty();
        let unread = (frame.length() > HEADER_BYTES).then_some(Unread {
            frame,
            offset: HEADER_BYTES,
        });
        self.early.insert(number, unread);
        while let Some(unread) = self.early.remove(&self.next) {
            self.next += 1;
            self.ready.extend(unread);
        }
        self.unacked += 1;
        let enough = FRAMES_PER_ACK.min(self.held as u32 / 2).max(1);
        let gap = in_gap || !self.early.is_empty();
        self.ack_immediately |= gap || self.unacked >= enough || self.is_finished();
        Arrival::New
    }

    /// Returns true if a frame does not contradict what is known of the end.
    fn agrees(&self, number: u64, is_last: bool) -> bool {
        let within = self.end.is_none_or(|end| match is_last {
            true => number + 1 == end,
            false => number + 1 < end,
        });
        let beyond = self.early.last_key_value().map(|(last, _)| *last);
        within && !(is_last && beyond > Some(number))
    }

    /// Copies out bytes that have come in order; returns their number.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(unread) = self.ready.front_mut() {
            let left = unread.frame.length() - unread.offset;
            let count = left.min(bytes.len() - done);
            let target = &mut bytes[done..done + count];
            unread.frame.copy_out(unread.offset, target);
            unread.offset += count;
            done += count;
            if count < left {
                break;
            }
            self.ready.pop_front();
        }
        done
    }

    /// Frames that have come and are not read, or may come.
    fn committed(&self) -> usize {
        (self.edge - self.next) as usize + self.ready.len()
    }

    /// Gives the budget back the read frames, and moves the edge on up to a share of so many frames.
    pub(crate) fn grant(&mut self, budget: &mut Budget, share: usize) {
        let committed = self.committed();
        let wants = match self.end {
            Some(_) => committed,
            None => committed.max(share),
        };
        self.held = budget.change(self.held, wants);
        self.edge += (self.held - committed) as u64;
        let more = self.edge - self.told_edge;
        let was_closed = self.told_edge == self.next;
        if more > 0 && (was_closed || more >= (self.held as u64 / 2).max(1)) {
            self.ack_immediately = true;
        }
    }

    /// Drops all frames that are not in order, and promises no more.
    pub(crate) fn stop(&mut self, budget: &mut Budget) {
        self.early.clear();
        self.edge = self.next;
        self.held = budget.change(self.held, self.ready.len());
        self.unacked = 0;
        self.ack_immediately = false;
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget) {
        self.ready.clear();
        self.stop(budget);
    }

    /// Fills in this half's fields of a header, which the peer then knows.
    pub(crate) fn tell(&mut self, header: &mut StreamHeader) {
        header.window = ((self.edge - self.next) as u32).into();
        header.acknowledged = self.next.into();
        for number in self.early.keys() {
            let bit = (number - self.next - 1) as usize;
            if bit < SELECTIVE_BITS {
                let word = &mut header.selective[bit / 64];
                *word = (word.get() | 1 << (bit % 64)).into();
            }
        }
        header.repeated = self.repeated.into();
        self.told_edge = self.edge;
        self.unacked = 0;
        self.ack_immediately = false;
    }

    /// Returns true if an acknowledgement is to be sent without waiting for a frame that carries it.
    pub(crate) fn must_ack(&self) -> bool {
        self.ack_immediately
    }

    /// Returns true if an acknowledgement is to be sent some time.
    pub(crate) fn owes_ack(&self) -> bool {
        self.unacked > 0
    }

    /// The time to wait for a frame that carries the acknowledgement is over, or the peer asks for it.
    pub(crate) fn ack_immediately(&mut self) {
        self.ack_immediately = true;
    }

    /// Says whether there is something to read.
    pub(crate) fn is_readable(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Says whether the whole stream has come.
    pub(crate) fn is_finished(&self) -> bool {
        self.end == Some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn frame(byte: u8) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES];
        frame.push(byte);
        frame
    }

    fn receiver(budget: &mut Budget) -> Receiver<Vec<u8>> {
        let mut receiver = Receiver::new();
        receiver.grant(budget, 4);
        let _ = told(&mut receiver);
        receiver
    }

    fn told(receiver: &mut Receiver<Vec<u8>>) -> (u64, u64, u32) {
        let mut header = StreamHeader::default();
        receiver.tell(&mut header);
        (
            header.acknowledged.get(),
            header.selective[0].get(),
            header.window.get(),
        )
    }

    #[test]
    fn frames_are_read_in_order_and_once() {
        let mut budget = Budget::new(4, 1);
        let mut receiver = receiver(&mut budget);
        assert_eq!(receiver.receive(2, false, frame(2)), Arrival::New);
        assert_eq!(receiver.receive(1, false, frame(1)), Arrival::New);
        assert_eq!(receiver.receive(1, false, frame(9)), Arrival::Repeated);
        assert!(!receiver.is_readable());
        assert_eq!(told(&mut receiver), (0, 0b11, 4));
        assert_eq!(receiver.receive(0, false, frame(0)), Arrival::New);
        assert_eq!(receiver.receive(0, false, frame(9)), Arrival::Repeated);
        assert_eq!(told(&mut receiver), (3, 0, 1));
        let mut bytes = [9; 8];
        assert_eq!(receiver.read(&mut bytes), 3);
        assert_eq!(bytes[..3], [0, 1, 2]);
    }

    #[test]
    fn what_is_not_read_closes_the_window_and_reading_opens_it() {
        let mut budget = Budget::new(4, 1);
        let mut receiver = receiver(&mut budget);
        for number in 0..4 {
            assert_eq!(receiver.receive(number, false, frame(0)), Arrival::New);
        }
        receiver.grant(&mut budget, 4);
        assert_eq!(told(&mut receiver), (4, 0, 0));
        assert_eq!(receiver.receive(4, false, frame(0)), Arrival::Outside);
        assert_eq!(receiver.read(&mut [0]), 1);
        receiver.grant(&mut budget, 4);
        assert!(receiver.must_ack(), "the peer waits for it");
        assert_eq!(told(&mut receiver), (4, 0, 1));
        receiver.clear(&mut budget);
        assert!(budget.is_whole());
    }

    #[test]
    fn frames_that_disagree_about_the_end_are_refused() {
        let mut budget = Budget::new(9, 1);
        let mut receiver = receiver(&mut budget);
        assert_eq!(receiver.receive(1, false, frame(1)), Arrival::New);
        assert_eq!(receiver.receive(0, true, frame(0)), Arrival::Malformed);
        assert_eq!(receiver.receive(2, true, frame(2)), Arrival::New);
        assert_eq!(receiver.receive(3, false, frame(3)), Arrival::Malformed);
        assert!(!receiver.is_finished());
        assert_eq!(receiver.receive(0, true, frame(0)), Arrival::Malformed);
        assert_eq!(receiver.receive(0, false, frame(0)), Arrival::New);
        assert!(receiver.is_finished() && receiver.must_ack());
    }
}
