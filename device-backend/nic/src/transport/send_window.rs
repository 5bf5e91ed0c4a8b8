//! The sending half of a session: numbers, and the window of frames that the
//! peer has not delivered.
//!
//! ```text
//!   sequence    1 2 3 4 5 6 7 8 9
//!               ─────┤                delivered by the peer
//!               ─────────┤            received by the peer
//!                     w r   w n w     next = 10; in flight: 4 (write), 5 (read
//!                                     reply), 7, 9; 8 (Nak) has no payload and
//!                                     does not count in the window
//! ```
//! Only a fragment of a write or of a read response counts in the window, as only these may have to
//! wait for memory at the peer (N15). All other frames are delivered when they arrive, so refusals
//! and answers pass data that waits.

use std::collections::VecDeque;

use super::REACH;
use crate::ids::OperationId;

/// A fragment that its destination has not delivered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlight {
    pub(crate) sequence: u64,
    /// Zero for a read response.
    pub(crate) operation: OperationId,
    /// It was refused: its acknowledgement delivers nothing.
    pub(crate) refused: bool,
}

/// What was sent to a peer.
#[derive(Debug)]
pub(crate) struct SendWindow {
    /// Number of the next frame.
    next: u64,
    /// The peer has received everything up to this number.
    received: u64,
    /// The peer has delivered everything up to this number.
    delivered: u64,
    /// Fragments in the window, oldest first.
    in_flight: VecDeque<InFlight>,
    /// Size of the window; zero until the peer has granted some.
    window: u32,
}

impl SendWindow {
    /// A window that is closed.
    pub(crate) fn new() -> Self {
        SendWindow {
            next: 1,
            received: 0,
            delivered: 0,
            in_flight: VecDeque::new(),
            window: 0,
        }
    }

    /// Returns true if nothing is in the window.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Opens the window.
    pub(crate) fn grant(&mut self, window: u32) {
        self.window = window;
    }

    /// Size of the window; zero until the peer has granted some.
    pub(crate) fn granted(&self) -> u32 {
        self.window
    }

    /// Closes the window: nothing numbered is sent until it is opened again.
    pub(crate) fn close(&mut self) {
        self.window = 0;
    }

    /// Fragments in the window.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns true if everything that was sent has arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        self.received + 1 == self.next
    }

    /// Returns true if the peer has received everything up to this number.
    pub(crate) fn is_received(&self, sequence: u64) -> bool {
        sequence <= self.received
    }

    /// Returns true if the peer has granted a window: it knows this session.
    pub(crate) fn is_granted(&self) -> bool {
        self.window != 0
    }

    /// How many fragments with a payload may be sent.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        let free = u64::from(self.window).saturating_sub(self.in_flight.len() as u64);
        free.min((self.received + REACH + 1).saturating_sub(self.next)) as u32
    }

    /// Returns true if at least half of the window is free: operations that wait for it go
    /// on only then, so that each is woken once and not for every frame.
    pub(crate) fn is_half_open(&self) -> bool {
        self.in_flight.len() <= self.window as usize / 2 && self.room() > 0
    }

    /// Returns true if a frame without a payload may be sent: the peer can tell its
    /// number from an old one.
    #[inline]
    pub(crate) fn has_number(&self) -> bool {
        self.next - self.received <= REACH
    }

    /// Number of the next frame.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Uses the next `count` numbers.
    pub(crate) fn advance(&mut self, count: u64) {
        self.next += count;
    }

    /// Takes the last numbers back: there was no route for their frame.
    pub(crate) fn withdraw(&mut self, count: u64) {
        self.next -= count;
    }

    /// Notes that the last `count` numbers are in the window.
    pub(crate) fn sent(&mut self, operation: OperationId, count: u32) {
        let numbers = self.next - u64::from(count)..self.next;
        for sequence in numbers {
            self.in_flight.push_back(InFlight {
                sequence,
                operation,
                refused: false,
            });
        }
    }

    /// Takes what the peer acknowledges. Returns false if that cannot be true.
    #[inline]
    pub(crate) fn acknowledge(&mut self, received: u64, delivered: u64) -> bool {
        if delivered > received || received >= self.next {
            return false;
        }
        self.received = self.received.max(received);
        self.delivered = self.delivered.max(delivered);
        true
    }

    /// The fragment of that number, while it is in the window.
    pub(crate) fn find(&mut self, sequence: u64) -> Option<&mut InFlight> {
        let index = self
            .in_flight
            .binary_search_by_key(&sequence, |frame| frame.sequence)
            .ok()?;
        self.in_flight.get_mut(index)
    }

    /// Returns true if the oldest fragment in the window is delivered.
    #[inline]
    pub(crate) fn has_delivered(&self) -> bool {
        let oldest = self.in_flight.front();
        oldest.is_some_and(|frame| frame.sequence <= self.delivered)
    }

    /// Takes the oldest fragment out of the window if it is delivered.
    #[inline]
    fn pop_delivered(&mut self) -> Option<InFlight> {
        match self.has_delivered() {
            true => self.in_flight.pop_front(),
            false => None,
        }
    }

    /// Takes the oldest fragments out of the window that are delivered, as far as they
    /// are of one operation. Returns it and how many of them were not refused.
    #[inline]
    pub(crate) fn pop_settled(&mut self) -> Option<(OperationId, u32)> {
        let first = self.pop_delivered()?;
        let mut count = u32::from(!first.refused);
        while let Some(next) = self.in_flight.front() {
            if next.sequence > self.delivered || next.operation != first.operation {
                break;
            }
            count += u32::from(!next.refused);
            self.in_flight.pop_front();
        }
        Some((first.operation, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(size: u32) -> SendWindow {
        let mut window = SendWindow::new();
        window.grant(size);
        window
    }

    fn send(window: &mut SendWindow, id: u64) {
        window.advance(1);
        window.sent(OperationId(id), 1);
    }

    #[test]
    fn each_fragment_takes_a_number() {
        let mut window = window(10);
        window.advance(8);
        window.sent(OperationId(1), 8);
        assert_eq!((window.room(), window.next()), (2, 9));
        window.find(3).unwrap().refused = true;
        assert!(window.acknowledge(8, 5));
        let refused: Vec<_> = std::iter::from_fn(|| window.pop_delivered())
            .map(|fragment| (fragment.sequence, fragment.refused))
            .collect();
        assert_eq!(
            refused,
            [(1, false), (2, false), (3, true), (4, false), (5, false)]
        );
        assert_eq!(window.room(), 7);
        assert!(window.find(5).is_none() && window.find(6).is_some());
    }

    #[test]
    fn the_window_is_exactly_as_large_as_granted() {
        let mut window = window(3);
        for id in 1..=3 {
            assert!(window.room() > 0);
            send(&mut window, id);
        }
        assert_eq!(window.room(), 0);
        assert!(window.has_number(), "answers pass");
        assert!(window.acknowledge(3, 1));
        assert_eq!(window.pop_delivered().unwrap().operation, OperationId(1));
        assert!(window.pop_delivered().is_none());
        assert!(window.room() == 1 && !window.is_half_open());
        assert!(window.acknowledge(3, 2));
        assert!(window.pop_delivered().is_some());
        assert!(window.is_half_open());
    }

    #[test]
    fn numbers_stay_within_reach_of_the_peer() {
        let mut window = window(u32::MAX);
        for sent in 0..REACH {
            assert!(window.has_number());
            assert_eq!(u64::from(window.room()), REACH - sent);
            window.advance(1);
        }
        assert!(!window.has_number() && window.room() == 0);
        assert!(window.acknowledge(1, 0));
        assert!(window.has_number());
    }

    #[test]
    fn acknowledgements_that_cannot_be_true_are_refused() {
        let mut window = window(8);
        for id in 1..=4 {
            send(&mut window, id);
        }
        assert!(!window.acknowledge(5, 0), "was never sent");
        assert!(!window.acknowledge(2, 3), "delivered before it arrived");
        assert!(window.acknowledge(4, 3));
        assert!(window.acknowledge(1, 1), "an old one that was overtaken");
        let delivered = std::iter::from_fn(|| window.pop_delivered()).count();
        assert_eq!(delivered, 3);
    }

    #[test]
    fn frames_are_found_by_number_and_leave_in_order() {
        let mut window = window(8);
        for id in 1..=4 {
            send(&mut window, id / 2);
            window.advance(1);
        }
        assert!(window.find(2).is_none());
        window.find(3).unwrap().refused = true;
        assert!(window.acknowledge(6, 5));
        assert_eq!(window.pop_settled(), Some((OperationId(0), 1)));
        assert_eq!(
            window.pop_settled(),
            Some((OperationId(1), 1)),
            "3 was refused"
        );
        assert_eq!(window.pop_settled(), None);
    }
}
